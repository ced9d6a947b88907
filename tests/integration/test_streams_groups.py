"""Streams groups on a real broker: internal topics and the right to create them, a restart, Kafka's tool, and
Kafka's answers. tests/ecosystem runs applications.
"""

from __future__ import annotations

import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from brokerlab.broker_process import BrokerProcess, tidelog_command
from brokerlab.clients import create_topic
from brokerlab.kafka_jars import JavaTools
from grouplab.classic_script import TcpBroker
from grouplab.group_members import await_true
from grouplab.streams_script import ANSWERS_OF_KAFKA, SETTINGS, answers, create
from tidelog.client.address import parse_bootstrap
from tidelog.client.cluster import BrokerConnection
from tidelog.model.acl import AclOperation, PatternType, PermissionType, ResourceType
from tidelog.model.errors import ErrorCode
from tidelog.settings.broker_settings import STANDARD_AUTHORIZER
from tidelog.wire.messages import create_acls, find_coordinator
from tidelog.wire.messages import streams_group_describe as describing
from tidelog.wire.messages import streams_group_heartbeat as beating
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

pytestmark = pytest.mark.integration
MISSING_INTERNAL_TOPICS = 3
TOOL = "org.apache.kafka.tools.streams.StreamsGroupCommand"
IMPATIENT = dict(SETTINGS)
PARTITIONS = 3


def call(broker: BrokerProcess, request: Any, response: Any) -> Any:
    with BrokerConnection.open(parse_bootstrap(broker.bootstrap)[0]) as connection:
        return connection.call(request, response)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("streams-groups")
    broker = BrokerProcess(directory / "data", directory / "broker.log", IMPATIENT)
    try:
        yield broker.start()
    finally:
        broker.kill()
        shutil.rmtree(directory / "data", ignore_errors=True)


class Thread:
    """A thread of an application with one store, which sends heartbeats."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self.group = f"application-{uuid.uuid4().hex[:8]}"
        self.source = f"source-of-{self.group}"  # other topics with its name are internal to the tool
        self.changelog = f"{self.group}-store-changelog"
        self.epoch = 0
        self.tasks: list[int] = []
        self.answer = beating.StreamsGroupHeartbeatResponse()
        create_topic(broker.bootstrap, self.source, PARTITIONS)
        request = find_coordinator.FindCoordinatorRequest(coordinator_keys=[self.group])
        call(broker, request, find_coordinator.FindCoordinatorResponse)  # creates the topic of groups

    def beat(self) -> beating.StreamsGroupHeartbeatResponse:
        request = beating.StreamsGroupHeartbeatRequest(self.group, "member", self.epoch)
        if not self.epoch:
            changelog = beating.TopicInfo(self.changelog, 0, 1)
            subtopology = beating.Subtopology("0", [self.source], state_changelog_topics=[changelog])
            request.topology = beating.Topology(0, [subtopology])
            request.rebalance_timeout_ms, request.process_id = 60_000, "process"
            request.active_tasks, request.standby_tasks, request.warmup_tasks = [], [], []
        self.answer = call(self._broker, request, beating.StreamsGroupHeartbeatResponse)
        if self.answer.error_code == ErrorCode.NONE:
            self.epoch = self.answer.member_epoch
            if self.answer.active_tasks is not None:
                self.tasks = [task for ids in self.answer.active_tasks for task in ids.partitions]
        return self.answer

    def has_tasks(self) -> bool:
        self.beat()
        return self.tasks == list(range(PARTITIONS))

    def commit(self) -> None:
        """Commits the offset 0 for each of the member's tasks."""
        topics = [
            OffsetCommitRequestTopic(
                self.source, partitions=[OffsetCommitRequestPartition(task, 0) for task in self.tasks]
            )
        ]
        request = OffsetCommitRequest(self.group, self.epoch, "member", topics=topics)
        with BrokerConnection.open(parse_bootstrap(self._broker.bootstrap)[0]) as connection:
            pending = connection.send(request, at_least=9, at_most=9)
            answer = connection.receive(pending, OffsetCommitResponse)
        assert {found.error_code for found in answer.topics[0].partitions} == {ErrorCode.NONE}

    def leave(self) -> None:
        request = beating.StreamsGroupHeartbeatRequest(self.group, "member", -1)
        assert call(self._broker, request, beating.StreamsGroupHeartbeatResponse).error_code == 0

    def described(self) -> describing.DescribedGroup:
        request = describing.StreamsGroupDescribeRequest([self.group])
        found: describing.DescribedGroup
        (found,) = call(self._broker, request, describing.StreamsGroupDescribeResponse).groups
        return found


def joined(broker: BrokerProcess) -> Thread:
    thread = Thread(broker)
    await_true(lambda: thread.beat().error_code == ErrorCode.NONE)
    await_true(thread.has_tasks)
    return thread


def test_the_broker_creates_internal_topics(broker: BrokerProcess) -> None:
    thread = Thread(broker)
    await_true(lambda: thread.beat().error_code == ErrorCode.NONE)
    assert [status.status_code for status in thread.answer.status or ()] == [MISSING_INTERNAL_TOPICS]
    assert thread.described().group_state == "NotReady"
    await_true(thread.has_tasks)
    found = thread.described()
    assert found.group_state == "Stable"
    assert found.topology is not None and found.topology.subtopologies is not None
    (changelog,) = found.topology.subtopologies[0].state_changelog_topics
    assert (changelog.name, changelog.partitions) == (thread.changelog, PARTITIONS)


def test_a_client_needs_the_right_to_create_them(start_broker: Callable[..., BrokerProcess]) -> None:
    settings = {
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:nobody",
    }
    broker = start_broker(IMPATIENT | settings)
    thread = Thread(broker)
    denied = [
        create_acls.AclCreation(
            kind, name, PatternType.LITERAL, "User:ANONYMOUS", "*", AclOperation.CREATE, PermissionType.DENY
        )
        for kind, name in (
            (ResourceType.CLUSTER, "kafka-cluster"),
            (ResourceType.TOPIC, thread.changelog),
        )
    ]
    allowed = [
        create_acls.AclCreation(
            kind, name, PatternType.LITERAL, "User:ANONYMOUS", "*", AclOperation.ALL, PermissionType.ALLOW
        )
        for kind, name in (
            (ResourceType.CLUSTER, "kafka-cluster"),
            (ResourceType.TOPIC, thread.changelog),
        )
    ]
    answer = call(broker, create_acls.CreateAclsRequest([*denied, *allowed]), create_acls.CreateAclsResponse)
    assert {result.error_code for result in answer.results} == {0}

    def is_refused() -> bool:
        details = [status.status_detail for status in thread.beat().status or ()]
        return any(f"Unauthorized to CREATE on topics {thread.changelog}." in detail for detail in details)

    await_true(is_refused)
    time.sleep(0.5)
    assert not thread.has_tasks()


def test_a_group_survives_a_kill_of_the_broker(start_broker: Callable[..., BrokerProcess]) -> None:
    broker = start_broker(IMPATIENT)
    thread = joined(broker)
    before = thread.described()
    broker.kill()
    broker.start()
    await_true(lambda: thread.beat().error_code == ErrorCode.NONE)
    after = thread.described()
    assert (after.group_epoch, after.members) == (before.group_epoch, before.members)


def test_our_own_tool(broker: BrokerProcess) -> None:
    thread = joined(broker)

    def run(*arguments: str) -> str:
        command = [*tidelog_command(), "group", *arguments, "--bootstrap-server", broker.bootstrap]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    assert "streams, Stable" in run("describe", thread.group)
    assert f"{thread.source}-0 {thread.source}-1" in run("describe", thread.group, "--members")
    thread.leave()
    run("delete", thread.group)
    assert thread.group not in run("list")


@pytest.mark.java
def test_kafkas_tool(broker: BrokerProcess, java: JavaTools) -> None:
    thread = joined(broker)

    def run(*arguments: str) -> str:
        return java.check(TOOL, "--bootstrap-server", broker.bootstrap, *arguments)

    group = ("--group", thread.group)
    assert thread.group in run("--list").split()
    assert "Stable" in run("--describe", *group, "--state")
    members = run("--describe", *group, "--members", "--verbose")
    assert "ACTIVE: 0:[0,1,2];" in members, members
    assert thread.source in run("--describe", *group, "--offsets")
    refused = java.run(TOOL, "--bootstrap-server", broker.bootstrap, "--delete", *group)
    assert "is not EMPTY" in refused.stdout + refused.stderr
    thread.commit()  # the tool resets topics only if all their partitions have offsets
    thread.leave()
    topic = ("--input-topic", thread.source)
    assert thread.source in run("--reset-offsets", *group, *topic, "--to-earliest", "--execute")
    assert "Successful" in run("--delete-offsets", *group, *topic)
    assert "was successful" in run("--delete", *group, "--delete-all-internal-topics")
    assert thread.group not in run("--list").split()


def test_responses_are_those_of_kafka(start_broker: Callable[..., BrokerProcess]) -> None:
    tcp = TcpBroker(start_broker(SETTINGS).bootstrap)
    create(tcp)
    expected = ANSWERS_OF_KAFKA.read_text().splitlines()
    found = answers(tcp)
    differing = [pair for pair in zip(expected, found, strict=False) if pair[0] != pair[1]]
    assert not differing, differing[:3]
    assert len(found) == len(expected)
