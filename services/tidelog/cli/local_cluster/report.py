"""Reports the state of a cluster's members and partitions from its metadata. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
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
    """A degraded partition. `leader` and `in_sync` contain only live brokers."""

    topic: str
    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(slots=True)
class ClusterReport:
    """The state of a cluster, as `read_metadata` returns it."""

    brokers: set[int] = field(default_factory=set)
    coordinators: set[int] = field(default_factory=set)
    controller_id: int | None = None
    controller_epoch: int = 0
    states: list[PartitionStateEntry] = field(default_factory=list)
    replicas: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)

    def role(self, member: Member) -> str:
        """Returns the member's role in the cluster, in a few words."""
        if member.kind == BROKER:
            return self._role_of_broker(member.number)
        if member.kind == CONTROLLER:
            in_office = self.controller_id == member.number
            return f"active, epoch {self.controller_epoch}" if in_office else "standby"
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

    def troubled_partitions(self, running: Collection[int]) -> list[Trouble]:
        """Returns the partitions without a live leader, or with replicas that are not live and in sync.

        A broker is live if it is registered and in `running`: the registration of a process that was killed
        or stopped lasts until its lease ends. If all replicas of a partition are dead, the metadata keeps the
        last leader and ISR.
        """
        live = self.brokers.intersection(running)
        found = []
        for state in self.states:
            replicas = self.replicas.get((state.topic, state.partition), ())
            leader = state.leader if state.leader in live else None
            in_sync = tuple(broker_id for broker_id in state.isr if broker_id in live)
            if leader is None or len(in_sync) < len(replicas):
                found.append(Trouble(state.topic, state.partition, leader, replicas, in_sync))
        return sorted(found)


def read_metadata(items: Iterable[KeyValue], coordinators: Iterable[CoordinatorEntry]) -> ClusterReport:
    """Returns the report of the store's contents. Raises InvalidEntryError."""
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
