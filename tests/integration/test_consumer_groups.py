"""Groups of the consumer protocol (KIP-848) with real clients: members join, leave and die, and groups change
their protocol while they work.
"""

from __future__ import annotations

import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import create_topic, produce_values
from brokerlab.kafka_jars import JAVA_OPTIONS, JavaTools
from grouplab.group_members import MemberProcess, await_true
from tidelog.client.address import parse_bootstrap
from tidelog.client.cluster import BrokerConnection
from tidelog.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from tidelog.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse

pytestmark = pytest.mark.integration

PARTITIONS = 12
EACH = 20
SETTINGS = {
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "6000",
}
CLASSIC, CONSUMER = 0, 1
"""The types of members."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("consumer-groups")
    broker = BrokerProcess(directory / "data", directory / "broker.log", SETTINGS)
    try:
        yield broker.start()
    finally:
        broker.kill()
        shutil.rmtree(directory / "data", ignore_errors=True)


@pytest.fixture(scope="module")
def bootstrap(broker: BrokerProcess) -> str:
    return broker.bootstrap


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = f"consumed-{uuid.uuid4().hex[:8]}"
    create_topic(bootstrap, name, PARTITIONS)
    produce_more(bootstrap, name)
    return name


@pytest.fixture
def group() -> str:
    return f"consumers-{uuid.uuid4().hex[:8]}"


StartMembers = Callable[..., MemberProcess]


@pytest.fixture
def start_members(bootstrap: str, group: str, topic: str) -> Iterator[StartMembers]:
    started: list[MemberProcess] = []

    def start(members: int = 1, subscription: str = topic, **settings: str) -> MemberProcess:
        # A member reconnects well within its session of 6 s after the broker was away.
        settings = {"group_protocol": "consumer", "reconnect_backoff_max_ms": "500"} | settings
        started.append(MemberProcess(bootstrap, group, subscription, members, **settings))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def produce_more(bootstrap: str, topic: str) -> None:
    for partition in range(PARTITIONS):
        produce_values(bootstrap, topic, (b"%d" % number for number in range(EACH)), partition)


def offsets(rounds: int) -> set[tuple[int, int]]:
    return {(partition, offset) for partition in range(PARTITIONS) for offset in range(rounds * EACH)}


def describe(bootstrap: str, group: str) -> DescribedGroup:
    with BrokerConnection.open(parse_bootstrap(bootstrap)[0]) as broker:
        request = ConsumerGroupDescribeRequest(group_ids=[group])
        return broker.call(request, ConsumerGroupDescribeResponse, at_least=1).groups[0]


def listed(bootstrap: str, group: str) -> tuple[str, str]:
    with BrokerConnection.open(parse_bootstrap(bootstrap)[0]) as broker:
        answer = broker.call(ListGroupsRequest(), ListGroupsResponse, at_least=5)
    return next((g.group_type, g.group_state) for g in answer.groups if g.group_id == group)


def shares(described: DescribedGroup) -> list[int]:
    return sorted(
        sum(len(topic.partitions) for topic in member.assignment.topic_partitions)
        for member in described.members
    )


def await_shares(bootstrap: str, group: str, expected: list[int]) -> DescribedGroup:
    """Waits until the group is stable with these numbers of partitions per member, in ascending order."""
    last: list[DescribedGroup] = []

    def is_shared() -> bool:
        last[:] = [describe(bootstrap, group)]
        return last[0].group_state == "Stable" and shares(last[0]) == expected

    try:
        await_true(is_shared)
    except TimeoutError:
        found = last[0]
        raise AssertionError(f"{found.group_state} {shares(found)}, not {expected} ({found})") from None
    owned = [
        (topic.topic_name, partition)
        for member in last[0].members
        for topic in member.assignment.topic_partitions
        for partition in topic.partitions
    ]
    assert len(owned) == len(set(owned))
    return last[0]


@pytest.mark.parametrize("assignor", ["uniform", pytest.param("range", marks=pytest.mark.slow)])
def test_three_members_one_leaves_one_dies(
    bootstrap: str, group: str, topic: str, start_members: StartMembers, assignor: str
) -> None:
    settings = {"group_remote_assignor": assignor}
    first = start_members(**settings)
    await_shares(bootstrap, group, [12])
    second, third = start_members(**settings), start_members(**settings)
    described = await_shares(bootstrap, group, [4, 4, 4])
    assert described.assignor_name == assignor
    assert {member.member_type for member in described.members} == {CONSUMER}
    second.stop()
    await_shares(bootstrap, group, [6, 6])
    third.kill()
    await_shares(bootstrap, group, [12])
    produce_more(bootstrap, topic)
    await_true(lambda: set(first.read + second.read + third.read) == offsets(2))
    first.stop()
    await_true(lambda: listed(bootstrap, group) == ("consumer", "Empty"))


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
def test_twenty_members_five_die(bootstrap: str, group: str, start_members: StartMembers) -> None:
    start_members(10)
    start_members(5)
    dying = start_members(5)
    await_shares(bootstrap, group, [0] * 8 + [1] * 12)
    dying.kill()
    await_shares(bootstrap, group, [0] * 3 + [1] * 12)


@pytest.mark.slow
def test_a_classic_group_is_upgraded_while_it_works_and_back(
    bootstrap: str, group: str, topic: str, start_members: StartMembers
) -> None:
    def classic() -> MemberProcess:
        return start_members(group_protocol="classic")

    old = [classic(), classic()]
    await_true(lambda: sum(len(member.owned[0]) for member in old) == PARTITIONS)
    assert listed(bootstrap, group) == ("classic", "Stable")
    new = [start_members()]
    described = await_shares(bootstrap, group, [4, 4, 4])
    assert sorted(member.member_type for member in described.members) == [CLASSIC, CLASSIC, CONSUMER]
    old[0].stop()
    new.append(start_members())
    await_shares(bootstrap, group, [4, 4, 4])
    old[1].stop()
    described = await_shares(bootstrap, group, [6, 6])
    assert {member.member_type for member in described.members} == {CONSUMER}
    again = [classic()]
    await_shares(bootstrap, group, [4, 4, 4])
    new[0].stop()
    again.append(classic())
    await_shares(bootstrap, group, [4, 4, 4])
    new[1].stop()
    await_true(lambda: listed(bootstrap, group) == ("classic", "Stable"))
    await_true(lambda: sum(len(member.owned[0]) for member in again) == PARTITIONS)
    produce_more(bootstrap, topic)
    everyone = [*old, *new, *again]
    await_true(lambda: {one for member in everyone for one in member.read} == offsets(2))


def test_a_regular_expression_follows_new_topics(
    bootstrap: str, group: str, start_members: StartMembers
) -> None:
    prefix = f"followed-{uuid.uuid4().hex[:8]}"
    create_topic(bootstrap, f"{prefix}-1", 2)
    start_members(subscription=f"^{prefix}-.*")
    await_shares(bootstrap, group, [2])
    create_topic(bootstrap, f"{prefix}-2", 3)
    described = await_shares(bootstrap, group, [5])
    (member,) = described.members
    assert f"^{prefix}-.*" in (member.subscribed_topic_regex or ""), "the broker resolves it"


def test_a_static_member_that_returns_soon_moves_no_partition(
    bootstrap: str, group: str, start_members: StartMembers
) -> None:
    members = [start_members(group_instance_id=f"instance-{number}") for number in range(2)]
    before = await_shares(bootstrap, group, [6, 6])
    members[0].stop()
    start_members(group_instance_id="instance-0")
    members_now = {member.member_id for member in before.members}
    await_true(lambda: {m.member_id for m in describe(bootstrap, group).members} != members_now)
    after = await_shares(bootstrap, group, [6, 6])
    assert after.group_epoch == before.group_epoch

    def by_instance(described: DescribedGroup) -> dict[str | None, object]:
        return {member.instance_id: member.assignment for member in described.members}

    assert by_instance(after) == by_instance(before)


def test_members_continue_after_the_broker_was_killed(
    broker: BrokerProcess, bootstrap: str, group: str, topic: str, start_members: StartMembers
) -> None:
    members = [start_members(), start_members(), start_members(group_instance_id="static")]
    before = await_shares(bootstrap, group, [4, 4, 4])
    broker.kill()
    broker.start()
    after = await_shares(bootstrap, group, [4, 4, 4])
    assert after.group_epoch == before.group_epoch, "the members had not left"
    assert {m.member_id: m.assignment for m in after.members} == {
        m.member_id: m.assignment for m in before.members
    }
    produce_more(bootstrap, topic)
    await_true(lambda: {one for member in members for one in member.read} == offsets(2))
    members[0].kill()
    await_shares(bootstrap, group, [6, 6])


@pytest.fixture
def console_consumer(
    bootstrap: str, group: str, topic: str, kafka_jars: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts Java's console consumer with the consumer protocol, and ends it with the test."""
    process = subprocess.Popen(
        ["java", *JAVA_OPTIONS, "-cp", f"{kafka_jars}/*", "org.apache.kafka.tools.consumer.ConsoleConsumer"]
        + ["--bootstrap-server", bootstrap, "--topic", topic, "--group", group, "--from-beginning"]
        + ["--command-property", "group.protocol=consumer"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    yield process
    process.kill()
    process.wait()


@pytest.mark.java
@pytest.mark.slow
def test_javas_consumer_and_kafka_consumer_groups(
    bootstrap: str,
    group: str,
    topic: str,
    start_members: StartMembers,
    java: JavaTools,
    console_consumer: subprocess.Popen[bytes],
) -> None:
    def tool(*arguments: str) -> str:
        done = java.run("consumer.group.ConsumerGroupCommand", "--bootstrap-server", bootstrap, *arguments)
        return done.stdout + done.stderr

    await_shares(bootstrap, group, [12])
    start_members()
    await_shares(bootstrap, group, [6, 6])
    assert "Stable" in tool("--describe", "--group", group, "--state")
    members = tool("--describe", "--group", group, "--members", "--verbose")
    assert "console-consumer" in members
    assert "member-0" in members
    assert f"{group} Consumer Stable" in " ".join(tool("--list", "--state", "--type").split())
    assert "GroupNotEmptyException" in tool("--delete", "--group", group)
    reset = ("--reset-offsets", "--group", group, "--topic", topic, "--execute")
    assert "current state is Stable" in tool(*reset, "--to-earliest")
    # The consumer commits and leaves the group.
    console_consumer.terminate()
    console_consumer.wait(30)
    await_shares(bootstrap, group, [12])
    await_true(lambda: all(line.split()[5] == "0" for line in _lags(tool, group, topic)))


@pytest.mark.java
def test_kafka_reads_the_records(
    broker: BrokerProcess,
    bootstrap: str,
    group: str,
    topic: str,
    start_members: StartMembers,
    java: JavaTools,
) -> None:
    member = start_members(subscription=f"^{topic}")
    await_true(lambda: set(member.read) == offsets(1))
    member.stop()
    (log,) = [
        path
        for path in broker.data_dir.rglob("__consumer_offsets-*/*.log")
        if group.encode() in path.read_bytes()
    ]
    said = java.check("DumpLogSegments", "--offsets-decoder", "--files", str(log))
    lines = [line for line in said.splitlines() if group in line]
    for kind in (3, 5, 6, 7, 8, 16):
        assert any(f'key: {{"type":"{kind}"' in line for line in lines), kind
    assert not any("Could not decode" in line or "Unknown" in line for line in lines)


def _lags(tool: Callable[..., str], group: str, topic: str) -> list[str]:
    lines = [line for line in tool("--describe", "--group", group).splitlines() if topic in line]
    assert len(lines) == PARTITIONS
    return lines


@pytest.mark.java
@pytest.mark.slow
def test_kafka_consumer_groups_on_an_empty_group(
    bootstrap: str, group: str, topic: str, start_members: StartMembers, java: JavaTools
) -> None:
    def tool(*arguments: str) -> str:
        return java.check("consumer.group.ConsumerGroupCommand", "--bootstrap-server", bootstrap, *arguments)

    member = start_members()
    await_true(lambda: set(member.read) == offsets(1))
    member.stop()
    lines = _lags(tool, group, topic)
    assert {tuple(line.split()[3:6]) for line in lines} == {(str(EACH), str(EACH), "0")}
    tool("--reset-offsets", "--group", group, "--topic", topic, "--to-offset", "5", "--execute")
    assert {tuple(line.split()[3:6]) for line in _lags(tool, group, topic)} == {("5", "20", "15")}
    assert "Successful" in tool("--delete-offsets", "--group", group, "--topic", f"{topic}:0,1")
    tool("--delete", "--group", group)
    assert group not in tool("--list").split()
