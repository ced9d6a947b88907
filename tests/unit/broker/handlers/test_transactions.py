"""Produce in a transaction, the end of the transaction, and the records for read_committed consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from brokerlab.in_memory_broker import (
    BROKER_ID,
    OTHER_BROKER_ID,
    CopyingConnection,
    InMemoryBroker,
    make_context,
)
from tidelog.broker.coordination.verification import refusal_for
from tidelog.broker.handlers import fetch as fetch_module
from tidelog.broker.partition.events import FollowerFetched
from tidelog.broker.requests.request import PARKED
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import EndTransactionMarker, iterate_headers
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.rpc.broker_commands import LeaderAndIsr
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

PID = 1000


class ScriptedVerification:
    """A coordinator that returns the next of `errors`, and then NONE. It runs `meanwhile` before each
    response.
    """

    def __init__(self, lab: InMemoryBroker) -> None:
        lab.broker.coordination.verification = self  # type: ignore[assignment]
        self.asked: list[tuple[str, int, int, tuple[TopicPartition, ...], bool]] = []
        self.errors: list[ErrorCode] = []
        self.meanwhile: Callable[[], None] = lambda: None

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        verify_only: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        self.asked.append((transactional_id, producer_id, producer_epoch, tuple(partitions), verify_only))
        self.meanwhile()
        error = self.errors.pop(0) if self.errors else ErrorCode.NONE
        return dict.fromkeys(partitions, error)


@pytest.fixture
def coordination(lab: InMemoryBroker) -> ScriptedVerification:
    scripted = ScriptedVerification(lab)
    lab.add_topic("t", partitions=2)
    return scripted


def produce(
    lab: InMemoryBroker,
    sequence: int,
    *,
    version: int = 11,
    partitions: Sequence[int] = (0,),
    transactional_id: str | None = "x",
    count: int = 2,
    epoch: int = 0,
) -> list[tuple[ErrorCode, int]]:
    now_ms = lab.clock.wall_ms()
    data = [
        PartitionProduceData(
            partition,
            memoryview(
                build_batch(
                    [Record(number, now_ms, None, b"%d" % number) for number in range(count)],
                    producer_id=PID,
                    producer_epoch=epoch,
                    base_sequence=sequence,
                    is_transactional=True,
                )
            ),
        )
        for partition in partitions
    ]
    request = ProduceRequest(transactional_id, -1, 1000, [TopicProduceData("t", partition_data=data)])
    answer = lab.call(request, version)
    return [
        (ErrorCode(part.error_code), part.base_offset)
        for topic in answer.responses
        for part in topic.partition_responses
    ]


def first_of_transaction(lab: InMemoryBroker, value: bytes) -> ProduceRequest:
    batch = build_batch(
        [Record(0, lab.clock.wall_ms(), None, value)],
        producer_id=PID,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    data = PartitionProduceData(0, memoryview(batch))
    return ProduceRequest("x", -1, 1000, [TopicProduceData("t", partition_data=[data])])


def end(lab: InMemoryBroker, *, is_commit: bool, epoch: int = 0, version: int = 0) -> None:
    marker = EndTransactionMarker(is_commit, 1)
    lab.broker.hosted.leader_replica("t", 0).append_marker(PID, epoch, marker, version, lab.clock.wall_ms())


def fetch(
    lab: InMemoryBroker,
    offset: int,
    *,
    max_bytes: int = 1 << 20,
    isolation_level: int = 1,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
) -> Any:
    partition = FetchPartition(0, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        isolation_level=isolation_level,
        session_epoch=-1,
        topics=[FetchTopic("t", partitions=[partition])],
    )
    (answer,) = lab.call(request, 12).responses[0].partitions
    return answer


def test_a_verified_batch_that_waits_for_replicas_does_not_delay_later_requests(
    lab: InMemoryBroker, coordination: ScriptedVerification
) -> None:
    """The coroutine of the request, which delays later requests of its connection, ends with the append."""
    both = (BROKER_ID, OTHER_BROKER_ID)
    wider = lab.broker.metadata.topics["t"].partitions[0]._replace(isr=both, replicas=both, partition_epoch=2)
    lab.runner.run(lab.commands.leader_and_isr(LeaderAndIsr(BROKER_ID, 7, (wider,))))
    request, context = first_of_transaction(lab, b"x"), make_context(11)
    coroutine = lab.handle(ApiKey.PRODUCE, request, context)
    assert asyncio.iscoroutine(coroutine)
    assert lab.runner.run(coroutine) is PARKED
    replica = lab.broker.hosted.leader_replica("t", 0)
    assert replica.core.log_end_offset == 1 and not context.answers
    fetched = FollowerFetched(OTHER_BROKER_ID, 11, 1, 0, 0)
    replica.step(fetched)
    (answer,) = context.answers
    (part,) = answer.responses[0].partition_responses
    assert (part.error_code, part.base_offset) == (ErrorCode.NONE, 0)
    assert context.on_abandoned is not None, "a connection that ends calls it"


@pytest.mark.parametrize("are_dropped", [False, True])
def test_records_count_as_memory_while_the_coordinator_is_asked(
    lab: InMemoryBroker, coordination: ScriptedVerification, are_dropped: bool
) -> None:
    """If others need the memory, the connection ends, and nothing is appended."""
    connection = CopyingConnection(loop=lab.runner.get_loop())
    replica = lab.broker.hosted.leader_replica("t", 0)
    counted: list[int] = []

    def ask() -> None:
        counted.append(connection.kept)
        if are_dropped:
            connection.drop()

    coordination.meanwhile = ask
    request = first_of_transaction(lab, bytes(100_000))
    coroutine = lab.handle(ApiKey.PRODUCE, request, make_context(11, connection=connection))
    assert asyncio.iscoroutine(coroutine)
    lab.runner.run(coroutine)
    assert counted[0] > 100_000 and connection.kept == 0
    assert replica.core.log_end_offset == (0 if are_dropped else 1)


def test_the_coordinator_is_asked_before_the_first_batch_only(
    lab: InMemoryBroker, coordination: ScriptedVerification
) -> None:
    assert produce(lab, 0, partitions=(0, 1)) == [(ErrorCode.NONE, 0), (ErrorCode.NONE, 0)]
    assert produce(lab, 2) == [(ErrorCode.NONE, 2)]
    both = (TopicPartition("t", 0), TopicPartition("t", 1))
    assert coordination.asked == [("x", PID, 0, both, True)]
    end(lab, is_commit=True, epoch=1, version=2)
    assert produce(lab, 0, version=12, epoch=1) == [(ErrorCode.NONE, 5)]
    assert coordination.asked[1:] == [("x", PID, 1, both[:1], False)], "v12 adds the partition"


@pytest.mark.parametrize(
    ("error", "version", "expected"),
    [
        (ErrorCode.INVALID_TXN_STATE, 11, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.NOT_COORDINATOR, 9, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 12, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 12, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.TRANSACTION_ABORTABLE, 10, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, 11, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.PRODUCER_FENCED, 11, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 11, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_refusals_of_the_coordinator_become_errors_that_producers_know(
    lab: InMemoryBroker,
    coordination: ScriptedVerification,
    error: ErrorCode,
    version: int,
    expected: ErrorCode,
) -> None:
    assert refusal_for(error, version).code is expected
    coordination.errors = [error]
    assert produce(lab, 0, version=version) == [(expected, -1)]
    assert lab.broker.hosted.leader_replica("t", 0).core.log_end_offset == 0
    assert produce(lab, 0, version=version) == [(ErrorCode.NONE, 0)], "the client retries"


def test_a_batch_is_refused_if_its_transaction_ends_during_verification(
    lab: InMemoryBroker, coordination: ScriptedVerification
) -> None:
    coordination.meanwhile = lambda: end(lab, is_commit=False)
    assert produce(lab, 0) == [(ErrorCode.INVALID_TXN_STATE, -1)]
    assert lab.broker.hosted.leader_replica("t", 0).core.producers.first_unstable_offset is None


def test_verification_can_be_disabled_except_for_clients_that_rely_on_it(
    make_broker: Any,
) -> None:
    lab = make_broker({"transaction.partition.verification.enable": "false"})
    coordination = ScriptedVerification(lab)
    lab.add_topic("t", partitions=2)
    assert produce(lab, 0) == [(ErrorCode.NONE, 0)]
    assert not coordination.asked
    end(lab, is_commit=True, epoch=1, version=2)
    assert produce(lab, 0, version=12, epoch=1) == [(ErrorCode.NONE, 3)]
    assert len(coordination.asked) == 1


def test_a_transactions_batch_without_the_transactional_id(
    lab: InMemoryBroker, coordination: ScriptedVerification
) -> None:
    refused = [(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)]
    assert produce(lab, 0, transactional_id=None) == refused
    assert not coordination.asked


def test_a_repeated_batch_is_answered_as_before(
    lab: InMemoryBroker, coordination: ScriptedVerification
) -> None:
    produce(lab, 0)
    assert produce(lab, 0) == [(ErrorCode.NONE, 0)]
    assert lab.broker.hosted.leader_replica("t", 0).core.log_end_offset == 2


def test_read_committed_gets_the_aborted_transactions(
    lab: InMemoryBroker, coordination: ScriptedVerification
) -> None:
    produce(lab, 0)
    lab.append("t", 3)
    answer = fetch(lab, 0)
    assert (answer.records, answer.last_stable_offset, answer.high_watermark) == (b"", 0, 5)
    assert answer.aborted_transactions == []
    assert len(list(iterate_headers(fetch(lab, 0, isolation_level=0).records))) == 2
    end(lab, is_commit=False)
    produce(lab, 2)
    answer = fetch(lab, 0)
    assert answer.last_stable_offset == 6
    assert [(t.producer_id, t.first_offset) for t in answer.aborted_transactions] == [(PID, 0)]
    assert [header.base_offset for _, header in iterate_headers(answer.records)] == [0, 2, 5]
    assert fetch(lab, 0, isolation_level=0).aborted_transactions is None
    end(lab, is_commit=True)
    answer = fetch(lab, 6)
    assert answer.aborted_transactions == [], "no part of it is at or above the fetch offset"


def test_a_range_of_the_log_lists_only_its_own_aborted_transactions(
    lab: InMemoryBroker, coordination: ScriptedVerification
) -> None:
    for round_number in range(4):
        produce(lab, 2 * round_number)
        end(lab, is_commit=False)
    one_batch = fetch(lab, 3, max_bytes=1)
    assert [t.first_offset for t in one_batch.aborted_transactions] == [3]
    assert [t.first_offset for t in fetch(lab, 3).aborted_transactions] == [3, 6, 9]


def test_a_committed_read_ends_before_it_has_too_many_aborted_transactions(
    lab: InMemoryBroker, coordination: ScriptedVerification, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "MAX_ABORTED_TRANSACTIONS", 2)
    for round_number in range(5):
        produce(lab, 2 * round_number)
        end(lab, is_commit=False)
    offset, read = 0, []
    while offset < 15:
        # The first two answers leave at once, although the client waits for more bytes.
        answer = fetch(lab, offset, min_bytes=1 << 20 if offset < 12 else 1, max_wait_ms=500)
        headers = [header for _, header in iterate_headers(answer.records)]
        read.append([header.base_offset for header in headers])
        assert [t.first_offset for t in answer.aborted_transactions] == [
            header.base_offset for header in headers if not header.is_control
        ]
        offset = headers[-1].last_offset + 1
    assert read == [[0, 2, 3, 5], [6, 8, 9, 11], [12, 14]]


def test_the_partitions_of_a_response_share_the_number_of_aborted_transactions(
    lab: InMemoryBroker, coordination: ScriptedVerification, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "MAX_ABORTED_TRANSACTIONS", 3)
    for round_number in range(2):
        produce(lab, 2 * round_number, partitions=(0, 1))
        for partition in (0, 1):
            replica = lab.broker.hosted.leader_replica("t", partition)
            marker = EndTransactionMarker(False, 1)
            replica.append_marker(PID, 0, marker, 0, lab.clock.wall_ms())
    wanted = [
        FetchPartition(partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        for partition, offset in ((0, 0), (1, 0))
    ]
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=1,
        isolation_level=1,
        session_epoch=-1,
        topics=[FetchTopic("t", partitions=wanted)],
    )
    found = [
        (
            [header.base_offset for _, header in iterate_headers(part.records or b"")],
            [aborted.first_offset for aborted in part.aborted_transactions],
        )
        for part in lab.call(request, 12).responses[0].partitions
    ]
    assert found == [([0, 2, 3, 5], [0, 3]), ([0, 2], [0])]


def test_a_committed_read_has_one_batch_however_many_transactions_were_open(
    lab: InMemoryBroker, coordination: ScriptedVerification, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "MAX_ABORTED_TRANSACTIONS", 2)
    lab.append("t", 2)
    replica, now_ms = lab.broker.hosted.leader_replica("t", 0), lab.clock.wall_ms()
    epoch = replica.core.leader_epoch
    for producer_id in range(1, 6):
        batch = build_batch(
            [Record(0, now_ms, None, b"x")], producer_id=producer_id, producer_epoch=0, is_transactional=True
        )
        replica.append_for_shard(memoryview(bytes(batch)), epoch, replica.core.log_end_offset, now_ms)
    for producer_id in range(1, 6):
        replica.append_marker(producer_id, 0, EndTransactionMarker(False, 1), 0, now_ms)
    reads = {offset: fetch(lab, offset) for offset in (0, 3, 5)}
    found = {
        offset: (
            [header.base_offset for _, header in iterate_headers(answer.records)],
            [t.producer_id for t in answer.aborted_transactions],
        )
        for offset, answer in reads.items()
    }
    assert found == {0: ([0, 2, 3], [1, 2]), 3: ([3], [1, 2]), 5: ([5], [1, 2, 3, 4])}
    assert sum(segment.references for segment in replica.log.segments) == 0


def test_a_restart_keeps_the_transactions(lab: InMemoryBroker, coordination: ScriptedVerification) -> None:
    produce(lab, 0)
    end(lab, is_commit=False)
    produce(lab, 2)
    lab.append("t")
    before = fetch(lab, 0)
    lab.reopen()
    lab.add_topic("t", partitions=2)
    after = fetch(lab, 0)
    assert (after.records, after.aborted_transactions) == (before.records, before.aborted_transactions)
    assert after.last_stable_offset == before.last_stable_offset == 3
    (row,) = lab.broker.hosted.leader_replica("t", 0).core.producers.describe()
    assert (row.producer_id, row.current_txn_start_offset, row.coordinator_epoch) == (PID, 3, 1)


def test_an_owner_appends_several_batches_of_its_shard(lab: InMemoryBroker) -> None:
    lab.add_topic("t")
    replica = lab.broker.hosted.leader_replica("t", 0)
    now_ms = lab.clock.wall_ms()
    plain = bytes(build_batch([Record(number, now_ms, b"k", b"v") for number in range(2)]))
    pending = bytes(
        build_batch([Record(0, now_ms, b"k", b"v")], producer_id=PID, producer_epoch=0, is_transactional=True)
    )
    epoch = replica.core.leader_epoch
    assert replica.append_for_shard(memoryview(plain + pending + plain), epoch, 0, now_ms) == 5
    read = fetch(lab, 0, isolation_level=0)
    assert [(h.base_offset, h.partition_leader_epoch) for _, h in iterate_headers(read.records)] == [
        (0, epoch),
        (2, epoch),
        (3, epoch),
    ]
    assert replica.core.last_stable_offset == 2
    with pytest.raises(KafkaError) as refusal:
        replica.append_for_shard(memoryview(plain), epoch, 0, now_ms)
    assert refusal.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    for spoilt in (plain[:-1], plain[:-1] + b"x", b""):
        with pytest.raises(KafkaError) as refusal:
            replica.append_for_shard(memoryview(spoilt), epoch, 5, now_ms)
        assert refusal.value.code is ErrorCode.CORRUPT_MESSAGE
    assert replica.core.log_end_offset == 5


def test_an_owners_appends_span_segments(lab: InMemoryBroker) -> None:
    lab.add_topic("t", configs={"segment.bytes": "1048576"})
    replica = lab.broker.hosted.leader_replica("t", 0)
    now_ms = lab.clock.wall_ms()
    batch = bytes(build_batch([Record(0, now_ms, None, bytes(400_000))]))
    assert replica.append_for_shard(memoryview(batch * 5), replica.core.leader_epoch, 0, now_ms) == 5
    assert [segment.base_offset for segment in replica.log.segments] == [0, 2, 4]
    assert replica.core.high_watermark == 5
