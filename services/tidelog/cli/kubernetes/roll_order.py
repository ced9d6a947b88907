"""Decides which broker's pod to replace next, from one reading of the release. No I/O.

Brokers are replaced one at a time, and only if every partition that has a spare replica keeps its minimum
of in-sync replicas (`tidelog.observe.availability`). Before the next broker, all replicas must be in sync
again. An outdated pod that is not ready is replaced first, because the update may repair it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidelog.cli.output import counted
from tidelog.observe.availability import (
    PartitionView,
    endangered,
    interrupted,
    leaderless,
    named,
    needed_reason,
    out_of_sync,
)


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
