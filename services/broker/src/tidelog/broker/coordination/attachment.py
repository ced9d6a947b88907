"""One coordinator's hold on the partition of one shard, at the broker that leads it: it reads all of the log,
appends, and hears how far it is replicated.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from typing import TYPE_CHECKING, Final

import structlog
from tidelog.broker.coordination.calls import Call
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.rpc.coordinator_session import (
    AppendToShard,
    ReadShard,
    ShardAttached,
    ShardCommitted,
    ShardRecords,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.coordination.session import CoordinatorSession
    from tidelog.broker.replica import Replica
    from tidelog.model.coordinator_shards import ShardId

MAX_READ_BYTES: Final = 8 * 1024 * 1024
"""Of one answer to ReadShard, if no batch is larger."""
MAX_WAITING_READS: Final = 16

_log = structlog.get_logger(__name__)


class Attachment:
    """From ShardAttached to its end. It holds for one leader epoch of the partition."""

    __slots__ = (
        "_broker",
        "_held",
        "_held_count",
        "_reading",
        "_reads",
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
        self._reads: deque[ReadShard] = deque()
        self._reading: asyncio.Task[None] | None = None

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

    def read(self, item: ReadShard) -> None:
        """Answered in a while: the pages may have to come from the disk. Raises KafkaError if the owner asks
        for too much at a time.
        """
        if len(self._reads) >= MAX_WAITING_READS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"more than {MAX_WAITING_READS} reads at a time")
        self._reads.append(item)
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(
                self._read_all(), name=f"read-{self.shard}"
            )

    async def _read_all(self) -> None:
        try:
            while self._reads and not self.is_ended:
                answer = await self._read(self._reads.popleft())
                if not self.is_ended:
                    self.session.line.send(answer)
        except KafkaError as error:
            self.session.lose(self, error.code, str(error))
        except OSError as error:
            self.session.lose(self, ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        except Exception:  # noqa: BLE001 - a bug: the shard is loaded again, the session goes on
            _log.exception("reading a shard failed", shard=str(self.shard))
            self.session.lose(self, ErrorCode.UNKNOWN_SERVER_ERROR)
        finally:
            self._reading = None

    async def _read(self, item: ReadShard) -> ShardRecords:
        problem = self.problem()
        if problem:
            raise KafkaError(problem)
        log_end_offset = self.replica.core.log_end_offset
        max_bytes = max(1, min(item.max_bytes, MAX_READ_BYTES))
        found = self.replica.read_for_follower(item.from_offset, max_bytes, at_least_one_batch=True)
        if found is None:
            return ShardRecords(
                self.number, item.from_offset, max(item.from_offset, log_end_offset), log_end_offset, b""
            )
        try:
            records = await asyncio.to_thread(found.read)
            if len(records) != found.length:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the segment is shorter than it was")
            return ShardRecords(self.number, item.from_offset, found.next_offset, log_end_offset, records)
        finally:
            found.release()

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
        self._reads.clear()
        for request_id in tuple(self.calls):
            self.session.finish(request_id, None, refusal)
