"""kubectl for the suites: queries, kills and waits."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

COMMAND_TIMEOUT_S: Final = 60.0
ASK_AGAIN_S: Final = 0.2
CONTAINERS_TEMPLATE: Final = (
    "{{range .items}}{{.metadata.name}}{{range .status.containerStatuses}} {{.containerID}}{{end}};{{end}}"
)


class KubectlError(RuntimeError):
    """kubectl failed. The message contains its error."""


class Kubectl:
    """kubectl for one namespace."""

    def __init__(self, environment: Mapping[str, str], namespace: str) -> None:
        self.environment = {**os.environ, **environment}
        self.namespace = namespace
        self._containerd = _containerd_of(self.environment)

    @property
    def is_on_the_lab(self) -> bool:
        """Whether the cluster is the lab, so that this machine is also its node."""
        return bool(self._containerd)

    def run(self, *arguments: str, given: str = "", timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        done = subprocess.run(
            ["kubectl", "--namespace", self.namespace, *arguments],
            env=self.environment,
            input=given,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def get(self, kind: str, *arguments: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.run("get", kind, *arguments, "-o", "json"))["items"]
        return found

    def apply(self, *manifests: Mapping[str, Any]) -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        self.run("apply", "-f", "-", given=json.dumps(listed))

    def pods(self, component: str, release: str) -> list[str]:
        """Returns the names of the component's pods that are not terminating, in order."""
        labels = f"app.kubernetes.io/instance={release},app.kubernetes.io/component={component}"
        return sorted(
            pod["metadata"]["name"]
            for pod in self.get("pods", "-l", labels)
            if "deletionTimestamp" not in pod["metadata"]
        )

    def uid(self, pod: str) -> str:
        """Returns an empty text if there is no such object."""
        return self.run("get", "pod", pod, "--ignore-not-found", "-o", "jsonpath={.metadata.uid}")

    def kill(self, *pods: str) -> None:
        """Kills pods at once. If the node's containerd is reachable (in the lab), their processes get SIGKILL
        first, because a pod that is deleted with force still has a second or two after SIGTERM.
        """
        killed = [
            subprocess.Popen([*found, "tasks", "kill", "-s", "SIGKILL", container], stderr=subprocess.DEVNULL)
            for found in [self._containerd]
            if found
            for container in self._containers(pods)
        ]
        for process in killed:
            process.wait(COMMAND_TIMEOUT_S)
        # The owner may have deleted the pod first, as Spark does with its executors.
        self.run("delete", "pod", *pods, "--grace-period=0", "--force", "--wait=false", "--ignore-not-found")

    def _containers(self, pods: Sequence[str]) -> list[str]:
        """Returns the ids of the containers in these pods, as containerd names them."""
        listed = self.run("get", "pods", "-o", "go-template=" + CONTAINERS_TEMPLATE)
        found = (entry.split() for entry in listed.split(";") if entry)
        return [
            container.removeprefix("containerd://")
            for pod, *containers in found
            for container in containers
            if pod in pods
        ]

    def await_ready(self, release: str, timeout_s: float) -> None:
        """Waits until every pod of the release, except those of jobs, is ready. Raises TimeoutError with the
        unready ones.
        """
        components = "app.kubernetes.io/component in (broker,controller,group-coordinator,etcd)"
        selector = f"app.kubernetes.io/instance={release},{components}"

        def unready() -> list[str]:
            pods = [pod for pod in self.get("pods", "-l", selector) if pod["metadata"].get("ownerReferences")]
            wrong = [pod["metadata"]["name"] for pod in pods if not _is_ready(pod) and not _is_of_a_job(pod)]
            return wrong + self._missing(selector)

        await_none(unready, timeout_s, "not ready")

    def _missing(self, selector: str) -> list[str]:
        return [
            f"{thing['kind']} {thing['metadata']['name']}"
            for thing in self.get("statefulsets,deployments", "-l", selector)
            if thing["status"].get("readyReplicas", 0) < thing["spec"].get("replicas", 1)
        ]

    def run_to_end(
        self,
        name: str,
        image: str,
        arguments: Sequence[str],
        *,
        command: Sequence[str] = (),
        timeout_s: float,
    ) -> str:
        """Runs a pod under the restricted standard once and returns its output. Raises KubectlError if it
        failed.
        """
        container: dict[str, Any] = {
            "name": "main",
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "args": list(arguments),
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
        }
        if command:
            container["command"] = list(command)
        spec = {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 10001,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
        }
        return self.run_pod_to_end(name, spec, timeout_s=timeout_s)

    def run_pod_to_end(self, name: str, spec: Mapping[str, Any], *, timeout_s: float) -> str:
        """Runs a pod with this spec and returns the output of its first container. Raises KubectlError if it
        failed.
        """
        self.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": dict(spec)})
        try:
            phase = self._await_end(name, timeout_s)
            said = self.run("logs", name)
            if phase != "Succeeded":
                arguments = " ".join(spec["containers"][0]["args"])
                raise KubectlError(f"{arguments} in pod {name}: {phase}\n{said}")
            return said
        finally:
            self.run("delete", "pod", name, "--grace-period=0", "--force", "--ignore-not-found")

    def _await_end(self, pod: str, timeout_s: float) -> str:
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            phase = self.run("get", "pod", pod, "-o", "jsonpath={.status.phase}")
            if phase in ("Succeeded", "Failed"):
                return phase
            time.sleep(ASK_AGAIN_S)
        raise TimeoutError(f"pod {pod} has not ended in {timeout_s} s: {self.run('describe', 'pod', pod)}")


def await_none(wrong: Callable[[], Sequence[str]], timeout_s: float, what: str) -> None:
    """Waits until nothing is wrong. Raises TimeoutError with the remaining problems."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        found = wrong()
        if not found:
            return
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what} after {timeout_s:g} s: {', '.join(found)}")
        time.sleep(ASK_AGAIN_S)


def _is_ready(pod: Mapping[str, Any]) -> bool:
    if "deletionTimestamp" in pod["metadata"]:
        return False
    conditions = pod["status"].get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _is_of_a_job(pod: Mapping[str, Any]) -> bool:
    return any(owner["kind"] == "Job" for owner in pod["metadata"].get("ownerReferences", []))


def _containerd_of(environment: Mapping[str, str]) -> list[str]:
    """Returns the command that reaches the lab's containerd if KUBECONFIG is the lab's, else None."""
    socket = Path(environment.get("KUBECONFIG", "")).parent.parent / "containerd/containerd.sock"
    return ["ctr", "--address", str(socket), "-n", "k8s.io"] if socket.is_socket() else []
