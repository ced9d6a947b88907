"""Offsets by timestamp: the time index narrows the search to a stretch of batches, whose records are then
read.

Source: Kafka's `LogSegment.findOffsetByTimestamp`, `FileRecords.searchForTimestamp`,
`UnifiedLog.fetchOffsetByTimestamp`; KIP-734. Opens the files anew, so that it can run beside the event
loop.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from tidelog.broker.log.batch_scan import scan_headers
from tidelog.broker.log.errors import TornLogError
from tidelog.broker.log.segment import Segment
from tidelog.records.batch import BatchHeader
from tidelog.records.record import Record, iterate_records


class TimestampedOffset(NamedTuple):
    """Milliseconds; the leader epoch is that of the record's batch."""

    offset: int
    timestamp: int
    leader_epoch: int


def first_at_or_after(
    segments: Sequence[Segment], timestamp: int, min_offset: int
) -> TimestampedOffset | None:
    """The first record, at or above `min_offset`, whose timestamp is `timestamp` or later.

    Raises OSError, TornLogError.
    """
    for segment in segments:
        if segment.max_timestamp >= timestamp and segment.next_offset > min_offset:
            found = _first_in(segment, timestamp, min_offset)
            if found is not None:
                return found
    return None


def of_max_timestamp(segments: Sequence[Segment]) -> TimestampedOffset | None:
    """The first record that has the greatest timestamp of all. Raises OSError, TornLogError."""
    latest = max(segments, key=lambda segment: segment.max_timestamp, default=None)
    if latest is None or latest.max_timestamp < 0:
        return None
    return _first_in(latest, latest.max_timestamp, latest.base_offset)


def _first_in(segment: Segment, timestamp: int, min_offset: int) -> TimestampedOffset | None:
    size_bytes = segment.size_bytes  # before the indexes: all they say is then within it
    time_index, offset_index = segment.time_index.reader(), segment.offset_index.reader()
    try:
        start_offset = max(time_index.offset_for(timestamp), min_offset)
        _, start = offset_index.position_for(start_offset)
    finally:
        time_index.close()
        offset_index.close()
    with segment.own_descriptor() as fd:
        if segment.is_deleted:  # what was opened by its name may be the files of the one that replaced it
            raise FileNotFoundError(segment.path)
        for position, header, _ in scan_headers(fd, start, size_bytes):
            if header.max_timestamp >= timestamp and header.last_offset >= min_offset:
                record = _record_at_or_after(fd, position, header, timestamp, min_offset)
                if record is not None:
                    return TimestampedOffset(record.offset, record.timestamp, header.partition_leader_epoch)
    return None


def _record_at_or_after(
    fd: int, position: int, header: BatchHeader, timestamp: int, min_offset: int
) -> Record | None:
    batch = os.pread(fd, header.size_bytes, position)
    try:
        for record in iterate_records(batch):
            if record.timestamp >= timestamp and record.offset >= min_offset:
                return record
    except ValueError as error:
        raise TornLogError(position, str(error)) from error
    return None
