#!/usr/bin/env python3
"""Prints a broker's responses to scripted members of consumer groups.

    tests/grouplab/consumer_script.py HOST:PORT > tests/grouplab/consumer_answers_of_kafka.txt

records the responses of Apache Kafka 4.3. A test compares the core's responses with them. Assignors may
choose different partitions for a member, so the lines contain only the number of partitions.
"""

from __future__ import annotations

import random
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final  # Any: generated messages have no common base
from uuid import UUID

from grouplab.classic_script import Broker, TcpBroker
from tidelog.model.errors import ErrorCode
from tidelog.wire.codec import record_codec
from tidelog.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from tidelog.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from tidelog.wire.messages.heartbeat import HeartbeatRequest
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidelog.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tidelog.wire.messages.list_groups import ListGroupsRequest
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.wire.messages.records.consumer_protocol_assignment import ConsumerProtocolAssignment
from tidelog.wire.messages.records.consumer_protocol_assignment import TopicPartition as AssignedTopic
from tidelog.wire.messages.records.consumer_protocol_subscription import (
    ConsumerProtocolSubscription,
    TopicPartition,
)
from tidelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

ANSWERS_OF_KAFKA: Final = Path(__file__).with_name("consumer_answers_of_kafka.txt")
TOPICS: Final[Mapping[str, int]] = {"script-orders": 6, "script-invoices": 12}
"""The topics that must exist on the broker. Up to three members can share their partitions evenly."""
WALKS: Final = 30
STEPS: Final = 40
SESSION_MS: Final = 45_000
REBALANCE_MS: Final = 300_000
SUBSCRIPTION: Final = record_codec(ConsumerProtocolSubscription)
ASSIGNMENT: Final = record_codec(ConsumerProtocolAssignment)

Partition = tuple[UUID, int]


class Script:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.lines: list[str] = []
        self.run = uuid.uuid4().hex[:8]

    def tell(self, line: str) -> None:
        self.lines.append(line.replace(self.run, "RUN"))

    def ask(self, request: Any, version: int) -> Any:
        return self.broker.send(request, version)()

    def beat(self, label: str, version: int = 1, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        answer: ConsumerGroupHeartbeatResponse = self.ask(ConsumerGroupHeartbeatRequest(**fields), version)
        given = None
        if answer.assignment is not None:
            given = sum(len(topic.partitions) for topic in answer.assignment.topic_partitions)
        self.tell(
            f"{label}: error {answer.error_code}, member {answer.member_id}, epoch {answer.member_epoch}, "
            f"every {answer.heartbeat_interval_ms}, {given} partitions"
        )
        return answer

    def describe(self, group: str) -> None:
        group = self.ask(ConsumerGroupDescribeRequest([group]), 1).groups[0]
        self.tell(
            f"  group: error {group.error_code}, {group.group_state}, epoch {group.group_epoch}, "
            f"assigned {group.assignment_epoch}, {group.assignor_name}"
        )
        for member in sorted(group.members, key=lambda one: (one.instance_id or "", _named(one.member_id))):
            topics = member.assignment.topic_partitions, member.target_assignment.topic_partitions
            owns, wants = (sum(len(topic.partitions) for topic in some) for some in topics)
            self.tell(
                f"  {_named(member.member_id)} {member.instance_id}: epoch {member.member_epoch}, "
                f"type {member.member_type}, {sorted(member.subscribed_topic_names)}, owns {owns} of {wants}"
            )

    def listed(self, group: str) -> None:
        groups = [g for g in self.ask(ListGroupsRequest(), 5).groups if g.group_id == group]
        self.tell(f"  listed: {[(g.protocol_type, g.group_type, g.group_state) for g in groups]}")


def _named(member_id: str) -> str:
    """Returns a placeholder for a member id that the broker generated, because these ids differ."""
    return "<made up>" if len(member_id) > 20 else member_id


class Member:
    """A member that speaks the consumer protocol."""

    def __init__(
        self, script: Script, group: str, name: str, topics: list[str], instance: str | None
    ) -> None:
        self.script = script
        self.group = group
        self.name = name
        self.topics = topics
        self.instance = instance
        self.epoch = 0
        self.owned: set[Partition] = set()
        self.says_all = True

    def beat(self, label: str, *, loses_answer: bool = False, epoch: int | None = None) -> int:
        owned: dict[UUID, list[int]] = {}
        for topic_id, partition in sorted(self.owned):
            owned.setdefault(topic_id, []).append(partition)
        answer = self.script.beat(
            f"{self.name} {label}",
            group_id=self.group,
            member_id=self.name,
            member_epoch=self.epoch if epoch is None else epoch,
            instance_id=self.instance,
            rebalance_timeout_ms=REBALANCE_MS if self.says_all else -1,
            subscribed_topic_names=self.topics if self.says_all else None,
            topic_partitions=[TopicPartitions(topic_id, found) for topic_id, found in owned.items()],
        )
        if loses_answer:
            self.says_all = True
        elif answer.error_code:
            self.epoch, self.owned, self.says_all = 0, set(), True
        elif epoch is None:
            self.epoch, self.says_all = answer.member_epoch, False
            if answer.assignment is not None:
                assigned = {
                    (topic.topic_id, partition)
                    for topic in answer.assignment.topic_partitions
                    for partition in topic.partitions
                }
                gives_up = self.owned - assigned
                self.owned = self.owned & assigned if gives_up else assigned
                self.pending = assigned
        return answer.error_code

    def take(self) -> None:
        """The partitions in the last response."""
        self.owned = set(getattr(self, "pending", self.owned))

    def commit(self, epoch: int) -> None:
        """Commits an offset of one of the member's partitions."""
        topic_id, partition = min(self.owned)
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=epoch,
            member_id=self.name,
            topics=[
                OffsetCommitRequestTopic(
                    topic_id=topic_id, partitions=[OffsetCommitRequestPartition(partition, 1)]
                )
            ],
        )
        answer = self.script.ask(request, 10)
        self.script.tell(f"{self.name} commits with {epoch}: {answer.topics[0].partitions[0].error_code}")


# -- scenes


def refusals(script: Script) -> None:
    joining: dict[str, Any] = {
        "group_id": f"refused-{script.run}",
        "member_id": "m",
        "rebalance_timeout_ms": REBALANCE_MS,
        "subscribed_topic_names": ["script-orders"],
        "topic_partitions": [],
    }
    wrong: list[dict[str, Any]] = [
        {"group_id": ""},
        {"instance_id": ""},
        {"rack_id": ""},
        {"rebalance_timeout_ms": -1},
        {"topic_partitions": None},
        {"topic_partitions": [TopicPartitions(UUID(int=1), [1])]},
        {"subscribed_topic_names": None},
        {"member_epoch": -1},
        {"member_epoch": -2},
        {"member_epoch": -2, "instance_id": "i"},
        {"member_epoch": -3},
        {"member_epoch": 1},
        {"server_assignor": "mine"},
    ]
    for version in (0, 1):
        for fields in wrong:
            script.beat(f"v{version} {fields}", version, **joining | fields)
    script.beat("v1 without an id", 1, **joining | {"member_id": ""})
    script.beat("v1 with a wrong regular expression", 1, **joining | {"subscribed_topic_regex": "["})
    script.describe(f"refused-{script.run}")
    script.describe("")


def walk(script: Script, seed: int) -> None:
    """Random actions of up to three members of one group."""
    chance = random.Random(seed)
    group = f"walk{seed}-{script.run}"
    script.tell(f"-- walk {seed}")
    members: list[Member] = []
    away: list[Member] = []
    named = 0
    for _ in range(STEPS):
        what = chance.random()
        if (what < 0.2 or not members) and len(members) + len(away) < 3:
            named += 1
            instance = chance.choice((None, None, "i0", "i1"))
            members.append(Member(script, group, f"m{named}", [chance.choice(list(TOPICS))], instance))
            if members[-1].beat("joins"):
                members.pop()
        elif what < 0.25 and members:
            member = members.pop(chance.randrange(len(members)))
            is_back = member.instance is not None and chance.random() < 0.7
            member.beat("leaves", epoch=-2 if is_back else -1)
            if is_back:
                away.append(member)
        elif (what < 0.3 or not members) and away:
            named += 1
            gone = away.pop()
            members.append(Member(script, group, f"m{named}", gone.topics, gone.instance))
            if members[-1].beat("is back"):
                members.pop()
        elif what < 0.35 and len(members) == 1 and not away:
            member = chance.choice(members)
            member.topics, member.says_all = sorted(chance.sample(list(TOPICS), chance.choice((1, 2)))), True
            if member.beat("subscribes"):
                break
        elif what < 0.4:
            # Kafka admits static members that lost their epoch only after the end of their session.
            if dynamic := [member for member in members if member.instance is None]:
                chance.choice(dynamic).beat("tells a wrong epoch", epoch=chance.choice((1, 2, 99)))
        elif what < 0.45 and members:
            member = chance.choice(members)
            epoch = max(0, member.epoch - chance.choice((0, 0, 1, -1)))
            if member.owned:
                member.commit(epoch)
        elif what < 0.5 or not members:
            script.describe(group)
            script.listed(group)
        else:
            member = chance.choice(members)
            if chance.random() < 0.7:
                member.take()
            if member.beat("goes on", loses_answer=chance.random() < 0.1):
                break  # it may remain in the group, which then can not share evenly
    script.describe(group)


class ClassicMember:
    """A cooperative member that speaks the classic protocol."""

    def __init__(self, script: Script, group: str) -> None:
        self.script = script
        self.group = group
        self.member_id = ""
        self.generation = -1
        self.owned: list[int] = []

    def join(self, label: str, **other: Any) -> Any:
        owned = [TopicPartition("script-orders", self.owned)] if self.owned else []
        told = ConsumerProtocolSubscription(["script-orders"], None, owned, self.generation)
        fields: dict[str, Any] = {
            "group_id": self.group,
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "member_id": self.member_id,
            "protocol_type": "consumer",
            "protocols": [JoinGroupRequestProtocol("cooperative-sticky", SUBSCRIPTION.encode(told))],
        }
        answer = self.script.ask(JoinGroupRequest(**fields | other), 9)
        leader = "itself" if answer.leader and answer.leader == answer.member_id else answer.leader
        self.script.tell(
            f"old joins {label}: error {answer.error_code}, generation {answer.generation_id}, "
            f"{answer.protocol_type} {answer.protocol_name}, leader {leader!r}, "
            f"{len(answer.members)} members, id {bool(answer.member_id)}"
        )
        if not answer.error_code:
            self.generation = answer.generation_id
        if answer.error_code in (0, ErrorCode.MEMBER_ID_REQUIRED):
            self.member_id = answer.member_id
        return answer

    def sync(
        self,
        label: str,
        generation: int | None = None,
        protocol: str = "cooperative-sticky",
        gives_itself: int = 0,
    ) -> None:
        told = self.generation if generation is None else generation
        request = SyncGroupRequest(self.group, told, self.member_id, None, "consumer", protocol)
        if gives_itself:
            everything = [AssignedTopic("script-orders", list(range(gives_itself)))]
            body = ASSIGNMENT.encode(ConsumerProtocolAssignment(everything))
            request.assignments.append(SyncGroupRequestAssignment(self.member_id, body))
        answer = self.script.ask(request, 5)
        found = []
        if answer.assignment:
            topics = ASSIGNMENT.decode(answer.assignment).assigned_partitions
            found = [partition for topic in topics for partition in topic.partitions]
        if not answer.error_code:
            self.owned = found
        self.script.tell(
            f"old syncs {label}: error {answer.error_code}, {answer.protocol_name}, {len(found)}"
        )

    def beat(self, generation: int | None = None) -> None:
        told = self.generation if generation is None else generation
        answer = self.script.ask(HeartbeatRequest(self.group, told, self.member_id), 4)
        self.script.tell(f"old beats: error {answer.error_code}")


def upgrade_and_back(script: Script) -> None:
    script.tell("-- upgrade and back")
    group = f"upgraded-{script.run}"
    old = ClassicMember(script, group)
    old.join("first")
    old.join("with its id")
    old.sync("giving itself all", gives_itself=6)
    old.beat()
    script.listed(group)
    new = Member(script, group, "new", ["script-orders"], None)
    new.beat("joins")
    script.describe(group)
    script.listed(group)
    old.beat()
    old.sync("within the rebalance")
    old.join("for the upgrade")
    old.sync("what it keeps")
    old.beat()
    old.join("having given up")
    old.sync("the same")
    for _ in range(2):
        new.beat("goes on")
        new.take()
        old.beat()
    script.describe(group)
    new.beat("leaves", epoch=-1)
    script.describe(group)
    script.listed(group)
    new.beat("goes on")
    old.beat()
    old.sync("within the downgrade")
    old.join("for the downgrade")
    old.sync("giving itself all", gives_itself=6)
    old.beat()
    script.listed(group)
    leaving = script.ask(LeaveGroupRequest(group, "", [MemberIdentity(old.member_id)]), 5)
    script.tell(f"old leaves: {[member.error_code for member in leaving.members]}")
    script.listed(group)
    again = Member(script, group, "again", ["script-orders"], None)
    again.beat("takes over the empty group")
    script.describe(group)


def classic_members(script: Script) -> None:
    """A consumer group with a classic member: `new` joins first, then `old`."""
    script.tell("-- classic members")
    group = f"mixed-{script.run}"
    old = ClassicMember(script, group)
    new = Member(script, group, "new", ["script-orders"], None)
    new.beat("joins")
    new.take()

    def both(times: int = 1) -> None:
        for _ in range(times):
            new.beat("goes on")
            new.take()
            old.beat()

    old.join("with a short session", session_timeout_ms=1)
    old.join("as another kind", protocol_type="connect")
    old.join("without protocols", protocols=[])
    old.join("first")
    old.join("with its id")
    script.describe(group)
    old.sync("with another generation", old.generation + 5)
    old.sync("with another protocol", protocol="range")
    old.sync("right")
    both(3)
    old.join("again")
    old.sync("again")
    both(2)
    script.describe(group)
    script.listed(group)
    other = Member(script, group, "other", ["script-orders"], None)
    other.beat("joins")
    both(2)
    old.sync("within a rebalance")
    old.join("for the next")
    old.sync("for the next")
    both()
    old.join("having given up")
    old.sync("having given up")
    other.beat("goes on")
    script.describe(group)
    leaving = [MemberIdentity("nobody"), MemberIdentity("new"), MemberIdentity(old.member_id)]
    answer = script.ask(LeaveGroupRequest(group, "", leaving), 5)
    script.tell(f"leaving: {answer.error_code} {[member.error_code for member in answer.members]}")
    old.beat()
    new.beat("goes on")
    script.describe(group)


def answers(broker: Broker) -> list[str]:
    script = Script(broker)
    refusals(script)
    classic_members(script)
    upgrade_and_back(script)
    for seed in range(WALKS):
        walk(script, seed)
    return script.lines


if __name__ == "__main__":
    print("\n".join(answers(TcpBroker(sys.argv[1]))))
