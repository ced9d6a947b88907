"""The questions of shards to brokers: producer ids, offsets of partitions, and states of share partitions.

A broker answers a call by its number. A call counts as not answered if its session ends or its time is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

from tidelog.group_coordinator.shard_core import AskShareStates
from tidelog.group_coordinator.shards.shard import Cancellable, DelayTimer
from tidelog.model.topics import TopicPartition
from tidelog.rpc import coordinator_session as session
from tidelog.rpc.coordinator_session import PartitionOffsets, SessionLine
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
