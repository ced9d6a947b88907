"""Consumers fetch from the replica in their rack (KIP-392): which replica the leader names, and what a
follower serves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from brokerlab.in_memory_broker import InMemoryBroker
from brokerlab.leader_lab import LEADER_EPOCH, LeaderLab, Peer, parts
from tidelog.broker.partition.roles import FetchState
from tidelog.broker.requests.request import PARKED
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import assign_offset_and_epoch, parse_header
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)

SELECTOR = "replica.selector.class"
BY_RACK = {
    SELECTOR: "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "broker.rack": "a",
}


def consume(
    lab: LeaderLab,
    offset: int,
    *,
    rack: str = "",
    version: int = 12,
    epoch: int = LEADER_EPOCH,
    **fields: Any,
) -> tuple[PartitionData | None, Peer]:
    """Returns the response for partition 0. Returns None while the request waits; the peer then gets the
    response later.
    """
    peer = Peer(version, ApiKey.FETCH)
    wanted = FetchPartition(
        partition=0, current_leader_epoch=epoch, fetch_offset=offset, partition_max_bytes=1 << 20
    )
    topics = [FetchTopic(topic="t", partitions=[wanted])]
    request = FetchRequest(
        **{"max_wait_ms": 500, "min_bytes": 1, "rack_id": rack, "topics": topics, **fields}
    )
    answer = lab.lab.handle(ApiKey.FETCH, request, peer.context())
    return (None if answer is PARKED else parts(cast(FetchResponse, peer.sent(answer)))[0]), peer


@pytest.fixture
def make_lab(make_broker: Callable[..., InMemoryBroker]) -> Callable[..., LeaderLab]:
    def make(settings: dict[str, str] | None = None, **racks: str) -> LeaderLab:
        lab = LeaderLab(make_broker(BY_RACK if settings is None else settings))
        lab.racks = {1: "a", 2: "b", 3: "b"}
        return lab

    return make


async def replicated(lab: LeaderLab, *batches: int, isr: tuple[int, ...] = (1, 2, 3)) -> None:
    """Appends batches of one record. Follower 2 has fetched `batches[0]` of them, and follower 3
    `batches[1]`.
    """
    await lab.lead(isr=isr)
    for _ in range(3):
        lab.append()
    for replica_id, offset in zip((2, 3), batches, strict=True):
        lab.follower(replica_id).fetch({0: offset}, max_wait_ms=0)


@pytest.mark.parametrize(
    ("rack", "positions", "isr", "chosen"),
    [
        ("b", (3, 3), (1, 2, 3), {2, 3}),
        ("b", (2, 3), (1, 2, 3), {3}),  # the replica with the largest offset
        ("b", (3, 3), (1, 2), {2}),  # the replica in the ISR
        ("b", (1, 1), (1, 2, 3), {-1}),  # no replica in the rack has the offset
        ("a", (3, 3), (1, 2, 3), {-1}),  # the leader's own rack
        ("nowhere", (3, 3), (1, 2, 3), {-1}),
        ("", (3, 3), (1, 2, 3), {-1}),
    ],
)
def test_preferred_read_replica_of_a_consumer(
    make_lab: Callable[..., LeaderLab],
    rack: str,
    positions: tuple[int, int],
    isr: tuple[int, ...],
    chosen: set[int],
) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await replicated(lab, *positions, isr=isr)
        answer, _ = consume(lab, 2, rack=rack, max_wait_ms=0)
        assert answer is not None
        assert answer.preferred_read_replica in chosen
        if answer.preferred_read_replica >= 0:
            assert not answer.records

    make_lab().run(scenario)


def test_without_a_selector_consumers_read_from_the_leader(make_lab: Callable[..., LeaderLab]) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await replicated(lab, 3, 3)
        answer, _ = consume(lab, 0, rack="b")
        assert answer is not None
        assert answer.preferred_read_replica == -1
        assert answer.records

    make_lab({}).run(scenario)
    make_lab({SELECTOR: "org.apache.kafka.common.replica.LeaderSelector"}).run(scenario)


def test_a_dead_replica_is_not_preferred(make_lab: Callable[..., LeaderLab]) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await replicated(lab, 3, 3)
        lab.racks = {1: "a", 2: "b", 3: "c"}
        await lab.bury(2)
        answer, _ = consume(lab, 0, rack="b", max_wait_ms=0)
        assert answer is not None
        assert answer.preferred_read_replica == -1

    make_lab().run(scenario)


# -- what a follower serves


async def following(lab: LeaderLab, records: int, high_watermark: int) -> None:
    """Makes this broker a follower of broker 2 with some records."""
    await lab.lead(leader=2)
    replica = lab.replica()
    await lab.broker.fetchers.forget(replica.topic_partition)
    for offset in range(records):
        batch = memoryview(bytearray(build_batch([Record(0, 0, None, b"v", [])])))
        assign_offset_and_epoch(batch, 0, offset, LEADER_EPOCH)
        headers = [parse_header(batch)]
        while not replica.append_received(batch, headers, LEADER_EPOCH, high_watermark, 0, 0):
            await replica.flush_leader_epochs()


@pytest.mark.parametrize("version", [11, 12])
def test_a_follower_serves_records_below_its_high_watermark(
    make_lab: Callable[..., LeaderLab], version: int
) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await following(lab, records=5, high_watermark=3)
        answer, _ = consume(lab, 0, version=version)
        assert answer is not None
        assert (answer.error_code, answer.high_watermark) == (0, 3)
        assert len(answer.records or b"") == 3 * len(build_batch([Record(0, 0, None, b"v", [])]))

    make_lab().run(scenario)


def test_a_follower_serves_a_tool_that_compares_replicas(make_lab: Callable[..., LeaderLab]) -> None:
    """Kafka's ReplicaVerificationTool fetches with replica id -2, from version 15 on in a tagged field."""

    async def scenario(lab: LeaderLab) -> None:
        await following(lab, records=5, high_watermark=3)
        topics = [FetchTopic(topic_id=lab.replica().topic_id, partitions=[FetchPartition(partition=0)])]
        topics[0].partitions[0].partition_max_bytes = 1 << 20
        answer, _ = consume(lab, 0, version=17, replica_state=ReplicaState(-2, -1), topics=topics)
        assert answer is not None
        assert (answer.error_code, answer.high_watermark) == (0, 3)

    make_lab().run(scenario)


def test_a_follower_refuses_versions_without_follower_fetch(make_lab: Callable[..., LeaderLab]) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await following(lab, records=5, high_watermark=3)
        answer, _ = consume(lab, 0, version=10)
        assert answer is not None
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    make_lab().run(scenario)


def test_a_consumer_waits_between_the_followers_high_watermark_and_log_end(
    make_lab: Callable[..., LeaderLab],
) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await following(lab, records=5, high_watermark=3)
        answer, peer = consume(lab, 4)
        assert answer is None
        lab.replica().append_received(memoryview(b""), [], LEADER_EPOCH, 5, 0, 0)
        assert parts(peer.answers[0])[0].records

    make_lab().run(scenario)


def test_an_offset_beyond_the_followers_end_is_not_available(make_lab: Callable[..., LeaderLab]) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await following(lab, records=5, high_watermark=3)
        answer, _ = consume(lab, 6)
        assert answer is not None
        assert answer.error_code == ErrorCode.OFFSET_NOT_AVAILABLE

    make_lab().run(scenario)


def test_a_follower_that_truncates_its_log_is_not_available(make_lab: Callable[..., LeaderLab]) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await following(lab, records=5, high_watermark=3)
        lab.replica().core.fetch_state = FetchState.TRUNCATING
        answer, _ = consume(lab, 0)
        assert answer is not None
        assert answer.error_code == ErrorCode.OFFSET_NOT_AVAILABLE

    make_lab().run(scenario)


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (LEADER_EPOCH - 1, ErrorCode.FENCED_LEADER_EPOCH),
        (LEADER_EPOCH + 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_a_follower_fences_leader_epochs_like_a_leader(
    make_lab: Callable[..., LeaderLab], epoch: int, error: ErrorCode
) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await following(lab, records=5, high_watermark=3)
        answer, _ = consume(lab, 0, epoch=epoch)
        assert answer is not None
        assert answer.error_code == error

    make_lab().run(scenario)
