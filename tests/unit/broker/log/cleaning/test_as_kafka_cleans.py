"""Apache Kafka's cleaner and ours leave the same batches and records of the same directory."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

import pytest

from brokerlab.kafka_jars import JavaTools
from brokerlab.log_cleaning import (
    KafkasJob,
    clean_log,
    clean_with_kafka,
    cleaning_job,
    contents,
    copy_log,
    transaction_indexes,
)
from brokerlab.logs import files, open_log
from brokerlab.random_logs import RandomWriter
from tidelog.broker.log.log_config import LogConfig

pytestmark = [pytest.mark.java, pytest.mark.slow]

CONFIG = LogConfig(segment_bytes=20_000, index_interval_bytes=512, cleanup_policy=frozenset({"compact"}))
LOGS = 5
ROUNDS = 4
DELETE_RETENTION_MS = 60_000


def test_kafkas_cleaner_leaves_the_same_records(java: JavaTools, tmp_path: Path) -> None:
    if shutil.which("javac") is None:
        pytest.skip("a JDK is needed to compile the call of Kafka's cleaner")
    jobs: list[KafkasJob] = []
    ours: list[Path] = []
    ends: list[int] = []
    for seed in range(LOGS):
        # Not in the past, because Kafka expires old producers by the real time.
        writer = RandomWriter(seed, int(time.time() * 1000))
        directory = tmp_path / f"ours{seed}" / "t-0"
        clean_offset = -1
        for number in range(ROUNDS):
            log = open_log(directory, CONFIG, clean=True, now_ms=writer.now_ms)
            log.clean_offset = clean_offset
            writer.write(log, 150)
            if seed % 3:
                writer.end_all(log)
            log.roll(writer.now_ms)
            log.close()
            theirs = copy_log(directory, tmp_path / f"kafka{seed}-{number}" / "t-0")
            log = open_log(directory, CONFIG, clean=True, now_ms=writer.now_ms)
            log.clean_offset = clean_offset
            # in the last round, the horizons of the first ones have passed
            now_ms = writer.now_ms + number * 40_000
            job = cleaning_job(log, now_ms, delete_retention_ms=DELETE_RETENTION_MS)
            ends.append(clean_log(log, job).clean_offset)
            clean_offset = log.clean_offset
            log.close()
            jobs.append(KafkasJob(theirs, job))
            ours.append(copy_log(directory, tmp_path / f"result{seed}-{number}" / "t-0"))
    answers = clean_with_kafka(java.jars, jobs)
    assert [answer[0] for answer in answers] == ends
    for mine, (theirs, job) in zip(ours, jobs, strict=True):
        expected, found = contents(theirs), contents(mine)
        for one, other in zip(found, expected, strict=False):
            assert one == other, f"{mine} {job}"
        assert len(found) == len(expected), mine
        assert transaction_indexes(mine) == transaction_indexes(theirs), mine
    check_with_kafkas_dump(java, ours[-1])


def check_with_kafkas_dump(java: JavaTools, directory: Path) -> None:
    """Kafka's tool follows each index entry to its batch, and reads every record."""
    for suffix, checks in (
        (".log", ["--deep-iteration"]),
        (".index", []),
        (".timeindex", []),
        (".txnindex", []),
    ):
        paths = [path for path in files(directory, suffix) if suffix == ".log" or path.stat().st_size]
        if not paths:
            continue
        done = java.run("DumpLogSegments", *checks, "--files", ",".join(map(str, paths)))
        # An emptied batch keeps its greatest timestamp, also in segments that Kafka cleaned.
        output = re.sub(
            r"Found timestamp mismatch in \S+\n(  Index timestamp: \d+, log timestamp: -1\n)+",
            "",
            done.stdout + done.stderr,
        )
        assert done.returncode == 0, output
        for complaint in (
            "Mismatches in",
            "Found timestamp mismatch",
            "out of order",
            "Index timestamp",
            "isvalid: false",
        ):
            assert complaint not in output, output[-3000:]
