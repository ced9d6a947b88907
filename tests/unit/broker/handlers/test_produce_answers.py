"""The responses to Produce requests, what they wait for, and what ends the wait."""

from __future__ import annotations

import gc
import uuid
from typing import Any, cast

import pytest

from brokerlab.in_memory_broker import BROKER_ID, OTHER_BROKER_ID, InMemoryBroker, make_context
from tidelog.broker.log.directory_files import LogStorageError
from tidelog.broker.log.partition_log import PartitionLog
from tidelog.broker.log.segmented_log import SegmentedLog
from tidelog.broker.net.connection import ClosedByProtocolError
from tidelog.broker.requests import one_batch
from tidelog.broker.requests.one_batch import OneBatch
from tidelog.broker.requests.request import NO_REPLY, PARKED, EncodedBody, RequestContext
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import INTERNAL_TOPICS, TopicPartition
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.rpc.broker_commands import LeaderAndIsr, PartitionState, StopReplica
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)


class Client:
    def __init__(self, *, comes_again: bool) -> None:
        """Handles Produce requests. With `comes_again`, the broker has seen such a request before."""
        self.comes_again = comes_again
        self.frame = bytearray()  # of the last request
        self.answers: list[ProduceResponse] = []
        self.context_of_last: Any = None
        self.is_closed = False

    def context(self, version: int, client_id: str = "test") -> RequestContext:
        self.context_of_last = make_context(
            version,
            client_id=client_id,
            connection=self,
            reply=lambda answer: self.answers.append(decoded(answer, version)),
        )
        return self.context_of_last

    def received(self, request: ProduceRequest, version: int) -> ProduceRequest | OneBatch:
        if not self.comes_again:
            return request
        body = b"".join(map(bytes, codec.request_encoder(ApiKey.PRODUCE, version)(request)))
        decode = one_batch.decoder(version)
        decode(memoryview(body), 0)
        self.frame = bytearray(body)
        return decode(memoryview(self.frame), 0)[0]

    def close(self) -> None:
        self.is_closed = True
        if self.context_of_last.on_abandoned is not None:
            self.context_of_last.on_abandoned()


def send(
    lab: InMemoryBroker,
    client: Client,
    *partitions: int,
    acks: int = -1,
    version: int = 9,
    topic: dict[str, Any] | None = None,
    records: bytes | None = b"",
    timeout_ms: int = 1000,
    client_id: str = "test",
) -> Any:
    """Returns a request with a batch of three records for each partition."""
    data = []
    for partition in partitions or (0,):
        made = [Record(index, lab.clock.wall_ms(), None, b"v", []) for index in range(3)]
        client.frame = bytearray(build_batch(made))
        batch = memoryview(client.frame) if records == b"" else records
        data.append(PartitionProduceData(partition, cast(Any, batch)))
    topics = [TopicProduceData(partition_data=data, **(topic or {"name": "t"}))]
    request = ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=topics)
    answer = lab.handle(ApiKey.PRODUCE, client.received(request, version), client.context(version, client_id))
    return decoded(answer, version)


def decoded(answer: Any, version: int) -> Any:
    if isinstance(answer, EncodedBody):
        body = b"".join(cast(list[bytes], answer.chunks))
        return codec.response_decoder(ApiKey.PRODUCE, version)(body, 0)[0]
    return answer


def parts(answer: Any) -> list[PartitionProduceResponse]:
    assert isinstance(answer, ProduceResponse)
    return [part for topic in answer.responses for part in topic.partition_responses]


def replicate(lab: InMemoryBroker, leader: int = BROKER_ID, leader_epoch: int = 4) -> None:
    """Adds a second replica to the ISR. It never fetches, so acks=all waits."""
    topic_id = lab.broker.metadata.topics["t"].topic_id
    both = (BROKER_ID, OTHER_BROKER_ID)
    state = PartitionState(
        "t", topic_id, 0, leader, leader_epoch, both, both, 7, partition_epoch=leader_epoch
    )
    lab.runner.run(lab.commands.leader_and_isr(LeaderAndIsr(BROKER_ID, 7, (state,))))


@pytest.fixture(params=[False, True], ids=["first", "again"])
def client(request: pytest.FixtureRequest) -> Client:
    return Client(comes_again=request.param)


@pytest.mark.parametrize("acks", [1, -1])
def test_offsets_follow_each_other(lab: InMemoryBroker, client: Client, acks: int) -> None:
    lab.add_topic("t", partitions=2)
    assert [part.base_offset for part in parts(send(lab, client, 0, 1, acks=acks))] == [0, 0]
    assert [part.base_offset for part in parts(send(lab, client, 1, acks=acks))] == [3]
    assert len(lab.broker.waiting.produce) == 0


def test_acks_0_has_no_response(lab: InMemoryBroker, client: Client) -> None:
    lab.add_topic("t")
    assert send(lab, client, acks=0) is NO_REPLY
    assert lab.broker.hosted.leader_replica("t", 0).log.log_end_offset == 3
    with pytest.raises(ClosedByProtocolError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        send(lab, client, 5, acks=0)


def test_invalid_acks_append_nothing(lab: InMemoryBroker, client: Client) -> None:
    lab.add_topic("t")
    (part,) = parts(send(lab, client, acks=2))
    assert (part.error_code, part.base_offset) == (ErrorCode.INVALID_REQUIRED_ACKS, -1)
    assert lab.broker.hosted.leader_replica("t", 0).log.log_end_offset == 0


def test_an_error_of_one_partition_does_not_affect_the_others(
    lab: InMemoryBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.add_topic("t", partitions=2)
    append = SegmentedLog.append

    def full_disk(self: SegmentedLog, *arguments: Any) -> bool:
        if self.directory.path.endswith("t-0"):
            raise LogStorageError("No space left on device")
        return append(self, *arguments)

    monkeypatch.setattr(SegmentedLog, "append", full_disk)
    answers = parts(send(lab, client, 0, 1))
    assert [part.error_code for part in answers] == [ErrorCode.KAFKA_STORAGE_ERROR, 0]
    assert lab.broker.hosted.leader_replica("t", 0).core.log_end_offset == 0


@pytest.mark.parametrize("records", [None, b"\x00" * 5, b"\xff" * 200])
def test_invalid_batches(lab: InMemoryBroker, client: Client, records: bytes | None) -> None:
    lab.add_topic("t")
    given = None if records is None else memoryview(bytearray(records))
    (part,) = parts(send(lab, client, records=cast(Any, given)))
    assert part.error_code in (
        ErrorCode.INVALID_RECORD,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    )
    assert part.error_code != ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
@pytest.mark.parametrize("client_id", ["test", "__admin_client"])  # Kafka lets the second one write
def test_internal_topics_are_refused(lab: InMemoryBroker, client: Client, name: str, client_id: str) -> None:
    lab.add_topic(name)
    (part,) = parts(send(lab, client, topic={"name": name}, client_id=client_id))
    assert part.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert lab.broker.hosted.leader_replica(name, 0).core.log_end_offset == 0


def test_by_topic_id(lab: InMemoryBroker, client: Client) -> None:
    topic_id = lab.add_topic("t")
    (part,) = parts(send(lab, client, version=13, topic={"topic_id": topic_id}))
    assert part.base_offset == 0
    (part,) = parts(send(lab, client, version=13, topic={"topic_id": uuid.UUID(int=5)}))
    assert part.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_the_new_leader_is_named(lab: InMemoryBroker, client: Client) -> None:
    lab.add_topic("t", leader=OTHER_BROKER_ID)
    answer = send(lab, client)
    (part,) = parts(answer)
    assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (OTHER_BROKER_ID, 3)
    assert [(node.node_id, node.host, node.port) for node in answer.node_endpoints] == [
        (OTHER_BROKER_ID, "127.0.0.1", 9092)
    ]


# -- waiting


def test_acks_all_waits_until_its_timeout(lab: InMemoryBroker, client: Client) -> None:
    lab.add_topic("t")
    replicate(lab)
    assert send(lab, client) is PARKED
    lab.broker.timer.advance(999)
    assert not client.answers
    lab.broker.timer.advance(1000)
    assert [part.error_code for part in parts(client.answers[0])] == [ErrorCode.REQUEST_TIMED_OUT]
    assert len(lab.broker.waiting.produce) == 0


def test_a_batch_that_waits_for_replicas_is_not_kept_in_memory(lab: InMemoryBroker, client: Client) -> None:
    lab.add_topic("t")
    replicate(lab)
    assert send(lab, client) is PARKED
    gc.collect()
    client.frame.clear()  # raises BufferError while something refers to the frame


def test_acks_all_waits_for_the_high_watermark(lab: InMemoryBroker, client: Client) -> None:
    lab.add_topic("t")
    replicate(lab)
    assert send(lab, client) is PARKED
    topic_id = lab.broker.metadata.topics["t"].topic_id
    alone = PartitionState(
        "t", topic_id, 0, BROKER_ID, 4, (BROKER_ID,), (BROKER_ID, OTHER_BROKER_ID), 7, partition_epoch=5
    )
    lab.runner.run(lab.commands.leader_and_isr(LeaderAndIsr(BROKER_ID, 7, (alone,))))
    assert [(part.error_code, part.base_offset) for part in parts(client.answers[0])] == [(0, 0)]


def test_a_leader_that_resigns_ends_the_wait(lab: InMemoryBroker, client: Client) -> None:
    lab.add_topic("t")
    replicate(lab)
    assert send(lab, client) is PARKED
    replicate(lab, leader=OTHER_BROKER_ID, leader_epoch=5)
    assert [part.error_code for part in parts(client.answers[0])] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_a_topic_that_is_deleted_ends_the_wait(lab: InMemoryBroker, client: Client) -> None:
    lab.add_topic("t")
    replicate(lab)
    assert send(lab, client) is PARKED
    stop = StopReplica(BROKER_ID, 7, (TopicPartition("t", 0),), {}, delete=True)
    lab.runner.run(lab.commands.stop_replica(stop))
    assert [part.error_code for part in parts(client.answers[0])] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_a_closed_connection_ends_the_wait(lab: InMemoryBroker, client: Client) -> None:
    """The timeout of the request does not matter."""
    lab.add_topic("t")
    replicate(lab)
    assert send(lab, client, timeout_ms=2**31 - 1) is PARKED
    client.close()
    assert len(lab.broker.waiting.produce) == 0
    assert len(lab.broker.timer) == 0


def test_a_wait_ends_when_the_broker_stops(lab: InMemoryBroker, client: Client) -> None:
    lab.add_topic("t")
    replicate(lab)
    assert send(lab, client, timeout_ms=2**31 - 1) is PARKED
    lab.broker.waiting.produce.expire_all()
    assert len(client.answers) == 1


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_a_timeout_of_zero_or_less(lab: InMemoryBroker, client: Client, timeout_ms: int) -> None:
    lab.add_topic("t")
    replicate(lab)
    assert send(lab, client, timeout_ms=timeout_ms) is PARKED
    assert [part.error_code for part in parts(client.answers[0])] == [ErrorCode.REQUEST_TIMED_OUT]


def test_batches_are_refused_while_the_role_changes(
    lab: InMemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One batch arrives while the new epoch is being written to disk, and one afterwards. Neither leaves a
    gap.
    """
    topic_id = lab.add_topic("t")
    client = Client(comes_again=False)

    def code_of(sequence: int) -> int:
        record = Record(0, lab.clock.wall_ms(), None, b"v", [])
        batch = build_batch([record], producer_id=1000, producer_epoch=0, base_sequence=sequence)
        answer = send(lab, client, records=cast(Any, memoryview(bytearray(batch))))
        assert isinstance(answer, ProduceResponse)
        return answer.responses[0].partition_responses[0].error_code

    assert code_of(0) == ErrorCode.NONE
    meanwhile: list[int] = []
    persist = PartitionLog.persist_leader_epochs

    def slow_persist(log: PartitionLog, **options: Any) -> None:
        meanwhile.append(code_of(1))
        persist(log, **options)

    monkeypatch.setattr(PartitionLog, "persist_leader_epochs", slow_persist)
    state = PartitionState("t", topic_id, 0, BROKER_ID, 9, (BROKER_ID,), (BROKER_ID,), 7, partition_epoch=2)
    lab.runner.run(lab.commands.leader_and_isr(LeaderAndIsr(BROKER_ID, 7, (state,))))
    assert meanwhile == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert code_of(2) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [code_of(1), code_of(2)] == [ErrorCode.NONE, ErrorCode.NONE]
