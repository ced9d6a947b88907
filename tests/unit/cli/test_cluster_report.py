"""The report that `tidelog cluster status` derives from the metadata."""

from __future__ import annotations

import uuid

from tidelog.cli.local_cluster.plan import (
    BROKER,
    CONTROLLER,
    COORDINATOR,
    ETCD,
    ClusterReport,
    Member,
    Trouble,
    read_metadata,
)
from tidelog.metadata.coordinators import GROUP, CoordinatorEntry
from tidelog.metadata.entries import (
    BrokerEntry,
    ControllerEntry,
    ControllerEpochEntry,
    Entry,
    PartitionStateEntry,
    TopicEntry,
)
from tidelog.metadata.store import KeyValue


def report_of(*entries: Entry) -> ClusterReport:
    items = [KeyValue(entry.key, entry.encode(), 1, 1, 1) for entry in entries]
    return read_metadata(items, [CoordinatorEntry(GROUP, 1)])


def state(partition: int, leader: int, *isr: int) -> PartitionStateEntry:
    return PartitionStateEntry("t", partition, leader, 0, isr, 1)


TOPIC = TopicEntry("t", uuid.uuid4(), ((1, 2, 3),) * 3)


def test_roles() -> None:
    report = report_of(
        BrokerEntry(1, ()),
        BrokerEntry(2, ()),
        ControllerEntry(2),
        ControllerEpochEntry(7),
        TOPIC,
        state(0, 1, 1, 2, 3),
        state(1, 2, 1, 2, 3),
        state(2, 1, 1, 2, 3),
    )
    roles = {
        member.name: report.role(member)
        for member in (
            Member(BROKER, 1),
            Member(BROKER, 2),
            Member(BROKER, 3),
            Member(CONTROLLER, 1),
            Member(CONTROLLER, 2),
            Member(COORDINATOR, 1),
            Member(COORDINATOR, 2),
            Member(ETCD, 1),
        )
    }
    assert roles == {
        "broker-1": "leads 2, follows 1",
        "broker-2": "leads 1, follows 2",
        "broker-3": "not registered",
        "controller-1": "standby",
        "controller-2": "active, epoch 7",
        "coordinator-1": "registered",
        "coordinator-2": "not registered",
        "etcd-1": "",
    }


def test_partitions_in_trouble() -> None:
    alive = [BrokerEntry(1, ()), BrokerEntry(2, ()), BrokerEntry(3, ())]
    sound = state(0, 1, 1, 2, 3)
    report = report_of(*alive, TOPIC, sound, state(1, 2, 2, 3), state(2, -1, 3))
    assert report.troubled_partitions([1, 2, 3]) == [
        Trouble("t", 1, 2, (1, 2, 3), (2, 3)),
        Trouble("t", 2, None, (1, 2, 3), (3,)),
    ]


def test_dead_brokers_neither_lead_nor_are_in_sync() -> None:
    """If every replica is dead, the metadata keeps the last leader and ISR."""
    report = report_of(BrokerEntry(3, ()), TOPIC, state(0, 1, 1, 2, 3))
    assert report.troubled_partitions([1, 2, 3]) == [Trouble("t", 0, None, (1, 2, 3), (3,))]


def test_brokers_without_a_running_process_are_dead_before_their_leases_end() -> None:
    alive = [BrokerEntry(1, ()), BrokerEntry(2, ()), BrokerEntry(3, ())]
    report = report_of(*alive, TOPIC, state(0, 1, 1, 2, 3), state(1, 2, 1, 2, 3))
    assert report.troubled_partitions([2, 3]) == [
        Trouble("t", 0, None, (1, 2, 3), (2, 3)),
        Trouble("t", 1, 2, (1, 2, 3), (2, 3)),
    ]
