"""The state of a share partition, and its records (`ShareSnapshot`, `ShareUpdate`) in Kafka's formats.

A snapshot holds the whole state of a share partition. An update holds a change, which applies to the state
that the records before it describe. The delivery states of ranges of records are combined by one rule.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from tidelog.group_coordinator.shard_core import CoordinatorRecord, ReplayedRecord, UnknownRecordError
from tidelog.kernel.instants import WallMs
from tidelog.model.protocol_values import UNKNOWN_EPOCH
from tidelog.model.topics import SharePartitionKey
from tidelog.wire.codec import MalformedMessageError, UnsupportedVersionError, record_codec, record_kind
from tidelog.wire.messages.records import share_snapshot, share_update
from tidelog.wire.messages.records.share_snapshot import ShareSnapshotKey, ShareSnapshotValue
from tidelog.wire.messages.records.share_update import ShareUpdateKey, ShareUpdateValue


class StateBatch(NamedTuple):
    """The delivery state and count of the records from `first_offset` to `last_offset`. They are not
    delivered before `available_at_ms`, a time of day, or 0 if they do not wait (ADR 0053).
    """

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int
    available_at_ms: int = 0


StateBatches = tuple[StateBatch, ...]
"""Batches in the order of their offsets, without overlaps. Neighbours with equal states are one batch."""


CHANGES_WORTH_A_SEARCH: Final = 4
"""If there are more changes than one for so many batches, combining all is faster than finding neighbours."""
_FIRST_OFFSET: Final = attrgetter("first_offset")
_LAST_OFFSET: Final = attrgetter("last_offset")


def combine(batches: Iterable[StateBatch], start_offset: int) -> StateBatches:
    """Returns one state for each offset of the batches, without the offsets below `start_offset`.

    Where batches overlap, the highest delivery count wins, and among equal counts the highest delivery state
    (Kafka's `PersisterStateBatchCombiner`). A delivery count never falls and a final state has the highest
    number, so this is the latest state, also if an older request arrives again. Among equal states, the
    latest time wins. Batches that end before they start are ignored.
    """
    pending = sorted(
        batch if batch.first_offset >= start_offset else batch._replace(first_offset=start_offset)
        for batch in batches
        if batch.last_offset >= max(start_offset, batch.first_offset)
    )
    cuts = sorted({batch.first_offset for batch in pending} | {batch.last_offset + 1 for batch in pending})
    combined: list[StateBatch] = []
    covering: list[tuple[int, int, int, int]] = []
    """A heap of the batches that have begun: (-count, -state, -time, last offset)."""
    at = 0
    for first, end in itertools.pairwise(cuts):
        while at < len(pending) and pending[at].first_offset == first:
            begun = pending[at]
            rank = -begun.delivery_count, -begun.delivery_state, -begun.available_at_ms
            heapq.heappush(covering, (*rank, begun.last_offset))
            at += 1
        while covering and covering[0][3] < first:
            heapq.heappop(covering)
        if covering:
            count, state, at_ms, _ = covering[0]
            _append(combined, StateBatch(first, end - 1, -state, -count, -at_ms))
    return tuple(combined)


def with_changes(batches: StateBatches, changes: StateBatches, start_offset: int) -> StateBatches:
    """Returns what `combine` returns for both together, of which each is combined already. Only the batches
    that changes overlap or touch are combined again, because a share partition may have thousands of others.
    """
    batches, changes = _from_offset(batches, start_offset), _from_offset(changes, start_offset)
    if not changes or not batches:
        return changes or batches
    if len(changes) > len(batches) // CHANGES_WORTH_A_SEARCH:
        return combine((*batches, *changes), start_offset)
    found: list[StateBatch] = []
    done = at = 0
    while at < len(changes):
        begin = bisect_left(batches, changes[at].first_offset - 1, done, key=_LAST_OFFSET)
        end = bisect_right(batches, changes[at].last_offset + 1, begin, key=_FIRST_OFFSET)
        until = at + 1
        while until < len(changes):
            reached = changes[until - 1].last_offset
            if begin < end:
                reached = max(reached, batches[end - 1].last_offset)
            if reached < changes[until].first_offset - 1:
                break
            end = bisect_right(batches, changes[until].last_offset + 1, end, key=_FIRST_OFFSET)
            until += 1
        found += batches[done:begin]
        found += combine((*batches[begin:end], *changes[at:until]), start_offset)
        done, at = end, until
    found += batches[done:]
    return tuple(found)


def _from_offset(batches: StateBatches, start_offset: int) -> StateBatches:
    """Returns combined batches without the offsets below `start_offset`."""
    kept = batches[bisect_left(batches, start_offset, key=_LAST_OFFSET) :]
    if kept and kept[0].first_offset < start_offset:
        return (kept[0]._replace(first_offset=start_offset), *kept[1:])
    return kept


def _append(combined: list[StateBatch], batch: StateBatch) -> None:
    """Adds the batch, or extends the last one if they are neighbours with the same state."""
    if combined:
        last = combined[-1]
        if last.last_offset + 1 == batch.first_offset and last[2:] == batch[2:]:
            combined[-1] = last._replace(last_offset=batch.last_offset)
            return
    combined.append(batch)


FIRST_EPOCH: Final = 0
NO_COUNT: Final = -1
_SNAPSHOT_KIND: Final = 0
_UPDATE_KIND: Final = 1


@dataclass(frozen=True, slots=True)
class SharePartitionState:
    """The state of a share partition. A change replaces the object."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    """The first offset that is in flight or not yet delivered. It is -1 if the leader has to choose it."""
    delivery_complete_count: int
    """The number of records from the start offset on whose delivery is complete, or -1 if it is unknown."""
    create_timestamp_ms: WallMs
    write_timestamp_ms: WallMs
    batches: StateBatches = ()
    update_count: int = 0
    """The number of updates since the last snapshot."""
    paused_until_ms: int = 0
    """The end of the pause of the leader's circuit breaker, a time of day, or 0 (ADR 0053)."""


class ShareUpdate(NamedTuple):
    """A change of a share partition's state."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: StateBatches
    paused_until_ms: int = 0


def updated(state: SharePartitionState, update: ShareUpdate) -> SharePartitionState:
    """Returns the state after an update. The start offset moves back only by a new state epoch's snapshot."""
    start = max(state.start_offset, update.start_offset)
    return replace(
        state,
        leader_epoch=state.leader_epoch if update.leader_epoch == UNKNOWN_EPOCH else update.leader_epoch,
        start_offset=start,
        delivery_complete_count=update.delivery_complete_count,
        batches=with_changes(state.batches, update.batches, start),
        update_count=state.update_count + 1,
        paused_until_ms=update.paused_until_ms,
    )


class _MessageBatch(Protocol):
    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int
    available_at: int


def batches_of(message: Iterable[_MessageBatch]) -> list[StateBatch]:
    """Returns the batches of a request or of a record."""
    return [
        StateBatch(
            batch.first_offset,
            batch.last_offset,
            batch.delivery_state,
            batch.delivery_count,
            batch.available_at,
        )
        for batch in message
    ]


def snapshot_record(key: SharePartitionKey, state: SharePartitionState) -> CoordinatorRecord:
    """Returns the record of the whole state."""
    value = ShareSnapshotValue(
        snapshot_epoch=state.snapshot_epoch,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.delivery_complete_count,
        create_timestamp=state.create_timestamp_ms,
        write_timestamp=state.write_timestamp_ms,
        state_batches=[share_snapshot.StateBatch(*batch) for batch in state.batches],
        paused_until=state.paused_until_ms,
    )
    return _record(ShareSnapshotKey(*key), value)


def update_record(key: SharePartitionKey, update: ShareUpdate) -> CoordinatorRecord:
    """Returns the record of a change."""
    value = ShareUpdateValue(
        snapshot_epoch=update.snapshot_epoch,
        leader_epoch=update.leader_epoch,
        start_offset=update.start_offset,
        delivery_complete_count=update.delivery_complete_count,
        state_batches=[share_update.StateBatch(*batch) for batch in update.batches],
        paused_until=update.paused_until_ms,
    )
    return _record(ShareUpdateKey(*key), value)


def tombstone(key: SharePartitionKey) -> CoordinatorRecord:
    """Returns the record that deletes the state of a share partition."""
    return _record(ShareSnapshotKey(*key), None)


def _record(
    key: ShareSnapshotKey | ShareUpdateKey, value: ShareSnapshotValue | ShareUpdateValue | None
) -> CoordinatorRecord:
    return CoordinatorRecord(
        record_codec(type(key)).encode(key),
        None if value is None else record_codec(type(value)).encode(value),
    )


def read_record(
    record: ReplayedRecord,
) -> tuple[SharePartitionKey, SharePartitionState | ShareUpdate | None]:
    """Returns the share partition and its whole state, a change, or None for a tombstone.

    Raises UnknownRecordError.
    """
    try:
        kind = record_kind(record.key)
        if kind == _SNAPSHOT_KIND:
            return _read_snapshot(record)
        if kind == _UPDATE_KIND:
            return _read_update(record)
    except (MalformedMessageError, UnsupportedVersionError) as problem:
        raise UnknownRecordError(str(problem)) from problem
    raise UnknownRecordError(f"unknown record kind {kind}")


def _read_snapshot(record: ReplayedRecord) -> tuple[SharePartitionKey, SharePartitionState | None]:
    found = record_codec(ShareSnapshotKey).decode(record.key)
    key = SharePartitionKey(found.group_id, found.topic_id, found.partition)
    if record.value is None:
        return key, None
    value = record_codec(ShareSnapshotValue).decode(record.value)
    return key, SharePartitionState(
        value.snapshot_epoch,
        value.state_epoch,
        value.leader_epoch,
        value.start_offset,
        value.delivery_complete_count,
        WallMs(value.create_timestamp),
        WallMs(value.write_timestamp),
        combine(batches_of(value.state_batches), value.start_offset),
        paused_until_ms=value.paused_until,
    )


def _read_update(record: ReplayedRecord) -> tuple[SharePartitionKey, ShareUpdate | None]:
    found = record_codec(ShareUpdateKey).decode(record.key)
    key = SharePartitionKey(found.group_id, found.topic_id, found.partition)
    if record.value is None:
        return key, None
    value = record_codec(ShareUpdateValue).decode(record.value)
    return key, ShareUpdate(
        value.snapshot_epoch,
        value.leader_epoch,
        value.start_offset,
        value.delivery_complete_count,
        combine(batches_of(value.state_batches), value.start_offset),
        value.paused_until,
    )
