"""Offsets of partitions, which their leaders report for the lag of groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from tidelog.group_coordinator.shards.markers import LineToLeader
from tidelog.group_coordinator.shards.shard import Cancellable, DelayTimer
from tidelog.model.topics import TopicPartition
from tidelog.rpc.coordinator_session import AskOffsets, OffsetsTold, PartitionOffsets, SessionLine

TIMEOUT_MS: Final = 10_000
MAX_IN_CALL: Final = 2_000

MAX_OPEN_CALLS: Final = 250
"""The calls after which further questions wait. See share_questions.MAX_OPEN."""
MAX_OPEN_CALLS_OF_LAG: Final = 200
"""The calls after which further questions about the lag of groups wait. Shards do not wait for these."""

Position = tuple[TopicPartition, int]
"""A partition and the offset that a group has committed for it."""
Found = Callable[[Mapping[Position, PartitionOffsets]], None]


class _Question:
    """One question, which several leaders answer."""

    __slots__ = ("call_ids", "found", "overdue", "then")

    def __init__(self, then: Found) -> None:
        self.then = then
        self.found: dict[Position, PartitionOffsets] = {}
        self.call_ids: set[int] = set()
        """The calls that are not answered yet."""
        self.overdue: Cancellable | None = None


class _Call(NamedTuple):
    question: _Question
    broker_id: int
    positions: tuple[Position, ...]


class OffsetQuestions:
    """Questions to the partitions' leaders."""

    def __init__(self, line_to_leader: LineToLeader, timer: DelayTimer) -> None:
        self._line_to_leader = line_to_leader
        self._timer = timer
        self._next_call_id = 0
        self._calls: dict[int, _Call] = {}
        self._waiting: deque[Callable[[], None]] = deque()
        self._waiting_for_lag: deque[Callable[[], None]] = deque()

    def ask(self, positions: Sequence[Position], then: Found) -> None:
        """Calls `then` once with the answers that arrive within TIMEOUT_MS after the question has begun. It
        may be called at once.
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
        question = _Question(then)
        by_broker: dict[int, tuple[SessionLine, list[Position]]] = {}
        for position in positions:
            found = self._line_to_leader(position[0])
            if found is not None:
                by_broker.setdefault(found[0], (found[1], []))[1].append(position)
        for broker_id, (line, asked) in by_broker.items():
            for at in range(0, len(asked), MAX_IN_CALL):
                self._next_call_id = call_id = self._next_call_id + 1
                chunk = tuple(asked[at : at + MAX_IN_CALL])
                self._calls[call_id] = _Call(question, broker_id, chunk)
                question.call_ids.add(call_id)
                line.send(AskOffsets(call_id, chunk))
        if question.call_ids:
            question.overdue = self._timer.add_after(lambda: self._give_up(question), TIMEOUT_MS)
        else:
            then(question.found)

    def received(self, item: OffsetsTold) -> None:
        """Takes a broker's answer to a part of a question."""
        call = self._calls.get(item.call_id)
        if call is not None:
            for position, offsets in zip(call.positions, item.partitions, strict=False):
                if offsets.high_watermark >= 0:
                    call.question.found[position] = offsets
            self._end(item.call_id)

    def session_ended(self, broker_id: int) -> None:
        for call_id in [call_id for call_id, call in self._calls.items() if call.broker_id == broker_id]:
            self._end(call_id)

    def _give_up(self, question: _Question) -> None:
        for call_id in tuple(question.call_ids):
            self._end(call_id)

    def _end(self, call_id: int) -> None:
        question = self._calls.pop(call_id).question
        question.call_ids.discard(call_id)
        if not question.call_ids and question.overdue is not None:
            question.overdue.cancel()
            question.then(question.found)
            self._begin_waiting()
