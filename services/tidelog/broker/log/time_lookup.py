"""Finds offsets by timestamp.

The time index limits the search to a few batches, whose records are then read. The functions open the files
again, so that they can run in another thread than the event loop. Source: Kafka's
`LogSegment.findOffsetByTimestamp`, `FileRecords.searchForTimestamp`,
`UnifiedLog.fetchOffsetByTimestamp`; KIP-734.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from tidelog.broker.log.segment import Segment, segment_index
from tidelog.log_format.batches import TornLogError, scan_headers
from tidelog.records.batch import BatchHeader, known_max_timestamp, may_reach
from tidelog.records.record import records_of, scan_records


class TimestampedOffset(NamedTuple):
    """The offset and the timestamp (in milliseconds) of a record, and the leader epoch of its batch."""

    offset: int
    timestamp: int
    leader_epoch: int


def first_at_or_after(
    segments: Sequence[Segment], timestamp: int, min_offset: int
) -> TimestampedOffset | None:
    """Returns the first record at or above `min_offset` whose timestamp is at least `timestamp`.

    Raises OSError, TornLogError.
    """
    for segment in segments:
        may_have_it = segment.max_timestamp >= timestamp or segment.has_wrong_times
        if may_have_it and segment.next_offset > min_offset:
            found = _first_in(segment, timestamp, min_offset)
            if found is not None:
                return found
    return None


def of_max_timestamp(segments: Sequence[Segment]) -> TimestampedOffset | None:
    """Returns the first record that has the greatest timestamp. Raises OSError, TornLogError."""
    latest = max(segments, key=lambda segment: segment.max_timestamp, default=None)
    if latest is None or latest.max_timestamp < 0:
        return None
    return _first_in(latest, latest.max_timestamp, latest.base_offset)


def of_offset(segments: Sequence[Segment], offset: int) -> TimestampedOffset | None:
    """Returns the last offset and the greatest timestamp of the first batch that ends at or behind `offset`.
    Reads batch headers only. Raises OSError, TornLogError.
    """
    at = segment_index(segments, offset)
    for segment in segments[at:]:
        size_bytes = segment.size_bytes
        if not size_bytes or segment.next_offset <= offset:
            continue
        offset_index = segment.offset_index.reader()
        try:
            _, start = offset_index.position_for(offset)
        finally:
            offset_index.close()
        with segment.own_descriptor() as fd:
            if segment.is_deleted:
                raise FileNotFoundError(segment.path)
            for _, header, _ in scan_headers(partial(os.pread, fd), start, size_bytes):
                if header.last_offset >= offset:
                    return TimestampedOffset(
                        header.last_offset, known_max_timestamp(header), header.partition_leader_epoch
                    )
    return None


def _first_in(segment: Segment, timestamp: int, min_offset: int) -> TimestampedOffset | None:
    size_bytes = segment.size_bytes  # read before the indexes, so that their entries are within this size
    time_index, offset_index = segment.time_index.reader(), segment.offset_index.reader()
    try:
        start_offset = min_offset
        if not segment.has_wrong_times:
            start_offset = max(time_index.offset_for(timestamp), min_offset)
        _, start = offset_index.position_for(start_offset)
    finally:
        time_index.close()
        offset_index.close()
    with segment.own_descriptor() as fd:
        if segment.is_deleted:  # the files opened by name may belong to the segment that replaced it
            raise FileNotFoundError(segment.path)
        for position, header, _ in scan_headers(partial(os.pread, fd), start, size_bytes):
            if header.last_offset >= min_offset and may_reach(header, timestamp):
                found = _record_at_or_after(fd, position, header, timestamp, min_offset)
                if found is not None:
                    return found
    return None


def _record_at_or_after(
    fd: int, position: int, header: BatchHeader, timestamp: int, min_offset: int
) -> TimestampedOffset | None:
    batch = os.pread(fd, header.size_bytes, position)
    append_time = header.max_timestamp if header.is_log_append_time else None
    try:
        # Only the positions of the records are read: their keys, values and headers may be large.
        for span in scan_records(records_of(batch, header), header.record_count):
            found = header.base_timestamp + span.timestamp_delta if append_time is None else append_time
            offset = header.base_offset + span.offset_delta
            if found >= timestamp and offset >= min_offset:
                return TimestampedOffset(offset, found, header.partition_leader_epoch)
    except ValueError as error:
        raise TornLogError(position, str(error)) from error
    return None
