"""Random logs, each generated from a seed, and logs to which random things happen, including the death of
their process.

The logs of a compacted topic have plain, idempotent and transactional producers, all codecs, tombstones, late
records and rolls.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import ParamSpec, TypeVar

import pytest

from brokerlab.log_cleaning import clean_log, cleaning_job
from brokerlab.logs import OwnedLog, append, kill, make_batch, make_marker, open_log
from tidelog.broker.log.log_config import LogConfig
from tidelog.records.builder import build_batch
from tidelog.records.record import Record

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
MAX_STEPS_BEFORE_DEATH = 40
P = ParamSpec("P")
R = TypeVar("R")
OPERATIONS = ("rename", "replace", "unlink", "fsync", "fdatasync", "truncate", "write", "pwrite", "ftruncate")


class RandomWriter:
    """Writes to a log that is sometimes closed and opened. The producers continue after that."""

    def __init__(self, seed: int, start_ms: int, *, keys: int = 20) -> None:
        self._random = Random(seed)
        self._keys = keys
        self.now_ms = start_ms
        self.leader_epoch = 0
        self._sequences = dict.fromkeys(range(100, 104), 0)
        self._epochs = dict.fromkeys(range(100, 108), 0)
        self.open_transactions: set[int] = set()

    def write(self, log: OwnedLog, steps: int) -> None:
        for _ in range(steps):
            self.now_ms += self._random.randrange(1, 50)
            choice = self._random.random()
            if choice < 0.5:
                self._batch(log, -1)
            elif choice < 0.65:
                self._batch(log, self._random.randrange(100, 104))
            elif choice < 0.85:
                producer_id = self._random.randrange(104, 108)
                self._batch(log, producer_id, is_transactional=True)
                self.open_transactions.add(producer_id)
            elif choice < 0.95:
                if self.open_transactions:
                    self._end(log, self._random.choice(sorted(self.open_transactions)))
            else:
                log.roll(self.now_ms)

    def end_all(self, log: OwnedLog) -> None:
        for producer_id in sorted(self.open_transactions):
            self._end(log, producer_id)

    def _end(self, log: OwnedLog, producer_id: int) -> None:
        self.open_transactions.discard(producer_id)
        append(
            log,
            make_marker(
                log.log_end_offset,
                is_commit=self._random.random() < 0.5,
                producer_id=producer_id,
                producer_epoch=self._epochs[producer_id],
                timestamp=self.now_ms,
                leader_epoch=self.leader_epoch,
            ),
            self.now_ms,
        )

    def _batch(self, log: OwnedLog, producer_id: int, *, is_transactional: bool = False) -> None:
        random, base = self._random, log.log_end_offset
        count = random.choice([1, 1, 1, 2, 5, 80])
        records = [
            Record(
                base + number,
                self.now_ms + random.randrange(-30, 30),
                None if random.random() < 0.02 else self._key(),
                None if random.random() < 0.2 else random.randbytes(random.choice([0, 3, 40, 200])),
                ((("h", b"x"),) if random.random() < 0.1 else ()),
            )
            for number in range(count)
        ]
        sequence = -1
        if producer_id >= 0:
            sequence = self._sequences.get(producer_id, 0)
            self._sequences[producer_id] = sequence + count
        batch = build_batch(
            records,
            base_offset=base,
            leader_epoch=self.leader_epoch,
            compression=random.choice([0, 0, 0, 1, 2, 3, 4]),
            log_append_time_ms=self.now_ms if random.random() < 0.1 else None,
            producer_id=producer_id,
            producer_epoch=self._epochs.get(producer_id, -1),
            base_sequence=sequence,
            is_transactional=is_transactional,
        )
        append(log, bytes(batch), self.now_ms)

    def _key(self) -> bytes:
        number = self._random.randrange(self._keys)
        return b"key-%d" % number + b"-" * (number * 7)  # short keys, and some whose length needs two bytes


class ProcessDied(BaseException):
    """The death of the process; no code handles this exception."""


@contextmanager
def dies_at(monkeypatch: pytest.MonkeyPatch, number: int) -> Iterator[list[str]]:
    """Prevents operation `number` of OPERATIONS, and yields the list of those that were requested."""
    seen: list[str] = []

    def counted(name: str, original: Callable[P, R]) -> Callable[P, R]:
        def call(*arguments: P.args, **options: P.kwargs) -> R:
            seen.append(name)
            if len(seen) > number:
                raise ProcessDied(f"{name}{arguments}")
            return original(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for name in OPERATIONS:
            patch.setattr(os, name, counted(name, getattr(os, name)))
        yield seen


class RandomLife:
    """A log to which random things happen. All of them, and all deaths, leave a sound log."""

    def __init__(self, directory: Path, seed: int, *, is_compacted: bool) -> None:
        self.random = random.Random(seed)
        self.directory = directory
        self.config = LogConfig(
            segment_bytes=30_000,
            index_interval_bytes=512,
            retention_ms=DAY_MS,
            file_delete_delay_ms=0,
            cleanup_policy=frozenset({"compact"} if is_compacted else {"delete"}),
        )
        self.writer = RandomWriter(seed, NOW_MS, keys=5)
        self.log = self.opened(clean=False)
        self.happenings: list[Callable[[], object]] = [
            self.write,
            self.write,
            self.write,
            self.delete_records,
            self.truncate,
            self.stop_and_start,
            self.remove_files,
            self.compact if is_compacted else self.retain,
        ]

    def opened(self, *, clean: bool) -> OwnedLog:
        self.log = open_log(
            self.directory, self.config, now_ms=self.writer.now_ms, recovery_point=0, clean=clean
        )
        return self.log

    def write(self) -> None:
        self.writer.write(self.log, self.random.randrange(1, 30))
        if self.random.random() < 0.3:  # a follower of a compacted log skips offsets
            append(self.log, make_batch(self.log.log_end_offset + 5, timestamp=self.writer.now_ms))
        self.log.roll(self.writer.now_ms)

    def delete_records(self) -> None:
        log = self.log
        log.increment_log_start_offset(self.random.randint(log.log_start_offset, log.log_end_offset))
        log.delete_old_segments(self.writer.now_ms, log.log_end_offset)

    def retain(self) -> None:
        self.writer.now_ms += self.random.choice([0, DAY_MS // 2, 2 * DAY_MS])
        self.log.delete_old_segments(self.writer.now_ms, self.log.log_end_offset)

    def remove_files(self) -> None:
        self.log.remove_deleted_files(self.writer.now_ms)

    def compact(self) -> None:
        self.writer.now_ms += DAY_MS
        self.writer.end_all(self.log)
        self.log.roll(self.writer.now_ms)
        clean_log(self.log, cleaning_job(self.log, self.writer.now_ms, delete_retention_ms=0))

    def truncate(self) -> None:
        log = self.log
        offset = self.random.randint(log.log_start_offset, log.log_end_offset)
        if self.random.random() < 0.2:
            log.truncate_fully_and_start_at(self.random.choice([offset, log.log_end_offset + 7]), NOW_MS)
        else:
            log.truncate_to(offset, NOW_MS)
        self.writer.open_transactions.clear()  # the transactions may have lost their beginning

    def stop_and_start(self) -> None:
        self.log.close()
        self.opened(clean=True)

    def go_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Lets some random things happen, and some deaths."""
        for _ in range(self.random.randrange(2, 12)):
            if self.random.random() < 0.3:
                self.die(monkeypatch)
            else:
                self.random.choice(self.happenings)()

    def end(self, *, clean: bool) -> None:
        """Closes the log, or leaves it as a killed process would."""
        if clean:
            self.log.close()
        else:
            kill(self.log)

    def die(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Dies in the middle of one of the happenings, perhaps also during the next start."""
        with dies_at(monkeypatch, self.random.randrange(MAX_STEPS_BEFORE_DEATH)), suppress(ProcessDied):
            self.random.choice(self.happenings)()
        kill(self.log)
        with dies_at(monkeypatch, self.random.randrange(MAX_STEPS_BEFORE_DEATH)), suppress(ProcessDied):
            self.opened(clean=False)
        kill(self.log)
        self.opened(clean=False)
