"""`tidelog dump-log`: prints the files of a data directory as text (kafka-dump-log).

The command only reads, so brokers may be running.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import click

from tidelog.broker.log.checkpoint_file import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from tidelog.broker.log.meta_properties import META_PROPERTIES_FILE
from tidelog.broker.log.partition_directory import LEADER_EPOCHS_FILE, PARTITION_METADATA_FILE
from tidelog.broker.log.previous_life import CLEAN_SHUTDOWN_FILE
from tidelog.broker.log.stranded import STRANDED_SUFFIX
from tidelog.broker.partition.leader_epochs import CorruptLeaderEpochsError, LeaderEpochs
from tidelog.broker.partition.producer_snapshot import CorruptSnapshotError, decode_snapshot
from tidelog.cli.dump_index import aborted_index_lines, offset_index_lines, time_index_lines
from tidelog.cli.dump_line import DumpLine
from tidelog.cli.dump_segment import Findings, SegmentView, segment_lines
from tidelog.cli.output import OutputFormat, note
from tidelog.cli.tool_command import ToolCommand, ToolError

_SUFFIXES: Final = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
_TEXT_FILES: Final = (
    META_PROPERTIES_FILE,
    CLEAN_SHUTDOWN_FILE,
    RECOVERY_POINT_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    PARTITION_METADATA_FILE,
)


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
    match path.suffix:
        case ".log" | ".stranded":
            return segment_lines(path, view, findings)
        case ".index":
            return offset_index_lines(path, verify_only, findings)
        case ".timeindex":
            return time_index_lines(path, verify_only, findings)
        case ".txnindex":
            return aborted_index_lines(path, findings)
        case ".snapshot":
            return _snapshot_lines(path, findings)
    if path.name == LEADER_EPOCHS_FILE:
        return _leader_epoch_lines(path, findings)
    lines = path.read_text("utf-8", errors="backslashreplace").splitlines()
    return (DumpLine("text", {}, text=line) for line in lines)


def _snapshot_lines(path: Path, findings: Findings) -> Iterator[DumpLine]:
    try:
        entries = decode_snapshot(path.read_bytes())
    except CorruptSnapshotError as error:
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
    except CorruptLeaderEpochsError as error:
        yield findings.add(path, str(error))
        return
    for epoch, start_offset in epochs:
        yield DumpLine("leader_epoch", {"leaderEpoch": epoch, "startOffset": start_offset})
