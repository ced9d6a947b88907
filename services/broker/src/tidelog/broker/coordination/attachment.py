"""One coordinator's hold on the partition of one shard, at the broker that leads it: it reads all of the log,
appends, and hears how far it is replicated.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from tidelog.broker.coordination.calls import Call
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.rpc.coordinator_session import (
    AppendToShard,
    ShardAttached,
    ShardCommitted,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.coordination.session import CoordinatorSession
    from tidelog.broker.replica import Replica
    from tidelog.model.coordinator_shards import ShardId


class Attachment:
    """From ShardAttached to its end. It holds for one leader epoch of the partition."""

    __slots__ = (
        "_broker",
        "_held",
        "_held_count",
        "_told_high_watermark",
        "calls",
        "is_ended",
        "leader_epoch",
        "number",
        "replica",
        "session",
        "shard",
        "shard_epoch",
    )

    def __init__(
        self,
        broker: Broker,
        session: CoordinatorSession,
        number: int,
        shard: ShardId,
        shard_epoch: int,
        replica: Replica,
    ) -> None:
        self._broker = broker
        self.session = session
        self.number = number
        self.shard = shard
        self.shard_epoch = shard_epoch
        self.replica = replica
        self.leader_epoch = replica.core.leader_epoch
        self.is_ended = False
        self.calls: dict[int, Call] = {}
        """Clients' requests that its owner has still to answer, or whose answers are held; by request id."""
        self._held: list[tuple[int, int, int, bytes]] = []
        self._held_count = 0
        self._told_high_watermark = -1

    @property
    def held_count(self) -> int:
        """Replies that wait until their records are replicated. Any thread."""
        return len(self._held)

    def begin(self) -> None:
        core = self.replica.core
        self._told_high_watermark = core.high_watermark
        self.session.line.send(
            ShardAttached(
                self.number,
                self.leader_epoch,
                core.log_start_offset,
                core.log_end_offset,
                core.high_watermark,
            )
        )

    @property
    def is_serving(self) -> bool:
        """Whether its owner has loaded the shard and decides."""
        return self.session.serving.get(self.shard) == self.shard_epoch

    def problem(self) -> ErrorCode:
        """Why it can't go on, NONE if it can: the replica must be the one it began with, and still lead."""
        replica, topic_partition = self.replica, self.shard.topic_partition
        broker = self._broker
        hosted = broker.replicas.get(topic_partition) or broker.settling.get(topic_partition)
        if hosted is not replica or not replica.core.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if replica.core.leader_epoch != self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.NONE

    # -- the log

    def append(self, item: AppendToShard, now_ms: int) -> None:
        """Raises KafkaError; then the attachment has to end."""
        problem = self.problem()
        if problem:
            raise KafkaError(problem)
        self.replica.append_for_shard(
            memoryview(item.batches), item.leader_epoch, item.expected_offset, now_ms
        )

    # -- answers

    def high_watermark_advanced(self) -> None:
        """Tell the owner, and let out what waited for it. Not called after the leader's role has ended."""
        high_watermark = self.replica.core.high_watermark
        if high_watermark == self._told_high_watermark:
            return
        self._told_high_watermark = high_watermark
        self.session.line.send(ShardCommitted(self.number, high_watermark))
        held = self._held
        while held and held[0][0] <= high_watermark:
            _, _, request_id, body = heapq.heappop(held)
            self.session.finish(request_id, body, ErrorCode.NONE)

    def hold(self, request_id: int, call: Call, body: bytes, offset: int) -> None:
        """Let the answer out once the high watermark has reached `offset`."""
        if self.problem():  # what this broker has now at `offset` may be another leader's
            self.session.finish(request_id, None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            return
        if self.replica.core.high_watermark >= offset:
            self.session.finish(request_id, body, ErrorCode.NONE)
            return
        if call.attachment is not self:
            if call.attachment is not None:
                call.attachment.calls.pop(request_id, None)
            call.attachment = self
            self.calls[request_id] = call
        self._held_count += 1
        heapq.heappush(self._held, (offset, self._held_count, request_id, body))

    def end(self, refusal: ErrorCode) -> None:
        """Refuse what its owner still owes, and what was held. The owner is told by the caller."""
        self.is_ended = True
        self._held.clear()
        for request_id in tuple(self.calls):
            self.session.finish(request_id, None, refusal)
