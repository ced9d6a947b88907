#!/usr/bin/env python3
"""tidelog beside Apache Kafka: the same librdkafka cases against both. Writes docs/benchmarks.md.

Kafka comes from shared/peer (beside the checkout) with 1 GiB of heap; tidelog is `tidelog dev`. The exit code
is 1 if a case failed, 0 otherwise; whether a target was reached is in the table.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from brokerlab.kafka_jars import PEER, REPOSITORY, KafkaUnavailableError, find_jars
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from sidebyside.cases import CASES, Bench, Case, Sample
from sidebyside.report import markdown, rows_of, terminal_table
from sidebyside.sides import KafkaSide, Side, TidelogSide, machine_facts

ROUNDS = 5
QUICK_ROUNDS = 2
TOUCHED_SHARE = 0.5
QUICKLY_TOUCHED_BYTES = 3 * 1024**3
TOUCH = """
import mmap, sys
size = int(sys.argv[1])
memory = mmap.mmap(-1, size)
for page in range(0, size, mmap.PAGESIZE):
    memory[page] = 1
"""
TABLE_WIDTH = 125
WARM_UP = ("produce-1k-1m-p6", "consume-1k", "produce-1k-16k", "latency", "sync-16")
MOST_LOAD_BEFORE = 0.7
KAFKA_PORTS = (20_000, 28_000)
Measured = dict[str, dict[str, list[Sample]]]


def touch_memory(is_quick: bool) -> None:
    """First touch of memory in a virtual machine costs 2 CPU-s/GiB; pay it here rather than in a case."""
    available = next(
        int(line.split()[1]) * 1024
        for line in Path("/proc/meminfo").read_text().splitlines()
        if "MemAvailable" in line
    )
    size = min(QUICKLY_TOUCHED_BYTES, available // 2) if is_quick else int(available * TOUCHED_SHARE)
    # In a process of its own: the pages go back, touched, when it ends.
    subprocess.run([sys.executable, "-c", TOUCH, str(size)], check=True, stdin=subprocess.DEVNULL)


def start_times(work_dir: Path, rounds: int, progress: Progress) -> dict[str, list[Sample]]:
    """A fresh broker of each side, one after the other, with an empty data directory."""
    task = progress.add_task("start", total=rounds)
    found: dict[str, list[Sample]] = defaultdict(list)
    for number in range(rounds):
        directory = work_dir / f"start-{number}"
        directory.mkdir()
        sides: list[Side] = [TidelogSide(directory), KafkaSide(directory, random.randrange(*KAFKA_PORTS))]
        for side in sides if number % 2 else reversed(sides):
            side.start()
            side.stop()
            found[side.name].append({"start_s": side.start_s})
        shutil.rmtree(directory)
        progress.advance(task)
    return found


def measure(cases: list[Case], work_dir: Path, rounds: int, is_quick: bool, progress: Progress) -> Measured:
    """Every round runs every case against both sides, another side first each time."""
    found: Measured = defaultdict(lambda: defaultdict(list))
    bench = Bench(is_quick)
    sides: list[Side] = [TidelogSide(work_dir), KafkaSide(work_dir, random.randrange(*KAFKA_PORTS))]
    started: list[Side] = []
    task = progress.add_task("warm-up", total=len(cases) * rounds * 2)
    try:
        for side in sides:
            side.start()
            started.append(side)
        for case in CASES:
            if case.name in WARM_UP:
                for side in sides:
                    bench.run(case, side)
        for number in range(rounds):
            greatest: dict[str, float] = defaultdict(float)
            for place, case in enumerate(cases):
                for side in sides if (number + place) % 2 else reversed(sides):
                    progress.update(task, description=f"{case.name} {side.name}")
                    sample = bench.run(case, side)
                    found[case.name][side.name].append(sample)
                    greatest[side.name] = max(greatest[side.name], sample["pss_mb"])
                    progress.advance(task)
            for side in sides:
                found["memory"][side.name].append({"pss_mb": greatest[side.name]})
                bench.close(side)
    finally:
        for side in started:
            side.stop()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS}, with --quick {QUICK_ROUNDS}")
    parser.add_argument("--quick", action="store_true", help="fewer rounds of shorter cases; writes no docs")
    parser.add_argument("--only", default="", help="groups or names of cases, by commas")
    parser.add_argument("--out", type=Path, help="also write all samples as JSON")
    options = parser.parse_args()
    console = Console(highlight=False)
    console.width = max(console.width, TABLE_WIDTH)
    try:
        find_jars()
        if not (PEER / "kafka-up.sh").exists():
            raise KafkaUnavailableError("shared/peer is not beside the checkout")
    except KafkaUnavailableError as error:
        console.print(f"no Apache Kafka to measure beside: {error}")
        return 1
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    wanted = set(filter(None, options.only.split(",")))
    chosen = [c for c in CASES if not wanted or c.group in wanted or c.name in wanted]
    client_cases = [c for c in chosen if c.arguments]
    measured: Measured = {}
    load = os.getloadavg()[0]
    if load > MOST_LOAD_BEFORE:
        console.print(f"[yellow]this machine is busy already (load {load:.1f}): the figures will be off")
    columns = (TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory(prefix="tidelog-bench-") as name,
        Progress(*columns, console=console) as progress,
    ):
        touch_memory(options.quick)
        if any(c.group == "start" for c in chosen):
            measured["start"] = start_times(Path(name), rounds, progress)
        if client_cases:
            measured |= measure(client_cases, Path(name), rounds, options.quick, progress)
    rows = rows_of(chosen, measured)
    console.print(terminal_table(rows))
    missed = [row for row in rows if not row.is_reached]
    console.print(f"{len(rows) - len(missed)} of {len(rows)} targets reached")
    if options.out:
        options.out.write_text(json.dumps(measured, indent=1))
    if not options.quick and not wanted:
        path = REPOSITORY / "docs" / "benchmarks.md"
        path.write_text(markdown(rows, rounds, [*machine_facts(), ("load before", f"{load:.1f}")]))
        console.print(f"written: {path.relative_to(REPOSITORY)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
