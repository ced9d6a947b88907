"""The newest offset of each key in the dirty part of a log.

Source: Kafka's `Cleaner.buildOffsetMap`, `SkimpyOffsetMap`. Kafka needs 16 bytes for the hash of a key and 8
for its offset. A Python dict needs about six times as much, so the same memory holds fewer keys, and a log
with very many keys takes more rounds.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from hashlib import md5
from typing import Final

from tidelog.broker.log.cleaning.cleaning_job import CleaningJob, SourceSegment
from tidelog.broker.log.cleaning.segment_files import SegmentReader
from tidelog.records.aborted import AbortedBatches
from tidelog.records.batch import (
    BATCH_HEADER_BYTES,
    COMPRESSION_MASK,
    CONTROL_BIT,
    LOG_OVERHEAD_BYTES,
    TRANSACTIONAL_BIT,
)
from tidelog.records.compression import decompress
from tidelog.records.record import CorruptRecordError
from tidelog.records.record_walk import read_head

MAP_ENTRY_BYTES: Final = 144
"""The memory for a key: 64 bytes for the key or its hash, 32 for the offset, 30 to 60 in the dict."""
MAX_RAW_KEY_BYTES: Final = 30
_HASH_PADDING: Final = bytes(MAX_RAW_KEY_BYTES + 1 - md5(usedforsecurity=False).digest_size)
_FLAGS_SHARE: Final = 8
_SPECIAL: Final = COMPRESSION_MASK | TRANSACTIONAL_BIT | CONTROL_BIT

# base offset, batch length, magic, attributes, last offset delta, producer id, record count
_HEADER: Final = struct.Struct(">qi4xb4xhi16xq6xi")


def short_key(key: bytes) -> bytes:
    """Returns the hash that represents a long key. Its length differs from that of all keys that are not
    hashed.
    """
    return md5(key, usedforsecurity=False).digest() + _HASH_PADDING


class OffsetMap:
    """The newest offset of each key, from `first_offset` to `latest_offset`.

    All records up to `latest_offset` are in the map; if the map was full, that offset is before the end of
    the dirty part. `newest` has a mark for each record that is the newest of its key, at its offset less
    `first_offset`; None if the range of offsets is too large.
    """

    __slots__ = ("entries", "first_offset", "latest_offset", "max_entries", "newest")

    def __init__(self, first_offset: int, max_entries: int) -> None:
        self.entries: dict[bytes, int] = {}
        self.first_offset = first_offset
        self.max_entries = max_entries
        self.latest_offset = -1
        self.newest: bytes | None = None

    def mark_newest(self, max_bytes: int) -> None:
        """Sets `newest`, so that the second pass over the dirty part needs no keys."""
        first, latest = self.first_offset, self.latest_offset
        if not 0 <= latest - first < max_bytes:
            return
        flags = bytearray(latest - first + 1)
        for offset in self.entries.values():
            if offset <= latest:  # offsets above it are of a batch that did not fit completely
                flags[offset - first] = 1
        self.newest = bytes(flags)


def build_offset_map(job: CleaningJob, aborted: AbortedBatches, throttle: Callable[[int], None]) -> OffsetMap:
    """Reads the dirty segments, oldest first, until the map is full. Ignores records of aborted transactions.

    Raises OSError, and ValueError for damaged data.
    """
    start, end = job.first_dirty_offset, job.first_uncleanable_offset
    max_entries = int(job.dedupe_buffer_bytes * job.dedupe_buffer_load_factor) // MAP_ENTRY_BYTES
    found = OffsetMap(start, max(2, max_entries))
    dirty = [segment for segment in job.segments if segment.next_offset > start]
    for number, segment in enumerate(dirty):
        if not _take_in_segment(job, segment, found, aborted, throttle):
            break
        # The end of the segment may lack offsets.
        found.latest_offset = (dirty[number + 1].base_offset if number + 1 < len(dirty) else end) - 1
    found.mark_newest(job.dedupe_buffer_bytes // _FLAGS_SHARE)
    return found


def _take_in_segment(
    job: CleaningJob,
    segment: SourceSegment,
    found: OffsetMap,
    aborted: AbortedBatches,
    throttle: Callable[[int], None],
) -> bool:
    """Returns False if the map is full."""
    with SegmentReader(job.directory, segment, job.io_buffer_bytes) as reader:
        for chunk in reader:
            throttle(len(chunk))
            try:
                used = _take_in_chunk(chunk, found, aborted)
            except IndexError as error:
                raise CorruptRecordError(f"{reader.path}: a record is cut off") from error
            if used < 0:
                return False
            reader.consumed(used)
    return True


def _take_in_chunk(chunk: bytes, found: OffsetMap, aborted: AbortedBatches) -> int:
    """Returns the size of the whole batches in the chunk, -1 if the map is full.

    A batch with one plain record is parsed here, because such batches dominate the cost.
    """
    entries, start, limit = found.entries, found.first_offset, found.max_entries
    unpack = _HEADER.unpack_from
    at, last_start, end, latest = 0, len(chunk) - BATCH_HEADER_BYTES, len(chunk), found.latest_offset
    while at <= last_start:
        base_offset, length, magic, attributes, delta, producer_id, count = unpack(chunk, at)
        stop = at + length + LOG_OVERHEAD_BYTES
        if stop > end or magic != 2 or length < 49:
            break  # the reader reports what is wrong with it
        if count == 1 and not delta and not attributes & _SPECIAL:
            if base_offset >= start:
                if len(entries) >= limit:
                    found.latest_offset = latest
                    return -1
                _, _, _, _, place, size = read_head(chunk, at + BATCH_HEADER_BYTES)
                if size >= 0:
                    key = chunk[place : place + size]
                    entries[key if size <= MAX_RAW_KEY_BYTES else short_key(key)] = base_offset
                latest = base_offset
        else:
            last_offset = base_offset + delta
            if not attributes & CONTROL_BIT and not (
                attributes & TRANSACTIONAL_BIT and aborted.transaction_at(producer_id, base_offset)
            ):
                codec = attributes & COMPRESSION_MASK
                if codec:
                    body = bytes(decompress(codec, chunk[at + BATCH_HEADER_BYTES : stop]))
                    is_taken = _take_in_records(body, 0, count, base_offset, found)
                else:
                    is_taken = _take_in_records(chunk, at + BATCH_HEADER_BYTES, count, base_offset, found)
                if not is_taken:
                    found.latest_offset = latest
                    return -1
            if last_offset >= start:
                latest = last_offset
        at = stop
    found.latest_offset = latest
    return at


def _take_in_records(body: bytes, place: int, count: int, base_offset: int, found: OffsetMap) -> bool:
    """Returns False if the map is full. Records are counted only near its limit."""
    entries, start = found.entries, found.first_offset
    room = found.max_entries - len(entries)
    counts = count > room
    for _ in range(count):
        place, _, _, delta, key_place, size = read_head(body, place)
        offset = base_offset + delta
        if size < 0 or offset < start:
            continue
        key = body[key_place : key_place + size]
        if size > MAX_RAW_KEY_BYTES:
            key = short_key(key)
        if counts:
            if room <= 0:
                return False
            room -= key not in entries
        entries[key] = offset
    return True
