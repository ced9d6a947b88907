"""Share groups (KIP-932) of a real broker over its socket: members, offsets, deletion, and a restart."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import create_topic, produce_values
from brokerlab.kafka_jars import JavaTools
from grouplab.group_members import await_true
from grouplab.share_script import ANSWERS_OF_KAFKA, Script
from tidelog.client.address import parse_bootstrap
from tidelog.client.cluster import BrokerConnection
from tidelog.group_coordinator.share_state_core import MIN_TRIM_RECORDS
from tidelog.model.coordinator_shards import share_partition_key
from tidelog.model.errors import ErrorCode
from tidelog.wire.messages import alter_share_group_offsets as altering
from tidelog.wire.messages import (
    delete_groups,
    describe_configs,
    find_coordinator,
    incremental_alter_configs,
    list_groups,
    list_offsets,
)
from tidelog.wire.messages import delete_share_group_offsets as deleting
from tidelog.wire.messages import describe_share_group_offsets as offsets
from tidelog.wire.messages import share_group_describe as describing
from tidelog.wire.messages import share_group_heartbeat as beating

pytestmark = pytest.mark.integration

PARTITIONS = 4
NO_OFFSET = -1
EARLIEST = -2
GROUP_RESOURCE = 32
DEFAULT_CONFIG, DYNAMIC_GROUP_CONFIG = 5, 8


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("share-groups")
    broker = BrokerProcess(directory / "data", directory / "broker.log", {})
    try:
        yield broker.start()
    finally:
        broker.kill()
        shutil.rmtree(directory / "data", ignore_errors=True)


@pytest.fixture
def topic(broker: BrokerProcess) -> str:
    name = f"shared-{uuid.uuid4().hex[:8]}"
    create_topic(broker.bootstrap, name, PARTITIONS)
    return name


@pytest.fixture
def group(broker: BrokerProcess) -> str:
    name = f"sharers-{uuid.uuid4().hex[:8]}"
    request = find_coordinator.FindCoordinatorRequest(coordinator_keys=[name])
    call(broker, request, find_coordinator.FindCoordinatorResponse)  # creates the topic of groups
    return name


def call(broker: BrokerProcess, request: Any, response: Any) -> Any:
    with BrokerConnection.open(parse_bootstrap(broker.bootstrap)[0]) as connection:
        return connection.call(request, response)


class Sharer:
    """A member that sends heartbeats."""

    def __init__(self, broker: BrokerProcess, group: str, topic: str) -> None:
        self._broker = broker
        self._group = group
        self._topic = topic
        self.member_id = str(uuid.uuid4())
        self.epoch = 0
        self.partitions: set[int] = set()

    def beat(self) -> beating.ShareGroupHeartbeatResponse:
        names = [self._topic] if self.epoch == 0 else None
        request = beating.ShareGroupHeartbeatRequest(self._group, self.member_id, self.epoch, None, names)
        answer: beating.ShareGroupHeartbeatResponse
        answer = call(self._broker, request, beating.ShareGroupHeartbeatResponse)
        if answer.error_code == ErrorCode.NONE:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.partitions = {p for t in answer.assignment.topic_partitions for p in t.partitions}
        return answer

    def join(self, partitions: int) -> Sharer:
        """Sends heartbeats until the member has this number of partitions."""

        def has_joined() -> bool:
            self.beat()
            return len(self.partitions) == partitions

        await_true(has_joined)
        return self

    def leave(self) -> None:
        self.epoch = -1
        assert self.beat().error_code == ErrorCode.NONE


def describe(broker: BrokerProcess, group: str) -> describing.DescribedGroup:
    answer = call(
        broker, describing.ShareGroupDescribeRequest([group]), describing.ShareGroupDescribeResponse
    )
    described: describing.DescribedGroup = answer.groups[0]
    return described


def start_offsets(broker: BrokerProcess, group: str, topic: str) -> dict[int, int]:
    """Returns the start offsets of all partitions that the group has."""
    request = offsets.DescribeShareGroupOffsetsRequest(
        [offsets.DescribeShareGroupOffsetsRequestGroup(group, None)]
    )
    (found,) = call(broker, request, offsets.DescribeShareGroupOffsetsResponse).groups
    assert found.error_code in (ErrorCode.NONE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return {
        partition.partition_index: partition.start_offset
        for described in found.topics
        if described.topic_name == topic
        for partition in described.partitions
        if partition.error_code == ErrorCode.NONE
    }


def reset(broker: BrokerProcess, group: str, topic: str, to: dict[int, int]) -> set[int]:
    """Returns the error codes of the request and its partitions."""
    partitions = [altering.AlterShareGroupOffsetsRequestPartition(index, at) for index, at in to.items()]
    request = altering.AlterShareGroupOffsetsRequest(
        group, [altering.AlterShareGroupOffsetsRequestTopic(topic, partitions)]
    )
    answer = call(broker, request, altering.AlterShareGroupOffsetsResponse)
    return {answer.error_code, *(p.error_code for t in answer.responses for p in t.partitions)}


def test_members_share_all_partitions(broker: BrokerProcess, group: str, topic: str) -> None:
    first = Sharer(broker, group, topic).join(PARTITIONS)
    second = Sharer(broker, group, topic).join(PARTITIONS // 2)
    first.beat()
    assert first.partitions | second.partitions == set(range(PARTITIONS))
    described = describe(broker, group)
    assert (described.group_state, described.assignor_name) == ("Stable", "simple")
    assert {member.member_id for member in described.members} == {first.member_id, second.member_id}
    listed = call(
        broker, list_groups.ListGroupsRequest(types_filter=["share"]), list_groups.ListGroupsResponse
    )
    assert (group, "Stable", "share") in {(g.group_id, g.group_state, g.group_type) for g in listed.groups}


def test_more_members_than_partitions_all_get_one(broker: BrokerProcess, group: str, topic: str) -> None:
    members = [Sharer(broker, group, topic) for _ in range(2 * PARTITIONS)]
    for member in members:
        member.beat()

    def is_balanced() -> bool:
        for member in members:
            member.beat()
        shared = set.union(*(member.partitions for member in members))
        return all(len(member.partitions) == 1 for member in members) and shared == set(range(PARTITIONS))

    await_true(is_balanced)


def test_a_wrong_epoch_is_fenced_and_a_stranger_unknown(
    broker: BrokerProcess, group: str, topic: str
) -> None:
    member = Sharer(broker, group, topic).join(PARTITIONS)
    member.epoch += 5
    assert member.beat().error_code == ErrorCode.FENCED_MEMBER_EPOCH
    stranger = Sharer(broker, group, topic)
    stranger.epoch = 3
    assert stranger.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_are_described_reset_and_deleted(broker: BrokerProcess, group: str, topic: str) -> None:
    member = Sharer(broker, group, topic).join(PARTITIONS)
    assert start_offsets(broker, group, topic) == dict.fromkeys(range(PARTITIONS), NO_OFFSET)
    assert reset(broker, group, topic, {0: 7}) == {ErrorCode.NON_EMPTY_GROUP}
    member.leave()
    assert describe(broker, group).group_state == "Empty"
    assert reset(broker, group, topic, {0: 7, 1: 9}) == {ErrorCode.NONE}
    assert reset(broker, group, topic, {PARTITIONS: 1}) == {
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert start_offsets(broker, group, topic) == {0: 7, 1: 9, 2: NO_OFFSET, 3: NO_OFFSET}

    request = deleting.DeleteShareGroupOffsetsRequest(
        group, [deleting.DeleteShareGroupOffsetsRequestTopic(topic)]
    )
    answer = call(broker, request, deleting.DeleteShareGroupOffsetsResponse)
    assert [found.error_code for found in answer.responses] == [ErrorCode.NONE]
    assert start_offsets(broker, group, topic) == {}


def test_a_group_is_deleted_with_its_offsets(broker: BrokerProcess, group: str, topic: str) -> None:
    def delete() -> int:
        request = delete_groups.DeleteGroupsRequest([group])
        (result,) = call(broker, request, delete_groups.DeleteGroupsResponse).results
        code: int = result.error_code
        return code

    member = Sharer(broker, group, topic).join(PARTITIONS)
    assert delete() == ErrorCode.NON_EMPTY_GROUP
    member.leave()
    reset(broker, group, topic, {0: 7})
    assert delete() == ErrorCode.NONE
    assert describe(broker, group).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert delete() == ErrorCode.GROUP_ID_NOT_FOUND
    Sharer(broker, group, topic).join(PARTITIONS)
    assert start_offsets(broker, group, topic) == dict.fromkeys(range(PARTITIONS), NO_OFFSET)


def test_the_coordinator_of_a_share_partition_is_found(broker: BrokerProcess) -> None:
    key = share_partition_key("g", uuid.uuid4(), 0)
    request = find_coordinator.FindCoordinatorRequest("", 2, [key])
    (found,) = call(broker, request, find_coordinator.FindCoordinatorResponse).coordinators
    assert (found.error_code, found.key) == (ErrorCode.NONE, key)


def test_a_group_has_settings_of_its_own(broker: BrokerProcess, group: str, topic: str) -> None:
    def alter(**values: str | None) -> int:
        operations = [
            incremental_alter_configs.AlterableConfig(
                name.replace("_", "."), 1 if value is None else 0, value
            )
            for name, value in values.items()
        ]
        resource = incremental_alter_configs.AlterConfigsResource(GROUP_RESOURCE, group, operations)
        request = incremental_alter_configs.IncrementalAlterConfigsRequest([resource])
        answer = call(broker, request, incremental_alter_configs.IncrementalAlterConfigsResponse)
        code: int = answer.responses[0].error_code
        return code

    def described() -> dict[str, tuple[str | None, int]]:
        resource = describe_configs.DescribeConfigsResource(GROUP_RESOURCE, group, None)
        request = describe_configs.DescribeConfigsRequest([resource])
        (result,) = call(broker, request, describe_configs.DescribeConfigsResponse).results
        assert result.error_code == ErrorCode.NONE
        return {config.name: (config.value, config.config_source) for config in result.configs}

    assert described()["share.auto.offset.reset"] == ("latest", DEFAULT_CONFIG)
    assert alter(share_session_timeout_ms="1") == ErrorCode.INVALID_CONFIG
    assert alter(share_unknown="1") == ErrorCode.INVALID_CONFIG
    assert alter(share_auto_offset_reset="earliest", share_heartbeat_interval_ms="7000") == ErrorCode.NONE
    await_true(lambda: described()["share.auto.offset.reset"] == ("earliest", DYNAMIC_GROUP_CONFIG))
    await_true(lambda: Sharer(broker, group, topic).beat().heartbeat_interval_ms == 7000)
    assert alter(share_heartbeat_interval_ms=None) == ErrorCode.NONE
    await_true(lambda: Sharer(broker, group, topic).beat().heartbeat_interval_ms == 5000)


def test_groups_and_offsets_survive_a_kill(broker: BrokerProcess, group: str, topic: str) -> None:
    member = Sharer(broker, group, topic).join(PARTITIONS)
    member.leave()
    assert reset(broker, group, topic, {0: 7}) == {ErrorCode.NONE}
    member.epoch = 0
    member.join(PARTITIONS)
    broker.kill()
    broker.start()

    def is_back() -> bool:
        return member.beat().error_code == ErrorCode.NONE

    await_true(is_back)
    assert member.partitions == set(range(PARTITIONS))
    await_true(lambda: start_offsets(broker, group, topic).get(0) == 7)
    assert start_offsets(broker, group, topic) == {0: 7, 1: NO_OFFSET, 2: NO_OFFSET, 3: NO_OFFSET}


def test_kafkas_tool_manages_the_group(
    broker: BrokerProcess, java: JavaTools, group: str, topic: str
) -> None:
    def run(*arguments: str) -> str:
        tool = "consumer.group.ShareGroupCommand"
        done = java.run(tool, "--bootstrap-server", broker.bootstrap, *arguments)
        assert not done.stderr.strip(), done.stderr
        return done.stdout

    member = Sharer(broker, group, topic).join(PARTITIONS)
    assert group in run("--list")
    assert "Stable" in run("--describe", "--group", group, "--state")
    assert member.member_id in run("--describe", "--group", group, "--members")
    assert run("--describe", "--group", group).count(topic) == PARTITIONS
    member.leave()
    to = ("--topic", topic, "--to-earliest", "--execute")
    assert run("--group", group, "--reset-offsets", *to).count(topic) == PARTITIONS
    assert start_offsets(broker, group, topic) == dict.fromkeys(range(PARTITIONS), 0)
    produce_values(broker.bootstrap, topic, [b"1", b"2", b"3"], 0)
    rows = [line.split() for line in run("--describe", "--group", group).splitlines() if topic in line]
    assert {row[2]: row[4] for row in rows} == {"0": "3", "1": "0", "2": "0", "3": "0"}
    assert "Successful" in run("--group", group, "--delete-offsets", "--topic", topic)
    assert start_offsets(broker, group, topic) == {}
    assert "successful" in run("--group", group, "--delete")
    assert group not in run("--list")


def test_records_of_old_states_are_deleted(start_broker: Callable[..., BrokerProcess]) -> None:
    broker = start_broker({"share.coordinator.state.topic.prune.interval.ms": "500"})
    create_topic(broker.bootstrap, "pruned", 1)
    request = find_coordinator.FindCoordinatorRequest(coordinator_keys=["g"])
    call(broker, request, find_coordinator.FindCoordinatorResponse)
    await_true(lambda: reset(broker, "g", "pruned", {0: 0}) == {ErrorCode.NONE})
    for offset in range(MIN_TRIM_RECORDS + 1):
        assert reset(broker, "g", "pruned", {0: offset}) == {ErrorCode.NONE}

    def earliest() -> int:
        topics = [
            list_offsets.ListOffsetsTopic(
                "__share_group_state",
                [list_offsets.ListOffsetsPartition(number, -1, EARLIEST) for number in range(50)],
            )
        ]
        request = list_offsets.ListOffsetsRequest(-1, topics=topics)
        answer = call(broker, request, list_offsets.ListOffsetsResponse)
        return max(found.offset for topic in answer.topics for found in topic.partitions)

    await_true(lambda: earliest() >= MIN_TRIM_RECORDS)
    broker.kill()
    broker.start()
    await_true(lambda: start_offsets(broker, "g", "pruned") == {0: MIN_TRIM_RECORDS})


NEW_SETTINGS = ("setting tidelog.", "setting errors.deadletterqueue.")
"""Kafka 4.3 has neither our own settings of groups nor those of dead letters (KIP-1191, Kafka 4.4)."""


def test_responses_are_those_of_kafka(own_broker: BrokerProcess) -> None:
    def by_name(lines: Iterable[str]) -> dict[str, str]:
        pairs = (line.partition(": ") for line in lines)
        return {name: answer for name, _, answer in pairs}

    kafkas = by_name(ANSWERS_OF_KAFKA.read_text().splitlines())
    ours = by_name(Script(own_broker.bootstrap).lines())
    names = kafkas.keys() | ours.keys()
    different = {
        name: (kafkas.get(name), ours.get(name))
        for name in names
        if kafkas.get(name) != ours.get(name) and not name.startswith(NEW_SETTINGS)
    }
    assert different == {}
