"""Decides the steps of an upgrade of a release. No I/O.

`next_step` decides which broker's pod to replace next, from one reading of the release. Brokers are replaced
one at a time, and only if every partition that has a spare replica keeps its minimum of in-sync replicas
(`tidelog.observe.availability`). Before the next broker, all replicas must be in sync again. An outdated pod
that is not ready is replaced first, because the update may repair it.

`plan_growth` decides which volumes grow, and which StatefulSets are created again. A StatefulSet's claim
template can't be changed. So the claims are patched, the StatefulSet is deleted without its pods, and Helm
creates it again. Volumes never shrink: a smaller size only changes the template.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from tidelog.cli.output import counted
from tidelog.client.admin.reassignments import Assignment
from tidelog.observe.availability import (
    PartitionView,
    endangered,
    interrupted,
    leaderless,
    named,
    needed_reason,
    out_of_sync,
)

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
"""The annotation with a pod's deletion cost. A ReplicaSet deletes the pods with the lowest cost first."""
ACTIVE_COST: Final = "1000"
STANDBY_COST: Final = "0"
_SUFFIXES: Final = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{
        suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)
    },
}
_QUANTITY: Final = re.compile(r"(?P<number>\d+(\.\d*)?([eE]\d{1,2})?)(?P<suffix>m|k|[MGTPE]|[KMGTPE]i|)")


@dataclass(frozen=True, slots=True)
class BrokerPod:
    """A broker of the release. `uid` is empty if it has no pod."""

    broker_id: int
    name: str
    uid: str = "uid"
    is_outdated: bool = False
    is_ready: bool = True
    is_terminating: bool = False
    under_replicated: int | None = 0
    """Partitions led by this broker whose ISR lacks replicas; None if the broker does not answer."""
    trouble: str = ""
    """Kubernetes' reason why the pod is not ready."""


@dataclass(frozen=True, slots=True)
class ReleaseView:
    """The state of a release.

    `live` are the brokers that the cluster knows. `silence` is the reason if the cluster does not answer.
    """

    brokers: Sequence[BrokerPod]
    live: frozenset[int] = frozenset()
    partitions: Sequence[PartitionView] = ()
    silence: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """Every pod has the current revision, and every replica is in sync."""


@dataclass(frozen=True, slots=True)
class Wait:
    reason: str


@dataclass(frozen=True, slots=True)
class Replace:
    """Delete this pod. `interrupted` are the partitions that can't be written until the pod is back."""

    broker: BrokerPod
    interrupted: tuple[PartitionView, ...]


Step = Finished | Wait | Replace


def next_step(view: ReleaseView) -> Step:
    for broker in view.brokers:
        if not broker.uid:
            return Wait(f"broker {broker.broker_id} has no pod yet")
        if broker.is_terminating:
            return Wait(f"broker {broker.broker_id} is stopping")
    unready = [broker for broker in view.brokers if not broker.is_ready]
    # If no broker serves, a replacement can't interrupt anything.
    if not view.silence or len(unready) == len(view.brokers):
        for broker in unready:
            if broker.is_outdated and not endangered(view.partitions, broker.broker_id):
                return _replace(view, broker)
    if unready:
        troubles = "; ".join(f"{broker.name}: {broker.trouble}" for broker in unready if broker.trouble)
        reason = f"{_brokers(broker.broker_id for broker in unready)} not ready"
        return Wait(f"{reason} ({troubles})" if troubles else reason)
    if view.silence:
        return Wait(f"the brokers do not answer: {view.silence}")
    return _unhealed(view) or _next_outdated(view)


def _next_outdated(view: ReleaseView) -> Step:
    outdated = [broker for broker in view.brokers if broker.is_outdated]
    if not outdated:
        return Finished()
    for broker in outdated:
        if not endangered(view.partitions, broker.broker_id):
            return _replace(view, broker)
    first = outdated[0].broker_id
    return Wait(needed_reason(first, endangered(view.partitions, first)))


def _unhealed(view: ReleaseView) -> Wait | None:
    missing = [broker.broker_id for broker in view.brokers if broker.broker_id not in view.live]
    if missing:
        return Wait(f"{_brokers(missing)} not registered in the cluster")
    silent = [broker.broker_id for broker in view.brokers if broker.under_replicated is None]
    if silent:
        return Wait(f"{_brokers(silent)} not serving metrics on port 9404 (check the NetworkPolicy)")
    lacking = out_of_sync(view.partitions)
    if lacking:
        return Wait(_lacking_reason(view, lacking))
    unled = leaderless(view.partitions)
    if unled:
        return Wait(f"partitions without a leader: {named(unled)}")
    # Leaders know a shrunk ISR seconds before the metadata shows it.
    for broker in view.brokers:
        if (broker.under_replicated or 0) > _moving_in(view, broker.broker_id):
            return Wait(
                f"broker {broker.broker_id} leads {counted(broker.under_replicated or 0, 'partition')} "
                "whose replicas are not all in sync"
            )
    return None


def _moving_in(view: ReleaseView, leader: int) -> int:
    """Returns the number of partitions led by this broker that lack only replicas of a reassignment."""
    return sum(1 for p in view.partitions if p.leader == leader and not p.isr.issuperset(p.adding))


def _lacking_reason(view: ReleaseView, lacking: Sequence[PartitionView]) -> str:
    members = {broker.broker_id for broker in view.brokers}
    strangers = sorted({replica for p in lacking for replica in p.lacking} - members - view.live)
    reason = f"replicas out of sync: {named(lacking)}"
    if not strangers:
        return reason
    ids = ",".join(map(str, strangers))
    return (
        f"{reason}; brokers {ids} are not part of the release: "
        f"run 'tidelog rebalance --without {ids} --execute'"
    )


def _replace(view: ReleaseView, broker: BrokerPod) -> Replace:
    return Replace(broker, tuple(interrupted(view.partitions, broker.broker_id)))


def _brokers(ids: Iterable[int]) -> str:
    listed = sorted(ids)
    return f"broker {listed[0]} is" if len(listed) == 1 else f"brokers {', '.join(map(str, listed))} are"


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


def leaving_brokers(existing: Iterable[int], staying: Collection[int]) -> tuple[int, ...]:
    return tuple(sorted(set(existing) - set(staying)))


def replicas_held(assignment: Assignment, brokers: Collection[int]) -> dict[int, int]:
    """Returns the number of replicas of each broker that holds any."""
    return dict(
        sorted(Counter(b for replicas in assignment.values() for b in replicas if b in brokers).items())
    )


def refusal(held: dict[int, int], leaving: Collection[int]) -> str:
    ids = ",".join(map(str, sorted(leaving)))
    counts = ", ".join(f"broker {broker} {count}" for broker, count in held.items())
    return (
        f"brokers {ids} would be removed with {counted(sum(held.values()), 'replica')} ({counts}): "
        f"run 'tidelog rebalance --without {ids} --execute' first, or set scaleIn.drain=true; "
        "nothing was changed"
    )


@dataclass(frozen=True, slots=True)
class Claim:
    """A PersistentVolumeClaim and its requested size."""

    name: str
    size: str


@dataclass(frozen=True, slots=True)
class VolumeSet:
    """A StatefulSet, the size in its template, and its claims."""

    name: str
    template_size: str
    claims: Sequence[Claim]


@dataclass(frozen=True, slots=True)
class VolumeChanges:
    grown: tuple[Claim, ...] = ()
    """The claims to grow, with their previous sizes."""
    kept: tuple[Claim, ...] = ()
    """The claims that are larger than the new size."""
    recreated: tuple[str, ...] = ()
    """StatefulSets."""


def quantity(text: str) -> Decimal:
    """Parses a quantity of Kubernetes, such as `10Gi`, `500M` or `1e9`. Raises ValueError."""
    found = _QUANTITY.fullmatch(text)
    value = Decimal(found["number"]) * _SUFFIXES[found["suffix"]] if found else Decimal(0)
    if value <= 0:
        raise ValueError(f"{text!r} is not a size such as 10Gi")
    return value


def plan_growth(sets: Sequence[VolumeSet], size: str) -> VolumeChanges:
    """Returns the changes that give all StatefulSets volumes of `size`. Raises ValueError."""
    wanted = quantity(size)
    grown: list[Claim] = []
    kept: list[Claim] = []
    recreated: list[str] = []
    for volume_set in sets:
        grown += [claim for claim in volume_set.claims if quantity(claim.size) < wanted]
        if quantity(volume_set.template_size) != wanted:
            recreated.append(volume_set.name)
            kept += [claim for claim in volume_set.claims if quantity(claim.size) > wanted]
    return VolumeChanges(tuple(grown), tuple(kept), tuple(recreated))
