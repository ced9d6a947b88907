"""One shard that this coordinator owns: it attaches, loads, claims, serves, and starts again after a loss.
`STATES` is the table of this life.

A shard does no I/O. It sends items through the line of the session over which it is attached, and it uses
ShardOutlets for everything else. The core decides on its newest state. A reply names the offset up to which
the shard has appended, and the broker holds the reply until the high watermark reaches that offset. So no
client receives a result that can still be lost. Any failure of the log ends the attachment and discards the
core.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator
from enum import Enum
from functools import cache, partial
from itertools import chain
from typing import Final, Protocol

import structlog

from tidelog.group_coordinator.shard_core import (
    AllocateProducerId,
    AskEndOffsets,
    AskShareStates,
    CancelTimer,
    ClusterImage,
    Effect,
    EffectOutcome,
    EndTransaction,
    KnowsOffsets,
    Refused,
    Reply,
    SetTimer,
    ShardCore,
    ShardDecision,
    ShardRequest,
    TopicsNeeded,
    TrimLog,
    freed_in_steps,
)
from tidelog.group_coordinator.shards.shard_log import (
    Replay,
    ReplyTo,
    ShardClaim,
    ShardLog,
    claim_record,
    size_of_records,
)
from tidelog.kernel.instants import MonotonicMs, WallMs
from tidelog.kernel.machine import StateTable
from tidelog.kernel.steps import Steps
from tidelog.model.coordinator_shards import ShardId
from tidelog.model.errors import ErrorCode
from tidelog.rpc.coordinator_session import (
    TOPICS_NEEDED,
    AnswerRequest,
    AttachShard,
    ForwardedToShard,
    ReadShard,
    SessionLine,
    ShardAttached,
    ShardRecords,
    TrimShard,
)
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.codec import (
    Decoder,
    Encoder,
    MalformedMessageError,
    request_decoder,
    request_encoder,
    response_encoder,
    response_encoder_in_steps,
)
from tidelog.wire.malformed import UnsupportedVersionError
from tidelog.wire.messages.create_topics import CreateTopicsRequest

LOAD_BYTES: Final = 512 * 1024
"""The size of one read. The replay of so many bytes does not block the event loop for long."""
MAX_DECISION_BYTES: Final = 32 * 1024 * 1024
"""The most bytes of the records of one decision. A larger one is refused, and the shard is loaded again. An
append near MAX_UNSENT_BYTES would end the session with the broker, and all shards that use it.
"""
MAX_ANSWER_BYTES: Final = 32 * 1024 * 1024
"""The most bytes of one answer. The broker answers INVALID_REQUEST in the place of a larger one."""
MAX_WAITING_BYTES: Final = 16 * 1024 * 1024
"""The unsent bytes of a session with which requests get a retriable error. Above them, MAX_UNSENT_BYTES has
room for one of the largest decisions and more.
"""

_log = structlog.get_logger(__name__)


@cache
def _codecs(api_key: int, api_version: int) -> tuple[Decoder, Encoder]:
    return request_decoder(api_key, api_version), response_encoder(api_key, api_version)


class ShardState(Enum):
    WAITING = "waiting"
    ATTACHING = "attaching"
    LOADING = "loading"
    CLAIMING = "claiming"
    SERVING = "serving"
    DRAINING = "draining"
    CLOSED = "closed"


_ENDS: Final = (ShardState.WAITING, ShardState.CLOSED)
"""The states after a loss of the attachment, and after the end of the claim."""

STATES: Final = StateTable(
    "a shard",
    {
        ShardState.WAITING: {ShardState.ATTACHING, ShardState.CLOSED},
        ShardState.ATTACHING: {ShardState.LOADING, *_ENDS},
        ShardState.LOADING: {ShardState.CLAIMING, *_ENDS},
        ShardState.CLAIMING: {ShardState.SERVING, *_ENDS},
        ShardState.SERVING: {ShardState.DRAINING, *_ENDS},
        ShardState.DRAINING: {ShardState.CLOSED},
        ShardState.CLOSED: set(),
    },
)


class Cancellable(Protocol):
    def cancel(self) -> bool: ...


class DelayTimer(Protocol):
    """Runs callbacks on the event loop after a delay on the monotonic clock."""

    def add_after(self, callback: Callable[[], None], delay_ms: int) -> Cancellable: ...


class ShardOutlets(Protocol):
    """The actions that a shard requests and the changes that it reports, except items that it sends."""

    def started_serving(self, shard: Shard, load_ms: int) -> None: ...

    def detached(self, attachment: int, core: ShardCore | None) -> None:
        """Reports that an attachment has ended and that its core is discarded."""
        ...

    def lost(self, shard: Shard, *, was_attached: bool) -> None:
        """Reports that the shard is waiting again."""
        ...

    def deposed(self, shard: Shard, newer_epoch: int) -> None:
        """Reports that the shard has read a newer claim than its own and is closed."""
        ...

    def drained(self, shard: Shard) -> None:
        """Reports that the shard is closed after `release`."""
        ...

    def has_pending(self, shard: Shard) -> None:
        """Requests a call of `flush` at the end of the turn."""
        ...

    def call_after(self, callback: Callable[[], None], delay_ms: int) -> Cancellable: ...

    def work_on(self, steps: Steps[None]) -> None:
        """Takes some steps at once, and the others in later turns. The steps raise no errors."""
        ...

    def begin_effect(
        self, shard: Shard, effect: EndTransaction | AllocateProducerId | AskShareStates | AskEndOffsets
    ) -> None:
        """Begins an effect of the shard's core, and calls `effect_done` with its outcome."""
        ...

    def now_ms(self) -> WallMs: ...

    def monotonic_ms(self) -> MonotonicMs:
        """Returns the time on the clock that `call_after` uses."""
        ...

    def image(self) -> ClusterImage: ...


class _Timer:
    """A running timer of the core. It fires at `fires_ms`, which is never later than its `deadline_ms`."""

    __slots__ = ("deadline_ms", "fires_ms", "handle")

    def __init__(self, handle: Cancellable, deadline_ms: MonotonicMs) -> None:
        self.handle = handle
        self.fires_ms = deadline_ms
        self.deadline_ms = deadline_ms


class _CoreTimers:
    """The timers of a core. `fired` is called with the key of one that has ended.

    Every heartbeat and commit moves the deadline of a session. A running timer that would fire too early
    therefore continues, and starts again when it fires.
    """

    def __init__(self, outlets: ShardOutlets, fired: Callable[[Hashable], None]) -> None:
        self._outlets = outlets
        self._fired = fired
        self._running: dict[Hashable, _Timer] = {}

    def change(self, timer: SetTimer | CancelTimer) -> None:
        """Starts or stops a timer."""
        key = timer.key
        known = self._running.get(key)
        if isinstance(timer, CancelTimer):
            if known is not None:
                del self._running[key]
                known.handle.cancel()
            return
        deadline_ms = MonotonicMs(self._outlets.monotonic_ms() + timer.delay_ms)
        if known is not None:
            if known.fires_ms <= deadline_ms:
                known.deadline_ms = deadline_ms
                return
            known.handle.cancel()
        self._start(key, deadline_ms, timer.delay_ms)

    def clear(self) -> None:
        for timer in self._running.values():
            timer.handle.cancel()
        self._running.clear()

    def _start(self, key: Hashable, deadline_ms: MonotonicMs, delay_ms: int) -> None:
        handle = self._outlets.call_after(lambda: self._ended(key), delay_ms)
        self._running[key] = _Timer(handle, deadline_ms)

    def _ended(self, key: Hashable) -> None:
        timer = self._running.pop(key, None)
        if timer is None:
            return
        remaining_ms = timer.deadline_ms - self._outlets.monotonic_ms()
        if remaining_ms > 0:
            self._start(key, timer.deadline_ms, remaining_ms)
        else:
            self._fired(key)


class Shard:
    """The state machine of one shard. Its methods report events. Only a bug makes them raise an exception."""

    def __init__(
        self,
        shard_id: ShardId,
        shard_epoch: int,
        coordinator_id: int,
        make_core: Callable[[ShardId, int], ShardCore],
        outlets: ShardOutlets,
    ) -> None:
        self.shard_id = shard_id
        self.shard_epoch = shard_epoch
        self.state = ShardState.WAITING
        self.log = ShardLog()
        self.core: ShardCore | None = None
        self.attempts = 0
        """The number of attachments since the shard last served."""
        self._claim_record = claim_record(ShardClaim(shard_epoch, coordinator_id))
        self._make_core = make_core
        self._outlets = outlets
        self._replay: Replay | None = None
        self._answering: set[ReplyTo] = set()
        """The requests whose answers are being made in steps."""
        self._timers = _CoreTimers(outlets, self._timer_fired)
        self._image_version = -1
        self._load_began_ms = MonotonicMs(0)

    def attach(self, line: SessionLine, attachment: int) -> None:
        """Attaches over the session of the broker that should lead the partition."""
        self._enter(ShardState.ATTACHING)
        self.log.attach(line, attachment)
        self.attempts += 1
        line.send(AttachShard(attachment, self.shard_id, self.shard_epoch))

    def attached(self, item: ShardAttached) -> None:
        if self.state is not ShardState.ATTACHING:
            return
        log = self.log
        log.leader_epoch = item.leader_epoch
        log.high_watermark = item.high_watermark
        log.end_offset = item.log_start_offset
        self.core = self._make_core(self.shard_id, self.shard_epoch)
        self._replay = Replay(self.shard_id, self.core)
        self._load_began_ms = self._outlets.monotonic_ms()
        self._enter(ShardState.LOADING)
        if item.log_start_offset >= item.log_end_offset:
            log.end_offset = item.log_end_offset
            self._claim()
        else:
            self._read_on()

    def records_read(self, item: ShardRecords) -> Iterator[None]:
        """Replays records. It yields after each of them and ends if the shard loses its attachment
        meanwhile.
        """
        replay, log = self._replay, self.log
        if self.state is not ShardState.LOADING or replay is None or item.attachment != log.attachment:
            return
        from_offset, is_end = log.end_offset, not item.records or item.next_offset >= item.log_end_offset
        log.end_offset = max(item.next_offset, from_offset)
        if not is_end:
            self._read_on()  # the broker reads the next records while the shard replays these
        try:
            for _ in chain(replay.read(item.records, from_offset), replay.finish() if is_end else ()):
                yield
                if self._replay is not replay:
                    return
        except Exception:  # noqa: BLE001 - any error means that this shard can't be served
            _log.exception(
                "a shard can't be loaded; it will be loaded again",
                shard=str(self.shard_id),
                from_offset=from_offset,
            )
            self.lose("its log can't be read")
            return
        claim = replay.newest_claim
        if claim is not None and claim.shard_epoch > self.shard_epoch:
            _log.warning(
                "a newer owner has claimed the shard, so this coordinator closes it",
                shard=str(self.shard_id),
                shard_epoch=self.shard_epoch,
                newer_epoch=claim.shard_epoch,
                newer_owner=claim.coordinator_id,
            )
            self._close()
            self._outlets.deposed(self, claim.shard_epoch)
        elif is_end:
            self._claim()

    def committed(self, high_watermark: int) -> None:
        log = self.log
        log.high_watermark = max(log.high_watermark, high_watermark)
        if self.state is ShardState.CLAIMING and log.is_replicated:
            self._serve()
        log.release_replicated()
        if self.state is ShardState.DRAINING and log.is_replicated:
            self._close()
            self._outlets.drained(self)

    def lose(self, reason: str, *, broker_knows: bool = False) -> None:
        """Ends the attachment and discards the core. `broker_knows` states whether the broker ended it."""
        if self.state in (ShardState.WAITING, ShardState.CLOSED):
            return
        is_draining = self.state is ShardState.DRAINING
        was_attached = self.state is not ShardState.ATTACHING
        if self.state is not ShardState.ATTACHING or not broker_knows:
            _log.info(
                "a shard has lost its attachment",
                shard=str(self.shard_id),
                state=self.state.value,
                reason=reason,
            )
        self._drop(broker_knows=broker_knows)
        if is_draining:
            self._enter(ShardState.CLOSED)
            self._outlets.drained(self)
        else:
            self._enter(ShardState.WAITING)
            self._outlets.lost(self, was_attached=was_attached)

    def release(self) -> None:
        """Begins to drain: the shard takes no more requests and closes when its decisions are replicated."""
        if self.state in (ShardState.DRAINING, ShardState.CLOSED):
            return
        if self.state is not ShardState.SERVING:
            self._close()
            self._outlets.drained(self)
            return
        self.flush()
        self._enter(ShardState.DRAINING)
        self._refuse_open_requests()
        self.committed(self.log.high_watermark)

    def close(self) -> None:
        """Closes at once. Requests that wait for replication are refused."""
        if self.state is not ShardState.CLOSED:
            self._close()

    def request(self, item: ForwardedToShard, line: SessionLine) -> None:
        if self.state is not ShardState.SERVING or self._is_congested(line):
            line.send(AnswerRequest(item.request_id, None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            return
        api_key, api_version = item.api_key, item.api_version
        try:
            decoder, encoder = _codecs(api_key, api_version)
            message, _ = decoder(item.body, 0)
        except (MalformedMessageError, UnsupportedVersionError) as error:
            _log.warning("a forwarded request can't be decoded", api_key=api_key, reason=str(error))
            line.send(AnswerRequest(item.request_id, None, ErrorCode.INVALID_REQUEST))
            return
        asker = ReplyTo(line, item.request_id, encoder, api_key, api_version)
        principal, client_id, host = item.principal, item.client_id, item.host
        request: ShardRequest[object] = ShardRequest(
            asker, api_key, api_version, message, principal, client_id, host, item.describable
        )
        core = self.core
        assert core is not None  # because it serves
        self._decide(partial(core.handle, request), asker)

    def effect_done(self, core: ShardCore, effect: Effect, outcome: EffectOutcome) -> None:
        """Reports the end of an effect of `core`. Has no effect if that core has been discarded."""
        if core is self.core and self.state is ShardState.SERVING:
            self._decide(lambda now_ms: core.effect_done(effect, outcome, now_ms))

    def image_changed(self, image: ClusterImage) -> None:
        core = self.core
        if core is not None and self.state is ShardState.SERVING and image.version != self._image_version:
            self._image_version = image.version
            self._decide(lambda now_ms: core.image_changed(image, now_ms))

    def flush(self) -> None:
        """Sends the decisions of this turn."""
        self.log.flush()

    def _is_congested(self, asking: SessionLine) -> bool:
        """Returns whether a session has too many unsent bytes to take what the next decision adds."""
        own = self.log.line
        return asking.unsent_bytes > MAX_WAITING_BYTES or (
            own is not None and own.unsent_bytes > MAX_WAITING_BYTES
        )

    def _read_on(self) -> None:
        line, log = self.log.line, self.log
        assert line is not None
        line.send(ReadShard(log.attachment, log.end_offset, LOAD_BYTES))

    def _claim(self) -> None:
        self._enter(ShardState.CLAIMING)
        self.log.append([self._claim_record], self._outlets.now_ms())
        self.flush()

    def _serve(self) -> None:
        core, replay = self.core, self._replay
        assert core is not None
        assert replay is not None
        self._replay = None
        self._enter(ShardState.SERVING)
        self.attempts = 0
        image = self._outlets.image()
        self._image_version = image.version
        load_ms = self._outlets.monotonic_ms() - self._load_began_ms
        _log.debug(
            "a shard is loaded and served",
            shard=str(self.shard_id),
            shard_epoch=self.shard_epoch,
            leader_epoch=self.log.leader_epoch,
            records=replay.record_count,
            load_ms=load_ms,
        )
        self._outlets.started_serving(self, load_ms)
        if isinstance(core, KnowsOffsets):
            core.log_ends_at(self.log.end_offset)
        self._decide(lambda now_ms: core.activate(image, now_ms))

    def _decide(self, event: Callable[[WallMs], ShardDecision], asker: ReplyTo | None = None) -> None:
        """Lets the core decide on an event, which is the request of `asker` if there is one."""
        now_ms = self._outlets.now_ms()
        try:
            decision = event(now_ms)
        except Exception:  # noqa: BLE001 - a bug; the shard is loaded again, the other shards continue
            api_key = None if asker is None else asker.api_key
            _log.exception("a shard's core failed", shard=str(self.shard_id), api_key=api_key)
            if asker is not None:
                asker.refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            self.lose("its core failed")
            return
        self._carry_out(decision, now_ms, asker)

    def _carry_out(self, decision: ShardDecision, now_ms: WallMs, asker: ReplyTo | None) -> None:
        if decision.records or decision.marker is not None:
            size_bytes = size_of_records(decision.records)
            if size_bytes > MAX_DECISION_BYTES:
                self._refuse_decision(decision, size_bytes, asker)
                return
            if self.log.append(decision.records, now_ms, decision.transaction, decision.marker):
                self._outlets.has_pending(self)
        for reply in decision.replies:
            self._answer(reply)
        for timer in decision.timers:
            self._timers.change(timer)
        for effect in decision.effects:
            self._take_effect(effect)

    def _refuse_decision(self, decision: ShardDecision, size_bytes: int, asker: ReplyTo | None) -> None:
        """Gives up a decision that is too large. The core has applied it and is therefore discarded."""
        _log.error(
            "a decision of a shard is too large to be written; the shard is loaded again",
            shard=str(self.shard_id),
            size_bytes=size_bytes,
            limit_bytes=MAX_DECISION_BYTES,
        )
        for reply in decision.replies:
            to = reply.reply_to
            assert isinstance(to, ReplyTo)  # every `reply_to` comes from `request`
            is_cause = to is asker
            error = ErrorCode.INVALID_REQUEST if is_cause else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            to.refuse(error)
        self.lose("a decision is too large")

    def _answer(self, reply: Reply) -> None:
        asker = reply.reply_to
        assert isinstance(asker, ReplyTo)  # every `reply_to` comes from `request`
        if isinstance(reply.message, TopicsNeeded | Refused):
            asker.refuse(reply.message.error if isinstance(reply.message, Refused) else TOPICS_NEEDED)
            return
        if isinstance(reply.message, Generator):
            self._outlets.work_on(self._answer_in_steps(asker, reply.message))
            return
        body = b"".join(asker.encoder(reply.message))
        if reply.topics_to_create is not None:
            encode = request_encoder(ApiKey.CREATE_TOPICS, CreateTopicsRequest.VERSIONS[1])
            body += b"".join(map(bytes, encode(reply.topics_to_create)))
        self._send_answer(asker, body)

    def _answer_in_steps(self, asker: ReplyTo, response: Steps[object]) -> Steps[None]:
        """Makes, encodes and sends an answer. It ends if the request is refused meanwhile."""
        self._answering.add(asker)
        try:
            for _ in self._encode_in_steps(asker, response):
                yield
                if asker not in self._answering:
                    return
        except Exception:  # noqa: BLE001 - a bug; the shard is loaded again, the other shards continue
            _log.exception("a shard's core failed", shard=str(self.shard_id), api_key=asker.api_key)
            self.lose("its core failed")
        finally:
            self._answering.discard(asker)

    def _encode_in_steps(self, asker: ReplyTo, response: Steps[object]) -> Steps[None]:
        message = yield from response
        if self._is_congested(asker.line):  # many large answers may have been begun before any was sent
            asker.refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            return
        chunks = yield from response_encoder_in_steps(asker.api_key, asker.api_version)(message)
        self._send_answer(asker, b"".join(chunks))
        yield from freed_in_steps(message)

    def _send_answer(self, asker: ReplyTo, body: bytes) -> None:
        if len(body) > MAX_ANSWER_BYTES:
            _log.warning("an answer is too large", shard=str(self.shard_id), size_bytes=len(body))
            asker.refuse(ErrorCode.INVALID_REQUEST)
        else:
            self.log.answer(asker, body)

    def _timer_fired(self, key: Hashable) -> None:
        core = self.core
        if core is not None and self.state is ShardState.SERVING:
            self._decide(lambda now_ms: core.timer_fired(key, now_ms))

    def _take_effect(self, effect: Effect) -> None:
        if isinstance(effect, AllocateProducerId | AskEndOffsets):
            self._outlets.begin_effect(self, effect)
            return
        if isinstance(effect, TrimLog) and self.log.append([self._claim_record], self._outlets.now_ms()):
            self._outlets.has_pending(self)
        self.log.when_replicated(partial(self._begin_effect, effect))

    def _begin_effect(self, effect: EndTransaction | AskShareStates | TrimLog) -> None:
        line = self.log.line
        if not isinstance(effect, TrimLog):
            self._outlets.begin_effect(self, effect)
        elif line is not None:
            line.send(TrimShard(self.log.attachment, effect.offset))

    def _refuse_open_requests(self) -> None:
        """Refuses the requests that the core has not answered. The clients then ask the next owner."""
        answering, self._answering = self._answering, set()
        for to in answering:
            to.refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        core = self.core
        if core is None:
            return
        try:
            for reply in core.deactivate():
                asker = reply.reply_to
                assert isinstance(asker, ReplyTo)
                asker.line.send(AnswerRequest(asker.request_id, b"".join(asker.encoder(reply.message))))
        except Exception:  # noqa: BLE001 - a bug; the shard is loaded again, the other shards continue
            _log.exception("a shard's core failed in deactivate", shard=str(self.shard_id))
        self.core = None
        self._timers.clear()

    def _drop(self, *, broker_knows: bool) -> None:
        self._outlets.detached(self.log.attachment, self.core)
        self._refuse_open_requests()
        self._replay = None
        self.log.detach(broker_knows=broker_knows)

    def _close(self) -> None:
        self._drop(broker_knows=self.log.line is None)
        self._enter(ShardState.CLOSED)

    def _enter(self, state: ShardState) -> None:
        self.state = STATES.enter(self.state, state)
