"""What a cluster's metadata says of its members and partitions. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

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

NO_LEADER = -1


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

    def troubled_partitions(self) -> list[tuple[PartitionStateEntry, tuple[int, ...]]]:
        """Those without a leader or with replicas out of sync, with all their replicas."""
        found = []
        for state in self.states:
            replicas = self.replicas.get((state.topic, state.partition), ())
            if state.leader == NO_LEADER or len(state.isr) < len(replicas):
                found.append((state, replicas))
        return sorted(found, key=lambda trouble: (trouble[0].topic, trouble[0].partition))


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
