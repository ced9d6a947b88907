"""`tidelog dump-log`: prints the files of a data directory as text (kafka-dump-log).

The command only reads, so brokers may be running.
"""

from __future__ import annotations

import json
import re
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import click

from tidelog.cli.output import OutputFormat, key_of, note
from tidelog.cli.tool_command import ToolCommand, ToolError
from tidelog.log_format.directory import (
    CLEAN_SHUTDOWN_FILE,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCHS_FILE,
    LOG_START_OFFSET_CHECKPOINT,
    LOG_SUFFIX,
    META_PROPERTIES_FILE,
    OFFSET_INDEX_SUFFIX,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_CHECKPOINT,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    STRANDED_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    CorruptFileError,
)
from tidelog.log_format.entries import ABORTED_ENTRY, OFFSET_ENTRY, TIME_ENTRY, decode_snapshot
from tidelog.log_format.leader_epochs import LeaderEpochs
from tidelog.records.batch import (
    BATCH_HEADER_BYTES,
    CURRENT_MAGIC,
    DELETE_HORIZON_BIT,
    MIN_BATCH_LENGTH,
    NO_PRODUCER_ID,
    BatchHeader,
    crc_matches,
    parse_header,
)
from tidelog.records.compression import Compression
from tidelog.records.record import end_transaction_marker, iterate_records

_SUFFIXES: Final = (*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX)
_TEXT_FILES: Final = (
    META_PROPERTIES_FILE,
    CLEAN_SHUTDOWN_FILE,
    RECOVERY_POINT_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    PARTITION_METADATA_FILE,
)
OMITTED_HEADERS: Final = "omittedHeaders"
_WORD_BEGINS: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
MAX_PRINTED_HEADERS: Final = 1_000
"""The number of header keys of a record that are printed."""


@click.command(
    cls=ToolCommand,
    prints_data=False,  # --format json prints lines, not a document
    examples=(
        "tidelog dump-log data/flights-0",
        "tidelog dump-log data/flights-0/00000000000000000000.log --print-data-log",
        "tidelog dump-log data/flights-0 --deep-iteration --format json",
    ),
)
@click.argument("paths", metavar="[FILE|DIRECTORY]...", nargs=-1)
@click.option("--files", metavar="FILE,...", help="Files to print, as in Kafka's tool.")
@click.option("--deep-iteration", is_flag=True, help="Print a line for each record.")
@click.option("--print-data-log", is_flag=True, help="Print the records' keys and values.")
@click.option("--verify-index-only", is_flag=True, help="Check indexes without printing their entries.")
@click.option("--index-sanity-check", is_flag=True, help="Same as --verify-index-only.")
@click.option(
    "--max-bytes", type=click.IntRange(min=1), help="Read only this number of bytes of each segment."
)
@click.option(
    "--format",
    "output_format",
    type=click.Choice([str(each) for each in OutputFormat]),
    default=str(OutputFormat.PLAIN),
    show_default=True,
    help="Format of the lines: those of Kafka's tool (plain, table), or an object in each line (json).",
)
def command(
    paths: tuple[str, ...],
    files: str | None,
    deep_iteration: bool,
    print_data_log: bool,
    verify_index_only: bool,
    index_sanity_check: bool,
    max_bytes: int | None,
    output_format: str,
) -> None:
    """Print segments, indexes, producer snapshots and checkpoints as text.

    A directory includes all its files and partition directories, except what recovery took out of a log
    (*.stranded): name such a file. The exit code is 1 if a file is damaged.
    """
    given = [Path(text) for text in (*paths, *(files.split(",") if files else ()))]
    if not given:
        raise click.UsageError("Give a segment, an index, or the data directory of a partition or broker.")
    view = SegmentView(deep_iteration or print_data_log, print_data_log, max_bytes)
    findings = Findings()
    is_json = output_format == "json"
    for path in _files_of(given):
        if not is_json:
            click.echo(f"Dumping {path}")
        for line in _readable(path, view, verify_index_only or index_sanity_check, findings):
            click.echo(line.as_json(path) if is_json else line)
    if findings.problems:
        raise ToolError(f"found {len(findings.problems)} problems; the first is: {findings.problems[0]}")
    note("No problems found.")


def _files_of(given: Iterable[Path]) -> Iterator[Path]:
    """Returns the files to print. Raises ToolError for a missing file or an unknown file type."""
    for path in given:
        if path.is_dir():
            found = [file for file in sorted(path.rglob("*")) if file.is_file() and is_known(file)]
            if not found:
                raise ToolError(f"{path} contains no segments; give a directory of the broker's log.dirs")
            yield from found
        elif not path.exists():
            raise ToolError(f"{path}: no such file")
        elif not is_known(path) and not _is_stranded(path):
            raise ToolError(f"{path}: unknown file type; expected {', '.join(_SUFFIXES)} or a checkpoint")
        else:
            yield path


def is_known(path: Path) -> bool:
    if path.name in (LEADER_EPOCHS_FILE, *_TEXT_FILES):
        return True
    return path.suffix in _SUFFIXES and path.stem.isdecimal()


def _is_stranded(path: Path) -> bool:
    return path.suffix == STRANDED_SUFFIX and path.name.partition(".")[0].isdecimal()


def _readable(path: Path, view: SegmentView, verify_only: bool, findings: Findings) -> Iterator[DumpLine]:
    """Returns the lines of a file. Raises ToolError if it can't be read.

    An error of the output, such as a pipe whose reader has ended, is not an error of the file.
    """
    try:
        yield from _lines_of(path, view, verify_only, findings)
    except OSError as error:
        raise ToolError(f"{path}: {error.strerror}") from error


def _lines_of(path: Path, view: SegmentView, verify_only: bool, findings: Findings) -> Iterator[DumpLine]:
    if path.suffix in (LOG_SUFFIX, STRANDED_SUFFIX):
        return segment_lines(path, view, findings)
    if path.suffix == OFFSET_INDEX_SUFFIX:
        return offset_index_lines(path, verify_only, findings)
    if path.suffix == TIME_INDEX_SUFFIX:
        return time_index_lines(path, verify_only, findings)
    if path.suffix == TRANSACTION_INDEX_SUFFIX:
        return aborted_index_lines(path, findings)
    if path.suffix == SNAPSHOT_SUFFIX:
        return _snapshot_lines(path, findings)
    if path.name == LEADER_EPOCHS_FILE:
        return _leader_epoch_lines(path, findings)
    lines = path.read_text("utf-8", errors="backslashreplace").splitlines()
    return (DumpLine("text", {}, text=line) for line in lines)


def _snapshot_lines(path: Path, findings: Findings) -> Iterator[DumpLine]:
    try:
        entries = decode_snapshot(path.read_bytes())
    except CorruptFileError as error:
        yield findings.add(path, str(error))
        return
    for entry in entries:
        yield DumpLine(
            "producer",
            {
                "producerId": entry.producer_id,
                "producerEpoch": entry.producer_epoch,
                "lastSequence": entry.last_sequence,
                "lastOffset": entry.last_offset,
                "offsetDelta": entry.offset_delta,
                "timestamp": entry.timestamp,
                "coordinatorEpoch": entry.coordinator_epoch,
                "currentTxnFirstOffset": entry.txn_first_offset,
            },
        )


def _leader_epoch_lines(path: Path, findings: Findings) -> Iterator[DumpLine]:
    try:
        epochs = LeaderEpochs.decode(path.read_bytes())
    except CorruptFileError as error:
        yield findings.add(path, str(error))
        return
    for epoch, start_offset in epochs:
        yield DumpLine("leader_epoch", {"leaderEpoch": epoch, "startOffset": start_offset})


@dataclass(frozen=True, slots=True)
class DumpLine:
    """A line. `kind` says what it describes, and `fields` have the names of Kafka's tool.

    `text` takes the place of the fields in lines that have none.
    """

    kind: str
    fields: Mapping[str, object]
    prefix: str = ""
    text: str | None = None

    def __str__(self) -> str:
        if self.text is not None:
            return self.prefix + self.text
        return self.prefix + " ".join(_field_text(name, value) for name, value in self.fields.items())

    def as_json(self, path: Path) -> str:
        """Returns the line as an object with the file and the fields, whose names are in snake case."""
        found: dict[str, object] = {"file": str(path), "kind": self.kind}
        if self.text is not None:
            found["text"] = self.text
        found |= {key_of(_WORD_BEGINS.sub(" ", name)): value for name, value in self.fields.items()}
        return json.dumps(found, ensure_ascii=False)


def _field_text(name: str, value: object) -> str:
    if name == OMITTED_HEADERS:
        return f"and {value} more headers"
    if isinstance(value, bool):
        value = "true" if value else "false"
    elif isinstance(value, list):
        value = f"[{','.join(value)}]"
    return f"{name}: {value}"


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
        if header.batch_length < MIN_BATCH_LENGTH:
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


class _Batches(NamedTuple):
    """The batches of one segment, in order."""

    positions: list[int]
    last_offsets: list[int]
    max_timestamps: list[int]


def _batches_beside(path: Path, findings: Findings) -> _Batches | None:
    """Returns the segment's batches, up to the first damage, or None if the segment does not exist."""
    found = _Batches([], [], [])
    segment = path.with_suffix(LOG_SUFFIX)
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
    for relative_offset, position in _entries(path, OFFSET_ENTRY, findings):
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
    for timestamp, relative_offset in _entries(path, TIME_ENTRY, findings):
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
    for version, producer_id, first, last, last_stable in _entries(path, ABORTED_ENTRY, findings):
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
