"""A log to which random things happen, and which stays sound whatever happens."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from brokerlab.deaths import ProcessDied, dies_at
from brokerlab.log_batches import append, make_batch
from brokerlab.log_cleaning import clean_log, cleaning_job
from brokerlab.logs import OwnedLog, kill, open_log
from brokerlab.random_logs import RandomWriter
from tidelog.broker.log.log_config import LogConfig

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
MAX_STEPS_BEFORE_DEATH = 40


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
        self.writer._open.clear()  # the transactions may have lost their beginning

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
