"""A coordinator's session: the broker's end of it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

import structlog
from tidelog.broker.coordination.attachment import Attachment
from tidelog.broker.coordination.calls import Call
from tidelog.broker.coordination.shard_reads import ShardReads
from tidelog.model.coordinator_shards import ShardId
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.rpc.coordinator_session import (
    AnswerRequest,
    AppendToShard,
    AskOffsets,
    AskProducerIds,
    AttachShard,
    DetachShard,
    ForwardedToShard,
    FromBroker,
    Hello,
    Item,
    MarkersWritten,
    OffsetsTold,
    ProducerIdsTold,
    ReadShard,
    ServeShards,
    SessionLine,
    ShardLost,
    Welcome,
    WriteMarkers,
)

if TYPE_CHECKING:
    from tidelog.broker.coordination.coordination import Coordination

MAX_CALLS: Final = 50_000
"""Requests that one coordinator has still to answer, parked joins included. More are refused retriably."""
MAX_CALL_BYTES: Final = 64 * 1024 * 1024
"""Of their bodies, which are kept so that they can be refused in their own form."""
MAX_QUESTIONS: Final = 1_000
"""Of the coordinator's own (markers, ids, offsets), in work at a time."""

_log = structlog.get_logger(__name__)


class _ProtocolError(Exception):
    """The other side says what can't be said; the session ends."""


class CoordinatorSession:
    """`SessionEnd` of a broker."""

    def __init__(self, coordination: Coordination, line: SessionLine) -> None:
        self._coordination = coordination
        self._broker = coordination.broker
        self.line = line
        self.coordinator_id: int | None = None
        """None until it says Hello."""
        self.serving: dict[ShardId, int] = {}
        """Shard epochs of what this coordinator decides for."""
        self.attachments: dict[int, Attachment] = {}
        self.calls: dict[int, Call] = {}
        self.is_closed = False
        self._call_bytes = 0
        self._next_request_id = 0
        self._reads = ShardReads(self)
        self._questions: set[asyncio.Task[None]] = set()
        self._marker_writes = 0

    # -- the line's calls

    def received(self, items: Sequence[Item]) -> None:
        for item in items:
            if self.is_closed:
                return
            try:
                self._take(item)
            except _ProtocolError as error:
                _log.error(
                    "a coordinator's session is ended",
                    coordinator_id=self.coordinator_id,
                    reason=str(error),
                )
                self.end()
            except Exception:  # noqa: BLE001 - a bug: this session ends, the broker goes on
                _log.exception(
                    "a coordinator's session failed",
                    coordinator_id=self.coordinator_id,
                    item=type(item).__name__,
                )
                self.end()

    def closed(self) -> None:
        """By the other side, or the line broke."""
        if not self.is_closed:
            self._shut(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    # -- what the broker asks of it

    def pass_on(self, shard: ShardId, call: Call, attachment: Attachment | None) -> ErrorCode:
        """NONE if it was; the answer comes to `call`."""
        request = call.request
        if len(self.calls) >= MAX_CALLS or self._call_bytes + len(request.body) > MAX_CALL_BYTES:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        request_id = self._next_request_id
        self._next_request_id += 1
        self.calls[request_id] = call
        self._call_bytes += len(request.body)
        if attachment is not None:
            call.attachment = attachment
            attachment.calls[request_id] = call
        self.line.send(
            ForwardedToShard(
                request_id,
                shard,
                request.api_key,
                request.api_version,
                request.body,
                *request.asker,
            )
        )
        return ErrorCode.NONE

    def finish(self, request_id: int, body: bytes | None, error: ErrorCode) -> None:
        """The call is over, whoever says so first."""
        call = self.calls.pop(request_id, None)
        if call is None:
            return
        self._call_bytes -= len(call.request.body)
        if call.attachment is not None:
            call.attachment.calls.pop(request_id, None)
        call.answered(body, error)

    def lose(self, attachment: Attachment, error: ErrorCode, message: str = "") -> None:
        """End the attachment and say so; nothing if it ended before."""
        if attachment.is_ended:
            return
        self.line.send(ShardLost(attachment.number, error, message))
        self._end_attachment(attachment)

    def end(self, refusal: ErrorCode = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) -> None:
        """From this side."""
        if not self.is_closed:
            self._shut(refusal)
            self.line.close()

    # -- what it says

    def _take(self, item: Item) -> None:
        if self.coordinator_id is None:
            if type(item) is not Hello:
                raise _ProtocolError(f"{type(item).__name__} before Hello")
            self.coordinator_id = item.coordinator_id
            self._coordination.greeted(self)
            self.line.send(Welcome(self._broker.broker_id, self._broker.broker_epoch))
            return
        match item:
            case AnswerRequest():
                self._take_answer(item)
            case AppendToShard():
                self._take_append(item)
            case ReadShard():
                self._take_read(item)
            case AttachShard():
                self._take_attach(item)
            case DetachShard():
                self._take_detach(item)
            case ServeShards():
                self.serving = {served.shard: served.shard_epoch for served in item.shards}
                self._coordination.serving_changed()
            case WriteMarkers():
                self._take_markers(item)
            case AskProducerIds():
                self._work_on(self._tell_producer_ids(item.call_id))
            case AskOffsets():
                self._work_on(self._tell_offsets(item))
            case _:
                raise _ProtocolError(f"{type(item).__name__} is not for a broker, or not at this time")

    def _take_answer(self, item: AnswerRequest) -> None:
        call = self.calls.get(item.request_id)
        if call is None:
            return  # refused meanwhile
        if item.body is None:
            self.finish(item.request_id, None, item.error or ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        elif item.hold is None:
            self.finish(item.request_id, item.body, ErrorCode.NONE)
        else:
            attachment = self.attachments.get(item.hold.attachment)
            if attachment is None:
                self.finish(item.request_id, None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            else:
                attachment.hold(item.request_id, call, item.body, item.hold.offset)

    def _take_append(self, item: AppendToShard) -> None:
        attachment = self.attachments.get(item.attachment)
        if attachment is None:
            return  # its owner has yet to hear of its end
        self._reads.taken(attachment)
        try:
            attachment.append(item, self._broker.clock.now_ms())
        except KafkaError as error:
            _log.warning("a coordinator's append is refused", shard=str(attachment.shard), reason=str(error))
            self.lose(attachment, error.code, str(error))

    def _take_read(self, item: ReadShard) -> None:
        attachment = self.attachments.get(item.attachment)
        if attachment is not None:
            try:
                self._reads.ask(attachment, item)
            except KafkaError as error:
                self.lose(attachment, error.code, str(error))

    def _take_attach(self, item: AttachShard) -> None:
        if item.attachment in self.attachments:
            raise _ProtocolError(f"attachment {item.attachment} is there already")
        try:
            attachment = self._coordination.attach(self, item)
        except KafkaError as error:
            self.line.send(ShardLost(item.attachment, error.code, str(error)))
            return
        self.attachments[item.attachment] = attachment
        attachment.begin()

    def _take_detach(self, item: DetachShard) -> None:
        attachment = self.attachments.get(item.attachment)
        if attachment is not None:
            self._end_attachment(attachment)

    def _take_markers(self, item: WriteMarkers) -> None:
        if self._marker_writes >= MAX_QUESTIONS:
            busy = tuple((ErrorCode.NOT_ENOUGH_REPLICAS,) * len(m.partitions) for m in item.markers)
            self.line.send(MarkersWritten(item.call_id, busy))
            return
        self._marker_writes += 1

        def on_written(errors: tuple[tuple[ErrorCode, ...], ...]) -> None:
            self._marker_writes -= 1
            self._tell(MarkersWritten(item.call_id, errors))

        self._coordination.markers.write(item.markers, on_written)

    async def _tell_producer_ids(self, call_id: int) -> None:
        broker, first, count = self._broker, 0, 0
        try:
            block = await broker.controller.allocate_producer_ids(broker.broker_id, broker.broker_epoch)
            first, count = block.first, block.count
        except (KafkaError, ConnectionError) as error:
            _log.warning("no producer ids can be had", reason=str(error))
        self._tell(ProducerIdsTold(call_id, first, count))

    async def _tell_offsets(self, item: AskOffsets) -> None:
        self._tell(OffsetsTold(item.call_id, await self._coordination.offsets.positions(item.positions)))

    def _work_on(self, question: Coroutine[Any, Any, None]) -> None:
        if len(self._questions) >= MAX_QUESTIONS:
            question.close()
            raise _ProtocolError(f"more than {MAX_QUESTIONS} questions at a time")
        task = asyncio.get_running_loop().create_task(question)
        self._questions.add(task)
        task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._questions.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:  # a bug: nobody would ever answer
            _log.error("a coordinator's question failed", coordinator_id=self.coordinator_id, exc_info=error)
            self.end()

    def _tell(self, item: FromBroker) -> None:
        if not self.is_closed:
            self.line.send(item)

    # -- ends

    def _end_attachment(self, attachment: Attachment) -> None:
        del self.attachments[attachment.number]
        self._coordination.detached(attachment)
        attachment.end(self._coordination.refusal(attachment.shard))
        self._reads.taken(attachment)

    def _shut(self, refusal: ErrorCode) -> None:
        self.is_closed = True
        self.serving = {}
        self._coordination.forget(self)
        for attachment in tuple(self.attachments.values()):
            self._end_attachment(attachment)
        for request_id in tuple(self.calls):
            self.finish(request_id, None, refusal)
        for question in self._questions:
            question.cancel()
