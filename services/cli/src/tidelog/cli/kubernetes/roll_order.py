"""Which broker's pod may be exchanged next: decided from one look at the release. No I/O.

One broker at a time, and only while no partition would have fewer replicas in sync than it needs, that is
`min.insync.replicas`, but never more than it has replicas. Between two, all replicas are in sync again. A pod
that is not ready and not of the wanted revision is exchanged first: what is wrong may be mended by that.
Where a partition has no replica to spare (one replica, or as many as min.insync.replicas) no order helps:
clients wait until the pod is back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

_NAMED_PARTITIONS: Final = 3


@dataclass(frozen=True, slots=True)
class BrokerPod:
    """A broker of the release. `uid` is "" while it has no pod."""

    broker_id: int
    name: str
    uid: str = "uid"
    is_outdated: bool = False
    is_ready: bool = True
    is_terminating: bool = False
    under_replicated: int | None = 0
    """Partitions led here whose ISR lacks replicas; None where the broker does not say."""
    trouble: str = ""
    """What Kubernetes says keeps the pod from being ready."""


@dataclass(frozen=True, slots=True)
class PartitionView:
    topic: str
    index: int
    leader: int
    replicas: tuple[int, ...]
    isr: frozenset[int]
    min_isr: int
    adding: tuple[int, ...] = ()
    """Replicas on their way in by a reassignment: nobody waits for them."""

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def settled_replicas(self) -> tuple[int, ...]:
        return tuple(replica for replica in self.replicas if replica not in self.adding)

    @property
    def lacking(self) -> tuple[int, ...]:
        return tuple(replica for replica in self.settled_replicas if replica not in self.isr)

    @property
    def needed_isr(self) -> int:
        return min(self.min_isr, len(self.settled_replicas))

    @property
    def has_spare(self) -> bool:
        return len(self.settled_replicas) > self.needed_isr


@dataclass(frozen=True, slots=True)
class ReleaseView:
    """`live` are the brokers that the cluster knows. `silence` says why it could not be asked."""

    brokers: Sequence[BrokerPod]
    live: frozenset[int] = frozenset()
    partitions: Sequence[PartitionView] = ()
    silence: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """Every pod is of the wanted revision, every replica in sync."""


@dataclass(frozen=True, slots=True)
class Wait:
    reason: str


@dataclass(frozen=True, slots=True)
class Replace:
    """Delete this pod. `interrupted` are partitions that can't be written until it is back."""

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
    # When not one serves, and nobody can be asked, there is nothing left to interrupt.
    if not view.silence or len(unready) == len(view.brokers):
        for broker in unready:
            if broker.is_outdated and not _endangered(view, broker.broker_id):
                return _replace(view, broker)
    if unready:
        troubles = "; ".join(f"{broker.name}: {broker.trouble}" for broker in unready if broker.trouble)
        reason = f"{_brokers(broker.broker_id for broker in unready)} not ready"
        return Wait(f"{reason} ({troubles})" if troubles else reason)
    if view.silence:
        return Wait(f"the brokers can't be asked: {view.silence}")
    return _unhealed(view) or _next_outdated(view)


def _next_outdated(view: ReleaseView) -> Step:
    outdated = [broker for broker in view.brokers if broker.is_outdated]
    if not outdated:
        return Finished()
    for broker in outdated:
        if not _endangered(view, broker.broker_id):
            return _replace(view, broker)
    endangered = _endangered(view, outdated[0].broker_id)
    return Wait(
        f"without broker {outdated[0].broker_id} fewer than min.insync.replicas would be in sync of "
        f"{_named(endangered)}"
    )


def _unhealed(view: ReleaseView) -> Wait | None:
    missing = [broker.broker_id for broker in view.brokers if broker.broker_id not in view.live]
    if missing:
        return Wait(f"{_brokers(missing)} not registered in the cluster")
    silent = [broker.broker_id for broker in view.brokers if broker.under_replicated is None]
    if silent:
        return Wait(f"{_brokers(silent)} not telling metrics on port 9404 (a NetworkPolicy?)")
    lacking = [partition for partition in view.partitions if partition.lacking]
    if lacking:
        return Wait(_lacking_reason(view, lacking))
    leaderless = [partition for partition in view.partitions if partition.leader < 0]
    if leaderless:
        return Wait(f"no leader for {_named(leaderless)}")
    # Leaders know it seconds before the metadata shows it.
    for broker in view.brokers:
        if (broker.under_replicated or 0) > _moving_in(view, broker.broker_id):
            return Wait(
                f"broker {broker.broker_id} leads {broker.under_replicated} partitions "
                "whose replicas are not all in sync"
            )
    return None


def _moving_in(view: ReleaseView, leader: int) -> int:
    """Partitions led there that are short of nothing but what a reassignment brings them."""
    return sum(1 for p in view.partitions if p.leader == leader and not p.isr.issuperset(p.adding))


def _lacking_reason(view: ReleaseView, lacking: Sequence[PartitionView]) -> str:
    members = {broker.broker_id for broker in view.brokers}
    strangers = sorted({replica for p in lacking for replica in p.lacking} - members - view.live)
    reason = f"replicas out of sync: {_named(lacking)}"
    if not strangers:
        return reason
    ids = ",".join(map(str, strangers))
    return (
        f"{reason}; brokers {ids} are no part of the release: 'tidelog rebalance --without {ids} --execute'"
    )


def _endangered(view: ReleaseView, broker_id: int) -> list[PartitionView]:
    """Partitions that could spare a replica, but not this one now."""
    return [
        partition
        for partition in view.partitions
        if partition.has_spare
        and broker_id in partition.isr
        and len(partition.isr) - 1 < partition.needed_isr
    ]


def _replace(view: ReleaseView, broker: BrokerPod) -> Replace:
    interrupted = tuple(
        partition
        for partition in view.partitions
        if not partition.has_spare and broker.broker_id in partition.settled_replicas
    )
    return Replace(broker, interrupted)


def _named(partitions: Collection[PartitionView]) -> str:
    shown = ", ".join(str(partition) for partition in list(partitions)[:_NAMED_PARTITIONS])
    more = len(partitions) - _NAMED_PARTITIONS
    return f"{shown} and {more} more" if more > 0 else shown


def _brokers(ids: Iterable[int]) -> str:
    listed = sorted(ids)
    return f"broker {listed[0]} is" if len(listed) == 1 else f"brokers {', '.join(map(str, listed))} are"
