"""One release of the chart: installed, upgraded, rolled back, tested, removed, and its addresses for
clients.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from brokerlab.clients import admin_client
from clusterlab.topic_view import TopicView, view_of_any
from e2e.kubectl import Kubectl, KubectlError, await_none

ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = "charts/tidelog"
VALUES: Final = "deploy/helm/lab.yaml"
SLACK_S: Final = 30.0
"""The annotation that lets helm take over objects that it was told to wait for."""


OFFICE_METRIC: Final = "kafka_controller_kafkacontroller_activecontrollercount"
ADMIN_TIMEOUT_S: Final = 30.0


class HelmError(RuntimeError):
    """helm failed or timed out. The message contains its error."""


class Release:
    """`values` override deploy/helm/lab.yaml. The chart and the values are those under `root`."""

    def __init__(
        self, kubectl: Kubectl, name: str, values: Mapping[str, str], tag: str, root: Path = ROOT
    ) -> None:
        self.kubectl = kubectl
        self.name = name
        self.tag = tag
        self.root = root
        self._values = dict(values)
        self._bootstrap = ""

    @property
    def image(self) -> str:
        return f"localhost/tidelog:{self.tag}"

    # -- helm

    def install(self, timeout_s: float) -> float:
        """Installs the release and returns the seconds until everything was ready."""
        began_s = time.monotonic()
        self._helm("install", *self._arguments(), timeout_s=timeout_s)
        self.kubectl.await_ready(self.name, timeout_s)
        return time.monotonic() - began_s

    def upgrade(self, tag: str, root: Path, timeout_s: float) -> float:
        """Upgrades to this image, with the chart under `root`."""
        began_s = time.monotonic()
        self.tag, self.root = tag, root
        self._helm("upgrade", *self._arguments(), timeout_s=timeout_s)
        return time.monotonic() - began_s

    def change(self, values: Mapping[str, str], timeout_s: float) -> float:
        """Changes the values. If helm accepts them, later calls use them, too."""
        began_s = time.monotonic()
        before = dict(self._values)
        self._values.update(values)
        try:
            self._helm("upgrade", *self._arguments(), timeout_s=timeout_s)
        except HelmError:
            self._values = before
            raise
        self._bootstrap = ""
        return time.monotonic() - began_s

    def rollback(self, tag: str, root: Path, timeout_s: float) -> float:
        """Rolls back to the previous revision, which had this image and chart."""
        began_s = time.monotonic()
        self.tag, self.root = tag, root
        self._helm("rollback", self.name, "--wait", timeout_s=timeout_s)
        return time.monotonic() - began_s

    def test(self, timeout_s: float) -> str:
        """Runs `helm test` and returns the output of helm and the pods."""
        return self._helm("test", self.name, "--logs", timeout_s=timeout_s)

    def uninstall(self, timeout_s: float) -> None:
        self._helm("uninstall", self.name, "--ignore-not-found", "--wait", timeout_s=timeout_s)

    def _arguments(self) -> Sequence[str]:
        settings = [f"--set={name}={value}" for name, value in self._values.items()]
        settings += [f"--set=image.tag={self.tag}"]
        return (self.name, str(self.root / CHART), "--values", str(self.root / VALUES), *settings, "--wait")

    def _helm(self, command: str, *arguments: str, timeout_s: float) -> str:
        # helm uses KUBECONFIG like kubectl
        limits = [f"--timeout={timeout_s:.0f}s", "--namespace", self.kubectl.namespace]
        done = subprocess.run(
            ["helm", command, *arguments, *limits],
            env=self.kubectl.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s + SLACK_S,
            check=False,
        )
        if done.returncode:
            raise HelmError(f"helm {command}: {done.stderr.strip()}\n{done.stdout.strip()}")
        return done.stdout

    # -- addresses

    @property
    def bootstrap(self) -> str:
        """Returns the brokers' addresses for clients outside: their node ports."""
        if not self._bootstrap:
            self._bootstrap = ",".join(self.external_addresses().values())
        return self._bootstrap

    def external_addresses(self) -> dict[int, str]:
        """Returns broker id -> node:port."""
        node = self._node_address()
        labels = f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component=broker"
        found: dict[int, str] = {}
        for service in self.kubectl.get("services", "-l", labels):
            broker = service["metadata"]["labels"].get("tidelog.io/broker-id")
            ports = [port["nodePort"] for port in service["spec"]["ports"] if "nodePort" in port]
            if broker is not None and ports:
                found[int(broker)] = f"{node}:{ports[0]}"
        if not found:
            raise KubectlError(f"release {self.name} has no node ports for its brokers")
        return dict(sorted(found.items()))

    @property
    def inside_bootstrap(self) -> str:
        """Returns the address for clients inside the cluster, in any namespace."""
        (service,) = (
            found["metadata"]["name"]
            for found in self.kubectl.get("services", "-l", f"app.kubernetes.io/instance={self.name}")
            if found["metadata"]["name"].endswith("-bootstrap")
        )
        return f"{service}.{self.kubectl.namespace}:9092"

    def _node_address(self) -> str:
        (first, *_) = self.kubectl.get("nodes")
        return next(a["address"] for a in first["status"]["addresses"] if a["type"] == "InternalIP")

    # -- state

    def pod_of(self, broker: int) -> str:
        (found,) = (
            pod["metadata"]["name"]
            for pod in self.kubectl.get(
                "pods", "-l", f"app.kubernetes.io/instance={self.name},tidelog.io/broker-id={broker}"
            )
            if "deletionTimestamp" not in pod["metadata"]
        )
        return str(found)

    def controller_pod(self) -> str:
        """Returns the active controller's pod. The metrics that say so are read through the API server."""
        for pod in self.kubectl.pods("controller", self.name):
            path = f"/api/v1/namespaces/{self.kubectl.namespace}/pods/{pod}:9404/proxy/metrics"
            try:
                said = self.kubectl.run("get", "--raw", path)
            except KubectlError:
                continue
            if any(line.startswith(OFFICE_METRIC) and line.endswith(" 1.0") for line in said.splitlines()):
                return pod
        raise LookupError("no controller reports that it is active")

    def view(self, topic: str) -> TopicView:
        return view_of_any(self.external_addresses().values(), topic)

    def await_whole(self, topic: str, replicas: int, timeout_s: float) -> None:
        """Waits until every partition has a leader and all its replicas in the ISR."""

        def lacking() -> list[str]:
            try:
                seen = self.view(topic)
            except OSError as error:
                return [str(error)]
            return [
                f"partition {p}: leader {view.leader}, isr {view.isr}"
                for p, view in seen.items()
                if view.leader < 0 or len(view.isr) < replicas
            ]

        await_none(lacking, timeout_s, f"topic {topic} not whole")

    def delete_topic(self, topic: str) -> None:
        admin_client(self.bootstrap).delete_topics([topic])[topic].result(ADMIN_TIMEOUT_S)
