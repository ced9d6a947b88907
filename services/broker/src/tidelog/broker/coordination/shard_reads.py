"""What one session's owners read of their shards' partitions: never so much at a time that the session would
be closed for what it holds unsent, though a coordinator that starts loads hundreds of shards at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

import structlog
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.rpc.coordinator_session import ReadShard, ShardRecords

if TYPE_CHECKING:
    from tidelog.broker.coordination.attachment import Attachment
    from tidelog.broker.coordination.session import CoordinatorSession

MAX_READ_BYTES: Final = 8 * 1024 * 1024
"""Of one answer, if no batch is larger."""
MAX_UNTAKEN_BYTES: Final = 16 * 1024 * 1024
"""Of all answers that their readers don't seem to have yet; one that reads on or appends has."""
MAX_WAITING_READS: Final = 10_000

_log = structlog.get_logger(__name__)


class ShardReads:
    """First come, first served, several at a time."""

    def __init__(self, session: CoordinatorSession) -> None:
        self._session = session
        self._waiting: deque[tuple[Attachment, ReadShard]] = deque()
        self._untaken: dict[Attachment, int] = {}
        self._untaken_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, attachment: Attachment, item: ReadShard) -> None:
        """Answered in a while: the pages may have to come from the disk. Raises KafkaError."""
        if len(self._waiting) >= MAX_WAITING_READS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"more than {MAX_WAITING_READS} reads at a time")
        self._waiting.append((attachment, item))
        self.taken(attachment)

    def taken(self, attachment: Attachment) -> None:
        """Its owner has had what was read for it, or doesn't want it any more."""
        self._count(attachment, -self._untaken.pop(attachment, 0))
        self._go_on()

    def _count(self, attachment: Attachment, size_bytes: int) -> None:
        self._untaken_bytes += size_bytes
        if size_bytes > 0:
            self._untaken[attachment] = self._untaken.get(attachment, 0) + size_bytes

    def _go_on(self) -> None:
        while self._waiting and self._untaken_bytes < MAX_UNTAKEN_BYTES:
            attachment, item = self._waiting.popleft()
            if attachment.is_ended:
                continue
            reserved = max(1, min(item.max_bytes, MAX_READ_BYTES))
            self._count(attachment, reserved)
            task = asyncio.get_running_loop().create_task(
                self._read(attachment, item.from_offset, reserved), name=f"read-{attachment.shard}"
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _read(self, attachment: Attachment, from_offset: int, max_bytes: int) -> None:
        try:
            answer = await _records(attachment, from_offset, max_bytes)
        except KafkaError as error:
            self._session.lose(attachment, error.code, str(error))
        except OSError as error:
            self._session.lose(attachment, ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        except Exception:  # noqa: BLE001 - a bug: the shard is loaded again, the session goes on
            _log.exception("reading a shard failed", shard=str(attachment.shard))
            self._session.lose(attachment, ErrorCode.UNKNOWN_SERVER_ERROR)
        else:
            if not attachment.is_ended:
                self._untaken_bytes += len(answer.records) - self._untaken.get(attachment, 0)
                self._untaken[attachment] = len(answer.records)
                self._session.line.send(answer)
        self._go_on()


async def _records(attachment: Attachment, from_offset: int, max_bytes: int) -> ShardRecords:
    problem = attachment.problem()
    if problem:
        raise KafkaError(problem)
    replica, number = attachment.replica, attachment.number
    log_end_offset = replica.core.log_end_offset
    found = replica.read_for_follower(from_offset, max_bytes, at_least_one_batch=True)
    if found is None:
        return ShardRecords(number, from_offset, max(from_offset, log_end_offset), log_end_offset, b"")
    try:
        records = await asyncio.to_thread(found.read)
        if len(records) != found.length:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the segment is shorter than it was")
        return ShardRecords(number, from_offset, found.next_offset, log_end_offset, records)
    finally:
        found.release()
