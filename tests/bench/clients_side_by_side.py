"""Compares our own Python client with other clients on one broker: `make bench BENCH_ARGS=--clients`.

Each client runs in a process of its own on one core, and all clients take turns in each round. The consumers
read the same topic, whose batches librdkafka has written. The figures that count are ratios of CPU time,
because they depend less on what else the machine does. The build that TIDELOG_BUILD names is used for the
broker and for our client. A client that is not installed is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.client_loads import LOADS, PRODUCERS, is_installed, library_of, produce_confluent
from bench.sidebyside.sides import computer_facts
from brokerlab.broker_process import BUILD_VARIABLE, BrokerProcess
from brokerlab.clients import create_topic

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "benchmarks-clients.md"
COUNTS: Final = {100: 50_000, 1_000: 20_000, 10_000: 4_000}
"""The number of records of each size in bytes."""
ROUNDS: Final = 5
QUICK_ROUNDS: Final = 2
QUICK_PART: Final = 10
CLIENT_LIMIT_S: Final = 600
OURS: Final = "tidelog.aio"
INTRODUCTION: Final = """\
# Benchmarks of Python clients

`make bench BENCH_ARGS=--clients` writes this page. It compares tidelog's own [Python
client](python-client.md) with other clients on one tidelog broker and one partition. aiokafka has
parsers in C (Cython), confluent-kafka is librdkafka (C).

- Each client runs in a process of its own on one core. A short load goes before each load, so imports and the
  first connection are not measured. All clients take turns in each round.
- Producers send equal values without keys, with `batch.size` 65536, `linger.ms` 5 and acks=all, and wait
  for all acknowledgements at the end. Consumers read one topic, whose batches librdkafka has written,
  and read each value.
- CPU is the user and system time of the client's process for each record. A figure is the median of all
  rounds.
- A ratio is the CPU time of this client / that of `tidelog.aio` within one round: above 1, it needs
  more. The table shows the median of the ratios, and the smallest and largest ratio as the spread.
- Records per second are wall-clock figures. If other processes use the machine, they are too low, and
  they vary.
- `send_batch`, `batches`, NumPy and Arrow are the interfaces for whole batches. `async for` takes one
  record at a time.

"""


class Sample(NamedTuple):
    """Records per second, and microseconds of CPU time for each record."""

    rate: float
    cpu_us: float


class Row(NamedTuple):
    client: str
    rate: float
    cpu_us: float
    ratios: list[float]

    def cells(self) -> tuple[str, ...]:
        return (
            self.client,
            f"{self.rate:,.0f}",
            f"{self.cpu_us:.2f}",
            f"{statistics.median(self.ratios):.2f}",
            f"{min(self.ratios):.2f} - {max(self.ratios):.2f}",
        )


HEADINGS: Final = ("client", "records/s", "CPU us a record", "ratio", "spread")
Measured = dict[tuple[str, int], dict[str, list[Sample]]]
"""The samples of each client, by direction and size."""


def run_client(library: str, bootstrap: str, source: str, size: int, count: int) -> Any:
    """Runs the loads of a client in a process of its own. Returns what it printed. Raises CalledProcessError,
    TimeoutExpired.
    """
    build = os.environ.get(BUILD_VARIABLE)
    paths = [str(Path(build).resolve())] if build else [str(ROOT / "services")]
    arguments = [library, bootstrap, source, new_topic(bootstrap), f"{size}", f"{count}"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.client_loads", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*paths, str(ROOT / "tests")])},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=CLIENT_LIMIT_S,
    )
    return json.loads(done.stdout)


def measure(bootstrap: str, rounds: int, part: int, console: Console) -> Measured:
    """Runs all clients. `part` divides the number of records."""
    libraries = [client for client in PRODUCERS if library_of(client) == client and is_installed(client)]
    measured: Measured = {(direction, size): {} for size in COUNTS for direction in LOADS}
    sources = {size: new_topic(bootstrap) for size in COUNTS}
    for size, count in COUNTS.items():
        produce_confluent(bootstrap, sources[size], b"x" * size, count // part)
    for number in range(rounds):
        for size, count in COUNTS.items():
            for library in libraries if number % 2 else reversed(libraries):
                printed = run_client(library, bootstrap, sources[size], size, count // part)
                for direction, results in printed.items():
                    for client, sample in results.items():
                        measured[direction, size].setdefault(client, []).append(Sample(*sample))
        console.print(f"round {number + 1} of {rounds}")
    return measured


def new_topic(bootstrap: str) -> str:
    name = f"bench-{uuid.uuid4().hex[:12]}"
    create_topic(bootstrap, name, 1)
    return name


def rows_of(samples: dict[str, list[Sample]], order: Sequence[str]) -> list[Row]:
    ours = samples[OURS]
    return [
        Row(
            client,
            statistics.median(sample.rate for sample in samples[client]),
            statistics.median(sample.cpu_us for sample in samples[client]),
            [theirs.cpu_us / mine.cpu_us for theirs, mine in zip(samples[client], ours, strict=True)],
        )
        for client in order
        if client in samples
    ]


def page_of(measured: Measured, rounds: int, facts: Sequence[tuple[str, str]]) -> str:
    lines = [INTRODUCTION, f"Number of rounds: {rounds}.\n"]
    for (direction, size), samples in measured.items():
        lines += [f"## {'Consume' if direction == 'consume' else 'Produce'}, {size:,} B\n"]
        lines += [f"| {' | '.join(HEADINGS)} |", "|---" + "|--:" * (len(HEADINGS) - 1) + "|"]
        lines += [f"| {' | '.join(row.cells())} |" for row in rows_of(samples, list(LOADS[direction]))]
        lines.append("")
    lines += ["## Machine\n", *(f"- {name}: {text}" for name, text in facts), ""]
    return "\n".join(lines)


def show(measured: Measured, console: Console) -> None:
    for (direction, size), samples in measured.items():
        table = Table(title=f"{direction} {size} B")
        for heading in HEADINGS:
            table.add_column(heading, justify="left" if heading == "client" else "right")
        for row in rows_of(samples, list(LOADS[direction])):
            table.add_row(*row.cells())
        console.print(table)


def compare(console: Console, *, rounds: int | None, is_quick: bool) -> None:
    """Measures all clients, and writes the page if `is_quick` is false."""
    rounds = rounds or (QUICK_ROUNDS if is_quick else ROUNDS)
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as directory:
        broker = BrokerProcess(Path(directory) / "data", Path(directory) / "broker.log").start()
        try:
            measured = measure(broker.bootstrap, rounds, QUICK_PART if is_quick else 1, console)
        finally:
            broker.kill()
    show(measured, console)
    if is_quick:
        return
    others = [name for name in ("aiokafka", "kafka-python", "confluent-kafka") if is_installed(name)]
    facts = [
        *computer_facts(),
        ("clients", ", ".join(f"{name} {version(name)}" for name in others)),
        ("load of the machine", f"{load_before:.1f} before, {os.getloadavg()[0]:.1f} after (including this)"),
    ]
    PAGE.write_text(page_of(measured, rounds, facts))
    console.print(f"written: {PAGE.relative_to(ROOT)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true", help="fewer records and rounds; writes no docs")
    options = parser.parse_args()
    compare(Console(highlight=False), rounds=options.rounds, is_quick=options.quick)


if __name__ == "__main__":
    main()
