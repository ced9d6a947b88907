"""Determines the progress of a Deployment or StatefulSet, and which controller is replaced last. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
"""The annotation with a pod's deletion cost. A ReplicaSet deletes the pods with the lowest cost first."""
ACTIVE_COST: Final = "1000"
STANDBY_COST: Final = "0"


@dataclass(frozen=True, slots=True)
class Workload:
    """The spec and status of a Deployment or StatefulSet."""

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
    """Kubernetes' reason why the workload makes no progress."""


@dataclass(frozen=True, slots=True)
class ServicePod:
    name: str
    deletion_cost: str
    is_active: bool


def pending(workload: Workload) -> str:
    """Returns the reason to wait for the workload; empty if it is finished."""
    name = f"{workload.kind} {workload.name}"
    reason = f" ({workload.failure})" if workload.failure else ""
    if workload.observed_generation < workload.generation:
        return f"{name}: Kubernetes has not observed the change yet"
    if workload.is_paused:
        return f"{name} is paused"
    if workload.updated < workload.wanted:
        return f"{name}: {workload.updated} of {workload.wanted} pods have the new revision{reason}"
    if workload.available < workload.wanted:
        return f"{name}: {workload.available} of {workload.wanted} pods are available{reason}"
    if workload.existing > workload.updated:
        return f"{name}: {workload.existing - workload.updated} old pods still exist"
    return ""


def cost_changes(pods: Sequence[ServicePod]) -> Mapping[str, str]:
    """Returns the pods whose deletion cost must change, with the new cost.

    The active controller has the highest cost, so it is deleted last. Without an active one nothing changes.
    """
    if not any(pod.is_active for pod in pods):
        return {}
    wanted = {pod.name: ACTIVE_COST if pod.is_active else STANDBY_COST for pod in pods}
    return {
        pod.name: wanted[pod.name] for pod in pods if (pod.deletion_cost or STANDBY_COST) != wanted[pod.name]
    }
