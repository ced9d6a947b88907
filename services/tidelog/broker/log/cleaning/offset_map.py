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
from tidelog.records.varint import continue_varint

MAP_ENTRY_BYTES: Final = 144
"""The memory for a key: 64 bytes for the key or its hash, 32 for the offset, 30 to 60 in the dict."""
MAX_RAW_KEY_BYTES: Final = 30
_HASH_PADDING: Final = bytes(MAX_RAW_KEY_BYTES + 1 - md5(usedforsecurity=False).digest_size)
_FLAGS_SHARE: Final = 8
_SPECIAL: Final = COMPRESSION_MASK | TRANSACTIONAL_BIT | CONTROL_BIT

# base offset, batch length, magic, attributes, last offset delta, producer id, record count
_HEADER: Final = struct.Struct(">qi4xb4xhi16xq6xi")

SHORT_BATCH_LENGTH: Final = BATCH_HEADER_BYTES - LOG_OVERHEAD_BYTES + 1 + 64
LONG_BATCH_LENGTH: Final = BATCH_HEADER_BYTES - LOG_OVERHEAD_BYTES + 2 + 8191
"""The length of the only record of a batch has two bytes in batches from the first size to the second."""
ZEROS: Final = bytes(3)


def key_place(chunk: bytes, at: int) -> int:
    """Returns the position of the key length of the first record in the batch at `at`."""
    place = at + BATCH_HEADER_BYTES
    for skipped in (1, 0, 0):  # length and attributes, timestamp delta, offset delta
        while chunk[place] > 127:
            place += 1
        place += 1 + skipped
    return place


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
                # Usually the key follows the length and three zeros: attributes, timestamp delta, offset
                # delta.
                place = at + BATCH_HEADER_BYTES + (4 if length < SHORT_BATCH_LENGTH else 5)
                if length > LONG_BATCH_LENGTH or chunk[place - 4] > 127 or chunk[place - 3 : place] != ZEROS:
                    place = key_place(chunk, at)
                size = chunk[place]
                place += 1
                if size > 127:
                    size, place = continue_varint(chunk, place, size)
                if not size & 1:
                    size >>= 1
                    if size > MAX_RAW_KEY_BYTES:
                        entries[short_key(chunk[place : place + size])] = base_offset
                    else:
                        entries[chunk[place : place + size]] = base_offset
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
    """Returns False if the map is full."""
    entries, start = found.entries, found.first_offset
    if len(entries) + count > found.max_entries:
        return _take_in_some(body, place, count, base_offset, found)
    for _ in range(count):
        size = body[place]
        place += 1
        if size > 127:
            byte = body[place]
            if byte > 127:
                size, place = continue_varint(body, place, size)
            else:
                size += (byte << 7) - 128
                place += 1
        next_place = place + (size >> 1)
        place += 1  # attributes
        while body[place] > 127:  # the timestamp delta
            place += 1
        place += 1
        delta = body[place]
        place += 1
        if delta > 127:
            byte = body[place]
            if byte > 127:
                delta, place = continue_varint(body, place, delta)
            else:
                delta += (byte << 7) - 128
                place += 1
        size = body[place]
        place += 1
        if size > 127:
            size, place = continue_varint(body, place, size)
        if not size & 1:
            offset = base_offset + (delta >> 1)
            if offset >= start:
                size >>= 1
                if size > MAX_RAW_KEY_BYTES:
                    entries[short_key(body[place : place + size])] = offset
                else:
                    entries[body[place : place + size]] = offset
        place = next_place
    return True


def _take_in_some(body: bytes, place: int, count: int, base_offset: int, found: OffsetMap) -> bool:
    """Does the same near the limit of the map, and counts each record. Returns False if the map is full."""
    room = found.max_entries - len(found.entries)
    single = OffsetMap(found.first_offset, 2)
    for _ in range(count):
        size, behind = body[place], place + 1
        if size > 127:
            size, behind = continue_varint(body, behind, size)
        single.entries.clear()
        _take_in_records(body, place, 1, base_offset, single)
        for key, offset in single.entries.items():
            if room <= 0:
                return False
            room -= key not in found.entries
            found.entries[key] = offset
        place = behind + (size >> 1)
    return True
