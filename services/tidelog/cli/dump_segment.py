"""Prints a segment file as text, one line for each batch and record, and checks every batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from tidelog.cli.dump_line import OMITTED_HEADERS, DumpLine
from tidelog.records.batch import (
    BATCH_HEADER_BYTES,
    CURRENT_MAGIC,
    DELETE_HORIZON_BIT,
    LOG_OVERHEAD_BYTES,
    NO_PRODUCER_ID,
    BatchHeader,
    crc_matches,
    parse_header,
)
from tidelog.records.compression import Compression
from tidelog.records.record import end_transaction_marker, iterate_records

MAX_PRINTED_HEADERS: Final = 1_000
"""The number of header keys of a record that are printed."""


@dataclass(slots=True)
class Findings:
    """The problems of the files printed so far, one sentence each."""

    problems: list[str] = field(default_factory=list)

    def add(self, path: Path, sentence: str) -> DumpLine:
        """Adds a problem and returns its line."""
        problem = f"{path}: {sentence}"
        self.problems.append(problem)
        return DumpLine("problem", {}, "PROBLEM ", sentence)


@dataclass(frozen=True, slots=True)
class SegmentView:
    """The parts of a segment to print.

    `prints_records` adds a line for each record; `prints_data` adds keys, values and headers.
    """

    prints_records: bool = False
    prints_data: bool = False
    max_bytes: int | None = None


def batches_of(file: BinaryIO, size_bytes: int) -> Iterator[tuple[int, BatchHeader, bytes]]:
    """Returns (position, header, bytes) of each complete batch. Raises ValueError for an incomplete batch."""
    position = 0
    while size_bytes - position >= BATCH_HEADER_BYTES:
        file.seek(position)
        head = file.read(BATCH_HEADER_BYTES)
        header = parse_header(head)
        if header.batch_length < BATCH_HEADER_BYTES - LOG_OVERHEAD_BYTES:
            raise ValueError(f"position {position}: the batch length {header.batch_length} is invalid")
        if header.size_bytes > size_bytes - position:
            break
        yield position, header, head + file.read(header.size_bytes - BATCH_HEADER_BYTES)
        position += header.size_bytes
    if position < size_bytes:
        raise ValueError(
            f"position {position}: the last {size_bytes - position} bytes are an incomplete batch"
        )


def segment_lines(path: Path, view: SegmentView, findings: Findings) -> Iterator[DumpLine]:
    """Returns the lines of a segment. Raises OSError."""
    stem = path.name.partition(".")[0]
    base_offset = int(stem) if stem.isdecimal() else 0
    yield DumpLine("segment", {"Log starting offset": base_offset})
    next_offset = base_offset
    size_bytes = path.stat().st_size
    if view.max_bytes is not None:
        size_bytes = min(size_bytes, view.max_bytes)
    with path.open("rb") as file:
        try:
            for position, header, batch in batches_of(file, size_bytes):
                is_valid = header.magic == CURRENT_MAGIC and crc_matches(header, batch)
                yield batch_line(position, header, is_valid)
                if header.magic != CURRENT_MAGIC:
                    yield findings.add(path, f"position {position}: unknown batch format {header.magic}")
                    continue
                if not is_valid:
                    yield findings.add(path, f"position {position}: the batch has a wrong CRC")
                    continue
                if header.base_offset < next_offset:
                    yield findings.add(
                        path, f"position {position}: offset {header.base_offset} follows {next_offset - 1}"
                    )
                next_offset = header.last_offset + 1
                if view.prints_records:
                    yield from _record_lines(batch, header, view)
        except ValueError as error:
            if view.max_bytes is None:
                yield findings.add(path, str(error))


def batch_line(position: int, header: BatchHeader, is_valid: bool) -> DumpLine:
    """Returns the header's fields under the names that Kafka's tool uses."""
    has_producer = header.producer_id != NO_PRODUCER_ID
    codec = header.compression
    names = [entry.name.lower() for entry in Compression]
    has_horizon = header.attributes & DELETE_HORIZON_BIT
    return DumpLine(
        "batch",
        {
            "baseOffset": header.base_offset,
            "lastOffset": header.last_offset,
            "count": header.record_count,
            "baseSequence": header.base_sequence,
            "lastSequence": header.last_sequence if has_producer else -1,
            "producerId": header.producer_id,
            "producerEpoch": header.producer_epoch,
            "partitionLeaderEpoch": header.partition_leader_epoch,
            "isTransactional": bool(header.is_transactional),
            "isControl": bool(header.is_control),
            **({"deleteHorizonMs": header.base_timestamp} if has_horizon else {}),
            "position": position,
            _time_type(header): header.max_timestamp,
            "size": header.size_bytes,
            "magic": header.magic,
            "compresscodec": names[codec] if codec < len(names) else codec,
            "crc": header.crc,
            "isvalid": is_valid,
        },
    )


def _record_lines(batch: bytes, header: BatchHeader, view: SegmentView) -> Iterator[DumpLine]:
    """Returns the lines of a batch's records. Raises ValueError if the records contradict the header."""
    for number, record in enumerate(iterate_records(batch, max_headers=MAX_PRINTED_HEADERS)):
        fields: dict[str, object] = {
            "offset": record.offset,
            _time_type(header): record.timestamp,
            "keySize": _size(record.key),
            "valueSize": _size(record.value),
            "sequence": header.base_sequence + number if header.producer_id != NO_PRODUCER_ID else -1,
            "headerKeys": [name for name, _ in record.headers],
        }
        if record.omitted_headers:
            fields[OMITTED_HEADERS] = record.omitted_headers
        if header.is_control:
            marker = end_transaction_marker(batch)
            if marker is not None:
                fields["endTxnMarker"] = "COMMIT" if marker.is_commit else "ABORT"
                fields["coordinatorEpoch"] = marker.coordinator_epoch
        elif view.prints_data:
            if record.key is not None:
                fields["key"] = record.key.decode(errors="backslashreplace")
            if record.value is not None:
                fields["payload"] = record.value.decode(errors="backslashreplace")
        yield DumpLine("record", fields, "| ")


def _time_type(header: BatchHeader) -> str:
    return "LogAppendTime" if header.is_log_append_time else "CreateTime"


def _size(content: bytes | None) -> int:
    return -1 if content is None else len(content)
