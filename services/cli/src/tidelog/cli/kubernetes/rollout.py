"""How far a Deployment or a StatefulSet is with its pods, and which controller goes last. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
"""A ReplicaSet deletes pods of the least cost first."""
ACTIVE_COST: Final = "1000"
STANDBY_COST: Final = "0"


@dataclass(frozen=True, slots=True)
class Workload:
    """What spec and status of a Deployment or StatefulSet say."""

    kind: str
    name: str
    generation: int
    observed_generation: int
    wanted: int
    existing: int
    updated: int
    available: int
    is_paused: bool = False
    failure: str = ""
    """Why it makes no progress, as far as Kubernetes knows."""


@dataclass(frozen=True, slots=True)
class ServicePod:
    name: str
    deletion_cost: str
    is_active: bool


def pending(workload: Workload) -> str:
    """What is still to be waited for; "" if nothing is."""
    name = f"{workload.kind} {workload.name}"
    reason = f" ({workload.failure})" if workload.failure else ""
    if workload.observed_generation < workload.generation:
        return f"{name}: Kubernetes has not taken up the change yet"
    if workload.is_paused:
        return f"{name} is paused"
    if workload.updated < workload.wanted:
        return f"{name}: {workload.updated} of {workload.wanted} pods are of the new revision{reason}"
    if workload.available < workload.wanted:
        return f"{name}: {workload.available} of {workload.wanted} pods are available{reason}"
    if workload.existing > workload.updated:
        return f"{name}: {workload.existing - workload.updated} old pods are still there"
    return ""


def cost_changes(pods: Sequence[ServicePod]) -> Mapping[str, str]:
    """Pod -> the cost it is to have, where it has another: the controller in office is deleted last. Without
    one in office nothing is changed.
    """
    if not any(pod.is_active for pod in pods):
        return {}
    wanted = {pod.name: ACTIVE_COST if pod.is_active else STANDBY_COST for pod in pods}
    return {
        pod.name: wanted[pod.name] for pod in pods if (pod.deletion_cost or STANDBY_COST) != wanted[pod.name]
    }
