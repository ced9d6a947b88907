"""Followers of a scripted leader, on a real socket, that sends errors and other rare responses."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from brokerlab.logs import make_batch, read_all
from brokerlab.replicating_brokers import CONTROLLER_EPOCH, ReplicatingBroker, until
from brokerlab.scripted_broker import Answer, ScriptedBroker
from tidelog.model.brokers import BrokerRegistration, Endpoint
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.rpc.broker_commands import LeaderAndIsr, PartitionState, UpdateMetadata
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tidelog.wire.messages.offset_for_leader_epoch import EpochEndOffset as EpochEnd
from tidelog.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)

TOPIC_ID = uuid.uuid5(uuid.NAMESPACE_DNS, "t")
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
LEADER, FOLLOWER = 1, 2
SESSION = 77
OUT_OF_RANGE = ErrorCode.OFFSET_OUT_OF_RANGE


class ScriptedLeader:
    """A leader of the two partitions of topic t.

    It serves `batches`, unless `refusals` has an answer for a partition. A refusal is given once.
    """

    def __init__(self) -> None:
        self.batches: dict[int, list[bytes]] = {0: [], 1: []}
        self.refusals: defaultdict[int, list[PartitionData]] = defaultdict(list)
        self.session_errors: list[ErrorCode] = []
        self.epoch_end: tuple[int, int] = (0, 0)
        self.bounds = (0, 0)
        self.wanted: dict[int, int] = {}
        self.fetches: list[FetchRequest] = []

    @property
    def answers(self) -> dict[int, Answer]:
        return {
            ApiKey.FETCH: self.fetch,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: self.offset_for_leader_epoch,
            ApiKey.LIST_OFFSETS: self.list_offsets,
        }

    def fetch(self, request: FetchRequest, version: int) -> FetchResponse:
        self.fetches.append(request)
        if self.session_errors:
            return FetchResponse(error_code=self.session_errors.pop(0))
        if request.session_epoch == 0:
            self.wanted.clear()
        for topic in request.topics:
            self.wanted.update({part.partition: part.fetch_offset for part in topic.partitions})
        for forgotten in request.forgotten_topics_data:
            for partition in forgotten.partitions:
                self.wanted.pop(partition, None)
        found = [self.partition(partition, offset) for partition, offset in self.wanted.items()]
        topic_data = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data for data in found if data])
        return FetchResponse(session_id=SESSION, responses=[topic_data])

    def partition(self, partition: int, offset: int) -> PartitionData | None:
        if self.refusals[partition]:
            return self.refusals[partition].pop(0)
        batches = self.batches.get(partition, [])
        records = b"".join(batches[offset:])  # one record each
        if not records:
            return None
        end = len(batches)
        return PartitionData(partition, 0, end, end, 0, records=records)

    def offset_for_leader_epoch(
        self, request: OffsetForLeaderEpochRequest, version: int
    ) -> OffsetForLeaderEpochResponse:
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic.topic, [EpochEnd(0, part.partition, *self.epoch_end) for part in topic.partitions]
                )
                for topic in request.topics
            ]
        )

    def list_offsets(self, request: ListOffsetsRequest, version: int) -> ListOffsetsResponse:
        assert request.replica_id == FOLLOWER
        answers = [
            ListOffsetsPartitionResponse(part.partition_index, 0, -1, self.bounds[part.timestamp == -1])
            for part in request.topics[0].partitions
        ]
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse("t", answers)])


@asynccontextmanager
async def following(
    directory: Path, leader: ScriptedLeader, *, configs: dict[str, str] | None = None, **settings: str
) -> AsyncIterator[tuple[ReplicatingBroker, ScriptedBroker]]:
    """Starts broker 2, which follows the scripted broker 1."""
    given = {"replica.fetch.backoff.ms": "100", **{key.replace("_", "."): v for key, v in settings.items()}}
    with ScriptedBroker(leader.answers) as socket:
        node = ReplicatingBroker(FOLLOWER, directory, given)
        endpoint = Endpoint("PLAINTEXT", "127.0.0.1", socket.port)
        brokers = (BrokerRegistration(LEADER, 1, (endpoint,)), node.registration)
        await node.commands.update_metadata(UpdateMetadata(1, CONTROLLER_EPOCH, brokers, is_full=True))
        await follow(node, 0, configs)
        try:
            yield node, socket
        finally:
            await node.close()


async def follow(
    node: ReplicatingBroker,
    leader_epoch: int,
    configs: dict[str, str] | None = None,
    *,
    partitions: Iterable[int] = (0, 1),
    leader: int = LEADER,
) -> None:
    states = tuple(
        PartitionState(
            "t",
            TOPIC_ID,
            partition,
            leader,
            leader_epoch,
            (leader,),
            (1, 2, 3),
            CONTROLLER_EPOCH,
            leader_epoch + 1,
        )
        for partition in partitions
    )
    await node.commands.leader_and_isr(LeaderAndIsr(1, CONTROLLER_EPOCH, states, {"t": configs or {}}))


def batches(count: int, first: int = 0, leader_epoch: int = 0) -> list[bytes]:
    return [make_batch(offset, leader_epoch=leader_epoch) for offset in range(first, first + count)]


def run(directory: Path, leader: ScriptedLeader, body: Callable[[Any, Any], Any], **settings: Any) -> None:
    async def scenario() -> None:
        async with following(directory, leader, **settings) as (node, socket):
            await body(node, socket)

    asyncio.run(scenario())


def copied(node: ReplicatingBroker, leader: ScriptedLeader) -> bool:
    return all(
        node.replica(TopicPartition("t", partition)).core.log_end_offset == len(made)
        for partition, made in leader.batches.items()
    )


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_one_partitions_error_does_not_delay_the_other(tmp_path: Path, error: ErrorCode) -> None:
    leader = ScriptedLeader()
    leader.batches = {0: batches(3), 1: batches(5)}
    leader.refusals[0] = [PartitionData(0, error, -1, records=b"") for _ in range(3)]

    async def body(node: ReplicatingBroker, socket: ScriptedBroker) -> None:
        await until(lambda: node.replica(T1).core.log_end_offset == 5)
        await until(lambda: copied(node, leader))
        assert read_all(node.replica(T0).log) == leader.batches[0]
        # The follower pauses it and tells the leader so.
        assert any(request.forgotten_topics_data for request in leader.fetches)

    run(tmp_path, leader, body)


@pytest.mark.parametrize(
    "errors",
    [
        [ErrorCode.FETCH_SESSION_ID_NOT_FOUND],
        [ErrorCode.INVALID_FETCH_SESSION_EPOCH],
        [ErrorCode.FETCH_SESSION_ID_NOT_FOUND] * 3,
        [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.UNSUPPORTED_VERSION],
    ],
)
def test_a_lost_session_is_opened_again(tmp_path: Path, errors: list[ErrorCode]) -> None:
    leader = ScriptedLeader()

    async def body(node: ReplicatingBroker, socket: ScriptedBroker) -> None:
        await until(lambda: len(leader.wanted) == 2)
        leader.session_errors = list(errors)
        leader.batches = {0: batches(2), 1: batches(2)}
        await until(lambda: copied(node, leader))
        opened = [request for request in leader.fetches if request.session_epoch == 0]
        assert len(opened) >= 2
        assert opened[-1].session_id == SESSION, "the leader may drop the old one"
        assert socket.connections == 1

    run(tmp_path, leader, body)


def test_a_leader_that_gives_no_session_is_asked_again_after_a_pause(tmp_path: Path) -> None:
    """The leader does not know this broker at the moment. Without a pause, requests would follow at once."""
    leader = ScriptedLeader()
    served = leader.fetch

    def fetch(request: FetchRequest, version: int) -> FetchResponse:
        return dataclasses.replace(served(request, version), session_id=0)

    async def body(node: ReplicatingBroker, socket: ScriptedBroker) -> None:
        await until(lambda: len(leader.fetches) >= 3)
        assert [request.max_wait_ms > 0 for request in leader.fetches[:3]] == [False, True, True]
        leader.batches = {0: batches(2), 1: batches(2)}
        await until(lambda: copied(node, leader))
        leader.fetch = served  # type: ignore[method-assign]
        socket.answers[ApiKey.FETCH] = served
        await until(lambda: leader.fetches[-1].session_epoch > 0)

    leader.fetch = fetch  # type: ignore[method-assign]
    run(tmp_path, leader, body)


def test_bytes_that_are_not_batches_are_not_appended(tmp_path: Path) -> None:
    leader = ScriptedLeader()
    leader.batches = {0: batches(4), 1: []}
    broken = bytearray(make_batch(0))
    broken[-1] ^= 1
    leader.refusals[0] = [
        PartitionData(0, 0, 4, records=bytes(broken)),
        PartitionData(0, 0, 4, records=bytes(100)),
        PartitionData(0, 0, 4, records=make_batch(0)[:70]),  # incomplete, so there is no batch
    ]

    async def body(node: ReplicatingBroker, socket: ScriptedBroker) -> None:
        await until(lambda: copied(node, leader))
        assert read_all(node.replica(T0).log) == leader.batches[0]

    run(tmp_path, leader, body)


def test_a_log_that_begins_above_the_followers_end(tmp_path: Path) -> None:
    leader = ScriptedLeader()
    leader.batches[0] = batches(2)

    async def body(node: ReplicatingBroker, socket: ScriptedBroker) -> None:
        await until(lambda: copied(node, leader))
        leader.bounds = (9, 12)
        leader.refusals[0] = [PartitionData(0, ErrorCode.OFFSET_OUT_OF_RANGE, -1, records=b"")]
        await until(lambda: leader.wanted.get(0) == 9)
        assert node.replica(T0).core.log_start_offset == 9

    run(tmp_path, leader, body)


def test_many_logs_that_begin_above_the_followers_end_at_once(tmp_path: Path) -> None:
    leader = ScriptedLeader()
    leader.bounds = (9, 12)
    many = range(2, 12)
    for partition in many:
        leader.refusals[partition] = [PartitionData(partition, OUT_OF_RANGE, -1, records=b"")]

    async def body(node: ReplicatingBroker, socket: ScriptedBroker) -> None:
        await follow(node, 0, partitions=many)
        await until(lambda: all(leader.wanted.get(partition) == 9 for partition in many))
        assert socket.connections == 1

    run(tmp_path, leader, body)


def test_a_connection_lost_while_the_leaders_offsets_are_requested(tmp_path: Path) -> None:
    leader = ScriptedLeader()
    leader.bounds = (9, 12)
    leader.refusals[0] = [PartitionData(0, OUT_OF_RANGE, -1, records=b"")]
    served, losses = leader.list_offsets, [None]

    def list_offsets(request: ListOffsetsRequest, version: int) -> Any:
        return losses.pop() if losses else served(request, version)

    async def body(node: ReplicatingBroker, socket: ScriptedBroker) -> None:
        await until(lambda: leader.wanted.get(0) == 9)
        assert socket.connections == 2

    leader.list_offsets = list_offsets  # type: ignore[method-assign]
    run(tmp_path, leader, body)


def test_a_leaders_log_that_begins_within_a_batch(tmp_path: Path) -> None:
    """DeleteRecords accepts any offset, and the leader sends the whole batch that contains it."""
    leader = ScriptedLeader()
    leader.bounds = (5, 10)
    batch = make_batch(3, count=7)

    def partition(index: int, offset: int) -> PartitionData | None:
        if index == 1 or offset == 10:
            return None
        if offset != 5:
            return PartitionData(index, OUT_OF_RANGE, -1, records=b"")
        return PartitionData(index, 0, 10, 10, 5, records=batch)

    async def body(node: ReplicatingBroker, socket: ScriptedBroker) -> None:
        await until(lambda: leader.wanted.get(0) == 10)
        replica = node.replica(T0)
        assert read_all(replica.log) == [batch]
        assert (replica.core.log_start_offset, replica.core.log_end_offset) == (5, 10)

    leader.partition = partition  # type: ignore[method-assign]
    run(tmp_path, leader, body)


def test_an_empty_log_that_lies_above_the_leaders(tmp_path: Path) -> None:
    """The log has no epoch that the follower could ask the leader about."""
    leader = ScriptedLeader()

    async def body(node: ReplicatingBroker, socket: ScriptedBroker) -> None:
        await until(lambda: len(leader.wanted) == 2)
        leader.bounds = (9, 9)
        leader.refusals[0] = [PartitionData(0, OUT_OF_RANGE, -1, records=b"")]
        await until(lambda: leader.wanted.get(0) == 9)
        leader.bounds = (2, 4)  # from another leader, whose election lost records
        leader.refusals[0] = [PartitionData(0, OUT_OF_RANGE, -1, records=b"")] * 3
        await follow(node, 1)
        await until(lambda: leader.wanted.get(0) == 2)

    run(tmp_path, leader, body)


def test_a_paused_partition_stays_when_all_others_are_removed(tmp_path: Path) -> None:
    """The connection to its leader stays open although nothing is fetched over it at the moment."""
    leader = ScriptedLeader()
    leader.batches = {0: batches(3), 1: []}
    leader.refusals[0] = [PartitionData(0, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, records=b"")] * 3

    async def body(node: ReplicatingBroker, socket: ScriptedBroker) -> None:
        await until(lambda: len(leader.refusals[0]) < 3 and 0 not in leader.wanted)
        await follow(node, 1, partitions=[1], leader=3)
        await until(lambda: node.replica(T0).core.log_end_offset == 3)

    run(tmp_path, leader, body)


def test_a_divergence_reported_by_fetch_truncates_the_log(tmp_path: Path) -> None:
    leader = ScriptedLeader()
    leader.batches[0] = batches(5)

    async def body(node: ReplicatingBroker, socket: ScriptedBroker) -> None:
        await until(lambda: copied(node, leader))
        leader.batches[0] = leader.batches[0][:2] + batches(2, first=2, leader_epoch=0)
        leader.refusals[0] = [PartitionData(0, 0, 2, diverging_epoch=EpochEndOffset(0, 2), records=b"")]
        await until(lambda: leader.wanted.get(0) == 4)
        assert read_all(node.replica(T0).log) == leader.batches[0]

    run(tmp_path, leader, body)


def test_a_new_epoch_is_asked_about_before_anything_is_fetched(tmp_path: Path) -> None:
    leader = ScriptedLeader()
    leader.batches[0] = batches(5)

    async def body(node: ReplicatingBroker, socket: ScriptedBroker) -> None:
        await until(lambda: copied(node, leader))
        leader.epoch_end = (0, 3)
        leader.batches[0] = leader.batches[0][:3] + batches(4, first=3, leader_epoch=1)
        await follow(node, 1)
        await until(lambda: leader.wanted.get(0) == 7)
        assert read_all(node.replica(T0).log) == leader.batches[0]
        asked = socket.requests_of(OffsetForLeaderEpochRequest)
        assert [(request.replica_id, request.topics[0].partitions[0].leader_epoch) for request in asked] == [
            (FOLLOWER, 0)
        ]

    run(tmp_path, leader, body)


def test_a_leader_that_ends_the_connection_is_connected_to_again(tmp_path: Path) -> None:
    leader = ScriptedLeader()
    leader.batches = {0: batches(2), 1: batches(2)}
    served = leader.fetch
    failures = [None, b"\0\0\0\1x", b"\xff\xff\xff\xff", b"\0\0\0\6\0\0\0\0\0\0"]

    async def body(node: ReplicatingBroker, socket: ScriptedBroker) -> None:
        await until(lambda: copied(node, leader))
        assert socket.connections == 5

    def fetch(request: FetchRequest, version: int) -> Any:
        return failures.pop() if failures else served(request, version)

    leader.fetch = fetch  # type: ignore[method-assign]
    run(tmp_path, leader, body)


def test_a_leader_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    leader = ScriptedLeader()
    leader.batches = {0: batches(2), 1: batches(2)}
    served, silent = leader.fetch, [b""]

    def fetch(request: FetchRequest, version: int) -> Any:
        return silent.pop() if silent else served(request, version)

    async def body(node: ReplicatingBroker, socket: ScriptedBroker) -> None:
        await until(lambda: copied(node, leader))
        assert socket.connections == 2

    leader.fetch = fetch  # type: ignore[method-assign]
    run(tmp_path, leader, body, replica_socket_timeout_ms="200", replica_fetch_wait_max_ms="50")


def test_throttled_replicas_wait_and_the_others_continue(tmp_path: Path) -> None:
    leader = ScriptedLeader()
    size = len(make_batch(0, value_bytes=1000))
    leader.batches = {0: [make_batch(n, value_bytes=1000) for n in range(4)], 1: batches(4)}
    served = leader.partition

    def one_batch(partition: int, offset: int) -> PartitionData | None:
        data = served(partition, offset)
        if data is not None and data.records and partition == 0:
            data.records = leader.batches[0][offset]
        return data

    leader.partition = one_batch  # type: ignore[method-assign]

    async def body(node: ReplicatingBroker, socket: ScriptedBroker) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await until(lambda: node.replica(T1).core.log_end_offset == 4)
        await until(lambda: copied(node, leader))
        # A burst of one second is sent at once, and the rest at the rate.
        assert loop.time() - begun >= (3 * size - 3000) / 3000

    rate = {"follower_replication_throttled_rate": "3000"}
    run(
        tmp_path,
        leader,
        body,
        configs={"follower.replication.throttled.replicas": "0:2"},
        **rate,
    )


def test_a_failed_append_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = ScriptedLeader()

    async def body(node: ReplicatingBroker, socket: ScriptedBroker) -> None:
        await until(lambda: len(leader.wanted) == 2)
        with monkeypatch.context() as patch:
            patch.setattr("tidelog.broker.log.segmented_log.os.pwrite", lambda fd, data, position: 10)
            leader.batches = {0: batches(3), 1: []}
            await until(lambda: 0 not in leader.wanted)  # omitted for a while
        await until(lambda: copied(node, leader))
        assert read_all(node.replica(T0).log) == leader.batches[0]

    run(tmp_path, leader, body)
