"""Where partitions stand, asked of their leaders: for the lag of groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from tidelog.group_coordinator.shards.shard import Cancellable
from tidelog.model.topics import TopicPartition
from tidelog.rpc.coordinator_session import AskOffsets, OffsetsTold, PartitionOffsets, SessionLine

TIMEOUT_MS: Final = 10_000
MAX_IN_CALL: Final = 2_000

Position = tuple[TopicPartition, int]
Told = Callable[[Mapping[Position, PartitionOffsets]], None]


class QuestionOutlets(Protocol):
    def line_to_leader(self, partition: TopicPartition) -> tuple[int, SessionLine] | None: ...

    def call_after(self, callback: Callable[[], None], delay_ms: int) -> Cancellable: ...


class OffsetQuestions:
    """`ask` for some positions; `told` once, with what could be had in time. One question at a time."""

    def __init__(self, outlets: QuestionOutlets) -> None:
        self._outlets = outlets
        self._call_id = 0
        self._calls: dict[int, tuple[int, tuple[Position, ...]]] = {}
        self._found: dict[Position, PartitionOffsets] = {}
        self._told: Told | None = None
        self._overdue: Cancellable | None = None

    def ask(self, positions: list[Position], told: Told) -> None:
        self._finish()
        self._told, self._found = told, {}
        by_broker: dict[int, tuple[SessionLine, list[Position]]] = {}
        for position in positions:
            found = self._outlets.line_to_leader(position[0])
            if found is not None:
                by_broker.setdefault(found[0], (found[1], []))[1].append(position)
        for broker_id, (line, asked) in by_broker.items():
            for at in range(0, len(asked), MAX_IN_CALL):
                self._call_id += 1
                chunk = tuple(asked[at : at + MAX_IN_CALL])
                self._calls[self._call_id] = (broker_id, chunk)
                line.send(AskOffsets(self._call_id, chunk))
        self._overdue = self._outlets.call_after(self._finish, TIMEOUT_MS)
        self._finish_if_complete()

    def told(self, item: OffsetsTold) -> None:
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
        told, self._told = self._told, None
        if told is not None:
            told(self._found)
