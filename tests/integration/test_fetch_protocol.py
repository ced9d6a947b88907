"""Fetch over a raw socket: parking, limits, sessions, errors, every version."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from brokerlab.batches import read_batches
from brokerlab.clients import admin_client, produce_values
from brokerlab.raw_client import RawClient

pytestmark = pytest.mark.integration
NOT_CACHED, NO_SESSION, FULL = 0, -1, 0
OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC, FENCED_EPOCH, UNKNOWN_EPOCH = 1, 3, 74, 75
SESSION_NOT_FOUND, BAD_SESSION_EPOCH, UNKNOWN_TOPIC_ID = 70, 71, 100


@pytest.fixture
def other(bootstrap: str) -> Iterator[RawClient]:
    with RawClient(bootstrap) as client:
        yield client


def topic_id(bootstrap: str, topic: str) -> uuid.UUID:
    with RawClient(bootstrap) as client:
        answer = client.call(
            "metadata",
            12,
            topics=[{"topic_id": None, "name": topic}],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
    found: uuid.UUID = answer.topics[0].topic_id
    return found


def fetch_values(
    topic: str | uuid.UUID,
    offsets: dict[int, int],
    version: int,
    *,
    max_wait_ms: int = 500,
    min_bytes: int = 1,
    max_bytes: int = 50_000_000,
    partition_max_bytes: int = 1_000_000,
    leader_epoch: int = -1,
    isolation_level: int = 0,
    session: tuple[int, int] = (NOT_CACHED, NO_SESSION),
    forgotten: list[int] | None = None,
) -> dict[str, Any]:
    """Returns the fields of a Fetch request for one topic."""
    name: dict[str, Any] = {"topic_id": topic} if version >= 13 else {"topic": topic}
    partitions = [
        {
            "partition": index,
            "fetch_offset": offset,
            "partition_max_bytes": partition_max_bytes,
            **({"current_leader_epoch": leader_epoch} if version >= 9 else {}),
        }
        for index, offset in offsets.items()
    ]
    values: dict[str, Any] = {
        "max_wait": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": isolation_level,
        "topics": [{**name, "partitions": partitions}] if partitions else [],
    }
    if version < 15:
        values["replica_id"] = -1
    if version >= 7:
        values["session_id"], values["session_epoch"] = session
        values["forgotten_topics_data"] = [{**name, "partitions": forgotten}] if forgotten else []
    if version >= 11:
        values["rack_id"] = ""
    return values


def partitions_of(answer: Any) -> dict[int, Any]:
    return {p.partition_index: p for t in answer.responses for p in t.partitions}


def fetch(
    client: RawClient, topic: Any, offsets: dict[int, int], version: int = 12, **values: Any
) -> dict[int, Any]:
    return partitions_of(client.call("fetch", version, **fetch_values(topic, offsets, version, **values)))


def read_offsets(partition: Any) -> list[int]:
    assert partition.error_code == 0
    batches = list(read_batches(partition.records))
    assert all(b.is_crc_right for b in batches)
    return [o for b in batches for o in range(b.base_offset, b.last_offset + 1)]


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version_returns_the_records(raw: RawClient, bootstrap: str, topic: str, version: int) -> None:
    produce_values(bootstrap, topic, [b"%d" % i for i in range(10)])
    name = topic_id(bootstrap, topic) if version >= 13 else topic
    found = fetch(raw, name, {0: 0}, version)[0]
    assert read_offsets(found) == list(range(10))
    assert (found.high_watermark, found.last_stable_offset) == (10, 10)
    if version >= 5:
        assert found.log_start_offset == 0


def test_read_committed_fields_of_plain_data(raw: RawClient, bootstrap: str, topic: str) -> None:
    produce_values(bootstrap, topic, [b"x"] * 4)
    found = fetch(raw, topic, {0: 0}, isolation_level=1)[0]
    assert (found.high_watermark, found.last_stable_offset) == (4, 4)
    assert not found.aborted_transactions
    assert read_offsets(found) == [0, 1, 2, 3]


def test_from_the_middle_of_a_batch(raw: RawClient, bootstrap: str, topic: str) -> None:
    produce_values(bootstrap, topic, [b"x"] * 100, linger_ms=200)
    produce_values(bootstrap, topic, [b"x"] * 100, linger_ms=200)
    found = read_offsets(fetch(raw, topic, {0: 150})[0])
    assert found[0] <= 150 <= found[-1] == 199
    assert found[0] > 0, "the previous batch is not needed"


def test_an_empty_fetch_waits_max_wait(raw: RawClient, topic: str) -> None:
    began = time.monotonic()
    found = fetch(raw, topic, {0: 0}, max_wait_ms=700)[0]
    assert 0.6 < time.monotonic() - began < 3
    assert (found.error_code, len(found.records or b"")) == (0, 0)


def test_no_wait_answers_at_once(raw: RawClient, topic: str) -> None:
    began = time.monotonic()
    fetch(raw, topic, {0: 0}, max_wait_ms=0)
    fetch(raw, topic, {0: 0}, max_wait_ms=5000, min_bytes=0)
    assert time.monotonic() - began < 1


def test_an_error_answers_at_once(raw: RawClient, topic: str) -> None:
    began = time.monotonic()
    assert fetch(raw, topic, {0: 5}, max_wait_ms=10_000)[0].error_code == OFFSET_OUT_OF_RANGE
    assert fetch(raw, topic, {0: -7}, max_wait_ms=10_000)[0].error_code == OFFSET_OUT_OF_RANGE
    assert fetch(raw, topic, {3: 0}, max_wait_ms=10_000)[3].error_code == UNKNOWN_TOPIC
    assert fetch(raw, "no-such-topic-ever", {0: 0}, max_wait_ms=10_000)[0].error_code == UNKNOWN_TOPIC
    assert time.monotonic() - began < 3


def test_a_parked_fetch_is_woken_by_an_append(raw: RawClient, bootstrap: str, topic: str) -> None:
    began = time.monotonic()
    raw.send("fetch", 12, **fetch_values(topic, {0: 0}, 12, max_wait_ms=20_000))
    time.sleep(0.3)
    produce_values(bootstrap, topic, [b"wake"])
    found = partitions_of(raw.receive("fetch", 12)[1])[0]
    assert read_offsets(found) == [0]
    assert time.monotonic() - began < 10


def test_min_bytes_waits_for_enough(raw: RawClient, bootstrap: str, topic: str) -> None:
    answered_at: list[float] = []
    answers: list[Any] = []
    raw.send("fetch", 12, **fetch_values(topic, {0: 0}, 12, max_wait_ms=20_000, min_bytes=5_000))

    def wait() -> None:
        answers.append(raw.receive("fetch", 12)[1])
        answered_at.append(time.monotonic())

    waiting = threading.Thread(target=wait)
    waiting.start()
    produce_values(bootstrap, topic, [b"x" * 1000])
    time.sleep(0.5)
    assert not answered_at
    produce_values(bootstrap, topic, [b"x" * 5000])
    waiting.join(10)
    assert answered_at
    assert read_offsets(partitions_of(answers[0])[0])[0] == 0


def test_a_closed_connection_leaves_no_parked_fetch_behind(bootstrap: str, topic: str) -> None:
    for _ in range(20):
        with RawClient(bootstrap) as client:
            client.send("fetch", 12, **fetch_values(topic, {0: 0}, 12, max_wait_ms=30_000))
    produce_values(bootstrap, topic, [b"x"])
    with RawClient(bootstrap) as client:
        assert read_offsets(fetch(client, topic, {0: 0})[0]) == [0]


def test_partition_and_request_limits(raw: RawClient, bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(3)
    for partition in range(3):
        for _ in range(5):
            produce_values(bootstrap, topic, [b"x" * 10_000], partition=partition)
    found = fetch(raw, topic, {0: 0, 1: 0, 2: 0}, partition_max_bytes=25_000)
    for partition in found.values():
        assert 1 <= len(read_offsets(partition)) <= 2
        assert len(partition.records) <= 25_000
    found = fetch(raw, topic, {0: 0, 1: 0, 2: 0}, max_bytes=12_000)
    assert sum(len(p.records or b"") for p in found.values()) <= 23_000
    assert sum(len(read_offsets(p)) for p in found.values()) >= 1


def test_a_batch_larger_than_all_limits_is_returned_whole(raw: RawClient, bootstrap: str, topic: str) -> None:
    produce_values(bootstrap, topic, [b"x" * 500_000])
    found = fetch(raw, topic, {0: 0}, partition_max_bytes=100, max_bytes=100)[0]
    assert read_offsets(found) == [0]


def test_leader_epochs_are_checked(raw: RawClient, bootstrap: str, topic: str) -> None:
    produce_values(bootstrap, topic, [b"x"])
    assert fetch(raw, topic, {0: 0}, leader_epoch=0)[0].error_code in (0, FENCED_EPOCH)
    assert fetch(raw, topic, {0: 0}, leader_epoch=1000)[0].error_code == UNKNOWN_EPOCH


def test_an_unknown_topic_id(raw: RawClient) -> None:
    answer = raw.call("fetch", 13, **fetch_values(uuid.uuid4(), {0: 0}, 13))
    assert [p.error_code for p in partitions_of(answer).values()] == [UNKNOWN_TOPIC_ID]


def test_a_session_returns_only_what_changed(
    raw: RawClient, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(4)
    produce_values(bootstrap, topic, [b"x"] * 3, partition=0)
    answer = raw.call("fetch", 12, **fetch_values(topic, dict.fromkeys(range(4), 0), 12, session=(0, FULL)))
    session = answer.session_id
    assert session != 0
    assert set(partitions_of(answer)) == {0, 1, 2, 3}
    answer = raw.call("fetch", 12, **fetch_values(topic, {0: 3}, 12, session=(session, 1)))
    assert (answer.session_id, partitions_of(answer)) == (session, {})
    produce_values(bootstrap, topic, [b"y"], partition=2)
    found = partitions_of(raw.call("fetch", 12, **fetch_values(topic, {}, 12, session=(session, 2))))
    assert set(found) == {2}
    assert read_offsets(found[2]) == [0]
    forget = fetch_values(topic, {}, 12, session=(session, 3), forgotten=[2], max_wait_ms=100)
    assert partitions_of(raw.call("fetch", 12, **forget)) == {}
    produce_values(bootstrap, topic, [b"z"], partition=2)
    found = partitions_of(
        raw.call("fetch", 12, **fetch_values(topic, {}, 12, session=(session, 4), max_wait_ms=100))
    )
    assert found == {}


def test_a_session_outlives_its_connection(
    raw: RawClient, other: RawClient, bootstrap: str, topic: str
) -> None:
    answer = raw.call("fetch", 12, **fetch_values(topic, {0: 0}, 12, session=(0, FULL), max_wait_ms=0))
    produce_values(bootstrap, topic, [b"x"])
    answer = other.call("fetch", 12, **fetch_values(topic, {}, 12, session=(answer.session_id, 1)))
    assert read_offsets(partitions_of(answer)[0]) == [0]


def test_session_errors(raw: RawClient, topic: str) -> None:
    lost = raw.call("fetch", 12, **fetch_values(topic, {}, 12, session=(12345, 1)))
    assert lost.error_code == SESSION_NOT_FOUND
    opened = raw.call("fetch", 12, **fetch_values(topic, {0: 0}, 12, session=(0, FULL), max_wait_ms=0))
    skipped = raw.call("fetch", 12, **fetch_values(topic, {}, 12, session=(opened.session_id, 5)))
    assert skipped.error_code == BAD_SESSION_EPOCH
    closed = raw.call(
        "fetch", 12, **fetch_values(topic, {}, 12, session=(opened.session_id, -1), max_wait_ms=0)
    )
    assert closed.error_code == 0
    gone = raw.call("fetch", 12, **fetch_values(topic, {}, 12, session=(opened.session_id, 1)))
    assert gone.error_code == SESSION_NOT_FOUND


def test_a_deleted_topic_ends_a_parked_fetch(raw: RawClient, bootstrap: str, topic: str) -> None:
    raw.send("fetch", 12, **fetch_values(topic, {0: 0}, 12, max_wait_ms=8_000))
    time.sleep(0.2)
    admin_client(bootstrap).delete_topics([topic])[topic].result(30)
    answer = raw.receive("fetch", 12)[1]
    assert partitions_of(answer)[0].error_code in (0, UNKNOWN_TOPIC, 6)


def test_answers_come_in_the_order_of_requests(raw: RawClient, bootstrap: str, topic: str) -> None:
    """A parked fetch delays later requests of its connection, as in Kafka."""
    sent = [raw.send("fetch", 12, **fetch_values(topic, {0: 0}, 12, max_wait_ms=400))]
    sent += [raw.send("api_versions", 0) for _ in range(5)]
    received = [raw.receive("fetch", 12)[0]] + [raw.receive("api_versions", 0)[0] for _ in range(5)]
    assert received == sent
