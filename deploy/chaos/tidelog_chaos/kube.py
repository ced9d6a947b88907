"""kubectl, and the parts of a release of the chart."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from chaoslib.exceptions import ActivityFailed

from tidelog_chaos import api

COMMAND_TIMEOUT_S = 60.0
ASK_AGAIN_S = 0.25
METRICS_PORT = 9404
DESCRIBED = re.compile(r"Partition:\s*(\d+)\s+Leader:\s*(-?\w+)\s+Replicas:\s*([\d,]+)")
OFFICE = "kafka_controller_kafkacontroller_activecontrollercount"


def kubectl(namespace: str, *arguments: str, given: str = "", timeout_s: float = COMMAND_TIMEOUT_S) -> str:
    """Returns kubectl's output. Raises ActivityFailed with its error."""
    try:
        done = subprocess.run(
            ["kubectl", "--namespace", namespace, *arguments],
            input=given,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ActivityFailed(f"kubectl {' '.join(arguments)[:200]}: {error}") from error
    if done.returncode:
        raise ActivityFailed(f"kubectl {' '.join(arguments)[:200]}: {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True)
class Pod:
    name: str
    uid: str
    ip: str
    node: str
    component: str
    broker_id: int | None
    is_ready: bool


class Release:
    """A release, by its name and namespace."""

    def __init__(self, namespace: str, release: str) -> None:
        self.namespace, self.name = namespace, release

    def get(self, kind: str, component: str = "") -> list[dict[str, Any]]:
        labels = f"app.kubernetes.io/instance={self.name}"
        if component:
            labels += f",app.kubernetes.io/component={component}"
        return api.listed(self.namespace, kind, labels)

    def pods(self, component: str = "") -> list[Pod]:
        """Returns the pods by name that serve and are not terminating."""
        found = [
            _pod(item)
            for item in self.get("pods", component)
            if "deletionTimestamp" not in item["metadata"]
            and not any(o["kind"] == "Job" for o in item["metadata"].get("ownerReferences", []))
            and item["metadata"].get("ownerReferences")
        ]
        return sorted(found, key=lambda pod: pod.name)

    def workloads(self) -> list[dict[str, Any]]:
        return self.get("statefulsets") + self.get("deployments")

    def metrics(self, pod: str) -> dict[str, float]:
        """Returns the samples without labels, or {} if the pod does not answer. The API server forwards the
        request, so no other route to the pod is needed.
        """
        try:
            said = api.read(f"api/v1/namespaces/{self.namespace}/pods/{pod}:{METRICS_PORT}/proxy/metrics")
        except ActivityFailed:
            return {}
        samples = (
            line.split(" ") for line in said.splitlines() if not line.startswith("#") and "{" not in line
        )
        return {name: float(value) for name, value, *_ in samples}

    def active_controller(self) -> str:
        """Returns the pod of the active controller. Raises ActivityFailed if no pod says that it is
        active.
        """
        for pod in self.pods("controller"):
            if self.metrics(pod.name).get(OFFICE) == 1:
                return pod.name
        raise ActivityFailed("no controller reports that it is active")

    def replicas(self, topic: str) -> dict[int, tuple[int, list[int]]]:
        """Returns partition -> leader (or -1) and replicas, from the first broker that answers."""
        for pod in self.pods("broker"):
            command = ["exec", pod.name, "-c", "broker", "--", "tidelog", "topic", "describe", topic]
            try:
                said = kubectl(self.namespace, *command, timeout_s=30)
            except ActivityFailed:
                continue
            found = {
                int(partition): (
                    int(leader) if leader.lstrip("-").isdigit() else -1,
                    [int(replica) for replica in replicas.split(",")],
                )
                for partition, leader, replicas in DESCRIBED.findall(said)
            }
            if found:
                return found
        raise ActivityFailed(f"no broker describes topic {topic}")


def _pod(item: dict[str, Any]) -> Pod:
    labels = item["metadata"].get("labels", {})
    conditions = item["status"].get("conditions", [])
    broker_id = labels.get("tidelog.io/broker-id")
    return Pod(
        item["metadata"]["name"],
        item["metadata"]["uid"],
        item["status"].get("podIP", ""),
        item["spec"].get("nodeName", ""),
        labels.get("app.kubernetes.io/component", ""),
        None if broker_id is None else int(broker_id),
        any(c["type"] == "Ready" and c["status"] == "True" for c in conditions),
    )


def await_none(wrong: Callable[[], Sequence[str]], timeout_s: float, what: str) -> None:
    """Waits until nothing is wrong. Raises ActivityFailed with the remaining problems."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            found = list(wrong())
        except ActivityFailed as error:
            found = [str(error)]
        if not found:
            return
        if time.monotonic() > deadline_s:
            raise ActivityFailed(f"{what} after {timeout_s:g} s: {'; '.join(found)}")
        time.sleep(ASK_AGAIN_S)
