"""The log and its producer state know the same transactions as a plain list of batches.

This holds for open and for aborted transactions, after truncations, restarts, crashes and retention.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from brokerlab.logs import append, files, kill, make_batch, make_marker, open_log
from tidelog.broker.log import segment_indexes
from tidelog.broker.log.log_config import LogConfig
from tidelog.log_format.entries import decode_aborted_transactions
from tidelog.records.aborted import AbortedTransaction
from tidelog.records.batch import BatchHeader
from tidelog.records.record import end_transaction_marker

FRACTION = st.floats(0, 1, allow_nan=False)
PRODUCERS = st.sampled_from([1, 2, 3, 4])


class Story(NamedTuple):
    """The transactions in the batches of a log."""

    open: dict[int, int]
    aborted: list[AbortedTransaction]
    unended_at: dict[int, int]
    """The first offset of each transaction, by the offset of its marker."""


def story_of(batches: list[tuple[BatchHeader, bytes]]) -> Story:
    open_from: dict[int, int] = {}
    aborted = []
    ended = {}
    for header, batch in batches:
        if header.is_control:
            first = open_from.pop(header.producer_id, None)
            marker = end_transaction_marker(batch)
            assert marker is not None
            if first is None:
                continue
            ended[header.base_offset] = first
            if not marker.is_commit:
                stable = min(open_from.values(), default=header.base_offset + 1)
                aborted.append(AbortedTransaction(header.producer_id, first, header.base_offset, stable))
        elif header.is_transactional:
            open_from.setdefault(header.producer_id, header.base_offset)
    return Story(open_from, aborted, ended)


class TransactionsAgainstList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patches = pytest.MonkeyPatch()
        self.patches.setattr(segment_indexes, "_BLOCK_ENTRIES", 2)
        self.root = Path(tempfile.mkdtemp(prefix="tidelog-transactions-"))
        self.directory = self.root / "t-0"
        # all batches that were ever appended, except those that were truncated
        self.batches: list[tuple[BatchHeader, bytes]] = []
        self.log_start = 0
        self.sequences: dict[int, int] = {}

    @initialize(segment_bytes=st.integers(400, 2000))
    def open_first(self, segment_bytes: int) -> None:
        self.config = LogConfig(
            segment_bytes=segment_bytes, index_interval_bytes=100, retention_ms=-1, file_delete_delay_ms=0
        )
        self.log = open_log(self.directory, self.config)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close_files()
        shutil.rmtree(self.root)
        self.patches.undo()

    # -- rules

    @rule(producer_id=PRODUCERS, count=st.integers(1, 3), value_bytes=st.integers(0, 80))
    def write(self, producer_id: int, count: int, value_bytes: int) -> None:
        sequence = self.sequences.get(producer_id, 0)
        self._append(
            make_batch(
                self.log.log_end_offset,
                count,
                value_bytes=value_bytes,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequence,
                is_transactional=True,
            )
        )
        self.sequences[producer_id] = sequence + count

    @rule(count=st.integers(1, 3))
    def write_outside(self, count: int) -> None:
        self._append(make_batch(self.log.log_end_offset, count))

    @rule(producer_id=PRODUCERS, is_commit=st.booleans())
    def end(self, producer_id: int, is_commit: bool) -> None:
        self._append(make_marker(self.log.log_end_offset, is_commit=is_commit, producer_id=producer_id))

    def _append(self, batch: bytes) -> None:
        self.batches.append((append(self.log, batch), batch))

    @precondition(lambda self: self.batches)
    @rule(batches=st.integers(1, 8), into=st.integers(0, 1))
    def truncate(self, batches: int, into: int) -> None:
        offset = self.batches[-min(batches, len(self.batches))][0].base_offset + into
        self.log.truncate_to(max(self.log_start, offset), 0)
        self._cut()

    @rule(retention_bytes=st.integers(0, 4000))
    def retain(self, retention_bytes: int) -> None:
        self.log.config = LogConfig(
            segment_bytes=self.config.segment_bytes,
            index_interval_bytes=100,
            retention_ms=-1,
            retention_bytes=retention_bytes,
            file_delete_delay_ms=0,
        )
        self.log.delete_old_segments(0, self.log.log_end_offset)
        self.log.remove_deleted_files(0)
        self.log.config = self.config
        self.log_start = self.log.log_start_offset

    @rule()
    def flush(self) -> None:
        self.log.flush()

    @rule()
    def stop_and_start(self) -> None:
        self.log.close()
        self._open(clean=True)

    @rule()
    def kill_and_start(self) -> None:
        kill(self.log)
        self._open(clean=False)

    @rule(cut=st.integers(1, 400))
    def lose_power(self, cut: int) -> None:
        """The active segment loses what was not flushed, and its indexes have random bytes."""
        kill(self.log)
        newest = files(self.directory, ".log")[-1]
        base = self.log.segments[-1].base_offset
        safe = sum(
            len(batch)
            for header, batch in self.batches
            if header.base_offset >= base and header.last_offset < self.log.recovery_point
        )
        content = newest.read_bytes()
        newest.write_bytes(content[: max(safe, len(content) - cut)])
        index = newest.with_suffix(".txnindex")
        if index.exists():
            index.write_bytes(index.read_bytes()[:-1] + bytes(cut % 70))
        self._open(clean=False)
        self._cut()

    @precondition(lambda self: self.log.segments)
    @rule(at=FRACTION, clean=st.booleans(), lost=st.sampled_from([".index", ".timeindex"]))
    def lose_an_index(self, at: float, clean: bool, lost: str) -> None:
        if clean:
            self.log.close()
        else:
            kill(self.log)
        segment = self.log.segments[round(at * (len(self.log.segments) - 1))]
        Path(self.log.directory.file(segment.base_offset, lost)).unlink()
        self._open(clean=clean)

    @rule(at=FRACTION, garbage=st.binary(min_size=1, max_size=70))
    def spoil_a_transaction_index(self, at: float, garbage: bytes) -> None:
        self.log.close()
        segment = self.log.segments[round(at * (len(self.log.segments) - 1))]
        with Path(self.log.directory.file(segment.base_offset, ".txnindex")).open("ab") as index:
            index.write(garbage)
        self._open(clean=True)

    # -- invariants

    @invariant()
    def open_transactions_agree(self) -> None:
        if not hasattr(self, "log"):
            return
        state = self.log.producer_state
        state.on_high_watermark(self.log.log_end_offset)
        story = story_of(self.batches)
        assert state.first_unstable_offset == min(story.open.values(), default=None)
        described = {row.producer_id: row.current_txn_start_offset for row in state.describe()}
        assert {pid: first for pid, first in described.items() if first >= 0} == story.open

    @invariant()
    def aborted_transactions_agree(self) -> None:
        if not hasattr(self, "log"):
            return
        aborted = story_of(self.batches).aborted
        end = self.log.log_end_offset
        bounds = sorted({self.log_start, end, *(h.base_offset for h, _ in self.batches[-12:])})
        bounds = [bound for bound in bounds if bound >= self.log_start]
        for number, start in enumerate(bounds):
            for upper in bounds[number + 1 :]:
                found = self.log.aborted_transactions(start, upper)
                in_range = [t for t in aborted if t.last_offset >= start and t.first_offset < upper]
                assert found == in_range
                for most in (1, 3):
                    first, complete_to = self.log.first_aborted(start, upper, most)
                    begins = sorted(t.first_offset for t in in_range)
                    assert complete_to == (begins[most] if len(begins) > most else upper)
                    assert first == [t for t in in_range if t.first_offset < complete_to]

    @rule()
    def files_agree(self) -> None:
        self.log.flush()
        written = []
        for path in files(self.directory, ".txnindex"):
            written += decode_aborted_transactions(path.read_bytes(), int(path.stem))
        base = self.log.segments[0].base_offset
        assert written == [t for t in story_of(self.batches).aborted if t.last_offset >= base]

    # -- the model

    def _open(self, *, clean: bool) -> None:
        self.log = open_log(
            self.directory,
            self.config,
            recovery_point=self.log.recovery_point,
            log_start_offset=self.log_start,
            clean=clean,
        )

    def _cut(self) -> None:
        end = self.log.log_end_offset
        self.batches = [kept for kept in self.batches if kept[0].last_offset < end]
        for producer_id in self.sequences:
            mine = [h for h, _ in self.batches if h.producer_id == producer_id and not h.is_control]
            self.sequences[producer_id] = mine[-1].last_sequence + 1 if mine else 0
        self.log_start = self.log.log_start_offset


TransactionsAgainstList.TestCase.settings = settings(
    max_examples=int(os.environ.get("LOG_EXAMPLES", "60")), stateful_step_count=40, deadline=None
)
TestTransactionsAgainstList = TransactionsAgainstList.TestCase
