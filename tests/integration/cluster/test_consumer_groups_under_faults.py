"""A group of the consumer protocol while coordinators and brokers are killed: all members stay, and no record
remains unread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from brokerlab.clients import produce_values
from clusterlab.tidelog_cluster import TidelogCluster
from grouplab.group_members import MemberProcess, await_true
from tidelog.client.address import Address
from tidelog.client.cluster import BrokerConnection
from tidelog.client.errors import ClientError
from tidelog.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from tidelog.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

GROUP = "consumers"
PARTITIONS = 6
EACH = 20
WAIT_S = 120.0
SETTINGS = {
    "offsets.topic.num.partitions": "8",
    "broker.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "500",
    # Longer than any failover, so that live members stay in the group.
    "group.consumer.session.timeout.ms": "45000",
}


@pytest.fixture
def coordinated(new_cluster: Callable[..., TidelogCluster]) -> TidelogCluster:
    return new_cluster(controllers=1, options=["--coordinators", "2"], settings=SETTINGS)


@pytest.fixture
def topic(coordinated: TidelogCluster, new_replicated_topic: Callable[..., str]) -> str:
    name = new_replicated_topic(coordinated, PARTITIONS)
    produce(coordinated, name)
    return name


@pytest.fixture
def members(coordinated: TidelogCluster, topic: str) -> Iterator[list[MemberProcess]]:
    started = [
        MemberProcess(coordinated.bootstrap, GROUP, topic, group_protocol="consumer") for _ in range(3)
    ]
    yield started
    for member in started:
        member.kill()


def produce(cluster: TidelogCluster, topic: str) -> None:
    for partition in range(PARTITIONS):
        produce_values(cluster.bootstrap, topic, (b"%d" % n for n in range(EACH)), partition)


def coordinator(cluster: TidelogCluster) -> Coordinator:
    """Returns the leader of the group's shard. Raises ClientError."""
    host, _, port = cluster.live_addresses()[0].rpartition(":")
    with BrokerConnection.open(Address(host, int(port))) as connection:
        request = FindCoordinatorRequest(coordinator_keys=[GROUP])
        found = connection.call(request, FindCoordinatorResponse, at_least=4).coordinators[0]
    if found.error_code:
        raise ClientError(f"no coordinator: error {found.error_code}")
    return found


def describe(cluster: TidelogCluster) -> DescribedGroup | None:
    try:
        found = coordinator(cluster)
        with BrokerConnection.open(Address(found.host, found.port)) as connection:
            request = ConsumerGroupDescribeRequest(group_ids=[GROUP])
            return connection.call(request, ConsumerGroupDescribeResponse, at_least=1).groups[0]
    except ClientError:
        return None


def await_stable(cluster: TidelogCluster) -> DescribedGroup:
    last: list[DescribedGroup | None] = []

    def is_stable() -> bool:
        last[:] = [describe(cluster)]
        if last[0] is None or last[0].group_state != "Stable":
            return False
        owned = [len(t.partitions) for m in last[0].members for t in m.assignment.topic_partitions]
        return sum(owned) == PARTITIONS and len(last[0].members) == 3

    try:
        await_true(is_stable, WAIT_S)
    except TimeoutError:
        raise AssertionError(f"{last}") from None
    assert last[0] is not None
    return last[0]


def await_all_read(members: list[MemberProcess], rounds: int) -> None:
    everything = {(partition, offset) for partition in range(PARTITIONS) for offset in range(rounds * EACH)}
    try:
        await_true(lambda: {one for member in members for one in list(member.read)} == everything, WAIT_S)
    except TimeoutError:
        missing = everything - {one for member in members for one in member.read}
        raise AssertionError(f"unread: {sorted(missing)[:20]}") from None


def test_members_stay_and_continue_to_read(
    coordinated: TidelogCluster, topic: str, members: list[MemberProcess]
) -> None:
    before = await_stable(coordinated)
    await_all_read(members, 1)
    faults = ["coordinator-1", "coordinator-2", f"broker-{coordinator(coordinated).node_id}"]
    for rounds, name in enumerate(faults, start=2):
        coordinated.kill(name)
        coordinated.start(name)
        after = await_stable(coordinated)
        assert {m.member_id for m in after.members} == {m.member_id for m in before.members}, name
        produce(coordinated, topic)
        await_all_read(members, rounds)
