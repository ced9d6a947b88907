"""The markers of decided transactions, which are sent until every partition's leader has written them.

The markers of one turn go to each broker in one call. A partition is done when its leader has confirmed the
marker, or when the metadata store itself confirms that the topic is deleted; the watched view may be behind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import structlog

from tidelog.group_coordinator.shard_core import EndTransaction
from tidelog.group_coordinator.shards.questions import LineToLeader, OpenCalls
from tidelog.group_coordinator.shards.shard import Cancellable, DelayTimer
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
"""The errors after which a newer owner of the shard, or a newer epoch of the producer, ends the transaction.
"""

_log = structlog.get_logger(__name__)


IsTopicGone = Callable[[str, Callable[[bool | None], None]], None]
"""Looks up whether a topic is deleted; None means that the store is unavailable."""


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
        self._calls: OpenCalls[_Parts] = OpenCalls(timer, CALL_TIMEOUT_MS, self._call_failed)

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
                self._retry = self._timer.add_after(self._retry_now, RETRY_MS)

    def _retry_now(self) -> None:
        self._retry = None
        later, self._later = self._later, []
        self._due.extend(later)
        self.flush()
