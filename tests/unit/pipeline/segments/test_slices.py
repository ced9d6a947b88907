"""Slices of segment files contain every visible record once, for any bounds, splits and indexes."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.segments.log_files import OffsetsMissingError, PartitionLog, SegmentFile
from tidelog.pipeline.segments.slices import SegmentPlanner, Slice, SliceReader, tasks
from tidelog.pipeline.segments.storage import Storage
from tidelog.records.aborted import AbortedTransaction
from tidelog.records.batch import BATCH_HEADER_BYTES, EndTransactionMarker, assemble_batch, iterate_headers
from tidelog.records.builder import build_batch, build_end_transaction_batch
from tidelog.records.columns.rows import ALL_ROWS, RowBounds
from tidelog.records.record import Record

MS = 1_000
STORAGE = Storage()


class LogFiles:
    """A partition with batches of `per_batch` records, and an index entry for every second batch."""

    def __init__(self, directory: Path, segment_batches: list[int], per_batch: int = 3) -> None:
        self.directory = directory
        self.rows: list[tuple[int, int]] = []  # offset, timestamp
        self.segments: list[SegmentFile] = []
        offset = 100
        for number, count in enumerate(segment_batches):
            base, data, index, time_index = offset, bytearray(), b"", b""
            greatest, greatest_at, is_later = -1, base, False
            for at in range(count):
                # Timestamps are sometimes out of order, like those of clients' clocks.
                records = [
                    Record(offset + n, 5_000 + 10 * offset - 95 * (offset % 3), b"k", bytes(40 * (at % 4)))
                    for n in range(per_batch)
                ]
                self.rows += [(record.offset, record.timestamp) for record in records]
                latest = max(record.timestamp for record in records)
                if latest > greatest:
                    greatest, greatest_at, is_later = latest, records[-1].offset, True
                batch = build_batch(records)
                if at % 2 and data:
                    index += struct.pack(">ii", records[-1].offset - base, len(data))
                    if is_later:
                        time_index += struct.pack(">qi", greatest, greatest_at - base)
                    is_later = False
                data += batch
                offset += per_batch + (at % 5 == 4)  # a hole left by compaction
            is_newest = number == len(segment_batches) - 1
            self._write(f"{base:020}.log", data)
            self._write(f"{base:020}.index", index + bytes(16))  # preallocated as in Kafka
            self._write(f"{base:020}.timeindex", time_index)
            path = str(directory / f"{base:020}")
            self.segments.append(
                SegmentFile(
                    base,
                    None if is_newest else offset,
                    f"{path}.log",
                    len(data),
                    f"{path}.index",
                    f"{path}.timeindex",
                )
            )
        self.end = offset

    def _write(self, name: str, data: bytes) -> None:
        (self.directory / name).write_bytes(data)

    def log(self, **changes: object) -> PartitionLog:
        log = PartitionLog(
            "flights",
            None,
            0,
            str(self.directory),
            100,
            self.end_offset,
            self.end_offset,
            (),
            tuple(self.segments),
        )
        return replace(log, **changes)

    @property
    def end_offset(self) -> int:
        return self.rows[-1][0] + 1


def read(log: PartitionLog, bounds: RowBounds = ALL_ROWS, split_bytes: int = 10**9) -> list[tuple[int, int]]:
    planner = SegmentPlanner(STORAGE, split_bytes)
    return [row for part in planner.slices(log, bounds) for row in read_slice(part, bounds)]


def read_slice(part: Slice, bounds: RowBounds = ALL_ROWS, **options: object) -> list[tuple[int, int]]:
    found = []
    for batch in SliceReader(STORAGE, ("offset", "timestamp"), bounds, **options).read(part):
        times = batch.column("timestamp").cast("int64").to_pylist()
        found += zip(batch.column("offset").to_pylist(), (at // MS for at in times), strict=True)
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.data())
def test_every_row_within_the_bounds_once(tmp_path: Path, choice: st.DataObject) -> None:
    files = LogFiles(tmp_path, choice.draw(st.lists(st.integers(1, 12), min_size=1, max_size=3)))
    offsets = st.integers(90, files.end_offset + 5)
    times = st.none() | st.sampled_from(files.rows).map(
        lambda row: row[1] * MS + choice.draw(st.integers(-1, 1))
    )
    bounds = RowBounds(choice.draw(offsets), choice.draw(offsets), choice.draw(times), choice.draw(times))
    log = files.log(
        log_start_offset=choice.draw(st.integers(100, 110)),
        last_stable_offset=choice.draw(st.integers(100, files.end_offset)),
    )
    first, last = bounds.first_timestamp_us, bounds.last_timestamp_us
    assert read(log, bounds, choice.draw(st.integers(50, 3_000))) == [
        (offset, at)
        for offset, at in files.rows
        if max(bounds.start_offset, log.log_start_offset) <= offset < min(bounds.end_offset, log.end_offset)
        and (first is None or at * MS >= first)
        and (last is None or at * MS <= last)
    ]


def test_the_indexes_save_reading(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, [40, 40, 40])
    planner = SegmentPlanner(STORAGE)
    total = sum(segment.size_bytes for segment in files.segments)

    def planned(**bounds: int) -> int:
        return sum(part.length_bytes for part in planner.slices(files.log(), RowBounds(**bounds)))

    assert planned() == total
    assert planned(start_offset=300, end_offset=310) < 2_000
    assert planned(first_timestamp_us=files.rows[-20][1] * MS) < total / 5
    assert planned(first_timestamp_us=10**12) < 1_500, "no more than each segment's last batches"


@pytest.mark.parametrize("wrong", [-1, 0])
def test_batches_whose_header_states_no_right_time_are_read(tmp_path: Path, wrong: int) -> None:
    files = LogFiles(tmp_path, [6])
    path = Path(files.segments[0].log_path)
    data = b""
    for at, header in iterate_headers(path.read_bytes()):
        body = path.read_bytes()[at + BATCH_HEADER_BYTES : at + header.size_bytes]
        data += assemble_batch(header._replace(max_timestamp=wrong), body)
    path.write_bytes(data)
    path.with_suffix(".timeindex").write_bytes(struct.pack(">qi", 0, 2) if wrong == 0 else b"")
    since = files.rows[4][1]
    bounds = RowBounds(first_timestamp_us=since * MS)
    assert read(files.log(), bounds) == [row for row in files.rows if row[1] >= since]


def test_large_segments_are_split_and_small_ones_share(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, [400, 1, 1, 1])
    large = files.segments[0].size_bytes
    parts = list(SegmentPlanner(STORAGE, large // 4).slices(files.log(), ALL_ROWS))
    assert len(parts) == 4 + 3
    assert max(part.length_bytes for part in parts) < large // 3
    shared = tasks(parts, large // 4)
    assert len(shared) == 5
    assert [part for task in shared for part in task] == parts


def test_without_indexes_all_is_read(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, [20, 20])
    for path in [*tmp_path.glob("*.index"), *tmp_path.glob("*.timeindex")]:
        path.unlink()
    assert read(files.log(), split_bytes=100) == files.rows
    bounds = RowBounds(first_timestamp_us=files.rows[60][1] * MS)
    assert read(files.log(), bounds) == [row for row in files.rows if row[1] >= files.rows[60][1]]


def test_batches_larger_than_a_chunk(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, [9], per_batch=50)
    (part,) = SegmentPlanner(STORAGE).slices(files.log(), ALL_ROWS)
    assert read_slice(part, chunk_bytes=100) == files.rows


@pytest.mark.parametrize("tail", [b"\0" * 500, b"\0" * 20, "cut", b"\x55" * 300])
def test_a_torn_tail_of_the_newest_segment_is_ignored(tmp_path: Path, tail: bytes | str) -> None:
    files = LogFiles(tmp_path, [5, 6])
    path = Path(files.segments[-1].log_path)
    data = path.read_bytes()
    if tail == "cut":
        tail = build_batch([Record(files.end, 7, b"k", bytes(99))])[:-5]
    path.write_bytes(data + tail)
    files.segments[-1] = replace(files.segments[-1], size_bytes=len(data) + len(tail))
    assert read(files.log()) == files.rows


def test_records_that_the_newest_segment_lacks_are_named(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, [5, 6])
    path = Path(files.segments[-1].log_path)
    path.write_bytes(path.read_bytes()[:-5])
    first, end = files.rows[-4][0] + 1, files.end_offset
    with pytest.raises(OffsetsMissingError, match=f"flights-0: offsets {first} to {end - 1} cannot be read"):
        read(files.log())


def test_a_truncated_closed_segment_is_damaged(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, [5, 6])
    path = Path(files.segments[0].log_path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(PipelineError, match=r"is damaged at position .*: the end of the file cuts it off"):
        read(files.log())


def test_a_changed_byte_is_found_by_the_checksum(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, [5])
    path = Path(files.segments[0].log_path)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1  # in the last value
    path.write_bytes(data)
    with pytest.raises(PipelineError, match="its checksum differs"):
        read(files.log())
    (part,) = SegmentPlanner(STORAGE).slices(files.log(), ALL_ROWS)
    assert read_slice(part, check_crcs=False) == files.rows


def test_records_that_do_not_fit_are_named(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, [5])
    path = Path(files.segments[0].log_path)
    data = bytearray(path.read_bytes())
    data[61] = 2  # the first record's length
    path.write_bytes(data)
    (part,) = SegmentPlanner(STORAGE).slices(files.log(), ALL_ROWS)
    with pytest.raises(PipelineError, match="in the batch at offset 100: record 0 of 3 has lengths"):
        read_slice(part, check_crcs=False)


def test_a_segment_deleted_or_replaced_during_the_read(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, [50, 6])
    whole = list(SegmentPlanner(STORAGE).slices(files.log(), ALL_ROWS))
    pieces = list(SegmentPlanner(STORAGE, 500).slices(files.log(), ALL_ROWS))
    first = Path(files.segments[0].log_path)
    kept = bytes(build_batch([Record(120, 9, b"k", b"v")]))
    first.write_bytes(kept)
    assert read_slice(whole[0]) == [(120, 9)]
    with pytest.raises(PipelineError, match="was rewritten during the read"):
        read_slice(pieces[1])
    first.unlink()
    with pytest.raises(OffsetsMissingError, match="was deleted during the read") as caught:
        read_slice(whole[0])
    assert (caught.value.start, caught.value.end) == (100, files.segments[1].base_offset)


def test_aborted_and_control_batches_are_dropped(tmp_path: Path) -> None:
    def batch(offset: int, producer_id: int, is_transactional: bool = True) -> bytes:
        records = [Record(offset, 5, None, b"x"), Record(offset + 1, 5, None, b"y")]
        return bytes(
            build_batch(records, producer_id=producer_id, producer_epoch=0, is_transactional=is_transactional)
        )

    def marker(offset: int, producer_id: int, is_commit: bool) -> bytes:
        end = EndTransactionMarker(is_commit, 0)
        return bytes(
            build_end_transaction_batch(
                end, base_offset=offset, timestamp_ms=5, producer_id=producer_id, producer_epoch=0
            )
        )

    data = b"".join(
        (
            batch(0, 7),
            batch(2, 8),
            marker(4, 7, is_commit=True),
            batch(5, 7),
            batch(7, 7, is_transactional=False),
            marker(9, 8, is_commit=False),
            marker(10, 7, is_commit=False),
            batch(11, 7),
            marker(13, 7, is_commit=True),
        )
    )
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(data)
    log = PartitionLog(
        topic="flights",
        topic_id=None,
        partition=0,
        directory=str(tmp_path),
        log_start_offset=0,
        high_watermark=14,
        last_stable_offset=14,
        leader_epochs=(),
        segments=(SegmentFile(0, None, str(path), len(data), None, None),),
        aborted=(AbortedTransaction(8, 2, 9, 5), AbortedTransaction(7, 5, 10, 11)),
    )
    assert [offset for offset, _ in read(log)] == [0, 1, 7, 8, 11, 12]
    # A range of another producer does not match, and neither does one whose marker precedes the batch.
    assert [offset for offset, _ in read(replace(log, aborted=()))] == [0, 1, 2, 3, 5, 6, 7, 8, 11, 12]
