"""One partition of a consumer: its position, and the fetched records that the application has not seen."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final, NamedTuple
from uuid import UUID

from tidelog.client.core.consuming.consumer_batch import ConsumerBatch
from tidelog.client.core.consuming.records import (
    RECORDS_A_CHUNK,
    BatchReader,
    ConsumerRecord,
    read_batch,
)
from tidelog.model.errors import KafkaError
from tidelog.model.protocol_values import UNKNOWN_EPOCH
from tidelog.model.topics import TopicPartition
from tidelog.records.aborted import visible_batches
from tidelog.records.batch import BatchHeader

MAX_BUFFERED_FETCHES: Final = 2
"""The most fetches of a partition whose records wait: one that is read, and the next one."""


class PositionState(Enum):
    UNKNOWN = "unknown"
    """The position is the committed offset, which has to be looked up."""
    RESETTING = "resetting"
    """The position is that of a time, which has to be looked up."""
    KNOWN = "known"
    FAILED = "failed"
    """The next poll raises `error`; then the partition returns to its former state."""


class OffsetToCommit(NamedTuple):
    """An offset to commit, the leader epoch of the record before it, and the id of its topic.

    Without an id, the offset is one of the topic that has the name at present.
    """

    offset: int
    leader_epoch: int = UNKNOWN_EPOCH
    topic_id: UUID | None = None


class FetchedBatches:
    """The records of one fetch, decoded batch by batch."""

    __slots__ = (
        "_batches",
        "_begun",
        "_current",
        "_failure",
        "_place",
        "_raw",
        "decoded",
        "epoch",
        "following",
        "start",
    )

    def __init__(
        self, place: TopicPartition, raw: memoryview, start: int, aborted: list[tuple[int, int]]
    ) -> None:
        self.start: int = start
        self.following: int = start
        """The offset after the last batch that was begun."""
        self.epoch: int = UNKNOWN_EPOCH
        self._place = place
        self._raw = raw
        self._batches = visible_batches(raw, aborted)
        self._begun: BatchReader | None = None
        self.decoded: list[ConsumerRecord[Any, Any]] = []
        """Decoded records, the first one last."""
        self._current: tuple[int, BatchHeader] | None = None
        """The batch that was begun last."""
        self._failure: ValueError | None = None
        """The error of the batch behind the last one."""

    def take(self, most: int) -> list[ConsumerRecord[Any, Any]]:
        """Returns up to `most` visible records from `start` on, none at the end. Raises ValueError for
        damaged bytes.
        """
        while not self.decoded:
            found = [] if self._begun is None else self._begun.read(max(most, RECORDS_A_CHUNK))
            if not found and not self._begin_batch():
                return []
            if found and found[0].offset < self.start:
                found = [record for record in found if record.offset >= self.start]
            if 0 < len(found) <= most:
                return found
            found.reverse()
            self.decoded = found
        if most == 1:
            return [self.decoded.pop()]
        found = self.decoded[: -most - 1 : -1]
        del self.decoded[-most:]
        return found

    def _begin_batch(self) -> bool:
        """Begins to decode the next batch. Returns whether there was one."""
        self._current = self._next_visible()
        if self._current is None:
            return False
        self._begun = BatchReader(self._place, self._raw, *self._current)
        return True

    def take_rest(self, position: int) -> ConsumerBatch[Any, Any] | None:
        """Returns all visible records from the offset `position` on, None if there are none.

        Raises ValueError for a damaged batch, after it has returned the records before it.
        """
        start = max(self.start, position)
        batches: list[tuple[int, BatchHeader]] = []
        if self._current is not None and self._current[1].last_offset >= start:
            batches.append(self._current)
        self._current, self._begun, self.decoded = None, None, []
        try:
            while (found := self._next_visible()) is not None:
                if found[1].record_count and found[1].last_offset >= start:
                    batches.append(found)
        except ValueError as error:
            if not batches:
                raise
            self._failure = error
        count = sum(header.record_count for _, header in batches)
        if batches and batches[0][1].base_offset < start:
            earlier = read_batch(self._place, self._raw, *batches[0], 0)
            count -= sum(record.offset < start for record in earlier)
        if not count:
            return None
        return ConsumerBatch(self._place, self._raw, batches, start, self.following, count)

    def _next_visible(self) -> tuple[int, BatchHeader] | None:
        if self._failure is not None:
            raise self._failure
        for position, header, is_visible in self._batches:
            self.following = max(self.following, header.last_offset + 1)
            self.epoch = header.partition_leader_epoch
            if is_visible:
                return position, header
        return None


class ConsumedPartition:
    """The state of one assigned partition.

    `position` is the offset of the next record that the application gets. `consumed` is the offset after the
    last record that it has dealt with: it asked for more since. An automatic commit stores `consumed`.
    """

    __slots__ = (
        "_generations",
        "checked_epoch",
        "consumed",
        "consumed_epoch",
        "delivered_topic_id",
        "error",
        "failed_state",
        "fetch_epoch",
        "fetch_offset",
        "fetched",
        "generation",
        "high_watermark",
        "is_being_assigned",
        "is_checking",
        "is_fetching",
        "is_looked_up",
        "is_paused",
        "is_revoked",
        "last_stable_offset",
        "log_start_offset",
        "not_before_ms",
        "place",
        "position",
        "position_epoch",
        "preferred_replica",
        "preferred_until_ms",
        "reset_timestamp",
        "state",
        "topic_id",
    )

    def __init__(self, place: TopicPartition, generations: Iterator[int]) -> None:
        """`generations` gives each number once, for all partitions of a consumer."""
        self.place: TopicPartition = place
        self.state: PositionState = PositionState.UNKNOWN
        self.topic_id: UUID | None = None
        """The id of the topic in which the position was found. None if the application has set the position,
        until a fetch from there succeeds, and if the brokers name no ids."""
        self.delivered_topic_id: UUID | None = None
        """The id of the topic whose records the application got last. It may have been replaced since."""
        self.position: int = 0
        self.consumed: int = 0
        self.fetch_offset: int = 0
        self.position_epoch: int = UNKNOWN_EPOCH
        self.consumed_epoch: int = UNKNOWN_EPOCH
        self.fetch_epoch: int = UNKNOWN_EPOCH
        """The leader epoch of the record before `fetch_offset`."""
        self.checked_epoch: int = UNKNOWN_EPOCH
        """The epoch of the leader whose log contains what was fetched (KIP-320)."""
        self.is_checking: bool = False
        self._generations = generations
        self.generation: int = next(generations)
        """It changes with each seek, and a partition that is assigned again has a new one. So responses to
        earlier requests are ignored."""
        self.is_paused: bool = False
        self.is_fetching: bool = False
        self.is_looked_up: bool = False
        self.is_revoked: bool = False
        """Whether the application is giving up the partition."""
        self.is_being_assigned: bool = False
        """Whether the application is being told that it got the partition."""
        self.not_before_ms: int = 0
        self.fetched: deque[FetchedBatches] = deque()
        self.high_watermark: int | None = None
        self.last_stable_offset: int | None = None
        self.log_start_offset: int | None = None
        self.preferred_replica: int = -1
        self.preferred_until_ms: int = 0
        self.reset_timestamp: int = 0
        self.error: KafkaError | None = None
        self.failed_state: PositionState = PositionState.UNKNOWN
        """The state to which a FAILED partition returns."""

    def seek(self, offset: int, epoch: int = UNKNOWN_EPOCH, topic_id: UUID | None = None) -> None:
        """Sets the position. Without `topic_id`, the application has chosen it."""
        self._forget()
        self.topic_id = topic_id
        if topic_id is None:
            self.delivered_topic_id = None
        self.state = PositionState.KNOWN
        self.position = self.consumed = self.fetch_offset = offset
        self.position_epoch = self.consumed_epoch = self.fetch_epoch = epoch

    def reset(self, timestamp: int) -> None:
        """Looks up the position of a time, or of -1 (the end) or -2 (the beginning)."""
        self._forget()
        self.topic_id = None
        self.state = PositionState.RESETTING
        self.reset_timestamp = timestamp

    def replace_topic(self) -> None:
        """Forgets the position, because another topic has the name now."""
        self._forget()
        self.topic_id = None
        self.preferred_replica = -1
        self.high_watermark = self.last_stable_offset = self.log_start_offset = None
        if self.state is not PositionState.RESETTING:
            self.state = PositionState.UNKNOWN

    def read_again(self, offset: int) -> None:
        """Sets the position to a record that was delivered in vain, if the topic is still the same.
        `consumed` does not change.
        """
        is_sought = self.state in (PositionState.UNKNOWN, PositionState.RESETTING)
        if is_sought or self.topic_id != self.delivered_topic_id:
            return
        self._forget()
        self.position = self.fetch_offset = offset
        self.position_epoch = self.fetch_epoch = UNKNOWN_EPOCH

    def fail(self, error: KafkaError) -> None:
        """Forgets the fetched records and waits until the application has got the error."""
        self._forget()
        if self.state is not PositionState.FAILED:
            self.failed_state = self.state
        self.fetch_offset, self.fetch_epoch = self.position, self.position_epoch
        self.state = PositionState.FAILED
        self.error = error

    def drop_fetched(self) -> None:
        """Forgets the records that the application has not got, to fetch them again."""
        self._forget()
        self.fetch_offset, self.fetch_epoch = self.position, self.position_epoch

    def needs_check(self, leader_epoch: int) -> bool:
        """Whether the leader of this epoch may lack records that an earlier leader gave."""
        return UNKNOWN_EPOCH not in (self.fetch_epoch, leader_epoch) and self.checked_epoch != leader_epoch

    def recover(self, not_before_ms: int) -> KafkaError:
        """The application gets the error, which is returned. The partition tries again later."""
        assert self.error is not None
        error, self.error = self.error, None
        self.state = self.failed_state
        self.not_before_ms = not_before_ms
        return error

    def _forget(self) -> None:
        self.generation = next(self._generations)
        self.fetched.clear()
        self.is_looked_up = self.is_checking = False
        self.checked_epoch = UNKNOWN_EPOCH
        self.error = None

    @property
    def can_fetch(self) -> bool:
        return (
            self.state is PositionState.KNOWN
            and not self.is_paused
            and not self.is_revoked
            and not self.is_being_assigned
            and not self.is_fetching
            and len(self.fetched) < MAX_BUFFERED_FETCHES
        )

    def take(self, most: int) -> list[ConsumerRecord[Any, Any]] | None:
        """Returns up to `most` next records and moves the position behind them; None if there are none.

        Raises ValueError for damaged bytes.
        """
        if self.fetched:
            self.delivered_topic_id = self.topic_id
            current = self.fetched[0]
            records = current.take(most)
            if records:
                self.position = records[-1].offset + 1
                self.position_epoch = current.epoch
                return records
            self._pass(current)
            self.fetched.popleft()
        return None

    def take_decoded(self) -> ConsumerRecord[Any, Any] | None:
        """Returns the next record and moves the position behind it, if it is decoded."""
        if not self.fetched or not self.fetched[0].decoded:
            return None
        current = self.fetched[0]
        record = current.decoded.pop()
        self.position = record.offset + 1
        self.position_epoch = current.epoch
        return record

    def take_batch(self) -> ConsumerBatch[Any, Any] | None:
        """Returns the next records in one piece and moves the position behind them. Raises ValueError for
        damaged bytes.
        """
        if self.fetched:
            self.delivered_topic_id = self.topic_id
            current = self.fetched[0]
            batch = current.take_rest(self.position)
            self._pass(current)
            if batch is not None:
                return batch
            self.fetched.popleft()
        return None

    def _pass(self, fetched: FetchedBatches) -> None:
        """Moves the position behind the last batch that was begun, which may have no visible records."""
        if fetched.following > self.position:
            self.position, self.position_epoch = fetched.following, fetched.epoch

    def finish_delivered(self) -> None:
        """Counts the delivered records as processed, because the application asks for more."""
        self.consumed = self.position
        self.consumed_epoch = self.position_epoch

    @property
    def lag(self) -> int | None:
        """The number of records up to the end that the application has not got, None if it is unknown."""
        if self.high_watermark is None or self.state is not PositionState.KNOWN:
            return None
        return max(0, self.high_watermark - self.position)
