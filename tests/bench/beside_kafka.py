#!/usr/bin/env python3
"""Compares tidelog with Apache Kafka, with the same librdkafka cases against both.

Writes docs/benchmarks.md, with --replicated docs/benchmarks-replicated.md, with --coordinated
docs/benchmarks-coordinated.md, with --tls docs/benchmarks-tls.md, and with --share
docs/benchmarks-share.md (one broker each, then three). With --clients, it compares Python clients on a
tidelog broker, without Apache Kafka, and writes docs/benchmarks-clients.md
(bench/clients_side_by_side.py). Kafka comes from shared/peer beside the checkout, with 1 GiB of heap;
tidelog is `tidelog dev`. With --replicated or --coordinated, each side has three brokers: Kafka's have
512 MiB of heap, and `tidelog cluster up` starts tidelog's. The exit code is 1 if a case failed, and 0
otherwise. The table shows which targets were reached.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from sidebyside.cases import (
    CASES,
    COORDINATED_CASES,
    PRODUCED_FOR_CONSUME,
    REPLICATED_CASES,
    SHARE_CASES,
    SHARE_REPLICATED_CASES,
    TLS_CASES,
    Bench,
    Case,
    Sample,
)
from sidebyside.report import (
    COORDINATED_INTRODUCTION,
    INTRODUCTION,
    REPLICATED_INTRODUCTION,
    SHARE_INTRODUCTION,
    TLS_INTRODUCTION,
    markdown,
    other_memory,
    reached,
    rows_of,
    terminal_table,
)
from sidebyside.sides import (
    AS_KAFKA_UP,
    CLUSTER_BROKERS,
    CLUSTER_KAFKA_HEAP,
    KAFKA_HEAP,
    KafkaSide,
    Side,
    TidelogClusterSide,
    TidelogSide,
    TlsKafkaSide,
    TlsKeystore,
    TlsTidelogSide,
    machine_facts,
)

from bench.clients_side_by_side import compare as compare_clients
from brokerlab.kafka_jars import PEER, REPOSITORY, KafkaUnavailableError, find_jars

TABLE_WIDTH = 125
MOST_LOAD_BEFORE = 0.7
KAFKA_PORTS = (20_000, 28_000)
Measured = dict[str, dict[str, list[Sample]]]


@dataclass(frozen=True)
class Contest:
    """A comparison: its cases, the two sides of a round, and the page for the results."""

    cases: tuple[Case, ...]
    sides: Callable[[Path], list[Side]]
    introduction: str
    page: str
    kafka: str
    rounds: int
    warm_rounds: int
    replication_factor: int = 1
    min_in_sync_replicas: int = 1
    limit_s: float = math.inf
    """The time after which no further round begins."""

    @property
    def warm_up(self) -> Case:
        return next((case for case in self.cases if case.name == PRODUCED_FOR_CONSUME), self.cases[0])


def one_broker_each(directory: Path) -> list[Side]:
    return [TidelogSide(directory), KafkaSide(directory, random.randrange(*KAFKA_PORTS))]


def one_broker_each_over_tls(directory: Path) -> list[Side]:
    keystore = TlsKeystore(directory)
    theirs = TlsKafkaSide(directory, random.randrange(*KAFKA_PORTS), keystore)
    return [TlsTidelogSide(directory, keystore), theirs]


def three_brokers_each(directory: Path) -> list[Side]:
    theirs = KafkaSide(
        directory, random.randrange(*KAFKA_PORTS), brokers=CLUSTER_BROKERS, heap=CLUSTER_KAFKA_HEAP
    )
    return [TidelogClusterSide(directory, CLUSTER_BROKERS), theirs]


def three_coordinating_brokers_each(directory: Path) -> list[Side]:
    theirs = KafkaSide(
        directory, random.randrange(*KAFKA_PORTS), brokers=CLUSTER_BROKERS, heap=CLUSTER_KAFKA_HEAP
    )
    return [TidelogClusterSide(directory, CLUSTER_BROKERS, settings=AS_KAFKA_UP), theirs]


ONE_BROKER = Contest(
    CASES,
    one_broker_each,
    INTRODUCTION,
    "benchmarks.md",
    f"one combined broker, heap {KAFKA_HEAP}",
    rounds=5,
    warm_rounds=3,
)
REPLICATED = Contest(
    REPLICATED_CASES,
    three_brokers_each,
    REPLICATED_INTRODUCTION,
    "benchmarks-replicated.md",
    f"{CLUSTER_BROKERS} combined brokers and controllers, heap {CLUSTER_KAFKA_HEAP} each",
    rounds=3,
    warm_rounds=3,
    replication_factor=3,
    min_in_sync_replicas=2,
)
COORDINATED = Contest(
    COORDINATED_CASES,
    three_coordinating_brokers_each,
    COORDINATED_INTRODUCTION,
    "benchmarks-coordinated.md",
    f"{CLUSTER_BROKERS} combined brokers and controllers, heap {CLUSTER_KAFKA_HEAP} each",
    rounds=3,
    warm_rounds=2,
    replication_factor=3,
    min_in_sync_replicas=2,
)
TLS = Contest(
    TLS_CASES,
    one_broker_each_over_tls,
    TLS_INTRODUCTION,
    "benchmarks-tls.md",
    f"one combined broker, heap {KAFKA_HEAP}",
    rounds=3,
    warm_rounds=3,
)
SHARE = Contest(
    SHARE_CASES,
    one_broker_each,
    SHARE_INTRODUCTION,
    "benchmarks-share.md",
    f"one combined broker, heap {KAFKA_HEAP}",
    rounds=2,
    warm_rounds=2,
    limit_s=180,
)
SHARE_REPLICATED = Contest(
    SHARE_REPLICATED_CASES,
    three_brokers_each,
    SHARE_INTRODUCTION,
    SHARE.page,
    f"three combined brokers, heap {CLUSTER_KAFKA_HEAP} each",
    rounds=2,
    warm_rounds=2,
    replication_factor=3,
    min_in_sync_replicas=2,
    limit_s=240,
)
QUICK_ROUNDS = 2


class Rounds:
    """Runs rounds of cases against pairs of brokers and keeps the samples."""

    def __init__(
        self, contest: Contest, cases: list[Case], work_dir: Path, is_quick: bool, progress: Progress
    ) -> None:
        self.fresh: Measured = defaultdict(lambda: defaultdict(list))
        self.warm: Measured = defaultdict(lambda: defaultdict(list))
        self._cases = cases
        self._work_dir = work_dir
        self._contest = contest
        self._bench = Bench(
            is_quick,
            work_dir,
            cases=contest.cases,
            replication_factor=contest.replication_factor,
            min_in_sync_replicas=contest.min_in_sync_replicas,
        )
        self._progress = progress

    def run(self, fresh_rounds: int, warm_rounds: int) -> None:
        """Runs the rounds, or fewer if the contest has a limit of time. Each fresh round starts both brokers;
        the warm rounds use the brokers of the last fresh round.
        """
        task = self._progress.add_task("", total=(fresh_rounds + warm_rounds) * len(self._cases) * 2)
        began_s, limit_s = time.monotonic(), self._contest.limit_s
        for number in range(fresh_rounds):
            directory = self._work_dir / f"round-{number}"
            directory.mkdir()
            sides = self._contest.sides(directory)
            started: list[Side] = []
            try:
                for side in sides if number % 2 else reversed(sides):
                    self._progress.update(task, description=f"start {side.name}")
                    side.start()
                    started.append(side)
                    self.fresh["start"][side.name].append({"start_s": side.start_s})
                    if self._cases:
                        self._bench.run(self._contest.warm_up, side)
                self._run_cases(sides, number, self.fresh, task)
                is_last = number == fresh_rounds - 1 or time.monotonic() - began_s > limit_s / 2
                if is_last:
                    for warm_number in range(warm_rounds):
                        if warm_number and time.monotonic() - began_s > limit_s:
                            break
                        self._run_cases(sides, warm_number, self.warm, task)
            finally:
                for side in started:
                    side.stop()
                    self._bench.stopped(side)
            shutil.rmtree(directory)
            if is_last:
                break

    def _run_cases(self, sides: list[Side], number: int, found: Measured, task: TaskID) -> None:
        for place, case in enumerate(self._cases):
            for side in sides if (number + place) % 2 else reversed(sides):
                self._progress.update(task, description=f"{case.name} {side.name}")
                found[case.name][side.name].append(self._bench.run(case, side))
                self._progress.advance(task)
        for side in sides if self._cases else ():
            greatest = max(found[case.name][side.name][-1]["pss_mb"] for case in self._cases)
            found["memory"][side.name].append({"pss_mb": greatest})


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replicated", action="store_true", help="three brokers each, three replicas")
    parser.add_argument(
        "--coordinated", action="store_true", help="groups and transactions, three brokers each"
    )
    parser.add_argument("--tls", action="store_true", help="one broker each, clients use TLS")
    parser.add_argument(
        "--share",
        action="store_true",
        help="share groups, one broker each and then three, in under 10 minutes",
    )
    parser.add_argument("--clients", action="store_true", help="Python clients on a tidelog broker")
    parser.add_argument("--rounds", type=int, help="rounds that start both sides (cold JVM)")
    parser.add_argument("--warm-rounds", type=int, help="further rounds with the same brokers (warm JVM)")
    parser.add_argument("--quick", action="store_true", help="fewer rounds of shorter cases; writes no docs")
    parser.add_argument("--only", default="", help="groups or names of cases, separated by commas")
    parser.add_argument("--out", type=Path, help="also write all samples as JSON")
    options = parser.parse_args()
    console = Console(highlight=False)
    console.width = max(console.width, TABLE_WIDTH)
    if options.clients:
        compare_clients(console, rounds=options.rounds, is_quick=options.quick)
        return 0
    try:
        find_jars()
        if not (PEER / "kafka-up.sh").exists():
            raise KafkaUnavailableError("../shared/peer does not exist")
    except KafkaUnavailableError as error:
        console.print(f"there is no Apache Kafka to compare with: {error}")
        return 1
    contests = (ONE_BROKER,)
    for is_chosen, others in (
        (options.replicated, (REPLICATED,)),
        (options.coordinated, (COORDINATED,)),
        (options.tls, (TLS,)),
        (options.share, (SHARE, SHARE_REPLICATED)),
    ):
        contests = others if is_chosen else contests
    contest = contests[0]
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else contest.rounds)
    warm_rounds = options.warm_rounds
    if warm_rounds is None:
        warm_rounds = 1 if options.quick else contest.warm_rounds
    wanted = set(filter(None, options.only.split(",")))
    load = os.getloadavg()[0]
    if load > MOST_LOAD_BEFORE:
        console.print(f"[yellow]this machine is already busy (load {load:.1f}), figures will be inaccurate")
    columns = (TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    measured: dict[str, Measured] = {"fresh": {}, "warm": {}}
    chosen: list[Case] = []
    for compared in contests:
        cases = [c for c in compared.cases if not wanted or c.group in wanted or c.name in wanted]
        if not cases:
            continue
        chosen += cases
        with (
            tempfile.TemporaryDirectory(prefix="tidelog-bench-") as name,
            Progress(*columns, console=console) as progress,
        ):
            runs = Rounds(compared, [c for c in cases if c.arguments], Path(name), options.quick, progress)
            runs.run(rounds, warm_rounds)
        measured["fresh"] |= runs.fresh
        measured["warm"] |= runs.warm
    fresh, warm = rows_of(chosen, measured["fresh"]), rows_of(chosen, measured["warm"])
    for rows, brokers in ((fresh, "cold JVM"), (warm, "warm JVM")):
        if rows:
            console.print(terminal_table(rows, f"tidelog beside Apache Kafka, {brokers}"))
            console.print(f"{brokers}: {reached(rows)}")
    if options.out:
        options.out.write_text(json.dumps(measured, indent=1))
    memory = other_memory(measured["fresh"])
    for name, value in sorted(memory.items()):
        console.print(f"{name}: {value:.0f} MB (PSS)")
    if not options.quick and not wanted:
        path = REPOSITORY / "docs" / contest.page
        facts = [*machine_facts("; ".join(c.kafka for c in contests)), ("load before", f"{load:.1f}")]
        rounds, warm_rounds = (min((len(row.ratios) for row in rows), default=0) for rows in (fresh, warm))
        page = markdown(contest.introduction, fresh, warm, rounds, warm_rounds, memory, facts)
        path.write_text(page)
        console.print(f"written: {path.relative_to(REPOSITORY)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
