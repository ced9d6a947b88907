"""A ConsumerLab with a streams group, and models of the threads of an application."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any  # Any: keyword arguments of requests

from grouplab.consumer_lab import ConsumerLab
from grouplab.shard_lab import REBALANCE_MS
from tidelog.group_coordinator.groups.group_core import GroupCore
from tidelog.group_coordinator.groups.streams.streams_group import StreamsGroup
from tidelog.group_coordinator.shard_core import ShardDecision
from tidelog.model.errors import ErrorCode
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages import streams_group_heartbeat as beating
from tidelog.wire.messages.create_topics import CreateTopicsRequest
from tidelog.wire.messages.streams_group_describe import DescribedGroup, StreamsGroupDescribeRequest
from tidelog.wire.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TaskIds,
    TopicInfo,
    Topology,
)

APPLICATION = "application"
SOURCE = "source"
CHANGELOG = "application-store-changelog"
IMPATIENT = {
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.assignment.interval.ms": "0",
}
"""Settings with which assignments are computed at once."""
Task = tuple[str, int]
ROLES = ("active", "standby", "warmup")


def stateful(epoch: int = 0, source: str = SOURCE) -> Topology:
    """Returns a topology with one subtopology, which has a store."""
    return Topology(epoch, [Subtopology("0", [source], state_changelog_topics=[TopicInfo(CHANGELOG)])])


class StreamsLab(ConsumerLab):
    """`creates_topics` is whether the internal topics that a heartbeat asks for are created at once.
    `overrides` are the settings of the group.
    """

    def __init__(self, **settings: str) -> None:
        self.creates_topics = True
        self.overrides: dict[str, str] = {}
        self.asked: list[CreateTopicsRequest] = []
        self._due: list[CreateTopicsRequest] = []
        super().__init__(settings=BrokerSettings.parse(IMPATIENT | settings))

    def _new_core(self) -> GroupCore:
        return GroupCore(self.settings, self._new_uuid, lambda group_id: self.overrides)

    def take(self, decision: ShardDecision) -> None:
        for reply in decision.replies:
            if reply.topics_to_create is not None:
                self.asked.append(reply.topics_to_create)
                self._due.append(reply.topics_to_create)
        super().take(decision)
        if self.creates_topics:
            self.create_topics()

    def create_topics(self) -> None:
        """Creates the internal topics that heartbeats have asked for."""
        while self._due:
            for topic in self._due.pop().topics:
                if topic.name not in self.image.topics:
                    self.set_topic(topic.name, topic.num_partitions)

    def streams_group(self) -> StreamsGroup:
        found = self.core.groups.by_id[APPLICATION]
        assert isinstance(found, StreamsGroup), found
        return found

    def describe_streams(self) -> DescribedGroup:
        request = StreamsGroupDescribeRequest(group_ids=[APPLICATION])
        described: DescribedGroup = self.ask(ApiKey.STREAMS_GROUP_DESCRIBE, 0, request).groups[0]
        return described

    def beat_streams(self, **fields: Any) -> StreamsGroupHeartbeatResponse:
        request = StreamsGroupHeartbeatRequest(**{"group_id": APPLICATION, "member_id": "a"} | fields)
        answer: StreamsGroupHeartbeatResponse = self.ask(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, request)
        return answer

    def beat_threads(self, threads: list[ModelThread], rounds: int = 8, pause_ms: int = 1_000) -> None:
        for _ in range(rounds):
            for thread in threads:
                thread.step()
            self.pass_time(pause_ms)


@dataclass
class ModelThread:
    """A thread of the application. It gives tasks up before it takes others, and reports both."""

    lab: StreamsLab
    member_id: str
    process_id: str
    topology: Topology = field(default_factory=stateful)
    endpoint: tuple[str, int] | None = None
    epoch: int = 0
    owned: dict[str, set[Task]] = field(default_factory=lambda: {role: set() for role in ROLES})
    assigned: dict[str, set[Task]] | None = None
    """The last assignment, until it is carried out."""
    reports: bool = True
    """Whether the next heartbeat states the tasks."""
    endpoint_epoch: int = -1
    statuses: list[int] = field(default_factory=list)
    answer: StreamsGroupHeartbeatResponse = field(default_factory=StreamsGroupHeartbeatResponse)

    def step(self, *, loses_answer: bool = False, **fields: Any) -> ErrorCode:
        """Gives up and takes tasks, then sends one heartbeat."""
        if self.assigned is not None:
            self.owned, self.assigned, self.reports = self.assigned, None, True
        joins = self.epoch == 0
        tasks = {
            f"{role}_tasks": ([] if joins else self.message(role)) if joins or self.reports else None
            for role in ROLES
        }
        first: dict[str, Any] = {}
        if joins:
            first = {
                "rebalance_timeout_ms": REBALANCE_MS,
                "topology": self.topology,
                "process_id": self.process_id,
                "user_endpoint": None if self.endpoint is None else beating.Endpoint(*self.endpoint),
            }
        answer = self.lab.beat_streams(
            **{
                "member_id": self.member_id,
                "member_epoch": self.epoch,
                "endpoint_information_epoch": self.endpoint_epoch,
            }
            | tasks
            | first
            | fields
        )
        if loses_answer:
            self.reports = True
            return ErrorCode.NONE
        return self._heard(answer)

    def message(self, role: str) -> list[TaskIds]:
        found: dict[str, list[int]] = {}
        for name, partition in sorted(self.owned[role]):
            found.setdefault(name, []).append(partition)
        return [TaskIds(name, partitions) for name, partitions in found.items()]

    def _heard(self, answer: StreamsGroupHeartbeatResponse) -> ErrorCode:
        self.answer = answer
        error = ErrorCode(answer.error_code)
        if error is not ErrorCode.NONE:
            if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
                self.rejoin()
            return error
        self.reports = False
        self.epoch = answer.member_epoch
        self.endpoint_epoch = answer.endpoint_information_epoch
        self.statuses = [status.status_code for status in answer.status or ()]
        if answer.active_tasks is not None:
            assert answer.standby_tasks is not None and answer.warmup_tasks is not None
            lists = (answer.active_tasks, answer.standby_tasks, answer.warmup_tasks)
            self.assigned = {
                role: {(ids.subtopology_id, partition) for ids in found for partition in ids.partitions}
                for role, found in zip(ROLES, lists, strict=True)
            }
            for role in ROLES:
                self.owned[role] &= self.assigned[role]
        return error

    def rejoin(self) -> None:
        self.epoch, self.owned, self.assigned, self.reports = 0, {role: set() for role in ROLES}, None, True

    def leave(self, **fields: Any) -> ErrorCode:
        answer = self.lab.beat_streams(member_id=self.member_id, member_epoch=-1, **fields)
        self.rejoin()
        return ErrorCode(answer.error_code)

    def partitions(self, role: str = "active") -> set[int]:
        return {partition for _, partition in self.owned[role]}
