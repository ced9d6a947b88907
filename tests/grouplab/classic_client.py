"""A model of a consumer that speaks the classic protocol, on top of a ConsumerLab."""

from __future__ import annotations

from dataclasses import dataclass, field

from grouplab.consumer_lab import ConsumerLab, Partition
from tidelog.model.errors import ErrorCode
from tidelog.wire.codec import record_codec
from tidelog.wire.messages.join_group import JoinGroupResponseMember
from tidelog.wire.messages.records.consumer_protocol_assignment import (
    ConsumerProtocolAssignment,
    TopicPartition,
)
from tidelog.wire.messages.records.consumer_protocol_subscription import ConsumerProtocolSubscription
from tidelog.wire.messages.records.consumer_protocol_subscription import TopicPartition as OwnedTopic

PARTITIONS = 4
"""The number of partitions of `orders`, the only topic."""
ASSIGNMENT = record_codec(ConsumerProtocolAssignment)
SUBSCRIPTION = record_codec(ConsumerProtocolSubscription)


@dataclass
class ClassicConsumer:
    """A consumer of the classic protocol. A `cooperative` one keeps its partitions when it rejoins."""

    lab: ConsumerLab
    cooperative: bool = False
    instance_id: str | None = None
    member_id: str = ""
    generation: int = -1
    owned: set[Partition] = field(default_factory=set)
    must_join: bool = True
    joins: int | None = None
    syncs: int | None = None

    def _protocols(self) -> tuple[tuple[str, bytes], ...]:
        by_topic: dict[str, list[int]] = {}
        for topic_id, partition in sorted(self.owned):
            by_topic.setdefault(self.lab.image.topic_names[topic_id], []).append(partition)
        data = SUBSCRIPTION.encode(
            ConsumerProtocolSubscription(
                topics=["orders"],
                owned_partitions=[OwnedTopic(name, found) for name, found in by_topic.items()],
                generation_id=self.generation,
            )
        )
        return (("cooperative-sticky" if self.cooperative else "range", data),)

    def step(self) -> None:
        """Does the client's next step."""
        if self.joins is not None or self.syncs is not None:
            self._read_answers()
        elif self.must_join:
            self.ask_to_join()
            self._read_answers()
        else:
            error = self.lab.heartbeat(self.member_id, self.generation, instance=self.instance_id)
            self._heard(error)

    def ask_to_join(self) -> None:
        """Leaves the group and ignores the response."""
        if not self.cooperative:
            self.owned = set()
        self.joins = self.lab.join(self.member_id, protocols=self._protocols(), instance=self.instance_id)

    def _read_answers(self) -> None:
        if self.joins is not None and self.joins in self.lab.answers:
            answer = self.lab.answers[self.joins]
            self.joins = None
            if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = answer.member_id
                return
            if answer.error_code:
                self._heard(ErrorCode(answer.error_code))
                return
            self.member_id, self.generation = answer.member_id, answer.generation_id
            self.must_join = False
            shares = _leaders_shares(self.member_id, answer.members)
            self.syncs = self.lab.sync(
                self.member_id,
                self.generation,
                shares if answer.members else None,
                instance=self.instance_id,
                protocol=answer.protocol_name,
            )
        if self.syncs is not None and self.syncs in self.lab.answers:
            answer = self.lab.answers[self.syncs]
            self.syncs = None
            if answer.error_code:
                self._heard(ErrorCode(answer.error_code))
                return
            assigned: set[Partition] = set()
            if answer.assignment:
                for topic in ASSIGNMENT.decode(answer.assignment).assigned_partitions:
                    topic_id = self.lab.image.topics[topic.topic].topic_id
                    assigned |= {(topic_id, partition) for partition in topic.partitions}
            self.must_join = self.cooperative and not self.owned <= assigned
            self.owned = assigned

    def _heard(self, error: ErrorCode) -> None:
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID):
            self.member_id = "" if error is not ErrorCode.ILLEGAL_GENERATION else self.member_id
            self.owned, self.generation = set(), -1
        if error is not ErrorCode.NONE:
            self.must_join = True


def _leaders_shares(leader: str, members: list[JoinGroupResponseMember]) -> dict[str, bytes]:
    """Returns assignments in which members keep their partitions and the leader gets the others."""
    free = set(range(PARTITIONS))
    kept: dict[str, list[int]] = {}
    for member in members:
        told = SUBSCRIPTION.decode(member.metadata).owned_partitions
        kept[member.member_id] = [partition for topic in told for partition in topic.partitions]
        free -= set(kept[member.member_id])
    if kept:
        kept[leader] += sorted(free)
    return {
        member_id: ASSIGNMENT.encode(ConsumerProtocolAssignment([TopicPartition("orders", found)]))
        for member_id, found in kept.items()
    }
