"""Decides which broker's pod to replace next, from one reading of the release. No I/O.

Brokers are replaced one at a time, and only if every partition keeps its minimum of in-sync replicas, which
is `min.insync.replicas` or the number of replicas if that is lower. Before the next broker, all replicas must
be in sync again. An outdated pod that is not ready is replaced first, because the update may repair it. If a
partition has no spare replica (one replica, or as many as min.insync.replicas), its clients have to wait
until the pod is back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.model.topics import effective_min_in_sync_replicas

_NAMED_PARTITIONS: Final = 3


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
class PartitionView:
    topic: str
    index: int
    leader: int
    replicas: tuple[int, ...]
    isr: frozenset[int]
    min_isr: int
    adding: tuple[int, ...] = ()
    """Replicas that a reassignment is adding. The roll does not wait for them."""

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
        return effective_min_in_sync_replicas(self.min_isr, len(self.settled_replicas))

    @property
    def has_spare(self) -> bool:
        return len(self.settled_replicas) > self.needed_isr


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
            if broker.is_outdated and not _endangered(view, broker.broker_id):
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
        return Wait(f"{_brokers(silent)} not serving metrics on port 9404 (check the NetworkPolicy)")
    lacking = [partition for partition in view.partitions if partition.lacking]
    if lacking:
        return Wait(_lacking_reason(view, lacking))
    leaderless = [partition for partition in view.partitions if partition.leader < 0]
    if leaderless:
        return Wait(f"partitions without a leader: {_named(leaderless)}")
    # Leaders know a shrunk ISR seconds before the metadata shows it.
    for broker in view.brokers:
        if (broker.under_replicated or 0) > _moving_in(view, broker.broker_id):
            return Wait(
                f"broker {broker.broker_id} leads {broker.under_replicated} partitions "
                "whose replicas are not all in sync"
            )
    return None


def _moving_in(view: ReleaseView, leader: int) -> int:
    """Returns the number of partitions led by this broker that lack only replicas of a reassignment."""
    return sum(1 for p in view.partitions if p.leader == leader and not p.isr.issuperset(p.adding))


def _lacking_reason(view: ReleaseView, lacking: Sequence[PartitionView]) -> str:
    members = {broker.broker_id for broker in view.brokers}
    strangers = sorted({replica for p in lacking for replica in p.lacking} - members - view.live)
    reason = f"replicas out of sync: {_named(lacking)}"
    if not strangers:
        return reason
    ids = ",".join(map(str, strangers))
    return (
        f"{reason}; brokers {ids} are not part of the release: "
        f"run 'tidelog rebalance --without {ids} --execute'"
    )


def _endangered(view: ReleaseView, broker_id: int) -> list[PartitionView]:
    """Returns the partitions that have spare replicas, but currently need this broker."""
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
