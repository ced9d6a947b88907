"""One coordinator's hold on the partition of one shard, at the broker that leads it.

Through its attachment the owner of a shard reads the whole log, appends to it and learns how far it is
replicated. The attachment also keeps the clients' requests that the owner has to answer.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from tidelog.broker.hosting.hosted_partitions import HostedPartitions
from tidelog.broker.hosting.replica import Replica
from tidelog.broker.requests.request import RequestContext
from tidelog.kernel.instants import MonotonicMs, WallMs
from tidelog.kernel.slices import TaskSet
from tidelog.kernel.timer import Timer
from tidelog.model.coordinator_shards import ShardId
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.fair_budget import Holding
from tidelog.model.topics import DescribableTopics
from tidelog.rpc.coordinator_session import (
    AppendToShard,
    ForwardedToShard,
    ReadShard,
    SessionLine,
    ShardAttached,
    ShardCommitted,
    ShardRecords,
)
from tidelog.wire.api_keys import ApiKey

MAX_READ_BYTES: Final = 8 * 1024 * 1024
"""The size of one answer to ReadShard, unless a single batch is larger."""
MAX_UNTAKEN_BYTES: Final = 16 * 1024 * 1024
"""The size of all answers that their readers may not have received yet."""
MAX_WAITING_READS: Final = 10_000
CALL_BYTES: Final = 1_024
"""About what a request takes that is passed on, without what clients choose."""

_log = structlog.get_logger(__name__)


OnAnswered = Callable[[bytes | None, ErrorCode], None]
"""Receives the body of the response, or None and the error code that says why there is no response."""


class ShardCall:
    """A request on its way to the owner of a shard. The owner's coordinator answers it, or this broker
    refuses it when the coordinator is lost, whichever comes first.

    `body` is as the client sent it, without its header. `context` is the client's request; without it, this
    broker itself asks. `describable` has the topics that the client may describe, or is None if it may
    describe all topics.
    """

    __slots__ = (
        "_on_answered",
        "api_key",
        "api_version",
        "attachment",
        "body",
        "context",
        "describable",
        "holding",
        "names_holding",
        "on_abandoned",
    )

    def __init__(
        self,
        api_key: int,
        api_version: int,
        body: bytes,
        on_answered: OnAnswered | None = None,
        context: RequestContext | None = None,
        describable: DescribableTopics | None = None,
    ) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.body = body
        self.context = context
        self.describable = describable
        self.holding: Holding | None = None
        """The part of the session's budget that this call takes."""
        self.names_holding: Holding | None = None
        self.on_abandoned: Callable[[], None] | None = None
        self.attachment: Attachment | None = None
        """The call is refused when this attachment ends."""
        self._on_answered = on_answered

    @property
    def told_names(self) -> int:
        """The number of topic names that go with the request."""
        names = None if self.describable is None else self.describable.names
        return 0 if names is None else len(names)

    def frame(self, request_id: int, shard: ShardId) -> ForwardedToShard:
        """Returns the item with which the request leaves."""
        context = self.context
        if context is None:
            return ForwardedToShard(request_id, shard, self.api_key, self.api_version, self.body)
        return ForwardedToShard(
            request_id,
            shard,
            self.api_key,
            self.api_version,
            self.body,
            context.principal,
            context.client_id,
            context.host,
            context.traceparent,
            self.describable,
        )

    async def ask(self, pass_on: Callable[[ShardCall], ErrorCode]) -> tuple[bytes | None, ErrorCode]:
        """Passes this call on and returns its answer, or None and an error code."""
        answer: asyncio.Future[tuple[bytes | None, ErrorCode]] = asyncio.get_running_loop().create_future()

        def on_answered(body: bytes | None, error: ErrorCode) -> None:
            if not answer.done():
                answer.set_result((body, error))

        self._on_answered = on_answered
        refused = pass_on(self)
        if refused:
            return None, refused
        try:
            return await answer
        finally:
            self.abandon()

    async def ask_within(
        self, pass_on: Callable[[ShardCall], ErrorCode], timer: Timer, timeout_ms: int
    ) -> tuple[bytes | None, ErrorCode]:
        """Asks as `ask` does, and returns REQUEST_TIMED_OUT if there is no answer within `timeout_ms`."""
        expiry = timer.add_after(lambda: self.answered(None, ErrorCode.REQUEST_TIMED_OUT), timeout_ms)
        try:
            return await self.ask(pass_on)
        finally:
            expiry.cancel()

    def answered(self, body: bytes | None, error: ErrorCode) -> None:
        """Passes the first answer on and ignores all others."""
        on_answered, self._on_answered = self._on_answered, None
        if on_answered is not None:
            on_answered(body, error)

    def abandon(self) -> None:
        """Drops the answer, because its client has gone. The coordinator does not learn of this."""
        self._on_answered = None
        if self.on_abandoned is not None:
            self.on_abandoned()
            self.on_abandoned = None


def size_bytes(frame: ForwardedToShard) -> int:
    """Returns about how much a request takes, here and at the coordinator. Clients choose their ids, of
    up to 32 KiB.
    """
    texts = len(frame.principal) + len(frame.client_id or "") + len(frame.traceparent)
    return CALL_BYTES + len(frame.body) + texts


class AttachedSession(Protocol):
    """The session that an attachment belongs to. `CoordinatorSession` implements it."""

    line: SessionLine
    serving: dict[ShardId, int]
    """The shards that the session's coordinator serves, with their shard epochs."""

    def pass_on(self, shard: ShardId, call: ShardCall, attachment: Attachment | None) -> ErrorCode:
        """Sends the call's request to the coordinator. Returns NONE, or why the request was not sent."""
        ...

    def finish(self, request_id: int, body: bytes | None, error: ErrorCode) -> None:
        """Ends a call with its answer."""
        ...

    def lose(self, attachment: Attachment, error: ErrorCode, message: str = "") -> None:
        """Ends the attachment and tells the coordinator why."""
        ...


class Attachment:
    """The hold of one owner on one shard's partition, valid for one leader epoch of the partition. It is the
    `PartitionObserver` of this partition.
    """

    __slots__ = (
        "_held",
        "_held_count",
        "_hosted",
        "_sent_high_watermark",
        "calls",
        "is_ended",
        "leader_epoch",
        "number",
        "replica",
        "session",
        "shard",
        "shard_epoch",
        "untaken_bytes",
    )

    def __init__(
        self,
        hosted: HostedPartitions,
        session: AttachedSession,
        number: int,
        shard: ShardId,
        shard_epoch: int,
        replica: Replica,
    ) -> None:
        self._hosted = hosted
        self.session = session
        self.number = number
        self.shard = shard
        self.shard_epoch = shard_epoch
        self.replica = replica
        self.leader_epoch = replica.core.leader_epoch
        self.is_ended = False
        self.calls: dict[int, ShardCall] = {}
        """Clients' requests, by request id, that the owner has not answered or whose answers are held."""
        self.untaken_bytes = 0
        """The size of the records that were read for the owner and that it may not have received yet."""
        self._held: list[tuple[int, int, int, bytes, MonotonicMs]] = []
        self._held_count = 0
        self._sent_high_watermark = -1

    @property
    def held_count(self) -> int:
        """The number of answers that wait until their records are replicated. Any thread may read it."""
        return len(self._held)

    def begin(self) -> None:
        """Tells the owner where the log begins and ends."""
        core = self.replica.core
        self._sent_high_watermark = core.high_watermark
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
        """Whether the owner has loaded the shard and decides its requests."""
        return self.session.serving.get(self.shard) == self.shard_epoch

    def problem(self) -> ErrorCode:
        """Returns why the attachment cannot be used any more, or NONE. Its replica must still be hosted and
        lead in the same leader epoch.
        """
        replica = self.replica
        if self._hosted.find(self.shard.topic_partition) is not replica or not replica.core.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if replica.core.leader_epoch != self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.NONE

    def trim(self, offset: int) -> None:
        """Deletes the records below `offset`. Raises KafkaError; the caller then ends the attachment."""
        problem = self.problem()
        if problem:
            raise KafkaError(problem)
        if offset > self.replica.core.log_start_offset:
            self.replica.delete_records(offset)

    def append(self, item: AppendToShard, now_ms: WallMs) -> None:
        """Appends the owner's records. Raises KafkaError; the caller then ends the attachment."""
        problem = self.problem()
        if problem:
            raise KafkaError(problem)
        self.replica.append_for_shard(
            memoryview(item.batches), item.leader_epoch, item.expected_offset, now_ms
        )

    def high_watermark_advanced(self) -> None:
        """Tells the owner the new high watermark and releases the answers that waited for it."""
        high_watermark = self.replica.core.high_watermark
        if high_watermark == self._sent_high_watermark or self.problem():
            return
        self._sent_high_watermark = high_watermark
        self.session.line.send(ShardCommitted(self.number, high_watermark))
        held = self._held
        while held and held[0][0] <= high_watermark:
            _, _, request_id, body, _ = heapq.heappop(held)
            self.session.finish(request_id, body, ErrorCode.NONE)

    def leadership_changed(self) -> None:
        """Ends the attachment if its replica does not lead in the same leader epoch any more."""
        problem = self.problem()
        if problem:
            self.session.lose(self, problem)

    def hold(self, request_id: int, call: ShardCall, body: bytes, offset: int, now_ms: MonotonicMs) -> None:
        """Keeps the answer until the high watermark has reached `offset`."""
        if self.problem():  # The records that this broker has at `offset` may be another leader's.
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
        heapq.heappush(self._held, (offset, self._held_count, request_id, body, now_ms))

    def refuse_held(self, until_ms: MonotonicMs) -> None:
        """Refuses the requests whose answers have been held since `until_ms` or longer. Their records may be
        replicated later; the clients repeat their requests. Kafka's error for commits would end a process
        with an AdminClient of librdkafka that reads offsets (docs/adr/0080).
        """
        expired = [entry for entry in self._held if entry[-1] <= until_ms]
        if not expired:
            return
        self._held = [entry for entry in self._held if entry[-1] > until_ms]
        heapq.heapify(self._held)
        for _, _, request_id, _, _ in sorted(expired):
            call = self.calls.get(request_id)
            is_read = call is not None and call.api_key == ApiKey.OFFSET_FETCH
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_read else ErrorCode.COORDINATOR_NOT_AVAILABLE
            self.session.finish(request_id, None, error)

    def end(self, refusal: ErrorCode) -> None:
        """Ends the attachment: fails all calls that have no response yet, also those whose response waits for
        the high watermark. The caller informs the owner of the shard.
        """
        self.is_ended = True
        self._held.clear()
        for request_id in tuple(self.calls):
            self.session.finish(request_id, None, refusal)


class ShardReads:
    """Reads shards for the owners of one session, several at a time, in the order of their requests.

    A coordinator that starts loads hundreds of shards at once. The limits keep the session from being closed
    because too many bytes are unsent.
    """

    def __init__(self, session: AttachedSession) -> None:
        self._session = session
        self._waiting: deque[tuple[Attachment, ReadShard]] = deque()
        self._untaken_bytes = 0
        self._tasks: TaskSet[None] = TaskSet()

    def ask(self, attachment: Attachment, item: ReadShard) -> None:
        """Answers later, because the pages may be on the disk only. Raises KafkaError if too many wait."""
        if len(self._waiting) >= MAX_WAITING_READS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"more than {MAX_WAITING_READS} reads at a time")
        self._waiting.append((attachment, item))
        self.taken(attachment)

    def taken(self, attachment: Attachment) -> None:
        """Frees the room of the records that were read for this attachment. Its owner has received them,
        since it appends or reads on, or it does not want them any more.
        """
        self._count(attachment, 0)
        self._start_reads()

    def _count(self, attachment: Attachment, untaken_bytes: int) -> None:
        self._untaken_bytes += untaken_bytes - attachment.untaken_bytes
        attachment.untaken_bytes = untaken_bytes

    def _start_reads(self) -> None:
        while self._waiting and self._untaken_bytes < MAX_UNTAKEN_BYTES:
            attachment, item = self._waiting.popleft()
            if attachment.is_ended:
                continue
            reserved = max(1, min(item.max_bytes, MAX_READ_BYTES))
            self._count(attachment, attachment.untaken_bytes + reserved)
            self._tasks.start(
                self._read(attachment, item.from_offset, reserved), name=f"read-{attachment.shard}"
            )

    async def _read(self, attachment: Attachment, from_offset: int, max_bytes: int) -> None:
        try:
            answer = await _records(attachment, from_offset, max_bytes)
        except KafkaError as error:
            self._session.lose(attachment, error.code, str(error))
        except OSError as error:
            self._session.lose(attachment, ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        except Exception:  # noqa: BLE001 - a bug: the shard is loaded again, the session continues
            _log.exception("a shard cannot be read", shard=str(attachment.shard))
            self._session.lose(attachment, ErrorCode.UNKNOWN_SERVER_ERROR)
        else:
            if not attachment.is_ended:
                self._count(attachment, len(answer.records))
                self._session.line.send(answer)
        self._start_reads()


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
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the segment is shorter than its index says")
        return ShardRecords(number, from_offset, found.next_offset, log_end_offset, records)
    finally:
        found.release()
