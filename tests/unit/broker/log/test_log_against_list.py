"""The log behaves like a plain list of batches under appends, reads, truncation, retention, restarts and
crashes in any order.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from brokerlab.logs import append, files, kill, make_batch, open_log, read_all
from tidelog.broker.log.log_config import LogConfig
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.records.batch import BatchHeader, parse_header

FRACTION = st.floats(0, 1, allow_nan=False)
SHAPE = st.tuples(
    st.integers(1, 5),  # records
    st.integers(0, 60),  # size of each value in bytes
    st.sampled_from([0, 0, 0, 7]),  # number of offsets skipped before it
    st.integers(-50, 100),  # milliseconds since the last batch
    st.sampled_from([-1, -1, 1, 2]),  # producer id
)


class LogAgainstList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="tidelog-log-"))
        self.directory = self.root / "t-0"
        self.batches: list[tuple[BatchHeader, bytes]] = []
        self.log_start = self.log_end = 0
        self.epoch = 0
        self.now_ms = 1_000
        self.sequences: dict[int, int] = {}

    @initialize(
        segment_bytes=st.integers(500, 3000),
        index_interval=st.sampled_from([0, 100, 400]),
        index_bytes=st.sampled_from([48, 10_485_760]),
    )
    def open_first(self, segment_bytes: int, index_interval: int, index_bytes: int) -> None:
        self.config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=index_interval,
            segment_index_bytes=index_bytes,
            retention_ms=-1,
            file_delete_delay_ms=0,
        )
        self.log = open_log(self.directory, self.config)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close_files()
        shutil.rmtree(self.root)

    # -- rules

    @rule(shapes=st.lists(SHAPE, min_size=1, max_size=15))
    def append_some(self, shapes: list[tuple[int, int, int, int, int]]) -> None:
        for shape in shapes:
            self._append(*shape)

    def _append(self, count: int, value_bytes: int, gap: int, step_ms: int, producer_id: int) -> None:
        self.now_ms = max(0, self.now_ms + step_ms)
        self._lead()
        sequence = self.sequences.get(producer_id, 0) if producer_id >= 0 else -1
        batch = make_batch(
            self.log_end + gap,
            count,
            value_bytes=value_bytes,
            timestamp=self.now_ms,
            leader_epoch=self.epoch,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequence,
        )
        header = append(self.log, batch, self.now_ms)
        if producer_id >= 0:
            self.sequences[producer_id] = sequence + count
        self.batches.append((header, batch))
        self.log_end = header.last_offset + 1

    @rule()
    def new_leader(self) -> None:
        self.epoch += 1
        self._lead()

    @rule(at=FRACTION, max_bytes=st.integers(0, 1500), up_to=FRACTION, at_least_one=st.booleans())
    def read(self, at: float, max_bytes: int, up_to: float, at_least_one: bool) -> None:
        offset = self.log_start + round(at * (self.log_end - self.log_start))
        bases = [header.base_offset for header, _ in self.batches] + [self.log_end]
        upper = bases[round(up_to * (len(bases) - 1))]
        found = self.log.read(offset, max_bytes, upper, at_least_one_batch=at_least_one)
        readable = [
            (header, batch)
            for header, batch in self.batches
            if header.last_offset >= offset and header.last_offset < upper
        ]
        if offset >= upper:
            readable = []
        if found is None:
            assert not readable or (not at_least_one and len(readable[0][1]) > max_bytes)
            return
        data = found.read()
        found.release()
        whole = b"".join(batch for _, batch in readable)
        assert data
        assert whole.startswith(data)
        sizes = [len(batch) for _, batch in readable]
        ends = [sum(sizes[:number]) for number in range(1, len(sizes) + 1)]
        assert len(data) in ends
        assert len(data) <= max_bytes or (at_least_one and len(data) == ends[0])

    @rule(at=FRACTION)
    def delete_records(self, at: float) -> None:
        offset = self.log_start + round(at * (self.log_end - self.log_start))
        assert self.log.increment_log_start_offset(offset) == (offset > self.log_start)
        self._log_start_moved(offset)

    @rule(retention_bytes=st.integers(0, 6000))
    def retain(self, retention_bytes: int) -> None:
        self.log.config = LogConfig(
            segment_bytes=self.config.segment_bytes,
            index_interval_bytes=self.config.index_interval_bytes,
            retention_ms=-1,
            retention_bytes=retention_bytes,
            file_delete_delay_ms=0,
        )
        before = self.log.size_bytes
        self.log.delete_old_segments(self.now_ms, self.log_end)
        self.log.config = self.config
        assert self.log.size_bytes >= min(before, retention_bytes) or self.log_start > 0
        self._log_start_moved(self.log.log_start_offset)
        self.log.remove_deleted_files(self.now_ms)

    @precondition(lambda self: self.batches)
    @rule(at=FRACTION)
    def truncate(self, at: float) -> None:
        offset = self.log_start + round(at * (self.log_end - self.log_start))
        assert self.log.truncate_to(offset, self.now_ms) == (offset < self.log_end)
        if offset < self.log_end:
            self._keep_batches([kept for kept in self.batches if kept[0].last_offset < offset])

    @rule(offset=st.integers(0, 1000))
    def start_anew(self, offset: int) -> None:
        self.log.truncate_fully_and_start_at(offset, self.now_ms)
        self.batches, self.log_start, self.log_end = [], offset, offset
        self.sequences.clear()

    @rule()
    def flush(self) -> None:
        self.log.flush(now_ms=self.now_ms)
        assert self.log.recovery_point == self.log_end

    @rule()
    def stop_and_start(self) -> None:
        self.log.close()
        self._open(clean=True)

    @rule()
    def kill_and_start(self) -> None:
        kill(self.log)
        self._open(clean=False)

    @precondition(lambda self: self.batches and self.log_end > self.log.recovery_point)
    @rule(at=FRACTION, garbage=st.binary(max_size=80))
    def lose_power(self, at: float, garbage: bytes) -> None:
        """Overwrites the end of the newest segment, above the recovery point, with random bytes."""
        active = self.log.segments[-1]
        in_active = [
            (header, batch) for header, batch in self.batches if header.base_offset >= active.base_offset
        ]
        safe = sum(len(batch) for header, batch in in_active if header.last_offset < self.log.recovery_point)
        kill(self.log)
        cut = safe + round(at * (active.size_bytes - safe))
        path = files(self.directory, ".log")[-1]
        content = path.read_bytes()[:cut] + garbage
        path.write_bytes(content)
        end, kept = 0, []
        for header, batch in in_active:
            if content[end : end + len(batch)] != batch:
                break
            kept.append((header, batch))
            end += len(batch)
        self._keep_batches(self.batches[: len(self.batches) - len(in_active)] + kept, active.base_offset)
        self._open(clean=False)

    @precondition(lambda self: len(self.log.segments) > 1)
    @rule(lost=st.sampled_from([".index", ".timeindex"]), at=FRACTION, clean=st.booleans())
    def lose_an_index(self, lost: str, at: float, clean: bool) -> None:
        if clean:
            self.log.close()
        else:
            kill(self.log)
        indexes = files(self.directory, lost)
        indexes[round(at * (len(indexes) - 1))].unlink()
        self._open(clean=clean)

    # -- invariants

    @invariant()
    def ends_agree(self) -> None:
        if hasattr(self, "log"):
            assert (self.log.log_start_offset, self.log.log_end_offset) == (self.log_start, self.log_end)
            assert self.log.size_bytes == sum(segment.size_bytes for segment in self.log.segments)
            for outside in (self.log_start - 1, self.log_end + 1):
                with pytest.raises(KafkaError) as refusal:
                    self.log.read(outside, 100, self.log_end)
                assert refusal.value.code is ErrorCode.OFFSET_OUT_OF_RANGE

    @rule()
    def contents_agree(self) -> None:
        expected = [batch for header, batch in self.batches if header.last_offset >= self.log_start]
        assert read_all(self.log) == expected
        assert read_all(self.log, max_bytes=1) == expected

    @precondition(lambda self: self.batches)
    @rule(at=FRACTION, off_by=st.integers(-1, 1))
    def times_agree(self, at: float, off_by: int) -> None:
        readable = [header for header, _ in self.batches if header.last_offset >= self.log_start]
        times = sorted(header.max_timestamp for header in readable)
        if not times:
            return
        wanted = times[round(at * (len(times) - 1))] + off_by
        found = self.log.offset_for_timestamp(wanted)
        expected = next((header for header in readable if header.max_timestamp >= wanted), None)
        if expected is None:
            assert found is None
        else:
            assert found == (
                max(expected.base_offset, self.log_start),
                expected.max_timestamp,
                expected.partition_leader_epoch,
            )

    @rule()
    def epochs_agree(self) -> None:
        for header, _ in self.batches:
            if header.base_offset >= self.log_start:
                epoch = self.log.leader_epochs.epoch_for_offset(header.base_offset)
                assert epoch == header.partition_leader_epoch

    # -- the model

    def _lead(self) -> None:
        if self.log.leader_epochs.latest_epoch < self.epoch:
            self.log.leader_epochs.assign(self.epoch, self.log_end)
            self.log.persist_leader_epochs()

    def _open(self, *, clean: bool) -> None:
        self.log = open_log(
            self.directory,
            self.config,
            now_ms=self.now_ms,
            recovery_point=self.log.recovery_point,
            log_start_offset=self.log_start,
            clean=clean,
        )
        self.log_start = max(self.log_start, self.log.log_start_offset)

    def _keep_batches(self, kept: list[tuple[BatchHeader, bytes]], active_base: int | None = None) -> None:
        """The log ends after the last remaining batch, or at the base of the active segment if that is
        greater.
        """
        self.batches = kept
        end = kept[-1][0].last_offset + 1 if kept else 0
        self.log_end = max(end, self.log.segments[-1].base_offset if active_base is None else active_base)
        self.log_start = min(self.log_start, self.log_end)
        for producer_id in (1, 2):
            mine = [header for header, _ in kept if header.producer_id == producer_id]
            if mine:
                self.sequences[producer_id] = mine[-1].last_sequence + 1

    def _log_start_moved(self, offset: int) -> None:
        self.log_start = max(self.log_start, offset)
        first = self.log.segments[0].base_offset
        self.batches = [kept for kept in self.batches if kept[0].last_offset >= first]


LogAgainstList.TestCase.settings = settings(
    max_examples=int(os.environ.get("LOG_EXAMPLES", "100")), stateful_step_count=40, deadline=None
)
TestLogAgainstList = LogAgainstList.TestCase


def test_read_all_helper_sees_headers() -> None:
    assert parse_header(make_batch(5, 3)).last_offset == 7
