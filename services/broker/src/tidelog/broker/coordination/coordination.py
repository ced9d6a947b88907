"""What this broker knows of coordinators, and how requests find them.

A client's request goes to the coordinator that is attached, here, to the partition of its shard, and says
that it decides for it. So what an owner answers was true while it owned the shard: one that lost it has lost
its attachment at the leader too (DESIGN section 8).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import structlog
from tidelog.broker.coordination import verification
from tidelog.broker.coordination.attachment import Attachment
from tidelog.broker.coordination.calls import Call
from tidelog.broker.coordination.internal_topics import InternalTopics
from tidelog.broker.coordination.markers import MarkerWriter
from tidelog.broker.coordination.offset_positions import OffsetPositions
from tidelog.broker.coordination.session import CoordinatorSession
from tidelog.model.coordinator_shards import ShardId, ShardKind, shard_for
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.rpc.coordinator_session import AttachShard, SessionLine

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.model.topics import TopicPartition

MAX_SESSIONS: Final = 100

_log = structlog.get_logger(__name__)
_shard_for = lru_cache(maxsize=16_384)(shard_for)


class Coordination:
    """`SessionAcceptor` of a broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.markers = MarkerWriter(broker, self)
        self.offsets = OffsetPositions(broker)
        self.topics = InternalTopics(broker)
        self._sessions: dict[CoordinatorSession, None] = {}
        self._attached: dict[ShardId, Attachment] = {}
        self._attached_partitions: dict[TopicPartition, Attachment] = {}
        self._highest_epochs: dict[ShardId, int] = {}
        self._serving: dict[ShardId, CoordinatorSession] = {}
        self._is_stopped = False
        self._serving_changed = asyncio.Event()

    # -- sessions

    def accept(self, line: SessionLine) -> CoordinatorSession:
        session = CoordinatorSession(self, line)
        if self._is_stopped or len(self._sessions) >= MAX_SESSIONS:
            _log.warning("a coordinator's session is refused", sessions=len(self._sessions))
            session.end()
        else:
            self._sessions[session] = None
        return session

    def greeted(self, session: CoordinatorSession) -> None:
        """Its coordinator's last session, if that is still there, is dead without having ended."""
        for other in tuple(self._sessions):
            if other is not session and other.coordinator_id == session.coordinator_id:
                other.end()

    def forget(self, session: CoordinatorSession) -> None:
        self._sessions.pop(session, None)
        self.serving_changed()

    def serving_changed(self) -> None:
        """Who decides for which shard: the higher shard epoch, of equal ones the later session."""
        serving: dict[ShardId, tuple[int, CoordinatorSession]] = {}
        for session in self._sessions:
            for shard, epoch in session.serving.items():
                known = serving.get(shard)
                if known is None or epoch >= known[0]:
                    serving[shard] = epoch, session
        self._serving = {shard: session for shard, (_, session) in serving.items()}
        self._serving_changed.set()
        self._serving_changed = asyncio.Event()

    async def until_served(self, shards: Collection[ShardId], timeout_ms: int) -> None:
        """Returns when somebody decides for all of them, wherever they are led, or the time is over."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not all(shard in self._serving for shard in shards):
                    await self._serving_changed.wait()
        except TimeoutError:
            return

    def attachment_counts(self) -> dict[str, tuple[int, int]]:
        """By kind of shard, how many are attached and how many replies wait for their records to be
        replicated. Any thread.
        """
        attached = tuple(self._attached.values())
        return {
            kind.value: (
                sum(attachment.shard.kind is kind for attachment in attached),
                sum(attachment.held_count for attachment in attached if attachment.shard.kind is kind),
            )
            for kind in ShardKind
        }

    def stop(self) -> None:
        """Refuse what waits so that clients look for the next leader, and take no more sessions."""
        self._is_stopped = True
        for session in tuple(self._sessions):
            session.end(ErrorCode.NOT_COORDINATOR)

    # -- attachments

    def attach(self, session: CoordinatorSession, item: AttachShard) -> Attachment:
        """Raises KafkaError: this broker does not lead the partition, or the shard has a newer owner."""
        shard = item.shard
        topic_partition = shard.topic_partition
        replica = self.broker.leader_replica(*topic_partition)
        highest = self._highest_epochs.get(shard, -1)
        if item.shard_epoch < highest:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"{shard} has an owner of epoch {highest}, this is one of epoch {item.shard_epoch}",
            )
        before = self._attached.get(shard)
        if before is not None:
            before.session.lose(before, ErrorCode.COORDINATOR_NOT_AVAILABLE, "another owner came")
        self._highest_epochs[shard] = item.shard_epoch
        attachment = Attachment(self.broker, session, item.attachment, shard, item.shard_epoch, replica)
        self._attached[shard] = attachment
        self._attached_partitions[topic_partition] = attachment
        return attachment

    def detached(self, attachment: Attachment) -> None:
        if self._attached.get(attachment.shard) is attachment:
            del self._attached[attachment.shard]
            del self._attached_partitions[attachment.shard.topic_partition]

    def high_watermark_advanced(self, topic_partition: TopicPartition) -> None:
        attachment = self._attached_partitions.get(topic_partition)
        if attachment is not None and not attachment.problem():
            attachment.high_watermark_advanced()

    def leadership_changed(self, topic_partition: TopicPartition) -> None:
        """It may have: another leader or epoch, or the replica is gone."""
        attachment = self._attached_partitions.get(topic_partition)
        if attachment is not None:
            problem = attachment.problem()
            if problem:
                attachment.session.lose(attachment, problem)

    # -- requests

    def shard_of(self, kind: ShardKind, name: str) -> ShardId | None:
        """None: there is no topic of this kind yet."""
        topic = self.broker.metadata.topics.get(kind.topic)
        if topic is None or not topic.partitions:
            return None
        return _shard_for(kind, name, len(topic.partitions))

    def led_shards(self, kind: ShardKind) -> list[ShardId]:
        """Those whose partitions this broker leads."""
        topic = self.broker.metadata.topics.get(kind.topic)
        if topic is None:
            return []
        shards = [ShardId(kind, state.partition) for state in topic.partitions]
        return [shard for shard in shards if self.refusal(shard) is not ErrorCode.NOT_COORDINATOR]

    def pass_on(self, shard: ShardId | None, call: Call) -> ErrorCode:
        """Have the shard's owner answer a client's request. NONE if it was passed on; else why not."""
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        attachment = self._attached.get(shard)
        if attachment is None or not attachment.is_serving:
            return self.refusal(shard)
        return attachment.session.pass_on(shard, call, attachment)

    def ask_owner(self, shard: ShardId | None, call: Call) -> ErrorCode:
        """The same for this broker's own requests, wherever the partition is led."""
        session = None if shard is None else self._serving.get(shard)
        if shard is None or session is None:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return session.pass_on(shard, call, None)

    async def add_partitions_to_transaction(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        verify_only: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        """For a transactional produce (KIP-890): the coordinator's word on each partition. Never raises for
        what went wrong between the services: that is an error code of coordinators.
        """
        return await verification.add_partitions(
            self, transactional_id, producer_id, producer_epoch, partitions, verify_only=verify_only
        )

    def refusal(self, shard: ShardId) -> ErrorCode:
        """What to tell a client whose shard nobody decides for: to come again, or to look elsewhere."""
        broker, topic_partition = self.broker, shard.topic_partition
        if topic_partition in broker.settling:  # it will be known in a moment
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        replica = broker.replicas.get(topic_partition)
        if replica is None or not replica.core.is_leader or self._is_stopped:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
