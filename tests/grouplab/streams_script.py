#!/usr/bin/env python3
"""Prints a broker's responses to scripted members of streams groups.

    tests/grouplab/streams_script.py HOST:PORT > tests/grouplab/streams_answers_of_kafka.txt

records the responses of Apache Kafka 4.3, started with SETTINGS. The script creates its topics. A test
compares the core's responses with them. Assignors may choose different tasks for a member, so the lines
contain only the number of tasks.
"""

from __future__ import annotations

import random
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final  # Any: generated messages have no common base

from grouplab.classic_script import Broker, TcpBroker
from tidelog.model.errors import ErrorCode
from tidelog.wire.messages import create_topics
from tidelog.wire.messages import streams_group_heartbeat as beating
from tidelog.wire.messages.delete_groups import DeleteGroupsRequest
from tidelog.wire.messages.list_groups import ListGroupsRequest
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.wire.messages.streams_group_describe import StreamsGroupDescribeRequest
from tidelog.wire.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TaskIds,
    TaskOffset,
    TopicInfo,
    Topology,
)

ANSWERS_OF_KAFKA: Final = Path(__file__).with_name("streams_answers_of_kafka.txt")
SETTINGS: Final[Mapping[str, str]] = {
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.assignment.interval.ms": "0",
    "group.initial.rebalance.delay.ms": "0",
}
SOURCE, STORE, OTHER, FOUR = "script-source", "script-store-changelog", "script-other", "script-four"
TOPICS: Final[Mapping[str, int]] = {SOURCE: 6, STORE: 6, OTHER: 6, FOUR: 4}
WALKS: Final = 30
STEPS: Final = 40
REBALANCE_MS: Final = 300_000
CREATED_MS: Final = 3_000
"""The time in which the broker creates internal topics."""
ROLES: Final = ("active", "standby", "warmup")
Task = tuple[str, int]


def topology(epoch: int = 0, changelog: str = STORE) -> Topology:
    """Returns a topology with a stateful and a stateless subtopology."""
    return Topology(
        epoch,
        [
            Subtopology("0", [SOURCE], state_changelog_topics=[TopicInfo(changelog)]),
            Subtopology("1", [OTHER]),
        ],
    )


class Script:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.lines: list[str] = []
        self.run = uuid.uuid4().hex[:8]

    def tell(self, line: str) -> None:
        self.lines.append(line.replace(self.run, "RUN"))

    def ask(self, request: Any, version: int) -> Any:
        return self.broker.send(request, version)()

    def beat(self, label: str, **fields: Any) -> StreamsGroupHeartbeatResponse:
        answer: StreamsGroupHeartbeatResponse = self.ask(StreamsGroupHeartbeatRequest(**fields), 0)
        given = [
            None if tasks is None else sum(len(found.partitions) for found in tasks)
            for tasks in (answer.active_tasks, answer.standby_tasks, answer.warmup_tasks)
        ]
        statuses = [(status.status_code, _sorted(status.status_detail)) for status in answer.status or ()]
        endpoints = answer.partitions_by_user_endpoint
        self.tell(
            f"{label}: error {answer.error_code} {answer.error_message}, member {answer.member_id}, "
            f"epoch {answer.member_epoch}, every {answer.heartbeat_interval_ms}, tasks {given}, "
            f"{statuses}, endpoints {answer.endpoint_information_epoch} "
            f"{None if endpoints is None else len(endpoints)}, {answer.task_offset_interval_ms}"
        )
        return answer

    def describe(self, group: str, *, with_topology: bool = True) -> None:
        """Right after a group was created, Kafka does not know the sizes of its internal topics."""
        group = self.ask(StreamsGroupDescribeRequest([group]), 0).groups[0]
        subtopologies = None if group.topology is None else group.topology.subtopologies
        self.tell(
            f"  group: error {group.error_code} {group.error_message}, {group.group_state}, "
            f"epoch {group.group_epoch}, assigned {group.assignment_epoch}"
        )
        for found in (subtopologies or ()) if with_topology else ():
            topics = [
                [
                    (topic.name, topic.partitions, topic.replication_factor, topic.topic_configs)
                    for topic in some
                ]
                for some in (found.state_changelog_topics, found.repartition_source_topics)
            ]
            self.tell(
                f"  {found.subtopology_id}: {found.source_topics} {found.repartition_sink_topics} {topics}"
            )
        for member in sorted(group.members, key=lambda one: str(one.member_id)):
            counts = [
                sum(len(ids.partitions) for ids in tasks)
                for assignment in (member.assignment, member.target_assignment)
                for tasks in (assignment.active_tasks, assignment.standby_tasks, assignment.warmup_tasks)
            ]
            endpoint = member.user_endpoint
            self.tell(
                f"  {member.member_id}: epoch {member.member_epoch}, topology {member.topology_epoch}, "
                f"{member.process_id} {member.rack_id} {member.instance_id} {member.is_classic} "
                f"{None if endpoint is None else (endpoint.host, endpoint.port)} "
                f"{[(tag.key, tag.value) for tag in member.client_tags]} "
                f"{member.task_offsets} {member.task_end_offsets}, {counts}"
            )

    def listed(self, group: str) -> None:
        groups = [g for g in self.ask(ListGroupsRequest(), 5).groups if g.group_id == group]
        self.tell(f"  listed: {[(g.protocol_type, g.group_type, g.group_state) for g in groups]}")

    def commit(self, group: str, member_id: str, epoch: int, partition: int, version: int = 9) -> None:
        topics = [OffsetCommitRequestTopic(SOURCE, partitions=[OffsetCommitRequestPartition(partition, 1)])]
        answer = self.ask(OffsetCommitRequest(group, epoch, member_id, topics=topics), version)
        self.tell(f"commit by {member_id!r}: {answer.topics[0].partitions[0].error_code}")


def _sorted(detail: str) -> str:
    """Returns the text with its topics in order, because Kafka names them in the order of a hash table."""
    text, _, topics = detail.partition(": ")
    return f"{text}: {', '.join(sorted(topics.split(', ')))}" if topics else text


class Member:
    """A thread of an application."""

    def __init__(self, script: Script, group: str, name: str, process: str, **fields: Any) -> None:
        self.script = script
        self.group = group
        self.name = name
        self.process = process
        self.fields = fields
        """Further fields of its first heartbeat."""
        self.epoch = 0
        self.owned: dict[str, set[Task]] = {role: set() for role in ROLES}

    def beat(self, label: str, *, epoch: int | None = None, says_tasks: bool = True, **fields: Any) -> int:
        sent = self.epoch if epoch is None else epoch
        given: dict[str, Any] = {}
        if sent == 0:
            given = {f"{role}_tasks": [] for role in ROLES}
            given |= {
                "rebalance_timeout_ms": REBALANCE_MS,
                "topology": topology(),
                "process_id": self.process,
            }
            given |= self.fields
        elif says_tasks:
            given = {f"{role}_tasks": self._message(role) for role in ROLES}
        answer = self.script.beat(
            f"{self.name} {label}",
            **{"group_id": self.group, "member_id": self.name, "member_epoch": sent} | given | fields,
        )
        if answer.error_code == ErrorCode.NONE:
            self.epoch = answer.member_epoch
            if answer.active_tasks is not None:
                lists = (answer.active_tasks, answer.standby_tasks or [], answer.warmup_tasks or [])
                self.owned = {
                    role: {(ids.subtopology_id, partition) for ids in found for partition in ids.partitions}
                    for role, found in zip(ROLES, lists, strict=True)
                }
        elif answer.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
            self.forget()
        return answer.error_code

    def _message(self, role: str) -> list[TaskIds]:
        found: dict[str, list[int]] = {}
        for name, partition in sorted(self.owned[role]):
            found.setdefault(name, []).append(partition)
        return [TaskIds(name, partitions) for name, partitions in found.items()]

    def forget(self) -> None:
        self.epoch, self.owned = 0, {role: set() for role in ROLES}

    def leave(self, **fields: Any) -> None:
        self.script.beat(
            f"{self.name} leaves", group_id=self.group, member_id=self.name, member_epoch=-1, **fields
        )
        self.forget()


def refusals(script: Script) -> None:
    """Invalid heartbeats, unknown groups and members, and other topologies."""
    script.tell("-- refusals")
    group = f"refusals-{script.run}"
    member = Member(script, group, "a", "p")
    for label, fields in (
        ("with an instance", {"instance_id": "i"}),
        ("with offsets", {"task_offsets": [TaskOffset("0", 0, 1)]}),
        ("with end offsets", {"task_end_offsets": []}),
        ("with warm-up tasks", {"warmup_tasks": [TaskIds("0", [0])]}),
        ("without a name", {"member_id": " "}),
        ("without a group", {"group_id": ""}),
        ("without a rack", {"rack_id": ""}),
        ("without a timeout", {"rebalance_timeout_ms": -1}),
        ("with tasks", {"active_tasks": [TaskIds("0", [0])]}),
        ("without standby tasks", {"standby_tasks": None}),
        ("without a topology", {"topology": None}),
        ("leaving as a static member", {"member_epoch": -2}),
        ("in epoch -3", {"member_epoch": -3}),
        ("with a topology in epoch 1", {"member_epoch": 1}),
        ("without active tasks", {"member_epoch": 1, "topology": None, "active_tasks": None}),
        ("in epoch 1", {"member_epoch": 1, "topology": None}),
        ("with an internal topic", {"topology": Topology(0, [Subtopology("0", ["__consumer_offsets"])])}),
        ("with an invalid topic", {"topology": Topology(0, [Subtopology("0", ["a/b"])])}),
        ("with a pattern", {"topology": Topology(0, [Subtopology("0", [SOURCE], ["s.*"])])}),
        (
            "with a sized changelog",
            {
                "topology": Topology(
                    0, [Subtopology("0", [SOURCE], state_changelog_topics=[TopicInfo("c", 3)])]
                )
            },
        ),
    ):
        member.beat(label, epoch=0, **fields)
    script.describe(group)
    member.leave()
    member.beat("joins")
    script.beat("x goes on", group_id=group, member_id="x", member_epoch=2)
    script.beat("x leaves", group_id=group, member_id="x", member_epoch=-1)
    for label, tasks in (
        ("with an unknown subtopology", [TaskIds("7", [0])]),
        ("with an unknown task", [TaskIds("0", [6])]),
        ("with a negative task", [TaskIds("0", [-1])]),
    ):
        member.beat(label, active_tasks=tasks)
    member.beat("with another topology", epoch=0, topology=topology(0, "script-other-changelog"))
    member.beat("with a later topology", epoch=0, topology=topology(1))
    member.beat("with the topology", epoch=0)
    script.listed(group)
    script.tell(f"delete: {script.ask(DeleteGroupsRequest([group]), 2).results[0].error_code}")
    member.leave()
    script.describe(group)
    script.listed(group)
    script.tell(f"delete: {script.ask(DeleteGroupsRequest([group]), 2).results[0].error_code}")
    script.describe(group)


def topologies(script: Script) -> None:
    """Missing topics, topics of wrong sizes, internal topics that the broker creates, an older topology."""
    script.tell("-- topologies")
    absent = Topology(0, [Subtopology("0", [f"absent-{script.run}"])])
    group = f"absent-{script.run}"
    member = Member(script, group, "a", "p")
    member.beat("without its source", topology=absent)
    script.describe(group)
    group = f"unequal-{script.run}"
    member = Member(script, group, "a", "p")
    unequal = Topology(
        0,
        [
            Subtopology(
                "0", [SOURCE, FOUR], copartition_groups=[beating.CopartitionGroup(source_topics=[0, 1])]
            )
        ],
    )
    member.beat("with unequal topics", topology=unequal)
    script.describe(group)
    group = f"created-{script.run}"
    changelog, repartition = f"created-{script.run}-changelog", f"created-{script.run}-repartition"
    made = Topology(
        3,
        [
            Subtopology("0", [SOURCE], repartition_sink_topics=[repartition]),
            Subtopology(
                "1",
                repartition_source_topics=[TopicInfo(repartition, 3)],
                state_changelog_topics=[
                    TopicInfo(changelog, topic_configs=[beating.KeyValue("cleanup.policy", "compact")])
                ],
            ),
        ],
    )
    member = Member(script, group, "a", "p")
    member.beat("without its internal topics", topology=made)
    script.describe(group)
    script.broker.wait(CREATED_MS)
    member.beat("with its internal topics")
    member.beat("goes on")
    script.describe(group)
    behind = Member(script, group, "b", "q")
    behind.beat("is behind", topology=Topology(2, made.subtopologies))
    script.describe(group)


def endpoints(script: Script) -> None:
    """User endpoints, tags, and a shutdown of the application."""
    script.tell("-- endpoints")
    group = f"endpoints-{script.run}"
    members = [
        Member(
            script,
            group,
            name,
            name,
            user_endpoint=beating.Endpoint(f"host-{name}", 7),
            client_tags=[beating.KeyValue("zone", name)],
            rack_id="rack",
        )
        for name in "ab"
    ]
    for _ in range(4):
        for member in members:
            member.beat("beats", endpoint_information_epoch=-1)
    script.describe(group)
    members[0].beat("shuts down", shutdown_application=True)
    members[1].beat("hears of it")
    members[0].leave()
    members[1].beat("hears of it")
    members[1].leave()
    members[1].beat("starts again")


def kinds(script: Script) -> None:
    """A group of offsets that becomes a streams group."""
    script.tell("-- kinds")
    group = f"kinds-{script.run}"
    script.commit(group, "", -1, 0)
    script.listed(group)
    member = Member(script, group, "a", "p")
    member.beat("joins")
    script.listed(group)
    script.commit(group, "", -1, 0)
    script.commit(group, "a", member.epoch, 0)
    script.commit(group, "a", member.epoch, 0, 8)
    script.commit(group, "a", member.epoch + 1, 0)
    script.commit(group, "a", member.epoch - 1, 0)
    script.commit(group, "x", member.epoch, 0)
    member.leave()
    script.commit(group, "", -1, 0)


def walk(script: Script, seed: int) -> None:
    """Random actions of up to three members. They can share the active tasks evenly."""
    chance = random.Random(seed)
    script.tell(f"-- walk {seed}")
    group = f"walk-{seed}-{script.run}"
    members = {name: Member(script, group, name, f"process-{name}") for name in "abc"}
    for _ in range(STEPS):
        member = members[chance.choice("abc")]
        action = chance.random()
        if action < 0.05:
            member.leave()
        elif action < 0.08:
            member.beat("goes back", epoch=max(member.epoch - 1, 1))
        elif action < 0.1:
            member.beat("runs ahead", epoch=member.epoch + 1)
        elif action < 0.12:
            member.forget()
            member.beat("joins again")
        elif action < 0.25 and member.epoch:
            member.beat("says nothing", says_tasks=False)
        elif action < 0.3:
            script.commit(group, member.name, member.epoch, chance.randrange(6))
        else:
            member.beat("beats")
        if chance.random() < 0.2:
            script.describe(group, with_topology=False)
    for _ in range(6):
        for member in members.values():
            member.beat("settles")
    script.describe(group, with_topology=False)


def answers(broker: Broker) -> list[str]:
    script = Script(broker)
    refusals(script)
    topologies(script)
    endpoints(script)
    kinds(script)
    for seed in range(WALKS):
        walk(script, seed)
    return script.lines


def create(broker: Broker) -> None:
    """Creates the topics of the script."""
    topics = [create_topics.CreatableTopic(name, count, 1) for name, count in TOPICS.items()]
    request = create_topics.CreateTopicsRequest(topics, 30_000)
    codes = [topic.error_code for topic in broker.send(request, 7)().topics]
    assert codes == [0] * len(TOPICS), codes
    broker.wait(CREATED_MS)


if __name__ == "__main__":
    tcp = TcpBroker(sys.argv[1])
    create(tcp)
    print("\n".join(answers(tcp)))
