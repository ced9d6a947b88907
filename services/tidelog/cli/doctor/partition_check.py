"""Checks the directory of one partition: every batch, every index entry, epochs, snapshots and transactions.

Segments are read once from their beginning to their end. The memory in use does not depend on their size:
CRCs are computed over mapped files, and index entries are compared with batches while both are read.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from tidelog.broker.log.directory_files import PartitionDirectory, describe_missing
from tidelog.broker.log.segment import MAX_RELATIVE_OFFSET
from tidelog.broker.log.segment_indexes import aborted_transaction
from tidelog.broker.partition.producer_state import ProducerState
from tidelog.cli.doctor.facts import Finding, State
from tidelog.kernel.instants import WallMs
from tidelog.log_format.batches import TornLogError, scan_headers
from tidelog.log_format.directory import (
    CLEANED_SUFFIX,
    LEADER_EPOCHS_FILE,
    LOG_START_OFFSET_CHECKPOINT,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SEGMENTS_CHECKPOINT_FILE,
    SNAPSHOT_SUFFIX,
    STRANDED_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    CorruptFileError,
    decode_base_offsets,
    file_name,
)
from tidelog.log_format.entries import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    decode_aborted_transactions,
    decode_snapshot,
)
from tidelog.log_format.leader_epochs import LeaderEpochs
from tidelog.records.aborted import AbortedTransaction
from tidelog.records.batch import (
    BATCH_HEADER_BYTES,
    NO_PRODUCER_ID,
    BatchHeader,
    crc_matches,
    known_max_timestamp,
    parse_header,
)
from tidelog.records.record import end_transaction_marker

REPAIR_STEP: Final = "--repair repairs it, and first copies the files that it changes"
STRANDED: Final = "stranded records"
STRANDED_STEP: Final = "read it with 'tidelog dump-log FILE', and delete it if its records are not missed"
START_STEP: Final = "the broker repairs it at its next start"
_ENTRIES_A_READ: Final = 4096
_NO_TIME: Final = WallMs(0)  # the expiry of producers does not matter for one reading
Tell = Callable[[int], None]
"""Takes the number of bytes that were read since the last call."""


class Place(NamedTuple):
    """A batch of a log, by its segment and its position in the file."""

    base_offset: int
    position: int


@dataclass(slots=True)
class PartitionReport:
    """The faults in the directory of one partition, as `repair_partition` needs it.

    `cut` is the first batch that is not sound, None if all are. `wrong_epochs` are the batches whose leader
    epoch contradicts the checkpoint, with the right one; `has_bad_epochs` says that the checkpoint itself is
    wrong. `bad_indexes` and `bad_snapshots` are base offsets and offsets.
    """

    path: Path
    findings: list[Finding] = field(default_factory=list)
    cut: Place | None = None
    bad_indexes: set[int] = field(default_factory=set)
    bad_snapshots: list[int] = field(default_factory=list)
    wrong_epochs: list[tuple[Place, int]] = field(default_factory=list)
    has_bad_epochs: bool = False
    has_bad_list: bool = False
    has_lost_end: bool = False
    """Whether the log ends below a checkpoint, so that records at its end are missing."""
    log_start_offset: int = 0
    log_end_offset: int = 0
    segment_count: int = 0
    is_swapping: bool = False

    @property
    def needs_repair(self) -> bool:
        return bool(
            self.cut
            or self.bad_indexes
            or self.bad_snapshots
            or self.wrong_epochs
            or self.has_bad_epochs
            or self.has_bad_list
        )

    def add(self, check: str, state: State, name: str, text: str, step: str = REPAIR_STEP) -> None:
        self.findings.append(Finding(check, state, f"{self.path.name}/{name}: {text}", step))


class Expected(NamedTuple):
    """The statements of the checkpoints about a log; None if they do not name it."""

    is_clean: bool
    recovery_point: int | None = None
    high_watermark: int | None = None
    log_start_offset: int | None = None


def check_partition(path: Path, expected: Expected, tell: Tell) -> PartitionReport:
    """Checks the directory of one partition. Raises OSError."""
    report = PartitionReport(path)
    directory = PartitionDirectory(str(path))
    bases = directory.offsets_of(LOG_SUFFIX)
    report.segment_count = len(bases)
    report.log_start_offset = report.log_end_offset = bases[0] if bases else 0
    report.is_swapping = any(p.name.endswith((SWAP_SUFFIX, CLEANED_SUFFIX)) for p in path.iterdir())
    _check_list(report, directory, bases, expected)
    report.findings += stranded_findings(path, path.name)
    snapshot = _check_snapshots(report, directory, bases[0] if bases else 0)
    epochs = _read_epochs(report)
    reader = _LogReader(report, expected, epochs, tell)
    if snapshot is not None:
        reader.producers.load(snapshot, bases[0], _NO_TIME)
    reader.knows_producers = snapshot is not None or not bases or bases[0] == 0
    for number, base_offset in enumerate(bases):
        following = bases[number + 1] if number + 1 < len(bases) else None
        reader.read_segment(directory, base_offset, following)
    reader.finish()
    return report


def _check_list(
    report: PartitionReport, directory: PartitionDirectory, bases: Sequence[int], expected: Expected
) -> None:
    """Checks the list of segments (ADR 0034): a segment that it names must exist."""
    try:
        listed = decode_base_offsets(directory.named(SEGMENTS_CHECKPOINT_FILE).read_bytes())
    except FileNotFoundError:
        return
    except ValueError as error:
        report.has_bad_list = True
        report.add("segments", State.WARN, SEGMENTS_CHECKPOINT_FILE, str(error), START_STEP)
        return
    missing = sorted(set(listed).difference(bases))
    if missing:
        report.has_bad_list = True
        is_open = not expected.is_clean and missing[0] >= (expected.recovery_point or 0)
        state = State.WARN if is_open else State.FAIL
        step = "restore the files; --repair accepts the loss, and keeps a copy of the list"
        report.add(
            "segments", state, SEGMENTS_CHECKPOINT_FILE, describe_missing(missing, bases, directory), step
        )


def stranded_findings(partition: Path, name: str) -> list[Finding]:
    """Returns the files with what recovery took out of a log (ADR 0069). No program reads or removes them.

    `name` is that of the partition in the findings. Raises OSError.
    """
    found = []
    for file in sorted(partition.glob(f"*{STRANDED_SUFFIX}")):
        text = f"recovery took these {file.stat().st_size} bytes out of the log and kept them"
        found.append(Finding(STRANDED, State.WARN, f"{name}/{file.name}: {text}", STRANDED_STEP))
    return found


def _check_snapshots(report: PartitionReport, directory: PartitionDirectory, first: int) -> bytes | None:
    """Checks the snapshots of producers. Returns the one at the first segment, None without it."""
    found = None
    for offset in directory.offsets_of(SNAPSHOT_SUFFIX):
        name = Path(directory.file(offset, SNAPSHOT_SUFFIX)).name
        content = directory.named(name).read_bytes()
        try:
            decode_snapshot(content)
        except CorruptFileError as error:
            report.bad_snapshots.append(offset)
            report.add("producer snapshots", State.WARN, name, str(error))
        else:
            found = content if offset == first else found
    return found


def _read_epochs(report: PartitionReport) -> LeaderEpochs | None:
    try:
        return LeaderEpochs.decode((report.path / LEADER_EPOCHS_FILE).read_bytes())
    except FileNotFoundError:
        return None
    except CorruptFileError as error:
        report.has_bad_epochs = True
        report.add("leader epochs", State.FAIL, LEADER_EPOCHS_FILE, str(error))
        return None


class _LogReader:
    """Reads the segments of one log in order, and compares their batches with all other files."""

    def __init__(
        self, report: PartitionReport, expected: Expected, epochs: LeaderEpochs | None, tell: Tell
    ) -> None:
        self.producers = ProducerState()
        self.knows_producers = True
        self._report = report
        self._expected = expected
        self._epochs = epochs
        self._tell = tell
        self._has_gaps = False
        self._gap_before_last = False
        self._last: tuple[Place, BatchHeader] | None = None
        self._batches = 0
        self._wrong_epochs = 0
        self._wrong_epoch = -1
        self._split_batch: int | None = None
        self._max_epoch = -1
        self._has_falling_epochs = False

    def read_segment(self, directory: PartitionDirectory, base_offset: int, following: int | None) -> None:
        path = Path(directory.file(base_offset, LOG_SUFFIX))
        size = path.stat().st_size
        offset_index = _OffsetIndexCheck(self._report, directory, base_offset)
        time_index = _TimeIndexCheck(self._report, directory, base_offset)
        aborted: list[AbortedTransaction] = []
        is_sound = True
        if size:
            with (
                path.open("rb") as file,
                mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as mapped,
                memoryview(mapped) as content,
            ):
                try:
                    for position, header, _ in scan_headers(
                        partial(os.pread, file.fileno()), 0, size, min_offset=base_offset
                    ):
                        self._tell(header.size_bytes)
                        place = Place(base_offset, position)
                        problem = self._problem(header, content, place, following)
                        if problem:
                            is_sound = False
                            self._fault(place, problem)
                            continue
                        offset_index.take(position, header)
                        time_index.take(header)
                        if is_sound:
                            self._take(place, header, content, aborted)
                except TornLogError as error:
                    is_sound = False
                    self._torn(base_offset, content, error, following)
        if is_sound:
            offset_index.finish()
            time_index.finish()
            self._check_transactions(directory, base_offset, aborted)
        else:
            self.knows_producers = False

    def _problem(
        self, header: BatchHeader, content: memoryview, place: Place, following: int | None
    ) -> str | None:
        if not crc_matches(header, content, place.position):
            return "the batch has a wrong CRC"
        if header.last_offset - place.base_offset > MAX_RELATIVE_OFFSET:
            return f"offset {header.last_offset} is too far from the segment's first"
        if following is not None and header.last_offset >= following:
            return f"offset {header.last_offset} is not below the next segment's first offset {following}"
        return None

    def _take(
        self, place: Place, header: BatchHeader, content: memoryview, aborted: list[AbortedTransaction]
    ) -> None:
        """Notes a sound batch."""
        if self._report.cut is not None:
            return
        end = self._report.log_end_offset
        self._gap_before_last = header.base_offset > end
        self._has_gaps |= self._gap_before_last
        self._report.log_end_offset = header.last_offset + 1
        self._last = (place, header)
        self._batches += 1
        self._check_epoch(place, header)
        if header.producer_id != NO_PRODUCER_ID:
            marker = None
            if header.is_control:
                batch = bytes(content[place.position : place.position + header.size_bytes])
                try:
                    marker = end_transaction_marker(batch)
                except ValueError as error:
                    self._fault(place, f"the marker cannot be read: {error}")
                    return
            completed = self.producers.update(header, _NO_TIME, marker)
            if completed is not None and completed.is_aborted:
                aborted.append(aborted_transaction(completed))

    def _torn(
        self, base_offset: int, content: memoryview, error: TornLogError, following: int | None
    ) -> None:
        """Finds the batch at fault: an offset that is too low can mean that the batch before is too high."""
        place = Place(base_offset, error.position)
        is_whole = len(content) - error.position >= BATCH_HEADER_BYTES
        if self._gap_before_last and self._last is not None and is_whole and self._report.cut is None:
            last, header = self._last
            next_header = parse_header(content, error.position)
            if last.base_offset == base_offset and next_header.base_offset <= header.last_offset:
                self._report.log_end_offset = self._end_before(last, header)
                self._fault(last, f"its offset {header.base_offset} is too high for the next batch")
                return
        is_open = not self._expected.is_clean and following is None and error.is_cut_off
        self._fault(place, error.reason, is_unfinished=is_open)

    def _end_before(self, place: Place, header: BatchHeader) -> int:
        """Returns the log end without the last batch, whose offsets are too high by an unknown number."""
        expected = self._expected.recovery_point
        count = header.last_offset - header.base_offset + 1
        return place.base_offset if expected is None else max(place.base_offset, expected - count)

    def _fault(self, place: Place, reason: str, *, is_unfinished: bool = False) -> None:
        report = self._report
        name = file_name(place.base_offset, LOG_SUFFIX)
        if report.cut is None:
            report.cut = place
        text = f"position {place.position}: {reason}"
        if is_unfinished:
            report.add("batches", State.WARN, name, f"{text}; it was being written", START_STEP)
        else:
            step = "let the broker fetch the log again from its leader, or cut the log there with --repair"
            report.add("batches", State.FAIL, name, text, step)

    def _check_epoch(self, place: Place, header: BatchHeader) -> None:
        epoch = header.partition_leader_epoch
        self._has_falling_epochs |= epoch < self._max_epoch
        self._max_epoch = max(self._max_epoch, epoch)
        if self._epochs is None:
            return
        latest = self._epochs.latest
        if (
            not self._expected.is_clean
            and header.base_offset >= (self._expected.recovery_point or 0)
            and (latest is None or epoch > latest.epoch)
        ):
            return  # the checkpoint had not reached the disk: recovery takes the epoch from the batch
        # Batches below the log start have no epochs any more.
        earliest = self._epochs.earliest
        start = self._expected.log_start_offset
        if start is None:
            start = 0 if earliest is None else earliest.start_offset
        if header.last_offset < start:
            return
        right = self._epochs.epoch_for_offset(max(start, header.base_offset))
        if right != self._epochs.epoch_for_offset(header.last_offset):
            self._split_batch = header.base_offset
        if right != epoch:
            self._wrong_epochs += 1
            if self._wrong_epochs == 1:
                self._report.wrong_epochs = [(place, right)]
                self._wrong_epoch = epoch

    def _judge_epochs(self) -> None:
        """Decides whether a batch or the checkpoint is wrong, and adds a finding."""
        report = self._report
        if self._epochs is None:
            if not report.has_bad_epochs and self._batches and self._max_epoch >= 0:
                report.has_bad_epochs = True
                report.add(
                    "leader epochs", State.WARN, LEADER_EPOCHS_FILE, "the file does not exist", START_STEP
                )
            if self._has_falling_epochs:
                report.add("leader epochs", State.FAIL, "", "the leader epochs of the batches fall")
            return
        if self._is_one_batch_wrong(self._epochs):
            place, right = report.wrong_epochs[0]
            name = file_name(place.base_offset, LOG_SUFFIX)
            text = (
                f"position {place.position}: the leader epoch is not {right}, as {LEADER_EPOCHS_FILE} states"
            )
            report.add("leader epochs", State.FAIL, name, text)
            return
        latest, earliest = self._epochs.latest, self._epochs.earliest
        problem = ""
        if self._split_batch is not None:
            problem = f"an epoch begins within the batch at offset {self._split_batch}"
        elif self._wrong_epochs:
            problem = f"{self._wrong_epochs} of {self._batches} batches have another epoch"
        elif latest is not None and latest.start_offset > report.log_end_offset and report.cut is None:
            problem = f"epoch {latest.epoch} begins at {latest.start_offset}, above the log end"
        elif earliest is not None and earliest.start_offset < report.log_start_offset:
            problem = f"epoch {earliest.epoch} begins at {earliest.start_offset}, below the first segment"
        report.wrong_epochs = []
        start = self._expected.log_start_offset or 0
        if not problem and self._expected.is_clean and earliest is not None and earliest.start_offset < start:
            text = f"epoch {earliest.epoch} begins at {earliest.start_offset}, but the log starts at {start}"
            step = f"compare {LOG_START_OFFSET_CHECKPOINT} with another replica's"
            report.add("leader epochs", State.WARN, LEADER_EPOCHS_FILE, text, step)
        if problem:
            report.has_bad_epochs = True
            report.add("leader epochs", State.FAIL, LEADER_EPOCHS_FILE, problem)

    def _is_one_batch_wrong(self, epochs: LeaderEpochs) -> bool:
        """Returns whether a single batch differs from the checkpoint because its own epoch is wrong.

        An epoch that is out of order, or that the checkpoint does not name, is wrong. If the epoch is that of
        a neighbour, the checkpoint places the beginning of an epoch wrongly.
        """
        if self._wrong_epochs != 1 or self._batches == 1 or self._split_batch is not None:
            return False
        ((_, right),) = self._report.wrong_epochs
        is_named = any(entry.epoch == self._wrong_epoch for entry in epochs)
        return right >= 0 and (self._has_falling_epochs or not is_named)

    def _check_transactions(
        self, directory: PartitionDirectory, base_offset: int, aborted: Sequence[AbortedTransaction]
    ) -> None:
        """Compares the index of aborted transactions with those that the batches show.

        Compaction removes batches of transactions, and without a snapshot their beginnings are unknown. Then
        only the form of the index is checked.
        """
        name = file_name(base_offset, TRANSACTION_INDEX_SUFFIX)
        try:
            content = directory.named(name).read_bytes()
        except FileNotFoundError:
            content = b""
        problem = ""
        try:
            found = decode_aborted_transactions(content, base_offset)
        except CorruptFileError as error:
            problem = str(error)
        else:
            is_known = self.knows_producers and not self._has_gaps
            if is_known and found != list(aborted):
                problem = f"it has {len(found)} transactions, but the batches abort {len(aborted)}"
                if len(found) == len(aborted):
                    differing = next(a for a, b in zip(found, aborted, strict=True) if a != b)
                    problem = f"it has {differing}, which contradicts the batches"
        if problem:
            self._report.bad_indexes.add(base_offset)
            self._report.add("transaction indexes", State.FAIL, name, problem)

    def finish(self) -> None:
        report, expected = self._report, self._expected
        point = expected.recovery_point
        is_too_long = point is not None and expected.is_clean and report.log_end_offset > point
        if is_too_long and self._gap_before_last and self._last is not None and report.cut is None:
            place, header = self._last
            report.log_end_offset = self._end_before(place, header)
            self._fault(
                place, f"its offset {header.base_offset} is too high: the log was flushed up to {point}"
            )
        self._judge_epochs()


class _IndexCheck:
    """The common part of both sparse indexes: one pass over the entries, beside that over the batches."""

    entry: struct.Struct
    suffix: str
    check: str

    def __init__(self, report: PartitionReport, directory: PartitionDirectory, base_offset: int) -> None:
        self._report = report
        self._base_offset = base_offset
        self._path = Path(directory.file(base_offset, self.suffix))
        self._is_broken = False
        self._entries = self._read()
        self._next: tuple[int, int] | None = None
        self._before = (-1, -1)
        self._advance()

    def _read(self) -> Generator[tuple[int, int], None, None]:
        """Yields the entries without the zeros that Kafka preallocates in the active segment's index."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            self._break("the file does not exist", State.WARN)
            return
        if size % self.entry.size:
            self._break(f"its {size} bytes are not whole entries of {self.entry.size} bytes")
            return
        slot = zeros = 0
        with self._path.open("rb") as file:
            while content := file.read(self.entry.size * _ENTRIES_A_READ):
                for first, second in self.entry.iter_unpack(content):
                    slot += 1
                    if not first and not second and slot > 1:
                        zeros += 1
                        continue
                    if zeros:
                        self._break("entries of zeros are followed by others")
                        return
                    yield first, second

    def _advance(self) -> None:
        if self._is_broken:
            self._next = None
            return
        if self._next is not None:
            self._before = self._next
        self._next = next(self._entries, None)

    def _break(self, text: str, state: State = State.FAIL) -> None:
        if not self._is_broken:
            self._is_broken = True
            self._report.bad_indexes.add(self._base_offset)
            self._report.add(self.check, state, self._path.name, text)
        self._next = None

    def finish(self) -> None:
        """Ends the comparison: no entry may be left."""
        if self._next is not None:
            self._break(f"the entry {self._next} names no batch of the segment")
        self._entries.close()


class _OffsetIndexCheck(_IndexCheck):
    """Each entry must name the last offset and the position of a batch."""

    entry = OFFSET_ENTRY
    suffix = OFFSET_INDEX_SUFFIX
    check = "offset indexes"

    def take(self, position: int, header: BatchHeader) -> None:
        while self._next is not None and self._next[1] <= position:
            offset = self._base_offset + self._next[0]
            if self._next[1] != position:
                self._break(f"offset {offset} at position {self._next[1]}: no batch begins there")
            elif offset != header.last_offset:
                self._break(f"offset {offset} at position {position}: the batch ends at {header.last_offset}")
            elif self._next[0] <= self._before[0]:
                self._break(f"offset {offset} does not rise")
            self._advance()


class _TimeIndexCheck(_IndexCheck):
    """Each entry must have the greatest timestamp so far and an offset of the batch that has it."""

    entry = TIME_ENTRY
    suffix = TIME_INDEX_SUFFIX
    check = "time indexes"

    def __init__(self, report: PartitionReport, directory: PartitionDirectory, base_offset: int) -> None:
        self._max_timestamp = -1
        super().__init__(report, directory, base_offset)

    def take(self, header: BatchHeader) -> None:
        before = self._max_timestamp
        self._max_timestamp = max(before, known_max_timestamp(header))
        while self._next is not None and self._base_offset + self._next[1] <= header.last_offset:
            timestamp, offset = self._next[0], self._base_offset + self._next[1]
            if offset < header.base_offset or timestamp != header.max_timestamp:
                self._break(f"timestamp {timestamp} at offset {offset}: the batch has {header.max_timestamp}")
            elif timestamp <= before:
                self._break(f"timestamp {timestamp} at offset {offset} is not the greatest so far, {before}")
            self._advance()
