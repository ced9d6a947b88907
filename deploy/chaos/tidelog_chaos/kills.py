"""Actions that kill pods without a warning to their processes.

Kubernetes has no such operation: a pod that is deleted with force still gets SIGTERM and a second or two, in
which a broker hands over its leaders. Therefore an agent on the node sends SIGKILL first, and then the pod is
deleted.
"""

from __future__ import annotations

from tidelog_chaos.agents import signal_pods
from tidelog_chaos.events import Event, event
from tidelog_chaos.kube import Pod, Release, await_none, kubectl
from tidelog_chaos.probes import lacking
from tidelog_chaos.targets import pods_of


def kill_pods(
    namespace: str, release: str, role: str, count: int = 1, topic: str = "chaos-log"
) -> list[Event]:
    """Kills `count` pods of the role at once."""
    found = Release(namespace, release)
    pods = pods_of(found, role, int(count), topic)
    events = _kill(found, role, pods)
    for pod in pods:
        _await_gone(found, pod)
    return events


def _kill(release: Release, role: str, pods: list[Pod]) -> list[Event]:
    at_s = signal_pods(release, pods, "SIGKILL")
    names = [pod.name for pod in pods]
    kubectl(release.namespace, "delete", "pod", *names, "--grace-period=0", "--force", "--wait=false")
    return [event("kill", role, name, at_s) for name in names]


def rolling_kills(
    namespace: str, release: str, components: str = "broker", whole_within_s: float = 120
) -> list[Event]:
    """Kills every pod of these components (separated by commas), one after the other, each when the release
    is whole again.
    """
    found = Release(namespace, release)
    events: list[Event] = []
    for component in components.split(","):
        for pod in found.pods(component):
            await_none(lambda: lacking(found), float(whole_within_s), "not whole before the next kill")
            events += _kill(found, component, [pod])
            _await_gone(found, pod)
    return events


def delete_claim(
    namespace: str, release: str, role: str = "follower", topic: str = "chaos-log"
) -> list[Event]:
    """Deletes a broker's claim and kills its pod, so that the broker loses its disk. Both come back empty."""
    found = Release(namespace, release)
    (pod,) = pods_of(found, role, 1, topic)
    claims = _claims(found, pod)
    kubectl(namespace, "delete", "pvc", *claims, "--wait=false")
    events = _kill(found, role, [pod])
    _await_gone(found, pod)
    return [event("delete-claim", role, claim, events[0]["at_s"]) for claim in claims] + events


def _claims(release: Release, pod: Pod) -> list[str]:
    path = "jsonpath={.spec.volumes[*].persistentVolumeClaim.claimName}"
    return kubectl(release.namespace, "get", "pod", pod.name, "-o", path).split()


def _await_gone(release: Release, pod: Pod) -> None:
    """Waits until another pod has replaced it. Otherwise the old state could be mistaken for the recovered
    one.
    """

    def still() -> list[str]:
        return [other.name for other in release.pods(pod.component) if other.uid == pod.uid]

    await_none(still, 60, "still there")
