"""Offsets of partitions, which their leaders report for the lag of groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tidelog.group_coordinator.shards.markers import LineToLeader
from tidelog.group_coordinator.shards.shard import Cancellable, DelayTimer
from tidelog.model.topics import TopicPartition
from tidelog.rpc.coordinator_session import AskOffsets, OffsetsTold, PartitionOffsets, SessionLine

TIMEOUT_MS: Final = 10_000
MAX_IN_CALL: Final = 2_000

Position = tuple[TopicPartition, int]
"""A partition and the offset that a group has committed for it."""
Found = Callable[[Mapping[Position, PartitionOffsets]], None]


class OffsetQuestions:
    """Questions to the partitions' leaders, one at a time."""

    def __init__(self, line_to_leader: LineToLeader, timer: DelayTimer) -> None:
        self._line_to_leader = line_to_leader
        self._timer = timer
        self._call_id = 0
        self._calls: dict[int, tuple[int, tuple[Position, ...]]] = {}
        self._found: dict[Position, PartitionOffsets] = {}
        self._then: Found | None = None
        self._overdue: Cancellable | None = None

    def ask(self, positions: list[Position], then: Found) -> None:
        """Calls `then` once with the answers that arrive within TIMEOUT_MS. Ends an earlier question."""
        self._finish()
        self._then, self._found = then, {}
        by_broker: dict[int, tuple[SessionLine, list[Position]]] = {}
        for position in positions:
            found = self._line_to_leader(position[0])
            if found is not None:
                by_broker.setdefault(found[0], (found[1], []))[1].append(position)
        for broker_id, (line, asked) in by_broker.items():
            for at in range(0, len(asked), MAX_IN_CALL):
                self._call_id += 1
                chunk = tuple(asked[at : at + MAX_IN_CALL])
                self._calls[self._call_id] = (broker_id, chunk)
                line.send(AskOffsets(self._call_id, chunk))
        self._overdue = self._timer.add_after(self._finish, TIMEOUT_MS)
        self._finish_if_complete()

    def received(self, item: OffsetsTold) -> None:
        """Takes a broker's answer to a part of the question."""
        call = self._calls.pop(item.call_id, None)
        if call is not None:
            for position, offsets in zip(call[1], item.partitions, strict=False):
                if offsets.high_watermark >= 0:
                    self._found[position] = offsets
            self._finish_if_complete()

    def session_ended(self, broker_id: int) -> None:
        for call_id in [call_id for call_id, call in self._calls.items() if call[0] == broker_id]:
            del self._calls[call_id]
        self._finish_if_complete()

    def _finish_if_complete(self) -> None:
        if not self._calls:
            self._finish()

    def _finish(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
        self._calls.clear()
        then, self._then = self._then, None
        if then is not None:
            then(self._found)
