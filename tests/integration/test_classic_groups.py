"""Groups of the classic protocol with real clients: members join, leave and die."""

from __future__ import annotations

import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator

import pytest
from kafka import KafkaConsumer

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import create_topic, produce_values
from brokerlab.kafka_jars import JavaTools
from grouplab.group_members import MemberProcess, assignments, await_stable, await_true, describe

pytestmark = pytest.mark.integration

PARTITIONS = 12
EACH = 20
"""The number of records in each partition."""

COMMAND = "consumer.group.ConsumerGroupCommand"

StartMembers = Callable[..., MemberProcess]


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = f"read-by-groups-{uuid.uuid4().hex[:8]}"
    create_topic(bootstrap, name, PARTITIONS)
    produce_more(bootstrap, name)
    return name


@pytest.fixture
def group() -> str:
    return f"readers-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def start_members(bootstrap: str, group: str, topic: str) -> Iterator[StartMembers]:
    started: list[MemberProcess] = []

    def start(members: int = 1, **settings: str) -> MemberProcess:
        started.append(MemberProcess(bootstrap, group, topic, members, **settings))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def produce_more(bootstrap: str, topic: str) -> None:
    for partition in range(PARTITIONS):
        produce_values(bootstrap, topic, (b"%d" % number for number in range(EACH)), partition)


def offsets(rounds: int) -> set[tuple[int, int]]:
    return {(partition, offset) for partition in range(PARTITIONS) for offset in range(rounds * EACH)}


def await_shares(bootstrap: str, group: str, topic: str, expected: list[int]) -> None:
    """Waits until the group is stable with these numbers of partitions per member, in ascending order, each
    assigned once.

    A test may cause a second rebalance: a client joins before it knows the topic, or a cooperative member
    receives partitions before it gives others up.
    """
    found: list[object] = []

    def is_shared() -> bool:
        given = assignments(await_stable(bootstrap, group, len(expected))).values()
        found[:] = [sorted(len(partitions) for partitions in given)]
        every = {(topic, partition) for partition in range(PARTITIONS)}
        return found[0] == expected and set().union(*given) == every

    try:
        await_true(is_shared)
    except TimeoutError:
        raise AssertionError(f"{found[0] if found else None}, not {expected}") from None


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_three_members_one_leaves_one_dies(
    bootstrap: str, group: str, topic: str, start_members: StartMembers, strategy: str
) -> None:
    settings = {"partition_assignment_strategy": strategy}
    first = start_members(**settings)
    await_shares(bootstrap, group, topic, [12])
    second, third = start_members(**settings), start_members(**settings)
    await_shares(bootstrap, group, topic, [4, 4, 4])
    assert describe(bootstrap, group).protocol_data == strategy
    second.stop()
    await_shares(bootstrap, group, topic, [6, 6])
    third.kill()
    await_shares(bootstrap, group, topic, [12])
    produce_more(bootstrap, topic)
    await_true(lambda: set(first.read + second.read + third.read) == offsets(2))
    first.stop()
    await_true(lambda: describe(bootstrap, group).group_state == "Empty")


def test_the_next_member_continues_at_the_committed_offsets(
    bootstrap: str, group: str, topic: str, start_members: StartMembers
) -> None:
    first = start_members()
    await_true(lambda: set(first.read) == offsets(1))
    first.stop()
    produce_more(bootstrap, topic)
    second = start_members()
    await_true(lambda: len(second.read) >= PARTITIONS * EACH)
    second.stop()
    assert set(second.read) == offsets(2) - offsets(1)
    assert len(second.read) == PARTITIONS * EACH, "no record was read twice"


@pytest.mark.slow
def test_fifty_members_ten_die(bootstrap: str, group: str, topic: str, start_members: StartMembers) -> None:
    settings = {"session_timeout_ms": "15000", "heartbeat_interval_ms": "1000"}
    start_members(25, **settings)
    start_members(15, **settings)
    dying = start_members(10, **settings)
    await_shares(bootstrap, group, topic, [0] * 38 + [1] * 12)
    dying.kill()
    await_shares(bootstrap, group, topic, [0] * 28 + [1] * 12)
    start_members(10, **settings)
    await_shares(bootstrap, group, topic, [0] * 38 + [1] * 12)


def test_a_static_member_returns_without_a_rebalance(
    bootstrap: str, group: str, topic: str, start_members: StartMembers
) -> None:
    settings = {"session_timeout_ms": "45000"}
    start_members(group_instance_id="one", **settings)
    await_stable(bootstrap, group, 1)
    second = start_members(group_instance_id="two", **settings)
    await_shares(bootstrap, group, topic, [6, 6])
    before = assignments(describe(bootstrap, group))
    lost = set(second.owned[0])
    second.kill()
    again = start_members(group_instance_id="two", **settings)
    await_true(lambda: again.owned[0] == lost)
    after = assignments(describe(bootstrap, group))
    assert len(before.keys() & after.keys()) == 1, "the remaining member kept its id"
    assert sorted(map(sorted, before.values())) == sorted(map(sorted, after.values()))


def test_kafka_python_members(bootstrap: str, group: str, topic: str) -> None:
    read: list[set[tuple[int, int]]] = [set(), set(), set()]
    stop = threading.Event()

    def consume(number: int) -> None:
        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=200,
            session_timeout_ms=10_000,
            heartbeat_interval_ms=500,
        )
        while not stop.is_set():
            for partition, records in consumer.poll(timeout_ms=100).items():
                read[number] |= {(partition.partition, record.offset) for record in records}
        consumer.close()

    threads = [threading.Thread(target=consume, args=(number,), daemon=True) for number in range(3)]
    try:
        for thread in threads:
            thread.start()
        await_shares(bootstrap, group, topic, [4, 4, 4])
        await_true(lambda: set().union(*read) == offsets(1))
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    await_true(lambda: describe(bootstrap, group).group_state == "Empty")


@pytest.mark.java
@pytest.mark.slow
def test_java_members_and_tools(bootstrap: str, group: str, topic: str, java: JavaTools) -> None:
    server = ["--bootstrap-server", bootstrap]
    member = [*server, "--topic", topic, "--group", group, "--from-beginning"]
    command = java.command("consumer.ConsoleConsumer", *member)
    members = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        await_shares(bootstrap, group, topic, [6, 6])
        produce_more(bootstrap, topic)
        described = java.check(COMMAND, *server, "--describe", "--group", group)
        assert described.count(topic) == PARTITIONS
        for process in members:
            process.terminate()
        output = [process.communicate(timeout=60)[0] for process in members]
    finally:
        for process in members:
            process.kill()
            process.wait()
    assert sum(len(text.split()) for text in output) >= PARTITIONS * EACH
    await_true(lambda: describe(bootstrap, group).group_state == "Empty")
    listed = java.check(COMMAND, *server, "--list", "--state", "empty")
    assert group in listed
    reset = ["--reset-offsets", "--to-earliest", "--execute", "--topic", topic, "--group", group]
    assert java.check(COMMAND, *server, *reset).count(topic) == PARTITIONS
    deleted = java.check(COMMAND, *server, "--delete", "--group", group)
    assert "successful" in deleted
    assert group not in java.check(COMMAND, *server, "--list")


def test_members_continue_after_the_broker_was_killed(
    start_broker: Callable[..., BrokerProcess], group: str
) -> None:
    broker = start_broker({"group.initial.rebalance.delay.ms": "0"})
    bootstrap, topic = broker.bootstrap, "survives"
    create_topic(bootstrap, topic, PARTITIONS)
    produce_more(bootstrap, topic)
    members = [MemberProcess(bootstrap, group, topic) for _ in range(3)]
    try:
        await_shares(bootstrap, group, topic, [4, 4, 4])
        await_true(lambda: {one for member in members for one in member.read} == offsets(1))
        before = assignments(describe(bootstrap, group))
        broker.kill()
        broker.start()
        await_shares(bootstrap, group, topic, [4, 4, 4])
        assert assignments(describe(bootstrap, group)).keys() == before.keys(), "the same members"
        produce_more(bootstrap, topic)
        await_true(lambda: {one for member in members for one in member.read} == offsets(2))
    finally:
        for member in members:
            member.kill()
