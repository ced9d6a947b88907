#!/usr/bin/env python3
"""Compares compaction with Apache Kafka's. Both sides clean a copy of the same directory: tidelog in its
worker process, Kafka in its cleaner, which Java calls on a warm JVM (it cleans a first copy of the log
before).

The script prints MB/s by the clock and by CPU time. A tenth of the records have a key that does not come
again.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil
from rich.console import Console
from rich.table import Table

from brokerlab.kafka_jars import find_jars
from brokerlab.logs import append, open_log
from tidelog.broker.log.cleaning.cleaning_job import (
    CleanedSegment,
    CleaningDone,
    CleaningJob,
    SourceSegment,
    decode_answer,
)
from tidelog.broker.log.log_config import LogConfig
from tidelog.records.builder import build_batch
from tidelog.records.record import Record

JAVA = ("java", "-Xmx1g")
CLEAN_LOG = Path(__file__).resolve().parents[1] / "brokerlab" / "CleanLog.java"
SEGMENT_BYTES = 256 * 1024 * 1024
DEDUPE_BUFFER_BYTES = 128 * 1024 * 1024  # the default of both sides
IO_BUFFER_BYTES = 256 * 1024
DELETE_RETENTION_MS = 86_400_000
LEAST_RATIO = 0.5


class Shape(NamedTuple):
    value_bytes: int
    records_a_batch: int


SHAPES = (Shape(1000, 1), Shape(100, 1), Shape(1000, 16), Shape(100, 100))


class Cleaned(NamedTuple):
    seconds: float
    cpu_s: float
    clean_offset: int


def write_log(directory: Path, shape: Shape, total_bytes: int) -> CleaningJob:
    """Writes a log that is completely dirty. Its keys are in random order, and each occurs ten times on
    average.
    """
    chance = random.Random(1)
    log = open_log(directory, LogConfig(segment_bytes=SEGMENT_BYTES))
    value = chance.randbytes(shape.value_bytes)
    record_bytes = shape.value_bytes + 25 + 61 // shape.records_a_batch
    keys = max(1, total_bytes // record_bytes // 10)
    now_ms = int(time.time() * 1000)
    while log.size_bytes < total_bytes:
        first = log.log_end_offset
        records = [
            Record(first + n, now_ms, b"key-%010d" % chance.randrange(keys), value)
            for n in range(shape.records_a_batch)
        ]
        append(log, bytes(build_batch(records, leader_epoch=0)), now_ms)
    log.roll(now_ms)
    sources = tuple(
        SourceSegment(
            s.base_offset,
            s.next_offset,
            s.size_bytes,
            8 * s.offset_index.entry_count,
            12 * s.time_index.entry_count,
        )
        for s in log.segments[:-1]
    )
    log.close()
    return CleaningJob(
        str(directory),
        sources,
        0,
        log.log_end_offset,
        now_ms,
        DELETE_RETENTION_MS,
        SEGMENT_BYTES,
        10 * 1024 * 1024,
        4096,
        DEDUPE_BUFFER_BYTES,
        0.9,
        IO_BUFFER_BYTES,
        1e18,
    )


def clean_ours(job: CleaningJob) -> tuple[Cleaned, int]:
    """Returns the measurements and the worker's memory in bytes. The worker overwrites its `.cleaned` files
    each time.
    """
    command = [sys.executable, "-m", "tidelog.broker.log.cleaning.worker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        began = time.perf_counter()
        worker.stdin.write(job.encode())
        worker.stdin.flush()
        answer = decode_answer(worker.stdout.readline())
        while isinstance(answer, CleanedSegment):
            answer = decode_answer(worker.stdout.readline())
        assert isinstance(answer, CleaningDone), answer
        seconds = time.perf_counter() - began
        process = psutil.Process(worker.pid)
        times, memory = process.cpu_times(), process.memory_info().rss
        worker.stdin.close()
    return Cleaned(seconds, times.user + times.system, answer.clean_offset), memory


def clean_kafkas(jars: Path, directories: Sequence[Path], job: CleaningJob) -> Cleaned:
    """Returns the measurements of the last directory; the others warm the JVM up."""
    lines = [
        f"{place}\t{job.now_ms}\t0\t{job.first_uncleanable_offset}\t{job.delete_retention_ms}"
        f"\t{job.segment_bytes}\t{DEDUPE_BUFFER_BYTES}\n"
        for place in directories
    ]
    done = subprocess.run(
        [*JAVA, "-cp", f"{jars}/*", str(CLEAN_LOG)],
        input="".join(lines),
        capture_output=True,
        text=True,
        check=True,
    )
    clean_offset, wall_ms, cpu_ms = map(int, done.stdout.splitlines()[-1].split("\t"))
    return Cleaned(wall_ms / 1000, cpu_ms / 1000, clean_offset)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=1024, help="size of the log")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--value-bytes", type=int, help="measure only this shape, with --records-a-batch")
    parser.add_argument("--records-a-batch", type=int, default=1)
    options = parser.parse_args()
    console = Console(highlight=False, width=120)
    jars = find_jars()
    shapes = SHAPES if not options.value_bytes else (Shape(options.value_bytes, options.records_a_batch),)
    table = Table(title=f"compaction of {options.mib} MiB, best of {options.rounds}")
    for heading in ("value", "records a batch", "MB/s", "Kafka MB/s", "ratio", "ratio by CPU", "worker MB"):
        table.add_column(heading, justify="right")
    is_slow = False
    for shape in shapes:
        with tempfile.TemporaryDirectory(prefix="tidelog-cleaning-") as name:
            original = Path(name, "original", "t-0")
            job = write_log(original, shape, options.mib << 20)
            ours, theirs, memory = [], [], 0
            for number in range(options.rounds):
                copies = [Path(name, f"kafka{number}-{n}", "t-0") for n in range(2)]
                for copy in copies:
                    shutil.copytree(original, copy)
                theirs.append(clean_kafkas(jars, copies, job))
                for copy in copies:
                    shutil.rmtree(copy)
                found, used = clean_ours(job)
                ours.append(found)
                memory = max(memory, used)
        size = sum(segment.size_bytes for segment in job.segments)
        # A round with a full map cleans less, so the speed is relative to the part that the round read.
        rates = [size / min(c.seconds for c in side) / 1e6 for side in (ours, theirs)]
        by_cpu = min(c.cpu_s for c in theirs) / min(c.cpu_s for c in ours)
        ratio = rates[0] / rates[1]
        is_slow |= ratio < LEAST_RATIO
        table.add_row(
            str(shape.value_bytes),
            str(shape.records_a_batch),
            *(f"{rate:,.0f}" for rate in rates),
            f"{ratio:.2f}",
            f"{by_cpu:.2f}",
            f"{memory / 1e6:,.0f}",
        )
        if ours[0].clean_offset != theirs[0].clean_offset:
            console.print(f"{shape}: clean to {ours[0].clean_offset}, Kafka to {theirs[0].clean_offset}")
    console.print(table)
    return int(is_slow)


if __name__ == "__main__":
    sys.exit(main())
