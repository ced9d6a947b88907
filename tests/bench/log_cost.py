"""Measures the cost of the log: appends and reads without their system calls, start-up, memory of many
partitions.

.venv/bin/python tests/bench/log_cost.py [--partitions 1000]

The budgets are 3 us for an append of a 16 KB batch, without its write, and 3 us for a read at the end of the
log or where the previous read ended (docs/benchmarks.md).
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil

from brokerlab.logs import OwnedLog, make_batch, open_log
from tidelog.broker.log import segmented_log
from tidelog.broker.log.log_config import LogConfig
from tidelog.broker.log.log_directory import LogDirectory
from tidelog.broker.partition.producer_state import ProducerState
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import assign_offset_and_epoch, parse_header

ROUNDS = 7
ID = uuid.UUID(int=1)


class DiskThatTakesNoTime:
    """Replaces `os`, so that the measurement does not include the write itself."""

    @staticmethod
    def pwrite(_: int, data: memoryview, __: int) -> int:
        return len(data)


def best_us(action: Callable[[], int]) -> str:
    """Returns the microseconds of a step: least and median of the rounds. `action` returns the number of its
    steps.
    """
    costs = []
    for _ in range(ROUNDS):
        begin = time.perf_counter_ns()
        steps = action()
        costs.append((time.perf_counter_ns() - begin) / steps / 1000)
    return f"{min(costs):7.2f} us  (median {statistics.median(costs):.2f})"


def append_cost(root: Path, value_bytes: int, steps: int, *, writes: bool) -> str:
    log = open_log(root / f"append-{value_bytes}-{writes}")
    batch = memoryview(bytearray(make_batch(0, 1, value_bytes=value_bytes)))
    first = parse_header(batch)
    headers = [
        first._replace(base_offset=offset, max_timestamp=1000 + offset) for offset in range(steps * ROUNDS)
    ]
    position = 0

    def run() -> int:
        nonlocal position
        append = log.log.append
        for header in headers[position : position + steps]:
            if not append(batch, header, 5):
                log.append(batch, header, 5)
        position += steps
        return steps

    if writes:
        return best_us(run)
    real = segmented_log.os
    segmented_log.os = DiskThatTakesNoTime  # type: ignore[assignment,misc]
    try:
        return best_us(run)
    finally:
        segmented_log.os = real


def filled_log(
    root: Path, name: str, batches: int, value_bytes: int, config: LogConfig | None = None
) -> OwnedLog:
    log = open_log(root / name, config)
    batch = memoryview(bytearray(make_batch(0, 1, value_bytes=value_bytes)))
    first = parse_header(batch)
    for offset in range(batches):
        assign_offset_and_epoch(batch, 0, offset, 0)
        log.append(batch, first._replace(base_offset=offset), 5)
    return log


def read_costs(root: Path) -> None:
    log = filled_log(root, "reads", 20_000, 16_000).log
    end = log.log_end_offset

    def newest() -> int:
        for _ in range(2000):
            log.read(end - 1, 1 << 20, end).release()  # type: ignore[union-attr]
        return 2000

    def sequential(max_bytes: int) -> int:
        offset = steps = 0
        while offset < end:
            stretch = log.read(offset, max_bytes, end)
            assert stretch is not None
            offset = stretch.next_offset
            stretch.release()
            steps += 1
        return steps

    def anywhere() -> int:
        source = random.Random(1)
        for _ in range(2000):
            log.read(source.randrange(end), 1 << 20, end).release()  # type: ignore[union-attr]
        return 2000

    def nothing_new() -> int:
        for _ in range(2000):
            log.read(end, 1 << 20, end)
        return 2000

    print(f"read at the log end, nothing there      {best_us(nothing_new)}")
    print(f"read of the newest batch                {best_us(newest)}")
    print(f"read on from the last, 1 MB cut         {best_us(lambda: sequential(1 << 20))}")
    print(f"read on from the last, one 16 KB batch  {best_us(lambda: sequential(16_100))}")
    print(f"read anywhere, 1 MB cut                 {best_us(anywhere)}")
    log.close_files()


def lookup_costs(root: Path) -> None:
    log = open_log(root / "times")
    for offset in range(20_000):
        batch = make_batch(offset, 1, value_bytes=1000, timestamp=offset)
        log.append(batch, parse_header(batch), 5)

    def by_time() -> int:
        source = random.Random(1)
        for _ in range(500):
            log.offset_for_timestamp(source.randrange(20_000))
        return 500

    print(f"offset by time                          {best_us(by_time)}")
    log.close_files()


def recovery_cost(root: Path) -> None:
    log = filled_log(root, "recovery", 20_000, 16_000)
    size_gb = log.size_bytes / 1e9
    log.close_files()
    begin = time.perf_counter()
    log = open_log(root / "recovery")
    print(f"recovery, CRCs checked, 16 KB batches   {size_gb / (time.perf_counter() - begin):7.2f} GB/s")
    log.close_files()


def open_partitions(root: Path, count: int) -> LogDirectory:
    directory = LogDirectory.open(root, cluster_id="x", node_id=1)
    for number in range(count):
        directory.open_partition(TopicPartition("t", number), ID, LogConfig(segment_bytes=20_000), now_ms=0)
    return directory


def partition_costs(root: Path, count: int, stage: str) -> None:
    """Runs one stage. The process must be new, so that its memory is comparable."""
    process = psutil.Process()
    before = process.memory_info().rss
    begin = time.perf_counter()
    directory = open_partitions(root, count)
    print(f"{count} partitions, {stage:27s} {time.perf_counter() - begin:7.2f} s")
    if stage == "made":
        begin = time.perf_counter()
        no_producers = ProducerState().snapshot()
        for storage in directory.partitions.values():
            for offset in range(50):
                batch = make_batch(offset, 1, value_bytes=1000)
                if not storage.log.append(batch, parse_header(batch), 5):
                    storage.roll(offset, 5, no_producers)
                    storage.log.append(batch, parse_header(batch), 5)
        print(f"3 segments written to each              {time.perf_counter() - begin:7.2f} s")
    used_kib = (process.memory_info().rss - before) / count / 1024
    print(f"memory of each                          {used_kib:7.2f} KiB")
    if stage == "made":
        begin = time.perf_counter()
        directory.close()
        print(f"clean stop                              {time.perf_counter() - begin:7.2f} s")
    else:
        directory.abandon()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--stage", nargs=2, metavar=("STAGE", "DIRECTORY"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stage:
        partition_costs(Path(arguments.stage[1]), arguments.partitions, arguments.stage[0])
        return
    with tempfile.TemporaryDirectory(prefix="tidelog-log-cost-") as name:
        root = Path(name)
        print(f"append of 16 KB, all but the write      {append_cost(root, 16_000, 20_000, writes=False)}")
        print(f"append of 100 B, all but the write      {append_cost(root, 100, 20_000, writes=False)}")
        print(f"append of 16 KB, with the write         {append_cost(root, 16_000, 3000, writes=True)}")
        read_costs(root)
        lookup_costs(root)
        recovery_cost(root)
        sys.stdout.flush()
        for stage in ("made", "opened after a clean stop", "opened after a crash"):
            command = [sys.executable, __file__, "--partitions", str(arguments.partitions)]
            subprocess.run([*command, "--stage", stage, str(root / "many")], check=True)
    print(f"(on {os.cpu_count()} cores, Python {sys.version.split()[0]})")


if __name__ == "__main__":
    main()
