"""Transactions that are decided: a marker to every partition, until each leader has it.

What is due in one turn of the loop goes to each broker as one call. A partition is only done when its leader
says so, or when its topic is gone by the word of the metadata store itself: the watched view may be late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

import structlog

from tidelog.group_coordinator.shard_core import EndTransaction
from tidelog.group_coordinator.shards.shard import Cancellable
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.rpc.coordinator_session import Marker, MarkersWritten, SessionLine, WriteMarkers

RETRY_MS: Final = 100
CALL_TIMEOUT_MS: Final = 30_000
MAX_MARKERS_IN_CALL: Final = 1_000

_FINAL: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        ErrorCode.PRODUCER_FENCED,
    }
)
"""A newer owner of the shard, or a newer epoch of the producer: this transaction is theirs to end."""

_log = structlog.get_logger(__name__)


class MarkerOutlets(Protocol):
    def line_to_leader(self, partition: TopicPartition) -> tuple[int, SessionLine] | None:
        """The leader's id and the session to it."""
        ...

    def is_topic_gone(self, topic: str, told: Callable[[bool | None], None]) -> None:
        """Ask the metadata store; None: it can't say."""
        ...

    def call_after(self, callback: Callable[[], None], delay_ms: int) -> Cancellable: ...

    def has_pending_markers(self) -> None:
        """`flush` is to be called at the end of the turn."""
        ...


class Ending:
    """One transaction on its way to its partitions."""

    __slots__ = ("done", "effect", "owner", "remaining")

    def __init__(self, effect: EndTransaction, owner: object, done: Callable[[], None]) -> None:
        self.effect = effect
        self.owner = owner
        self.done = done
        self.remaining = set(effect.partitions)


class _Call:
    __slots__ = ("broker_id", "overdue", "parts")

    def __init__(self, broker_id: int, parts: list[tuple[Ending, tuple[TopicPartition, ...]]]) -> None:
        self.broker_id = broker_id
        self.parts = parts
        self.overdue: Cancellable | None = None


class MarkerSender:
    def __init__(self, outlets: MarkerOutlets) -> None:
        self._outlets = outlets
        self._endings: dict[object, set[Ending]] = {}
        self._due: list[tuple[Ending, TopicPartition]] = []
        self._later: list[tuple[Ending, TopicPartition]] = []
        self._retry: Cancellable | None = None
        self._calls: dict[int, _Call] = {}
        self._call_id = 0

    @property
    def ending_count(self) -> int:
        return sum(len(endings) for endings in self._endings.values())

    def begin(self, effect: EndTransaction, owner: object, done: Callable[[], None]) -> None:
        """`done` once every partition has it; `owner` is whose shard's memory asked: see `forget`."""
        ending = Ending(effect, owner, done)
        if not ending.remaining:
            done()
            return
        self._endings.setdefault(owner, set()).add(ending)
        self._put_due((ending, partition) for partition in effect.partitions)

    def forget(self, owner: object) -> None:
        """Its shard is lost; whoever loads it next begins again."""
        for ending in self._endings.pop(owner, ()):
            ending.remaining.clear()

    def flush(self) -> None:
        due, self._due = self._due, []
        by_broker: dict[int, tuple[SessionLine, dict[Ending, list[TopicPartition]]]] = {}
        for ending, partition in due:
            if partition not in ending.remaining:
                continue
            found = self._outlets.line_to_leader(partition)
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
        call = self._calls.pop(item.call_id, None)
        if call is None:
            return
        if call.overdue is not None:
            call.overdue.cancel()
        for (ending, partitions), errors in zip(call.parts, item.errors, strict=False):
            for partition, error in zip(partitions, errors, strict=False):
                self._judge(ending, partition, error)

    def session_ended(self, broker_id: int) -> None:
        for call_id in [call_id for call_id, call in self._calls.items() if call.broker_id == broker_id]:
            self._call_failed(call_id)

    def _call(
        self, broker_id: int, line: SessionLine, parts: list[tuple[Ending, tuple[TopicPartition, ...]]]
    ) -> None:
        self._call_id += 1
        call_id = self._call_id
        call = self._calls[call_id] = _Call(broker_id, parts)
        call.overdue = self._outlets.call_after(lambda: self._call_failed(call_id), CALL_TIMEOUT_MS)
        line.send(
            WriteMarkers(
                call_id,
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

    def _call_failed(self, call_id: int) -> None:
        call = self._calls.pop(call_id, None)
        if call is None:
            return
        if call.overdue is not None:
            call.overdue.cancel()
        for ending, partitions in call.parts:
            for partition in partitions:
                self._wait(ending, partition)

    def _judge(self, ending: Ending, partition: TopicPartition, error: ErrorCode) -> None:
        if partition not in ending.remaining:
            return
        if error is ErrorCode.NONE:
            self._done_with(ending, partition)
        elif error in _FINAL:
            _log.warning(
                "a transaction is no longer this coordinator's to end",
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
        def told(is_gone: bool | None) -> None:
            if is_gone:
                self._done_with(ending, partition)
            else:
                self._wait(ending, partition)

        self._outlets.is_topic_gone(partition.topic, told)

    def _wait(self, ending: Ending, partition: TopicPartition) -> None:
        if partition in ending.remaining:
            self._later.append((ending, partition))
            if self._retry is None:
                self._retry = self._outlets.call_after(self._retry_now, RETRY_MS)

    def _retry_now(self) -> None:
        self._retry = None
        later, self._later = self._later, []
        self._put_due(later)

    def _put_due(self, parts: Iterable[tuple[Ending, TopicPartition]]) -> None:
        was_empty = not self._due
        self._due.extend(parts)
        if was_empty and self._due:
            self._outlets.has_pending_markers()
