"""A ShardLab with topics, and models of consumers that speak the consumer protocol."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any  # Any: keyword arguments of requests
from uuid import UUID, uuid5

from grouplab.shard_lab import GROUP, REBALANCE_MS, ShardLab
from tidelog.group_coordinator.groups.consumer.consumer_group import ConsumerGroup
from tidelog.group_coordinator.shard_core import ClusterImage, TopicImage
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest, DescribedGroup
from tidelog.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

_NAMES = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
NOWHERE = frozenset[str]()


class ConsumerLab(ShardLab):
    """A ShardLab with topics. A topic gets another id each time it is created."""

    made = 0

    def set_topic(self, name: str, partitions: int, racks: tuple[frozenset[str], ...] = ()) -> UUID:
        """Creates a topic, or adds partitions to it."""
        known = self.image.topics.get(name)
        if known is None:
            self.made += 1
        topic_id = uuid5(_NAMES, f"{name}-{self.made}") if known is None else known.topic_id
        topics = dict(self.image.topics) | {name: TopicImage(topic_id, name, partitions, racks)}
        self._change_image(topics)
        return topic_id

    def delete_topic(self, name: str) -> None:
        topics = dict(self.image.topics)
        del topics[name]
        self._change_image(topics)

    def _change_image(self, topics: dict[str, TopicImage]) -> None:
        names = {topic.topic_id: name for name, topic in topics.items()}
        self.image = ClusterImage(self.image.version + 1, topics, names)
        self.take(self.core.image_changed(self.image, self.now_ms))

    def consumer_group(self, group: str = GROUP) -> ConsumerGroup:
        found = self.core.groups.by_id[group]
        assert isinstance(found, ConsumerGroup), found
        return found

    def describe_consumer(self, group: str = GROUP) -> DescribedGroup:
        request = ConsumerGroupDescribeRequest(group_ids=[group])
        described: DescribedGroup = self.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, request).groups[0]
        return described

    def beat(self, version: int = 1, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        request = ConsumerGroupHeartbeatRequest(**{"group_id": GROUP} | fields)
        answer: ConsumerGroupHeartbeatResponse = self.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, request)
        return answer

    def beat_all(self, members: list[ModelConsumer], rounds: int = 12, pause_ms: int = 1_000) -> None:
        for _ in range(rounds):
            for member in members:
                member.step()
            self.pass_time(pause_ms)


Partition = tuple[UUID, int]


@dataclass
class ModelConsumer:
    """A model client, which gives partitions up before it takes others, and reports this by heartbeat."""

    lab: ConsumerLab
    member_id: str
    topics: list[str] | None = None
    regex: str | None = None
    instance_id: str | None = None
    assignor: str | None = None
    rack_id: str | None = None
    epoch: int = 0
    owned: set[Partition] = field(default_factory=set)
    assigned: set[Partition] | None = None
    """The last assignment, until it is carried out."""
    says_all: bool = True
    """Whether the next heartbeat is complete: after a lost response, or for a join."""
    errors: list[ErrorCode] = field(default_factory=list)

    def step(self, *, loses_answer: bool = False) -> ErrorCode:
        """Gives up and takes partitions, then sends one heartbeat."""
        self._reconcile()
        answer = self.lab.beat(
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            rebalance_timeout_ms=REBALANCE_MS if self.says_all else -1,
            subscribed_topic_names=self.topics if self.says_all else None,
            subscribed_topic_regex=self.regex if self.says_all else None,
            server_assignor=self.assignor if self.says_all else None,
            topic_partitions=self._owned_message(),
        )
        if loses_answer:
            self.says_all = True
            return ErrorCode.NONE
        return self._heard(answer)

    def _owned_message(self) -> list[TopicPartitions]:
        by_topic: dict[UUID, list[int]] = {}
        for topic_id, partition in sorted(self.owned):
            by_topic.setdefault(topic_id, []).append(partition)
        return [TopicPartitions(topic_id, found) for topic_id, found in by_topic.items()]

    def _heard(self, answer: ConsumerGroupHeartbeatResponse) -> ErrorCode:
        error = ErrorCode(answer.error_code)
        if error is not ErrorCode.NONE:
            self.errors.append(error)
            if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
                self.rejoin()
            return error
        self.says_all = False
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.assigned = {
                (topic.topic_id, partition)
                for topic in answer.assignment.topic_partitions
                for partition in topic.partitions
            }
            self.owned &= self.assigned  # given up at once, and reported by the next heartbeat
        return error

    def _reconcile(self) -> None:
        if self.assigned is not None:
            self.owned, self.assigned = self.assigned, None

    def rejoin(self) -> None:
        self.epoch, self.owned, self.assigned, self.says_all = 0, set(), None, True

    def subscribe(self, topics: list[str]) -> None:
        self.topics, self.says_all = topics, True

    def leave(self, epoch: int = -1) -> ErrorCode:
        answer = self.lab.beat(member_id=self.member_id, member_epoch=epoch, instance_id=self.instance_id)
        self.owned, self.assigned = set(), None
        return ErrorCode(answer.error_code)

    def partitions_of(self, topic_id: UUID) -> set[int]:
        return {partition for known, partition in self.owned if known == topic_id}
