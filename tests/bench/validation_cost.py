"""Measures what `tidelog.validate.records` costs when a batch is appended.

PYTHONPATH=services .venv/bin/python tests/bench/validation_cost.py

For batches of 16 KB and 1 MB with records of 100 bytes and 1 KB, it compares the check of header and CRC,
which every batch needs, with the walk over the records (`validate_records`), and with a whole append without
the write. All variants run in turn in each round; the result is the median CPU time.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from brokerlab.logs import open_log
from tidelog.broker.log import segmented_log
from tidelog.broker.log.log_config import LogConfig
from tidelog.broker.partition.batch_validation import AppendRules, validate_batches, validate_records
from tidelog.records.batch import assign_offset_and_epoch, parse_header
from tidelog.records.builder import build_batch
from tidelog.records.compression import Compression
from tidelog.records.record import Record

ROUNDS = 31
BATCH_BYTES = (16 * 1024, 1024 * 1024)
RECORD_BYTES = (100, 1000)
RECORD_OVERHEAD_BYTES = 20  # of a record's lengths and the key
LEAST_ROUND_NS = 2_000_000
NOW_MS = 1_700_000_000_000
RULES = AppendRules(max_message_bytes=2_000_000)


class DiskThatTakesNoTime:
    """Replaces `os`, so that the measurement does not include the write itself."""

    @staticmethod
    def pwrite(_: int, data: memoryview, __: int) -> int:
        return len(data)


def batch_of(batch_bytes: int, record_bytes: int, codec: Compression) -> bytes:
    """Returns a batch whose records have about `batch_bytes` uncompressed. Half of a value repeats."""
    chance = random.Random(1)
    half = (record_bytes - RECORD_OVERHEAD_BYTES) // 2
    records = [
        Record(number, NOW_MS + number, b"key-%08d" % number, chance.randbytes(half) + bytes(half))
        for number in range(batch_bytes // record_bytes)
    ]
    return bytes(build_batch(records, compression=codec))


def cpu_us(actions: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Returns the median CPU time of each action, in microseconds. The actions take turns."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(ROUNDS):
        for name, action in actions.items():
            began_ns, steps = time.process_time_ns(), 0
            while (spent_ns := time.process_time_ns() - began_ns) < LEAST_ROUND_NS:
                action()
                steps += 1
            times[name].append(spent_ns / max(steps, 1) / 1000)
    return {name: statistics.median(found) for name, found in times.items()}


def measure(directory: Path, batch_bytes: int, record_bytes: int, codec: Compression) -> str:
    batch = batch_of(batch_bytes, record_bytes, codec)
    view = memoryview(bytearray(batch))
    header = parse_header(batch)
    log = open_log(directory, LogConfig(segment_bytes=2**31 - 1))
    log.append(memoryview(batch), header, NOW_MS)  # opens the file
    real, segmented_log.os = segmented_log.os, DiskThatTakesNoTime  # type: ignore[assignment, attr-defined]

    def check() -> None:
        validate_batches(view, rules=RULES, now_ms=NOW_MS)

    def append() -> None:
        check()
        offset = log.log_end_offset
        assign_offset_and_epoch(view, 0, offset, 0)
        if not log.log.append(view, header._replace(base_offset=offset), NOW_MS):
            raise AssertionError("the segment is full")
        assign_offset_and_epoch(view, 0, 0, 0)  # as a client sends it
        log.log.segments[-1].size_bytes = len(batch)

    def walk() -> None:
        validate_records(view, header, rules=RULES, now_ms=NOW_MS)

    try:
        found = cpu_us({"check": check, "append": append, "walk": walk})
    finally:
        segmented_log.os = real  # type: ignore[attr-defined]
        log.close_files()
    return (
        f"| {batch_bytes // 1024:,} KB | {record_bytes} B | {codec.name.lower()} | {header.record_count:,} "
        f"| {found['check']:.1f} | {found['append']:.1f} | {found['walk']:,.1f} "
        f"| {found['walk'] / header.record_count:.2f} |"
    )


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    columns = ("batch", "records", "codec", "count", "header and CRC, us", "whole append, us", "walk, us")
    print("|", " | ".join(columns), "| us a record |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        for number, (batch_bytes, record_bytes, codec) in enumerate(
            (size, record, codec)
            for size in BATCH_BYTES
            for record in RECORD_BYTES
            for codec in (Compression.NONE, Compression.LZ4, Compression.ZSTD)
        ):
            print(measure(Path(directory, f"t-{number}"), batch_bytes, record_bytes, codec), flush=True)


if __name__ == "__main__":
    main()
