"""Produce over a raw socket: versions, rejected requests and their errors, sequences of
idempotent producers.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from brokerlab.batches import build_batch
from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import consume_messages, end_offset
from brokerlab.raw_client import ConnectionClosedError, RawClient

pytestmark = pytest.mark.integration
UNKNOWN_SERVER_ERROR, CORRUPT_MESSAGE, UNKNOWN_TOPIC, INVALID_REQUIRED_ACKS, UNSUPPORTED_VERSION = (
    -1,
    2,
    3,
    21,
    35,
)
OUT_OF_ORDER, DUPLICATE_SEQUENCE, INVALID_PRODUCER_EPOCH = 45, 46, 47
UNSUPPORTED_COMPRESSION_TYPE, INVALID_RECORD, UNKNOWN_TOPIC_ID = 76, 87, 100


def produce_request(
    topic: Any, records: bytes | None, version: int = 9, acks: int = -1, partition: int = 0
) -> dict[str, Any]:
    name = {"topic_id": topic} if version >= 13 else {"name": topic}
    data = [{**name, "partition_data": [{"index": partition, "records": records}]}]
    return {"transactional_id": None, "acks": acks, "timeout": 10_000, "topic_data": data}


def produce(raw: RawClient, topic: Any, records: bytes | None, version: int = 9, **values: Any) -> Any:
    """Returns the response of the only partition."""
    answer = raw.call("produce", version, **produce_request(topic, records, version, **values))
    ((found,),) = [t.partition_responses for t in answer.responses]
    return found


def error_of(raw: RawClient, topic: Any, records: bytes | None, version: int = 9, **values: Any) -> int:
    return int(produce(raw, topic, records, version, **values).error_code)


def new_producer_id(raw: RawClient) -> int:
    answer = raw.call(
        "init_producer_id",
        4,
        transactional_id=None,
        transaction_timeout=-1,
        producer_id=-1,
        producer_epoch=-1,
    )
    assert (answer.error_code, answer.producer_epoch) == (0, 0)
    return int(answer.producer_id)


@pytest.mark.parametrize("version", range(3, 14))
def test_every_version_appends(raw: RawClient, bootstrap: str, topic: str, version: int) -> None:
    name: Any = topic
    if version >= 13:
        asked = raw.call(
            "metadata",
            12,
            topics=[{"topic_id": None, "name": topic}],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        name = asked.topics[0].topic_id
    for expected in (0, 3):
        found = produce(raw, name, build_batch([b"a", b"b", b"c"]), version)
        assert (found.error_code, found.base_offset) == (0, expected)
        if version >= 5:
            assert found.log_start_offset == 0
    assert end_offset(bootstrap, topic) == 6


def test_versions_before_3_are_answered_as_unsupported_or_closed(raw: RawClient, topic: str) -> None:
    name = topic.encode()
    records = build_batch([b"x"])
    body = (
        struct.pack(">hiih", 1, 1000, 1, len(name)) + name + struct.pack(">iii", 1, 0, len(records)) + records
    )
    header = struct.pack(">hhih", 0, 2, 77, 3) + b"old"
    raw.send_bytes(struct.pack(">i", len(header) + len(body)) + header + body)
    try:
        answer = raw.read_frame()
    except ConnectionClosedError:
        return  # as Apache Kafka does
    assert struct.unpack_from(">i", answer) == (77,)
    assert struct.pack(">h", UNSUPPORTED_VERSION) in answer


def test_acks_0_is_not_answered(raw: RawClient, bootstrap: str, topic: str) -> None:
    raw.send("produce", 9, **produce_request(topic, build_batch([b"x"]), acks=0))
    sent = raw.send("api_versions", 0)
    assert raw.receive("api_versions", 0)[0] == sent
    assert [m.value() for m in consume_messages(bootstrap, topic, 1)] == [b"x"]


def test_a_failing_acks_0_closes_the_connection(raw: RawClient) -> None:
    raw.send("produce", 9, **produce_request(f"none-{uuid.uuid4()}", build_batch([b"x"]), acks=0))
    assert raw.is_closed_by_broker()


def test_other_acks_are_refused(raw: RawClient, topic: str) -> None:
    assert error_of(raw, topic, build_batch([b"x"]), acks=2) == INVALID_REQUIRED_ACKS


def test_unknown_topic_partition_and_id(raw: RawClient, topic: str) -> None:
    assert error_of(raw, f"none-{uuid.uuid4()}", build_batch([b"x"])) == UNKNOWN_TOPIC
    assert error_of(raw, topic, build_batch([b"x"]), partition=5) == UNKNOWN_TOPIC
    assert error_of(raw, uuid.uuid4(), build_batch([b"x"]), 13) == UNKNOWN_TOPIC_ID


def test_a_bad_crc_is_refused_and_nothing_is_stored(raw: RawClient, bootstrap: str, topic: str) -> None:
    batch = bytearray(build_batch([b"hello"]))
    batch[-1] ^= 1
    assert error_of(raw, topic, bytes(batch)) == CORRUPT_MESSAGE
    assert error_of(raw, topic, build_batch([b"good"])) == 0
    assert [m.value() for m in consume_messages(bootstrap, topic, 1)] == [b"good"]


GOOD = build_batch([b"hello", b"world"])
REFUSED = {
    "truncated": (GOOD[:-3], {CORRUPT_MESSAGE, INVALID_RECORD}),
    "header cut": (GOOD[:40], {CORRUPT_MESSAGE, INVALID_RECORD}),
    "empty": (b"", {CORRUPT_MESSAGE, INVALID_RECORD}),
    "bytes after the batch": (
        GOOD + b"12345",
        {0, CORRUPT_MESSAGE, INVALID_RECORD},
    ),  # Apache Kafka drops the rest
    "two batches": (GOOD + GOOD, {INVALID_RECORD}),
    "negative length": (GOOD[:8] + struct.pack(">i", -5) + GOOD[12:], {CORRUPT_MESSAGE}),
    "small length": (GOOD[:8] + struct.pack(">i", 10) + GOOD[12:], {CORRUPT_MESSAGE, INVALID_RECORD}),
    "huge length": (GOOD[:8] + struct.pack(">i", 2**31 - 1) + GOOD[12:], {CORRUPT_MESSAGE, INVALID_RECORD}),
    "count too large": (build_batch([b"a", b"b"], record_count=3), {INVALID_RECORD, CORRUPT_MESSAGE}),
    "count negative": (build_batch([b"a", b"b"], record_count=-1), {INVALID_RECORD, CORRUPT_MESSAGE}),
    "count zero": (build_batch([b"a"], record_count=0), {INVALID_RECORD, CORRUPT_MESSAGE}),
    "control batch": (build_batch([b"a"], attributes=0x20), {INVALID_RECORD}),
    "magic 3": (build_batch([b"a"], magic=3), {CORRUPT_MESSAGE, INVALID_RECORD, 43}),
    "sequence without producer": (build_batch([b"a"], base_sequence=5), {0, INVALID_RECORD}),
    "producer without sequence": (build_batch([b"a"], producer_id=7, producer_epoch=0), {INVALID_RECORD, 0}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_batches_that_are_refused(
    raw: RawClient, bootstrap: str, topic: str, name: str, shared_broker: BrokerProcess | None
) -> None:
    records, codes = REFUSED[name]
    if shared_broker is None:
        codes = codes | {
            UNKNOWN_SERVER_ERROR
        }  # Apache Kafka's response to a huge length, after which clients duplicate
    assert error_of(raw, topic, records) in codes
    before = end_offset(bootstrap, topic)
    found = produce(raw, topic, GOOD)
    assert (found.error_code, found.base_offset) == (0, before)


def test_old_formats_are_refused(raw: RawClient, topic: str) -> None:
    """Sends a message set of magic 1, as clients before 0.11 do."""
    body = struct.pack(">bbq", 1, 0, 1_700_000_000_000) + struct.pack(">i", -1) + struct.pack(">i", 1) + b"x"
    message = struct.pack(">I", 0) + body
    assert error_of(raw, topic, struct.pack(">qi", 0, len(message)) + message) in (
        43,
        CORRUPT_MESSAGE,
        INVALID_RECORD,
    )


def test_zstd_needs_version_7(raw: RawClient, topic: str) -> None:
    assert error_of(raw, topic, build_batch([b"x"], attributes=4), 6) == UNSUPPORTED_COMPRESSION_TYPE


def test_sequences(raw: RawClient, bootstrap: str, topic: str) -> None:
    producer = new_producer_id(raw)

    def send(sequence: int, epoch: int = 0) -> tuple[int, int]:
        batch = build_batch([b"a", b"b"], producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
        found = produce(raw, topic, batch)
        return int(found.error_code), int(found.base_offset)

    for i in range(7):
        assert send(2 * i) == (0, 2 * i)
    for i in range(2, 7):
        assert send(2 * i) == (0, 2 * i), "one of the last five batches is answered with its first offset"
    assert send(0)[0] in (OUT_OF_ORDER, DUPLICATE_SEQUENCE)
    assert send(16)[0] == OUT_OF_ORDER
    assert send(14) == (0, 14)
    assert send(5, epoch=1)[0] == OUT_OF_ORDER, "a new epoch starts at sequence 0"
    assert send(0, epoch=1) == (0, 16)
    assert send(16, epoch=0)[0] == INVALID_PRODUCER_EPOCH
    assert end_offset(bootstrap, topic) == 18


def test_sequences_wrap(raw: RawClient, topic: str) -> None:
    """A producer that the partition does not know may start at any sequence number. 0 follows 2^31 - 1."""
    producer = new_producer_id(raw)

    def send(sequence: int) -> int:
        batch = build_batch([b"a"], producer_id=producer, producer_epoch=0, base_sequence=sequence)
        return int(produce(raw, topic, batch).error_code)

    assert [send(2**31 - 2), send(2**31 - 1), send(0), send(1)] == [0, 0, 0, 0]


def test_producer_ids_are_unique(raw: RawClient) -> None:
    ids = [new_producer_id(raw) for _ in range(50)]
    assert len(set(ids)) == 50


def test_several_topics_in_one_request_are_judged_one_by_one(
    raw: RawClient, new_topic: Callable[..., str]
) -> None:
    first, second = new_topic(2), new_topic()
    bad = bytearray(GOOD)
    bad[-1] ^= 1
    answer = raw.call(
        "produce",
        9,
        transactional_id=None,
        acks=-1,
        timeout=10_000,
        topic_data=[
            {
                "name": first,
                "partition_data": [{"index": 0, "records": GOOD}, {"index": 1, "records": bytes(bad)}],
            },
            {"name": second, "partition_data": [{"index": 0, "records": GOOD}]},
            {"name": "no-such-topic-here", "partition_data": [{"index": 0, "records": GOOD}]},
        ],
    )
    codes = {(t.name, p.index): int(p.error_code) for t in answer.responses for p in t.partition_responses}
    assert codes == {
        (first, 0): 0,
        (first, 1): CORRUPT_MESSAGE,
        (second, 0): 0,
        ("no-such-topic-here", 0): UNKNOWN_TOPIC,
    }


def test_pipelined_requests_keep_their_order(raw: RawClient, bootstrap: str, topic: str) -> None:
    sent = [raw.send("produce", 9, **produce_request(topic, build_batch([b"%d" % i]))) for i in range(100)]
    answers = [raw.receive("produce", 9) for _ in range(100)]
    assert [a[0] for a in answers] == sent
    assert [a[1].responses[0].partition_responses[0].base_offset for a in answers] == list(range(100))
    assert [m.value() for m in consume_messages(bootstrap, topic, 100)] == [b"%d" % i for i in range(100)]
