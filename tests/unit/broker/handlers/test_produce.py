"""The waits of a Produce response: for the disk with `flush.messages`, for the replicas with acks=all."""

from __future__ import annotations

import asyncio
import random
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from brokerlab.in_memory_broker import (
    BROKER_ID,
    OTHER_BROKER_ID,
    CopyingConnection,
    InMemoryBroker,
    make_context,
)
from brokerlab.replicating_brokers import until
from tidelog.broker.log.directory_files import LogStorageError
from tidelog.broker.log.partition_log import PartitionLog
from tidelog.broker.net.connection import ClosedByProtocolError
from tidelog.broker.requests.request import NO_REPLY, PARKED
from tidelog.kernel import slices
from tidelog.kernel.steps import Steps
from tidelog.kernel.timer import VirtualTimer
from tidelog.model.errors import ErrorCode
from tidelog.records.builder import build_batch
from tidelog.records.compression import Compression
from tidelog.records.record import Record
from tidelog.rpc.broker_commands import LeaderAndIsr
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData


def send(lab: InMemoryBroker, acks: int, count: int = 1, timeout_ms: int = 1000) -> tuple[object, Any]:
    now_ms = lab.clock.wall_ms()
    batch = build_batch([Record(number, now_ms, None, b"x") for number in range(count)])
    data = PartitionProduceData(0, memoryview(batch))
    request = ProduceRequest(None, acks, timeout_ms, [TopicProduceData("t", partition_data=[data])])
    context = make_context(9)
    return lab.handle(ApiKey.PRODUCE, request, context), context


async def answer_to(lab: InMemoryBroker, acks: int) -> object:
    """Returns the answer to a batch that waits for the disk."""
    answer, context = send(lab, acks=acks)
    context.connection = SimpleNamespace(loop=asyncio.get_running_loop())
    assert asyncio.iscoroutine(answer)
    reply = await answer
    return context.answers[0] if reply is PARKED else reply


def error_of(response: Any) -> int:
    return int(response.responses[0].partition_responses[0].error_code)


def test_flush_messages_flushes_the_batch_before_the_response(lab: InMemoryBroker) -> None:
    lab.add_topic("t", configs={"flush.messages": "3"})
    log = lab.broker.hosted.leader_replica("t", 0).storage
    answer, _ = send(lab, acks=1, count=2)
    assert error_of(answer) == 0 and log.recovery_point == 0
    assert error_of(lab.runner.run(answer_to(lab, acks=-1))) == 0
    assert log.recovery_point == log.log.log_end_offset == 3


def test_records_are_visible_after_the_flush(lab: InMemoryBroker) -> None:
    """The flush starts also if no response waits for it (acks=0)."""
    lab.add_topic("t", configs={"flush.messages": "1"})
    replica = lab.broker.hosted.leader_replica("t", 0)

    async def scenario() -> None:
        assert send(lab, acks=0)[0] is NO_REPLY
        assert (replica.core.high_watermark, replica.storage.recovery_point) == (0, 0)
        await until(lambda: replica.core.high_watermark == 1)
        assert replica.storage.recovery_point == 1

    lab.runner.run(scenario())


def test_a_failed_flush_is_reported(lab: InMemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.add_topic("t", configs={"flush.messages": "1"})

    def fail(self: PartitionLog, up_to_offset: int | None = None, *, now_ms: int | None = None) -> None:
        raise LogStorageError("no disk")

    with monkeypatch.context() as patched:
        patched.setattr(PartitionLog, "flush", fail)
        assert error_of(lab.runner.run(answer_to(lab, acks=1))) == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_leader_that_followed_during_the_flush_acknowledges_nothing(
    lab: InMemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower may have truncated the batch and appended other records at its offsets."""
    lab.add_topic("t", configs={"flush.messages": "1"})
    state = lab.broker.metadata.topics["t"].partitions[0]
    is_waiting, may_go_on = threading.Event(), threading.Event()

    def flush(self: PartitionLog, up_to_offset: int | None = None, *, now_ms: int | None = None) -> None:
        is_waiting.set()
        may_go_on.wait(5)
        real_flush(self, up_to_offset, now_ms=now_ms)

    async def take_role(leader: int, leader_epoch: int) -> None:
        role = state._replace(
            leader=leader,
            leader_epoch=leader_epoch,
            partition_epoch=state.partition_epoch + leader_epoch,
            isr=(leader,),
            replicas=(BROKER_ID, OTHER_BROKER_ID),
        )
        await lab.commands.leader_and_isr(LeaderAndIsr(BROKER_ID, 7, (role,)))

    async def scenario() -> int:
        await take_role(BROKER_ID, state.leader_epoch + 1)
        wider = lab.broker.hosted.leader_replica("t", 0).core
        wider.in_sync_replicas = (BROKER_ID, OTHER_BROKER_ID)  # so that the request waits
        answer, _ = send(lab, acks=-1)
        answering = asyncio.ensure_future(cast(Any, answer))
        await asyncio.to_thread(is_waiting.wait, 5)
        await take_role(OTHER_BROKER_ID, state.leader_epoch + 2)
        await take_role(BROKER_ID, state.leader_epoch + 3)
        may_go_on.set()
        return error_of(await answering)

    real_flush = PartitionLog.flush
    monkeypatch.setattr(PartitionLog, "flush", flush)
    assert lab.runner.run(scenario()) == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_leader_that_is_closed_during_the_flush_acknowledges_nothing(
    lab: InMemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.add_topic("t", configs={"flush.messages": "1"})
    replica = lab.broker.hosted.leader_replica("t", 0)
    is_waiting, may_go_on = threading.Event(), threading.Event()

    def flush(self: PartitionLog, up_to_offset: int | None = None, *, now_ms: int | None = None) -> None:
        is_waiting.set()
        may_go_on.wait(5)
        real_flush(self, up_to_offset, now_ms=now_ms)

    async def scenario() -> int:
        answering = asyncio.ensure_future(answer_to(lab, acks=-1))
        await asyncio.to_thread(is_waiting.wait, 5)
        closing = asyncio.ensure_future(lab.broker.hosting.close(replica.topic_partition, delete=False))
        await asyncio.sleep(0)
        may_go_on.set()
        await closing
        return error_of(await answering)

    real_flush = PartitionLog.flush
    monkeypatch.setattr(PartitionLog, "flush", flush)
    assert lab.runner.run(scenario()) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert replica.core.high_watermark == 0


def test_acks_0_waits_for_nothing(lab: InMemoryBroker) -> None:
    lab.add_topic("t")
    assert send(lab, acks=0)[0] is NO_REPLY


def test_acks_all_waits_for_the_other_replica_and_times_out(lab: InMemoryBroker) -> None:
    lab.add_topic("t")
    both = (BROKER_ID, OTHER_BROKER_ID)
    state = lab.broker.metadata.topics["t"].partitions[0]
    wider = state._replace(isr=both, replicas=both, partition_epoch=2)
    lab.runner.run(lab.commands.leader_and_isr(LeaderAndIsr(BROKER_ID, 7, (wider,))))
    answer, context = send(lab, acks=-1, timeout_ms=500)
    assert answer is PARKED and not context.answers
    timer = cast(VirtualTimer, lab.broker.timer)
    timer.advance(499)
    assert not context.answers
    timer.advance(500)
    assert [error_of(response) for response in context.answers] == [ErrorCode.REQUEST_TIMED_OUT]


def test_acks_all_ends_when_the_isr_shrinks_to_the_leader(lab: InMemoryBroker) -> None:
    lab.add_topic("t")
    both = (BROKER_ID, OTHER_BROKER_ID)
    state = lab.broker.metadata.topics["t"].partitions[0]
    wider = state._replace(isr=both, replicas=both, partition_epoch=2)
    lab.runner.run(lab.commands.leader_and_isr(LeaderAndIsr(BROKER_ID, 7, (wider,))))
    _, context = send(lab, acks=-1)
    narrower = wider._replace(isr=(BROKER_ID,), partition_epoch=3)
    lab.runner.run(lab.commands.leader_and_isr(LeaderAndIsr(BROKER_ID, 7, (narrower,))))
    assert [error_of(response) for response in context.answers] == [0]


# -- batches whose records need a long walk


def send_large(lab: InMemoryBroker, acks: int, value: bytes, key: bytes | None = b"k") -> object:
    now_ms = lab.clock.wall_ms()
    batch = build_batch([Record(0, now_ms, key, value)], compression=Compression.ZSTD)
    data = PartitionProduceData(0, memoryview(batch))
    request = ProduceRequest(None, acks, 1000, [TopicProduceData("t", partition_data=[data])])
    context = make_context(9)
    context.connection = SimpleNamespace(loop=lab.runner.get_loop())
    context.client_id = "test"
    return lab.handle(ApiKey.PRODUCE, request, context)


def test_a_thread_walks_over_long_records_before_the_append(lab: InMemoryBroker) -> None:
    lab.add_topic("t", configs={"cleanup.policy": "compact"})
    log = lab.broker.hosted.leader_replica("t", 0).storage.log
    answer = send_large(lab, acks=1, value=bytes(500_000))
    assert asyncio.iscoroutine(answer)
    assert log.log_end_offset == 0
    assert error_of(lab.runner.run(answer)) == 0
    assert log.log_end_offset == 1


def test_the_records_of_a_long_walk_count_as_memory_until_it_ends(lab: InMemoryBroker) -> None:
    """The wait for replicas comes after that."""
    lab.add_topic("t", configs={"cleanup.policy": "compact"})
    both = (BROKER_ID, OTHER_BROKER_ID)
    wider = lab.broker.metadata.topics["t"].partitions[0]._replace(isr=both, replicas=both, partition_epoch=2)
    lab.runner.run(lab.commands.leader_and_isr(LeaderAndIsr(BROKER_ID, 7, (wider,))))
    batch = build_batch([Record(0, lab.clock.wall_ms(), b"k", random.Random(1).randbytes(500_000))])
    data = PartitionProduceData(0, memoryview(batch))
    request = ProduceRequest(None, -1, 1000, [TopicProduceData("t", partition_data=[data])])
    connection = CopyingConnection(loop=lab.runner.get_loop())
    answer: Any = lab.handle(ApiKey.PRODUCE, request, make_context(9, connection=connection))
    assert connection.kept == len(batch)
    assert lab.runner.run(answer) is PARKED
    assert connection.kept == 0


def test_what_the_walk_finds_refuses_the_batch(lab: InMemoryBroker) -> None:
    lab.add_topic("t", configs={"cleanup.policy": "compact"})
    answer = send_large(lab, acks=1, value=bytes(500_000), key=None)
    assert asyncio.iscoroutine(answer)
    assert error_of(lab.runner.run(answer)) == ErrorCode.INVALID_RECORD


def test_short_records_are_walked_over_at_once(lab: InMemoryBroker) -> None:
    lab.add_topic("t", configs={"cleanup.policy": "compact"})
    answer = send_large(lab, acks=1, value=bytes(1_000))
    assert error_of(answer) == 0


def test_a_request_without_acks_may_not_need_a_very_long_walk(lab: InMemoryBroker) -> None:
    lab.add_topic("t", configs={"cleanup.policy": "compact"})
    log = lab.broker.hosted.leader_replica("t", 0).storage.log
    assert send_large(lab, acks=0, value=bytes(500_000)) is NO_REPLY
    assert log.log_end_offset == 1
    with pytest.raises(ClosedByProtocolError, match="MESSAGE_TOO_LARGE"):
        send_large(lab, acks=0, value=bytes(2_000_000))


def send_many(lab: InMemoryBroker, acks: int, count: int) -> tuple[Any, Any]:
    now_ms = lab.clock.wall_ms()
    batch = build_batch([Record(0, now_ms, None, b"x")])
    data = [PartitionProduceData(0, memoryview(batch)) for _ in range(count)]
    request = ProduceRequest(None, acks, 1000, [TopicProduceData("t", partition_data=data)])
    context = make_context(9)
    context.connection = SimpleNamespace(loop=lab.runner.get_loop(), refuse=context.answers.append)
    context.client_id = "test"
    return lab.handle(ApiKey.PRODUCE, request, context), context


@pytest.fixture
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.broker.handlers.produce.MAX_BATCHES_AT_ONCE", 10)
    monkeypatch.setattr("tidelog.kernel.slices.SLICE_MS", 0)


@pytest.mark.usefixtures("short_slices")
def test_many_batches_are_appended_in_slices(lab: InMemoryBroker) -> None:
    lab.add_topic("t")
    log = lab.broker.hosted.leader_replica("t", 0).storage.log
    answer, _ = send_many(lab, acks=1, count=100)
    ends: list[int] = []

    async def watch() -> Any:
        answering = asyncio.ensure_future(answer)
        while not answering.done():
            ends.append(log.log_end_offset)
            await asyncio.sleep(0)
        return await answering

    response = lab.runner.run(watch())
    (topic,) = response.responses
    assert [part.base_offset for part in topic.partition_responses] == list(range(100))
    assert len(set(ends)) > 3, "other work ran between the slices"


@pytest.mark.usefixtures("short_slices")
def test_many_batches_without_acks_have_no_response(lab: InMemoryBroker) -> None:
    lab.add_topic("t")
    answer, context = send_many(lab, acks=0, count=100)
    assert lab.runner.run(answer) is NO_REPLY
    assert lab.broker.hosted.leader_replica("t", 0).storage.log.log_end_offset == 100
    assert not context.answers, "the connection is not closed"


@pytest.mark.usefixtures("short_slices")
def test_a_leader_that_followed_between_two_slices_does_not_acknowledge_what_it_lost(
    lab: InMemoryBroker,
) -> None:
    """A follower may have truncated the batches and appended other records at their offsets."""
    lab.add_topic("t")
    state = lab.broker.metadata.topics["t"].partitions[0]
    log = lab.broker.hosted.leader_replica("t", 0).storage.log

    async def take_role(leader: int, leader_epoch: int) -> None:
        both = (BROKER_ID, OTHER_BROKER_ID)
        role = state._replace(
            leader=leader,
            leader_epoch=leader_epoch,
            partition_epoch=state.partition_epoch + leader_epoch,
            isr=both,
            replicas=both,
        )
        await lab.commands.leader_and_isr(LeaderAndIsr(BROKER_ID, 7, (role,)))

    def other_work() -> Steps[None]:
        while not are_roles_changed.is_set():
            yield

    are_roles_changed = threading.Event()

    async def scenario() -> tuple[int, Any]:
        await take_role(BROKER_ID, state.leader_epoch + 1)
        # The changes of roles wait for a disk. Only one long work has slices at a time, so this one holds the
        # request between its first two slices meanwhile.
        other = asyncio.ensure_future(slices.finish(other_work()))
        await asyncio.sleep(0)
        answer, context = send_many(lab, acks=-1, count=100)
        answering = asyncio.ensure_future(answer)
        while not log.log_end_offset:  # noqa: ASYNC110 - the slices run on this loop
            await asyncio.sleep(0)
        appended_before = log.log_end_offset
        assert appended_before < 100
        await take_role(OTHER_BROKER_ID, state.leader_epoch + 2)
        await take_role(BROKER_ID, state.leader_epoch + 3)
        assert not answering.done(), "the roles changed between two slices"
        are_roles_changed.set()
        await other
        assert await answering is PARKED, "the later batches wait for the other replica"
        return appended_before, context

    appended_before, context = lab.runner.run(scenario())
    cast(VirtualTimer, lab.broker.timer).advance(1_000)
    (response,) = context.answers
    codes = [part.error_code for part in response.responses[0].partition_responses]
    later = 100 - appended_before
    refused, late = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT
    assert codes == [refused] * appended_before + [late] * later
