"""Prints index files as text and checks each entry against its segment."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tidelog.cli.dump_line import DumpLine
from tidelog.cli.dump_segment import Findings, batches_of

_OFFSET_ENTRY: Final = struct.Struct(">ii")
_TIME_ENTRY: Final = struct.Struct(">qi")
_ABORTED_ENTRY: Final = struct.Struct(">hqqqq")


class _Batches(NamedTuple):
    """The batches of one segment, in order."""

    positions: list[int]
    last_offsets: list[int]
    max_timestamps: list[int]


def _batches_beside(path: Path, findings: Findings) -> _Batches | None:
    """Returns the segment's batches, up to the first damage, or None if the segment does not exist."""
    found = _Batches([], [], [])
    segment = path.with_suffix(".log")
    if not segment.exists():
        findings.add(path, f"{segment.name} does not exist, so the entries can't be checked")
        return None
    with segment.open("rb") as file:
        try:
            for position, header, _ in batches_of(file, segment.stat().st_size):
                found.positions.append(position)
                found.last_offsets.append(header.last_offset)
                found.max_timestamps.append(header.max_timestamp)
        except ValueError:
            pass  # the dump of the segment reports the damage
    return found


def _entries(path: Path, entry: struct.Struct, findings: Findings) -> list[tuple[int, ...]]:
    content = path.read_bytes()
    if len(content) % entry.size:
        findings.add(path, f"the size of {len(content)} bytes is not a multiple of {entry.size}-byte entries")
    whole = len(content) - len(content) % entry.size
    rows = list(entry.iter_unpack(memoryview(content)[:whole]))
    # Apache Kafka preallocates the index of the active segment, so zeros follow the last entry.
    while rows and not any(rows[-1]):
        rows.pop()
    return rows


def offset_index_lines(path: Path, verify_only: bool, findings: Findings) -> Iterator[DumpLine]:
    """Returns `offset: position:` lines. An entry names the last offset of a batch. Raises OSError."""
    base_offset = int(path.stem)
    batches = _batches_beside(path, findings)
    at_position = {} if batches is None else dict(zip(batches.positions, batches.last_offsets, strict=True))
    before = -1
    for relative_offset, position in _entries(path, _OFFSET_ENTRY, findings):
        offset = base_offset + relative_offset
        if not verify_only:
            yield DumpLine("index_entry", {"offset": offset, "position": position})
        if offset <= before:
            yield findings.add(path, f"offset {offset} is not greater than {before}")
        before = offset
        if batches is not None and at_position.get(position) != offset:
            held = at_position.get(position)
            what = "no batch begins there" if held is None else f"the batch there ends at offset {held}"
            yield findings.add(path, f"offset {offset} at position {position}: {what}")


def time_index_lines(path: Path, verify_only: bool, findings: Findings) -> Iterator[DumpLine]:
    """Returns `timestamp: offset:` lines.

    The timestamps must rise, and the timestamp must be the maximum of the batch that holds the offset. Raises
    OSError.
    """
    base_offset = int(path.stem)
    batches = _batches_beside(path, findings)
    before = -1
    for timestamp, relative_offset in _entries(path, _TIME_ENTRY, findings):
        offset = base_offset + relative_offset
        if not verify_only:
            yield DumpLine("time_index_entry", {"timestamp": timestamp, "offset": offset})
        if timestamp < before:
            yield findings.add(path, f"timestamp {timestamp} is lower than the previous one, {before}")
        before = timestamp
        if batches is None:
            continue
        slot = bisect_left(batches.last_offsets, offset)
        if slot == len(batches.last_offsets):
            yield findings.add(path, f"offset {offset} is beyond the segment's end")
        elif batches.max_timestamps[slot] != timestamp:
            found = batches.max_timestamps[slot]
            yield findings.add(path, f"timestamp {timestamp} at offset {offset}: the batch has {found}")


def aborted_index_lines(path: Path, findings: Findings) -> Iterator[DumpLine]:
    """Returns one line for each aborted transaction. Raises OSError."""
    for version, producer_id, first, last, last_stable in _entries(path, _ABORTED_ENTRY, findings):
        yield DumpLine(
            "aborted_transaction",
            {
                "version": version,
                "producerId": producer_id,
                "firstOffset": first,
                "lastOffset": last,
                "lastStableOffset": last_stable,
            },
        )
