"""The calls of shards to brokers: for producer ids, offsets of partitions and states of share partitions, and
to write the markers of decided transactions.

A broker answers a call by its number. A call counts as not answered if its session ends or its time is over.
Markers are sent until every partition's leader has written them. Those of one turn go to each broker in one
call. A partition is done when its leader has confirmed the marker, or when the metadata store itself confirms
that the topic is deleted; the watched view may be behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

import structlog

from tidelog.group_coordinator.shard_core import (
    AllocateProducerId,
    AskEndOffsets,
    AskShareStates,
    EffectOutcome,
    EndTransaction,
)
from tidelog.group_coordinator.shards.shard import Cancellable, DelayTimer
from tidelog.model.errors import ErrorCode
from tidelog.model.protocol_values import UNKNOWN_OFFSET
from tidelog.model.topics import TopicPartition
from tidelog.rpc import coordinator_session as session
from tidelog.rpc.coordinator_session import (
    Marker,
    MarkersWritten,
    PartitionOffsets,
    SessionLine,
    WriteMarkers,
)
from tidelog.wire import codec
from tidelog.wire.api_keys import api_spec
from tidelog.wire.malformed import MalformedMessageError

ASK_AGAIN_MS: Final = 200
"""The pause after a question for producer ids that no broker could answer."""
MAX_WAIT_MS: Final = 4_000
"""The time after which a request that waits for a producer id is refused. Its producer sends it again."""
PREFETCH_BELOW: Final = 100
"""The number of remaining producer ids at which the next block is requested."""
OFFSETS_TIMEOUT_MS: Final = 10_000
MAX_POSITIONS_IN_CALL: Final = 2_000
MAX_OPEN_CALLS: Final = 250
"""The calls about offsets after which further questions wait. A broker closes a session with more than 1,000
calls that it has not answered.
"""
MAX_OPEN_CALLS_OF_LAG: Final = 200
"""The calls after which further questions about the lag of groups wait. Shards do not wait for these."""
SHARE_STATES_TIMEOUT_MS: Final = 35_000
"""The time after which a question about states has no answer. The broker gives up a little earlier."""
MAX_OPEN_SHARE_QUESTIONS: Final = 500

MARKERS_RETRY_MS: Final = 100
MARKERS_TIMEOUT_MS: Final = 30_000
MAX_MARKERS_IN_CALL: Final = 1_000

_FINAL: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        ErrorCode.PRODUCER_FENCED,
    }
)
"""The errors after which a newer owner of the shard, or a newer epoch of the producer, ends the transaction.
"""

_log = structlog.get_logger(__name__)

CallT = TypeVar("CallT")
AnyLine = Callable[[], tuple[int, SessionLine] | None]
"""Returns a broker's id and the session with it, another broker each time. None if there is no session."""
LineToLeader = Callable[[TopicPartition], tuple[int, SessionLine] | None]
"""Returns the id of a partition's leader and the session with it; None if one of them is missing."""
Taken = Callable[[int | None], None]
Position = tuple[TopicPartition, int]
"""A partition and the offset that a group has committed for it."""
Found = Callable[[Mapping[Position, PartitionOffsets]], None]
Answered = Callable[[object | None], None]
"""Receives the response, or None if there is no answer."""
IsTopicGone = Callable[[str, Callable[[bool | None], None]], None]
"""Looks up whether a topic is deleted; None means that the store is unavailable."""


class OpenCalls(Generic[CallT]):
    """The calls of one kind that brokers have not answered yet, by number.

    `failed` is called with a call that is not answered within `timeout_ms`, or whose session ends.
    """

    def __init__(self, timer: DelayTimer, timeout_ms: int, failed: Callable[[CallT], None]) -> None:
        self._timer = timer
        self._timeout_ms = timeout_ms
        self._failed = failed
        self._last_id = 0
        self._open: dict[int, tuple[int, CallT, Cancellable]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, broker_id: int, call: CallT) -> int:
        """Returns the number of a new call to a broker, which the caller sends."""
        self._last_id = call_id = self._last_id + 1
        overdue = self._timer.add_after(lambda: self._fail(call_id), self._timeout_ms)
        self._open[call_id] = broker_id, call, overdue
        return call_id

    def end(self, call_id: int) -> CallT | None:
        """Removes the call that a broker has answered and returns it, or None if it has failed before."""
        found = self._open.pop(call_id, None)
        if found is None:
            return None
        found[2].cancel()
        return found[1]

    def session_ended(self, broker_id: int) -> None:
        for call_id in [call_id for call_id, (asked, _, _) in self._open.items() if asked == broker_id]:
            self._fail(call_id)

    def _fail(self, call_id: int) -> None:
        call = self.end(call_id)
        if call is not None:
            self._failed(call)


class ProducerIds:
    """The ids that this coordinator may assign. The next block is requested before the last id is used."""

    def __init__(self, any_line: AnyLine, timer: DelayTimer) -> None:
        self._any_line = any_line
        self._timer = timer
        self._next = 0
        self._end = 0
        self._following: tuple[int, int] | None = None
        self._waiting: deque[tuple[Taken, Cancellable]] = deque()
        self._call_id = 0
        self._asked_broker: int | None = None
        self._ask_again: Cancellable | None = None

    def take(self, taken: Taken) -> None:
        """Calls `taken` with the next id, at once or later, or with None after MAX_WAIT_MS without an id."""
        if self._end - self._next <= PREFETCH_BELOW and self._following is None:
            self._ask()
        if self._next < self._end or self._roll():
            self._next += 1
            taken(self._next - 1)
            return
        overdue = self._timer.add_after(self._give_up_first, MAX_WAIT_MS)
        self._waiting.append((taken, overdue))

    def received(self, item: session.ProducerIdsTold) -> None:
        """Adds the block of a broker's answer. A block without ids means that none is available now."""
        if item.call_id != self._call_id or self._asked_broker is None:
            return
        self._asked_broker = None
        if item.count <= 0:
            self._ask_later()
            return
        self._following = (item.first, item.first + item.count)
        while self._waiting and (self._next < self._end or self._roll()):
            taken, overdue = self._waiting.popleft()
            overdue.cancel()
            self._next += 1
            taken(self._next - 1)
        if self._waiting:
            self._ask()

    def session_ended(self, broker_id: int) -> None:
        if self._asked_broker == broker_id:
            self._asked_broker = None
            self._ask_later()

    def _roll(self) -> bool:
        if self._following is None:
            return False
        (self._next, self._end), self._following = self._following, None
        return True

    def _ask(self) -> None:
        if self._asked_broker is not None or self._ask_again is not None:
            return
        found = self._any_line()
        if found is None:
            self._ask_later()
            return
        self._asked_broker, line = found
        self._call_id += 1
        line.send(session.AskProducerIds(self._call_id))

    def _ask_later(self) -> None:
        if self._ask_again is None and self._waiting:
            self._ask_again = self._timer.add_after(self._ask_now, ASK_AGAIN_MS)

    def _ask_now(self) -> None:
        self._ask_again = None
        if self._waiting:
            self._ask()

    def _give_up_first(self) -> None:
        if self._waiting:
            self._waiting.popleft()[0](None)


class _OffsetQuestion:
    """One question, which several leaders answer."""

    __slots__ = ("found", "open_calls", "then")

    def __init__(self, then: Found) -> None:
        self.then = then
        self.found: dict[Position, PartitionOffsets] = {}
        self.open_calls = 0


class _OffsetCall(NamedTuple):
    question: _OffsetQuestion
    positions: tuple[Position, ...]


class OffsetQuestions:
    """Questions to the partitions' leaders about offsets: of shards, and for the lag of groups."""

    def __init__(self, line_to_leader: LineToLeader, timer: DelayTimer) -> None:
        self._line_to_leader = line_to_leader
        self._calls: OpenCalls[_OffsetCall] = OpenCalls(timer, OFFSETS_TIMEOUT_MS, self._ended)
        self._waiting: deque[Callable[[], None]] = deque()
        self._waiting_for_lag: deque[Callable[[], None]] = deque()

    def ask(self, positions: Sequence[Position], then: Found) -> None:
        """Calls `then` once with the answers that arrive within OFFSETS_TIMEOUT_MS after the question has
        begun. It may be called at once.
        """
        self._waiting.append(partial(self._begin, positions, then))
        self._begin_waiting()

    def ask_for_lag(self, positions: Sequence[Position], then: Found) -> None:
        """Asks as `ask` does, after the questions of shards."""
        self._waiting_for_lag.append(partial(self._begin, positions, then))
        self._begin_waiting()

    def _begin_waiting(self) -> None:
        while self._waiting and len(self._calls) < MAX_OPEN_CALLS:
            self._waiting.popleft()()
        while self._waiting_for_lag and len(self._calls) < MAX_OPEN_CALLS_OF_LAG:
            self._waiting_for_lag.popleft()()

    def _begin(self, positions: Sequence[Position], then: Found) -> None:
        question = _OffsetQuestion(then)
        by_broker: dict[int, tuple[SessionLine, list[Position]]] = {}
        for position in positions:
            found = self._line_to_leader(position[0])
            if found is not None:
                by_broker.setdefault(found[0], (found[1], []))[1].append(position)
        calls: list[tuple[SessionLine, session.AskOffsets]] = []
        for broker_id, (line, asked) in by_broker.items():
            for at in range(0, len(asked), MAX_POSITIONS_IN_CALL):
                chunk = tuple(asked[at : at + MAX_POSITIONS_IN_CALL])
                call_id = self._calls.begin(broker_id, _OffsetCall(question, chunk))
                calls.append((line, session.AskOffsets(call_id, chunk)))
        question.open_calls = len(calls)
        for line, call in calls:
            line.send(call)
        if not calls:
            then(question.found)

    def received(self, item: session.OffsetsTold) -> None:
        """Takes a broker's answer to a part of a question."""
        call = self._calls.end(item.call_id)
        if call is not None:
            for position, offsets in zip(call.positions, item.partitions, strict=False):
                if offsets.high_watermark >= 0:
                    call.question.found[position] = offsets
            self._ended(call)

    def session_ended(self, broker_id: int) -> None:
        self._calls.session_ended(broker_id)

    def _ended(self, call: _OffsetCall) -> None:
        question = call.question
        question.open_calls -= 1
        if not question.open_calls:
            question.then(question.found)
            self._begin_waiting()


class _ShareQuestion(NamedTuple):
    api_key: int
    api_version: int
    answered: Answered


class ShareQuestions:
    """Questions about the states of share partitions, which a broker passes on to the owners of these states.

    A question whose answer can't be decoded counts as not answered.
    """

    def __init__(self, any_line: AnyLine, timer: DelayTimer) -> None:
        self._any_line = any_line
        self._calls: OpenCalls[_ShareQuestion] = OpenCalls(
            timer, SHARE_STATES_TIMEOUT_MS, lambda question: self._finish(question, None)
        )
        self._waiting: deque[Callable[[], None]] = deque()

    def ask(self, effect: AskShareStates, answered: Answered) -> None:
        """Calls `answered` once, with the response or with None. It may be called at once."""
        self._waiting.append(partial(self._begin, effect, answered))
        self._begin_waiting()

    def _begin_waiting(self) -> None:
        while self._waiting and len(self._calls) < MAX_OPEN_SHARE_QUESTIONS:
            self._waiting.popleft()()

    def _begin(self, effect: AskShareStates, answered: Answered) -> None:
        found = self._any_line()
        if found is None:
            answered(None)
            return
        broker_id, line = found
        version = api_spec(effect.api_key).max_version
        body = b"".join(map(bytes, codec.request_encoder(effect.api_key, version)(effect.request)))
        call_id = self._calls.begin(broker_id, _ShareQuestion(effect.api_key, version, answered))
        line.send(session.AskShareStates(call_id, effect.api_key, version, body))

    def received(self, item: session.ShareStatesTold) -> None:
        question = self._calls.end(item.call_id)
        if question is None:
            return
        try:
            response = codec.response_decoder(question.api_key, question.api_version)(item.body, 0)[0]
        except MalformedMessageError:
            response = None
        self._finish(question, response)

    def session_ended(self, broker_id: int) -> None:
        self._calls.session_ended(broker_id)

    def _finish(self, question: _ShareQuestion, response: object | None) -> None:
        question.answered(response)
        self._begin_waiting()


class Ending:
    """One decided transaction, with the partitions that still need its marker."""

    __slots__ = ("done", "effect", "owner", "remaining")

    def __init__(self, effect: EndTransaction, owner: object, done: Callable[[], None]) -> None:
        self.effect = effect
        self.owner = owner
        self.done = done
        self.remaining = set(effect.partitions)


_Parts: TypeAlias = list[tuple[Ending, tuple[TopicPartition, ...]]]
"""The content of one call: transactions with the partitions that the called broker leads."""


class MarkerSender:
    """Sends markers, and repeats them after errors and timeouts."""

    def __init__(self, line_to_leader: LineToLeader, is_topic_gone: IsTopicGone, timer: DelayTimer) -> None:
        self._line_to_leader = line_to_leader
        self._is_topic_gone = is_topic_gone
        self._timer = timer
        self._endings: dict[object, set[Ending]] = {}
        self._due: list[tuple[Ending, TopicPartition]] = []
        self._later: list[tuple[Ending, TopicPartition]] = []
        self._retry: Cancellable | None = None
        self._calls: OpenCalls[_Parts] = OpenCalls(timer, MARKERS_TIMEOUT_MS, self._call_failed)

    @property
    def ending_count(self) -> int:
        return sum(len(endings) for endings in self._endings.values())

    def begin(self, effect: EndTransaction, owner: object, done: Callable[[], None]) -> None:
        """Takes a transaction, whose markers the next `flush` sends, and calls `done` after the last one.

        `owner` is the core that decided the transaction; see `forget`.
        """
        ending = Ending(effect, owner, done)
        if not ending.remaining:
            done()
            return
        self._endings.setdefault(owner, set()).add(ending)
        self._due.extend((ending, partition) for partition in effect.partitions)

    def forget(self, owner: object) -> None:
        """Drops the transactions of a discarded core. The next owner of the shard sends their markers."""
        for ending in self._endings.pop(owner, ()):
            ending.remaining.clear()

    def flush(self) -> None:
        """Sends the markers that are due, in as few calls as possible."""
        due, self._due = self._due, []
        by_broker: dict[int, tuple[SessionLine, dict[Ending, list[TopicPartition]]]] = {}
        for ending, partition in due:
            if partition not in ending.remaining:
                continue
            found = self._line_to_leader(partition)
            if found is None:
                self._wait_or_skip(ending, partition)
                continue
            broker_id, line = found
            at = by_broker.get(broker_id)
            if at is None:
                at = by_broker[broker_id] = (line, {})
            at[1].setdefault(ending, []).append(partition)
        for broker_id, (line, wanted) in by_broker.items():
            parts = [(ending, tuple(partitions)) for ending, partitions in wanted.items()]
            for start in range(0, len(parts), MAX_MARKERS_IN_CALL):
                self._call(broker_id, line, parts[start : start + MAX_MARKERS_IN_CALL])

    def written(self, item: MarkersWritten) -> None:
        parts = self._calls.end(item.call_id)
        if parts is None:
            return
        for (ending, partitions), errors in zip(parts, item.errors, strict=False):
            for partition, error in zip(partitions, errors, strict=False):
                self._judge(ending, partition, error)

    def session_ended(self, broker_id: int) -> None:
        self._calls.session_ended(broker_id)

    def _call(self, broker_id: int, line: SessionLine, parts: _Parts) -> None:
        line.send(
            WriteMarkers(
                self._calls.begin(broker_id, parts),
                tuple(
                    Marker(
                        ending.effect.producer.producer_id,
                        ending.effect.producer.producer_epoch,
                        ending.effect.is_commit,
                        ending.effect.coordinator_epoch,
                        ending.effect.transaction_version,
                        partitions,
                    )
                    for ending, partitions in parts
                ),
            )
        )

    def _call_failed(self, parts: _Parts) -> None:
        for ending, partitions in parts:
            for partition in partitions:
                self._wait(ending, partition)

    def _judge(self, ending: Ending, partition: TopicPartition, error: ErrorCode) -> None:
        if partition not in ending.remaining:
            return
        if error is ErrorCode.NONE:
            self._done_with(ending, partition)
        elif error in _FINAL:
            _log.warning(
                "a newer coordinator or producer epoch ends the transaction",
                transactional_id=ending.effect.transactional_id,
                partition=str(partition),
                reason=error.name,
            )
            ending.remaining.clear()
            self._endings.get(ending.owner, set()).discard(ending)
        elif error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._wait_or_skip(ending, partition)
        else:
            self._wait(ending, partition)

    def _done_with(self, ending: Ending, partition: TopicPartition) -> None:
        ending.remaining.discard(partition)
        if not ending.remaining:
            endings = self._endings.get(ending.owner)
            if endings is not None and ending in endings:
                endings.discard(ending)
                if not endings:
                    del self._endings[ending.owner]
                ending.done()

    def _wait_or_skip(self, ending: Ending, partition: TopicPartition) -> None:
        def answer(is_gone: bool | None) -> None:
            if is_gone:
                self._done_with(ending, partition)
            else:
                self._wait(ending, partition)

        self._is_topic_gone(partition.topic, answer)

    def _wait(self, ending: Ending, partition: TopicPartition) -> None:
        if partition in ending.remaining:
            self._later.append((ending, partition))
            if self._retry is None:
                self._retry = self._timer.add_after(self._retry_now, MARKERS_RETRY_MS)

    def _retry_now(self) -> None:
        self._retry = None
        later, self._later = self._later, []
        self._due.extend(later)
        self.flush()


class BrokerCalls:
    """All calls of a coordinator, which carry out the effects that the cores of its shards decide."""

    def __init__(
        self, any_line: AnyLine, line_to_leader: LineToLeader, is_topic_gone: IsTopicGone, timer: DelayTimer
    ) -> None:
        self.markers = MarkerSender(line_to_leader, is_topic_gone, timer)
        self.offsets = OffsetQuestions(line_to_leader, timer)
        self._producer_ids = ProducerIds(any_line, timer)
        self._share_states = ShareQuestions(any_line, timer)

    def ask(
        self,
        effect: AllocateProducerId | AskShareStates | AskEndOffsets,
        then: Callable[[EffectOutcome], None],
    ) -> None:
        """Calls `then` once with the outcome of the effect, at once or later."""
        if isinstance(effect, AllocateProducerId):
            self._producer_ids.take(then)
        elif isinstance(effect, AskShareStates):
            self._share_states.ask(effect, then)
        else:
            self.offsets.ask(
                [(partition, UNKNOWN_OFFSET) for partition in effect.partitions],
                lambda found: then({partition: at.high_watermark for (partition, _), at in found.items()}),
            )

    def received(self, item: session.Item) -> None:
        """Takes a broker's answer to a call."""
        if isinstance(item, MarkersWritten):
            self.markers.written(item)
        elif isinstance(item, session.ProducerIdsTold):
            self._producer_ids.received(item)
        elif isinstance(item, session.ShareStatesTold):
            self._share_states.received(item)
        elif isinstance(item, session.OffsetsTold):
            self.offsets.received(item)

    def session_ended(self, broker_id: int) -> None:
        for calls in (self.markers, self._producer_ids, self.offsets, self._share_states):
            calls.session_ended(broker_id)
