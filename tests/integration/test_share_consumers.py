"""Share consumers of librdkafka and Kafka's tools: delivery, acknowledgement, and the broker's death."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import AcknowledgeType, Message, Producer, ShareConsumer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import admin_client, connection
from brokerlab.kafka_jars import JavaTools
from tidelog.client.address import parse_bootstrap
from tidelog.client.cluster import BrokerConnection
from tidelog.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
)

pytestmark = pytest.mark.integration
START_TIMEOUT_S = 60.0
"""A new group gets its partitions at its second heartbeat."""
TIMEOUT_S = 60.0
WARM_UP = b"warm-up"
VALUES = [b"value %d" % number for number in range(200)]


@pytest.fixture
def group(topic: str) -> str:
    return f"sharers-of-{topic}"


def produce(bootstrap: str, topic: str, values: list[bytes]) -> None:
    producer = Producer(connection(bootstrap))
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(TIMEOUT_S) == 0


def messages_of(consumer: ShareConsumer, timeout_s: float = 1.0) -> list[Message]:
    messages = list(consumer.poll(timeout_s))
    assert all(message.error() is None for message in messages)
    return [message for message in messages if message.value() != WARM_UP]


@contextmanager
def sharing(bootstrap: str, topic: str, group: str, **settings: str) -> Iterator[ShareConsumer]:
    """Yields a member that has partitions. It has accepted the records that showed it."""
    names = {name.replace("_", "."): value for name, value in settings.items()}
    with ShareConsumer({**connection(bootstrap), "group.id": group, "log_level": 0, **names}) as consumer:
        consumer.subscribe([topic])
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            produce(bootstrap, topic, [WARM_UP])
            messages = list(consumer.poll(1.0))
            if messages:
                break
        else:
            raise AssertionError("the member got no record")
        if "share_acknowledgement_mode" in settings:
            for message in messages:
                consumer.acknowledge(message)
            consumer.commit_sync(TIMEOUT_S)
        yield consumer


def test_two_members_share_a_partition(bootstrap: str, topic: str, group: str) -> None:
    limits = {"max_poll_records": "10"}
    with (
        sharing(bootstrap, topic, group, **limits) as one,
        sharing(bootstrap, topic, group, **limits) as two,
    ):
        got: list[Counter[bytes]] = [Counter(), Counter()]
        deadline = time.monotonic() + TIMEOUT_S
        for value in VALUES:
            produce(bootstrap, topic, [value])
        while sum(map(len, got)) < len(VALUES) and time.monotonic() < deadline:
            for consumer, values in zip((one, two), got, strict=True):
                values.update(message.value() or b"" for message in messages_of(consumer, 0.2))
    assert got[0] + got[1] == Counter(VALUES), "each record is delivered once"
    assert all(got), "both members get records"


def test_released_records_come_again_and_rejected_ones_do_not(bootstrap: str, topic: str, group: str) -> None:
    with sharing(bootstrap, topic, group, share_acknowledgement_mode="explicit") as consumer:
        produce(bootstrap, topic, [b"accepted", b"released", b"rejected"])
        seen: list[tuple[bytes | None, int | None]] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(seen) < 7 and time.monotonic() < deadline:
            for message in messages_of(consumer):
                seen.append((message.value(), message.delivery_count()))
                kind = {b"released": AcknowledgeType.RELEASE, b"rejected": AcknowledgeType.REJECT}
                consumer.acknowledge(message, kind.get(message.value() or b"", AcknowledgeType.ACCEPT))
            assert all(error is None for error in consumer.commit_sync(TIMEOUT_S).values())
        assert not messages_of(consumer, 2.0), "the limit is five deliveries"
    assert seen[:3] == [(b"accepted", 1), (b"released", 1), (b"rejected", 1)]
    assert seen[3:] == [(b"released", count) for count in range(2, 6)]


def test_released_records_come_again_after_their_backoff(bootstrap: str, topic: str, group: str) -> None:
    backoff_s = 2.0
    set_group(bootstrap, group, tidelog_share_retry_backoff_ms=str(int(backoff_s * 1_000)))
    with sharing(bootstrap, topic, group, share_acknowledgement_mode="explicit") as consumer:
        produce(bootstrap, topic, [b"released"])
        seen: list[tuple[int | None, float]] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(seen) < 3 and time.monotonic() < deadline:
            for message in messages_of(consumer, 0.2):
                seen.append((message.delivery_count(), time.monotonic()))
                consumer.acknowledge(message, AcknowledgeType.RELEASE)
            consumer.commit_sync(TIMEOUT_S)
    assert [count for count, _ in seen] == [1, 2, 3]
    first, second, third = (at for _, at in seen)
    assert second - first >= backoff_s
    assert third - second >= 2 * backoff_s


def test_a_backoff_survives_the_death_of_the_broker(start_broker: Callable[..., BrokerProcess]) -> None:
    backoff_s = 8.0
    broker = start_broker()
    set_group(broker.bootstrap, "sharers", tidelog_share_retry_backoff_ms=str(int(backoff_s * 1_000)))
    explicit = {"share_acknowledgement_mode": "explicit"}
    with sharing(broker.bootstrap, "t", "sharers", **explicit) as consumer:
        produce(broker.bootstrap, "t", [b"released"])
        seen: list[float] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(seen) < 2 and time.monotonic() < deadline:
            for message in messages_of(consumer, 0.2):
                seen.append(time.monotonic())
                consumer.acknowledge(message, AcknowledgeType.RELEASE)
            consumer.commit_sync(TIMEOUT_S)
            if len(seen) == 1 and time.monotonic() - seen[0] < backoff_s / 2:
                broker.kill()
                broker.start()
                time.sleep(backoff_s / 2)
    assert len(seen) == 2, "the record comes again"
    assert seen[1] - seen[0] >= backoff_s - 0.01, "the log has times in milliseconds"


def test_records_wait_for_the_time_in_their_header(bootstrap: str, topic: str, group: str) -> None:
    set_group(bootstrap, group, tidelog_share_deliver_at_enable="true")
    with sharing(bootstrap, topic, group) as consumer:
        producer = Producer({**connection(bootstrap), "compression.type": "zstd"})
        begin_ms = int(time.time() * 1_000)
        times_ms = {b"at once": 0, b"second": begin_ms + 5_000, b"first": begin_ms + 3_000}
        for value, at_ms in times_ms.items():
            headers = [("tidelog-deliver-at", str(at_ms))] if at_ms else []
            producer.produce(topic, value, headers=headers)
        assert producer.flush(TIMEOUT_S) == 0
        seen: dict[bytes | None, float] = {}
        deadline = time.monotonic() + TIMEOUT_S
        while len(seen) < len(times_ms) and time.monotonic() < deadline:
            for message in messages_of(consumer, 0.2):
                assert message.value() not in seen, "a record comes again"
                seen[message.value()] = time.time() * 1_000
    assert list(seen) == [b"at once", b"first", b"second"]
    assert all(seen[value] >= at_ms for value, at_ms in times_ms.items())
    assert seen[b"at once"] < times_ms[b"first"], "a record that waits holds back no other"


def test_the_records_of_a_key_come_one_at_a_time_and_in_order(bootstrap: str, topic: str, group: str) -> None:
    set_group(bootstrap, group, tidelog_share_order="key")
    explicit = {"share_acknowledgement_mode": "explicit"}
    chance = random.Random(1)
    with (
        sharing(bootstrap, topic, group, **explicit) as one,
        sharing(bootstrap, topic, group, **explicit) as two,
    ):
        producer = Producer(connection(bootstrap))
        for number in range(60):
            producer.produce(topic, b"%d" % number, key=b"%d" % (number % 6))
        assert producer.flush(TIMEOUT_S) == 0
        accepted: dict[int, list[int]] = {key: [] for key in range(6)}
        deadline = time.monotonic() + TIMEOUT_S
        while sum(map(len, accepted.values())) < 60 and time.monotonic() < deadline:
            for consumer in (one, two):
                numbers = []
                for message in messages_of(consumer, 0.2):
                    number = int(message.value() or b"")
                    # The last delivery is accepted: a record that is given up would leave a gap.
                    is_accepted = chance.random() < 0.8 or message.delivery_count() == 5
                    kind = AcknowledgeType.ACCEPT if is_accepted else AcknowledgeType.RELEASE
                    consumer.acknowledge(message, kind)
                    numbers.append((number, is_accepted))
                assert len({number % 6 for number, _ in numbers}) == len(numbers), "one record of each key"
                consumer.commit_sync(TIMEOUT_S)
                for number, is_accepted in numbers:
                    if is_accepted:
                        accepted[number % 6].append(number)
    assert accepted == {key: list(range(key, 60, 6)) for key in range(6)}


def test_a_group_whose_deliveries_fail_is_paused(bootstrap: str, topic: str, group: str) -> None:
    pause_s = 3.0
    set_group(
        bootstrap,
        group,
        tidelog_share_breaker_failure_percentage="50",
        tidelog_share_breaker_min_deliveries="10",
        tidelog_share_breaker_pause_ms=str(int(pause_s * 1_000)),
    )
    with sharing(bootstrap, topic, group, share_acknowledgement_mode="explicit") as consumer:
        produce(bootstrap, topic, VALUES)
        failed = 0
        deadline = time.monotonic() + TIMEOUT_S
        while failed < 20 and time.monotonic() < deadline:
            for message in messages_of(consumer, 0.2):
                consumer.acknowledge(message, AcknowledgeType.RELEASE)
                failed += 1
            paused_s = time.monotonic()
            consumer.commit_sync(TIMEOUT_S)
        # librdkafka may have fetched records before the pause. They are accepted, which does not end it.
        accepted: Counter[bytes | None] = Counter()
        sizes: list[int] = []
        while len(accepted) < len(VALUES) and time.monotonic() < deadline:
            messages = messages_of(consumer, 0.2)
            if messages and time.monotonic() - paused_s >= pause_s:
                sizes.append(len(messages))
            for message in messages:
                accepted[message.value()] += 1
                consumer.acknowledge(message)
            consumer.commit_sync(TIMEOUT_S)
    assert set(accepted) == set(VALUES)
    assert sizes[0] == 1, "the first delivery after the pause is a probe"


def test_records_survive_the_death_of_the_broker(start_broker: Callable[..., BrokerProcess]) -> None:
    broker = start_broker()
    topic, group = "t", "sharers"
    explicit = {"share_acknowledgement_mode": "explicit"}
    with sharing(broker.bootstrap, topic, group, **explicit) as consumer:
        produce(broker.bootstrap, topic, VALUES)
        messages: list[Message] = []
        accepted: set[bytes | None] = set()
        while len(accepted) < 100:
            messages = messages_of(consumer)
            for message in messages:
                is_accepted = len(accepted) < 100 and (message.offset() or 0) % 3 != 0
                accepted |= {message.value()} if is_accepted else set()
                kind = AcknowledgeType.ACCEPT if is_accepted else AcknowledgeType.RELEASE
                consumer.acknowledge(message, kind)
            assert all(error is None for error in consumer.commit_sync(TIMEOUT_S).values())
        broker.kill()
        broker.start()
        again: Counter[bytes | None] = Counter()
        deadline = time.monotonic() + TIMEOUT_S
        while len(again) < len(VALUES) - len(accepted) and time.monotonic() < deadline:
            for message in messages_of(consumer):
                again[message.value()] += 1
                consumer.acknowledge(message)
            consumer.commit_sync(TIMEOUT_S)
    assert not accepted & set(again), "an accepted record never comes again"
    assert accepted | set(again) == set(VALUES), "no record is lost"


def set_group(bootstrap: str, group: str, **settings: str) -> None:
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    (done,) = admin_client(bootstrap).incremental_alter_configs([resource]).values()
    done.result(TIMEOUT_S)


def values_of(bootstrap: str, topic: str, group: str, count: int) -> list[bytes | None]:
    """Returns the values that a new member gets, at least `count` of them."""
    values: list[bytes | None] = []
    deadline = time.monotonic() + TIMEOUT_S
    with ShareConsumer({**connection(bootstrap), "group.id": group, "log_level": 0}) as consumer:
        consumer.subscribe([topic])
        while len(values) < count and time.monotonic() < deadline:
            values += [message.value() for message in messages_of(consumer)]
        values += [message.value() for message in messages_of(consumer)]
    return values


def test_a_group_begins_where_its_settings_say(bootstrap: str, topic: str) -> None:
    old = time.time() - 3_600
    producer = Producer(connection(bootstrap))
    producer.produce(topic, b"old", timestamp=int(old * 1_000))
    producer.flush(TIMEOUT_S)
    produce(bootstrap, topic, [b"new"])
    set_group(bootstrap, f"{topic}-earliest", share_auto_offset_reset="earliest")
    set_group(bootstrap, f"{topic}-recent", share_auto_offset_reset="by_duration:PT10M")
    assert values_of(bootstrap, topic, f"{topic}-earliest", 2) == [b"old", b"new"]
    assert values_of(bootstrap, topic, f"{topic}-recent", 1) == [b"new"]


def test_a_read_committed_group_gets_no_aborted_record(bootstrap: str, topic: str, group: str) -> None:
    set_group(bootstrap, group, share_auto_offset_reset="earliest", share_isolation_level="read_committed")
    producer = Producer({**connection(bootstrap), "transactional.id": f"writer-of-{topic}"})
    producer.init_transactions(TIMEOUT_S)
    for value, end in ((b"aborted", producer.abort_transaction), (b"committed", producer.commit_transaction)):
        producer.begin_transaction()
        for _ in range(3):
            producer.produce(topic, value)
        producer.flush(TIMEOUT_S)
        end(TIMEOUT_S)
    assert values_of(bootstrap, topic, group, 3) == [b"committed"] * 3


# -- Kafka's tools


def has_start_offset(bootstrap: str, topic: str, group: str) -> bool:
    """Returns whether the leader has chosen the first record of the group."""
    request = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup(group, None)])
    with BrokerConnection.open(parse_bootstrap(bootstrap)[0]) as broker:
        (found,) = broker.call(request, DescribeShareGroupOffsetsResponse).groups
    return any(
        partition.start_offset >= 0
        for described in found.topics
        if described.topic_name == topic
        for partition in described.partitions
    )


def finish(tool: subprocess.Popen[str], bootstrap: str, topic: str, group: str, values: list[bytes]) -> str:
    """Produces the values when the tool waits for them. Returns what it said."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not has_start_offset(bootstrap, topic, group):
        assert time.monotonic() < deadline, "the tool has no partition"
        time.sleep(0.5)
    produce(bootstrap, topic, values)
    said, problems = tool.communicate(timeout=TIMEOUT_S)
    assert tool.returncode == 0, said + problems
    return said


def start_tool(java: JavaTools, main_class: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        java.command(main_class, *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.java
@pytest.mark.slow
def test_console_share_consumer(java: JavaTools, bootstrap: str, topic: str, group: str) -> None:
    tool = start_tool(
        java,
        "consumer.ConsoleShareConsumer",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--group", group),
        *("--max-messages", str(len(VALUES)), "--timeout-ms", "60000"),
        *("--formatter-property", "print.delivery=true"),
    )
    said = finish(tool, bootstrap, topic, group, VALUES)
    assert said.splitlines() == [f"Delivery:1\t{value.decode()}" for value in VALUES]


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "sync", "async"])
def test_verifiable_share_consumer(
    java: JavaTools, bootstrap: str, topic: str, group: str, mode: str
) -> None:
    tool = start_tool(
        java,
        "VerifiableShareConsumer",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--group-id", group),
        *("--max-messages", str(len(VALUES)), "--acknowledgement-mode", mode),
    )
    events = [json.loads(line) for line in finish(tool, bootstrap, topic, group, VALUES).splitlines()]
    assert not [event for event in events if event.get("error")], events
    consumed = sum(event["count"] for event in events if event["name"] == "records_consumed")
    acknowledged = sum(event["count"] for event in events if event["name"] == "offsets_acknowledged")
    assert consumed == acknowledged == len(VALUES)


@pytest.mark.java
@pytest.mark.slow
def test_share_consumer_performance(java: JavaTools, bootstrap: str, topic: str, group: str) -> None:
    count = 20_000
    tool = start_tool(
        java,
        "ShareConsumerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--group", group),
        *("--num-records", str(count), "--timeout", "60000", "--hide-header"),
    )
    said = finish(tool, bootstrap, topic, group, [b"x" * 100] * count)
    columns = said.splitlines()[-1].split(", ")
    assert int(columns[5]) >= count, said


@pytest.mark.java
@pytest.mark.slow
def test_a_record_limit_of_a_java_consumer(java: JavaTools, bootstrap: str, topic: str, group: str) -> None:
    produce(bootstrap, topic, VALUES[:20])
    set_group(bootstrap, group, share_auto_offset_reset="earliest")

    def take(count: int, *options: str) -> list[str]:
        said = java.check(
            "consumer.ConsoleShareConsumer",
            *("--bootstrap-server", bootstrap, "--topic", topic, "--group", group, "--timeout-ms", "30000"),
            *("--max-messages", str(count), "--formatter-property", "print.delivery=true", *options),
        )
        return said.splitlines()

    limit = (
        "--command-property",
        "share.acquire.mode=record_limit",
        "--command-property",
        "max.poll.records=3",
    )
    assert take(7, *limit) == [f"Delivery:1\t{value.decode()}" for value in VALUES[:7]]
    # The tool had acquired three times three records, and released the two that it had not shown.
    counts = [2, 2, *[1] * 11]
    expected = [f"Delivery:{n}\t{value.decode()}" for n, value in zip(counts, VALUES[7:20], strict=True)]
    assert take(13) == expected
