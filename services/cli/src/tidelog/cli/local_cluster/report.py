"""What a cluster's metadata says of its members and partitions. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.cli.local_cluster.plan import BROKER, CONTROLLER, COORDINATOR, Member
from tidelog.metadata.coordinators import GROUP, CoordinatorEntry
from tidelog.metadata.entries import (
    BrokerEntry,
    ControllerEntry,
    ControllerEpochEntry,
    PartitionStateEntry,
    TopicEntry,
    decode_entry,
)
from tidelog.metadata.store import KeyValue


class Trouble(NamedTuple):
    """`leader` and `in_sync` are those that live."""

    topic: str
    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(slots=True)
class ClusterReport:
    """Made by `read_metadata`."""

    brokers: set[int] = field(default_factory=set)
    coordinators: set[int] = field(default_factory=set)
    controller_id: int | None = None
    controller_epoch: int = 0
    states: list[PartitionStateEntry] = field(default_factory=list)
    replicas: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)

    def role(self, member: Member) -> str:
        """What it does in the cluster, in a few words."""
        if member.kind == BROKER:
            return self._role_of_broker(member.number)
        if member.kind == CONTROLLER:
            in_office = self.controller_id == member.number
            return f"in office, epoch {self.controller_epoch}" if in_office else "stands by"
        if member.kind == COORDINATOR:
            return "registered" if member.number in self.coordinators else "not registered"
        return ""

    def _role_of_broker(self, broker_id: int) -> str:
        if broker_id not in self.brokers:
            return "not registered"
        counts = Counter(
            state.leader == broker_id
            for state in self.states
            if broker_id in self.replicas.get((state.topic, state.partition), ())
        )
        return f"leads {counts[True]}, follows {counts[False]}"

    def troubled_partitions(self) -> list[Trouble]:
        """Those without a live leader, or with replicas that are not alive and in sync. While all replicas of
        a partition are dead, the last leader and ISR stay written.
        """
        found = []
        for state in self.states:
            replicas = self.replicas.get((state.topic, state.partition), ())
            leader = state.leader if state.leader in self.brokers else None
            in_sync = tuple(broker_id for broker_id in state.isr if broker_id in self.brokers)
            if leader is None or len(in_sync) < len(replicas):
                found.append(Trouble(state.topic, state.partition, leader, replicas, in_sync))
        return sorted(found)


def read_metadata(items: Iterable[KeyValue], coordinators: Iterable[CoordinatorEntry]) -> ClusterReport:
    """Raises InvalidEntryError."""
    report = ClusterReport()
    report.coordinators = {c.coordinator_id for c in coordinators if c.kind == GROUP}
    for item in items:
        match decode_entry(item.key, item.value):
            case BrokerEntry() as broker:
                report.brokers.add(broker.broker_id)
            case ControllerEntry() as controller:
                report.controller_id = controller.controller_id
            case ControllerEpochEntry() as epoch:
                report.controller_epoch = epoch.controller_epoch
            case PartitionStateEntry() as state:
                report.states.append(state)
            case TopicEntry() as topic:
                for index, replicas in enumerate(topic.assignments):
                    report.replicas[topic.name, index] = replicas
            case _:
                pass
    return report
