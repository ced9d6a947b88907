"""Reports medians, ratios and their spread, on the terminal and as a page of docs/."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from .cases import OTHERS_PREFIX, Case, Metric, Sample

SIDES = ("tidelog", "Kafka")
Samples = Mapping[str, Mapping[str, Sequence[Sample]]]
"""Samples by case name and side, one for each round."""


@dataclass(frozen=True)
class Row:
    """One metric of one case over all rounds."""

    case: Case
    metric: Metric
    ours: float
    theirs: float
    ratios: tuple[float, ...]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def is_reached(self) -> bool:
        return self.metric.passes(self.ratio, self.ours)

    @property
    def target(self) -> str:
        text = f"{'<=' if self.metric.is_at_most else '>='} {self.metric.target:g}"
        return text if self.metric.limit is None else f"{text}, < {self.metric.limit:g} {self.metric.title}"


def rows_of(cases: Iterable[Case], samples: Samples) -> list[Row]:
    """Returns a row for each metric. Ratios are per round: a disturbance affects both sides of a round."""
    rows = []
    for case in cases:
        if not samples.get(case.name):
            continue
        for metric in case.metrics:
            ours, theirs = ([s[metric.key] for s in samples[case.name][side]] for side in SIDES)
            ratios = tuple(a / b for a, b in zip(ours, theirs, strict=True))
            rows.append(Row(case, metric, statistics.median(ours), statistics.median(theirs), ratios))
    return rows


def other_memory(samples: Samples) -> dict[str, float]:
    """Returns the largest MB (PSS) of each of tidelog's processes other than brokers."""
    found: dict[str, float] = {}
    for sides in samples.values():
        for sample in sides.get(SIDES[0], ()):
            for key, value in sample.items():
                if key.startswith(OTHERS_PREFIX):
                    name = key.removeprefix(OTHERS_PREFIX)
                    found[name] = max(value, found.get(name, 0.0))
    return found


def figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.case.title,
        row.metric.title,
        figure(row.ours),
        figure(row.theirs),
        f"{row.ratio:.2f}",
        f"{min(row.ratios):.2f} - {max(row.ratios):.2f}",
        row.target,
        "yes" if row.is_reached else "no",
    )


HEADINGS = ("case", "measure", "tidelog", "Kafka", "ratio", "spread", "target", "reached")


def terminal_table(rows: Iterable[Row], title: str) -> Table:
    table = Table(title=title)
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in ("case", "measure", "target") else "right")
    for row in rows:
        table.add_row(*_cells(row), style=None if row.is_reached else "red")
    return table


def reached(rows: Sequence[Row]) -> str:
    return f"{sum(row.is_reached for row in rows)} of {len(rows)} targets reached"


def _markdown_table(rows: Iterable[Row]) -> list[str]:
    return [
        "| " + " | ".join(HEADINGS) + " |",
        "|" + "---|" * len(HEADINGS),
        *("| " + " | ".join(_cells(row)) + " |" for row in rows),
        "",
    ]


INTRODUCTION = """\
# Benchmarks

`make bench` writes this page. It compares Apache Kafka and tidelog, one broker each, on one machine, with the
same librdkafka clients. It runs one case at a time, first against one side and then against the other. All
cases use acks=all.

- A figure is the median of all rounds.
- A ratio is tidelog / Kafka within one round. The table shows the median of the ratios, and the smallest and
  largest ratio as the spread.
- Every case runs in a client process of its own.
- Broker CPU is the user and system time of the broker's process.
- Memory is the largest PSS after a case of the round.
- Both brokers run in sessions of their own, as services do, because Linux divides the cores among sessions
  before it divides them among threads.

[Benchmarks of three brokers](benchmarks-replicated.md) have three replicas.

There are two tables, because a JVM compiles Kafka's code while it runs: one with a cold JVM and one with a
warm JVM. Read both.
"""
COORDINATED_INTRODUCTION = """\
# Benchmarks of groups and transactions

`make bench BENCH_ARGS=--coordinated` writes this page. Each side has three brokers, three replicas and
`min.insync.replicas` 2. Clients and brokers run on one machine. A minimal client, the same for both sides,
drives the groups; librdkafka drives the transactions. On both sides, internal topics have ten partitions, and
the first rebalance of a group does not wait (`group.initial.rebalance.delay.ms=0`).

There are two tables, because a JVM compiles Kafka's code while it runs: one with a cold JVM and one with a
warm JVM. Read both.
"""
REPLICATED_INTRODUCTION = """\
# Benchmarks of three brokers

`make bench BENCH_ARGS="--replicated"` writes this page. It compares three brokers of Apache Kafka and three
of tidelog on one machine, with the client on the same machine and the same librdkafka cases. It runs one case
at a time, first against one side and then against the other. All cases use three replicas, acks=all and
`min.insync.replicas` 2.

- A figure is the median of all rounds.
- A ratio is tidelog / Kafka within one round. The table shows the median of the ratios, and the smallest and
  largest ratio as the spread.
- CPU is the user and system time of all processes of the cluster, including controllers, coordinator and
  etcd.
- Memory is the summed PSS of the brokers, the largest sum after a case of the round.
- All processes of both sides run in sessions of their own.

Kafka's brokers are also its controllers, with a quorum of three. tidelog's controllers are separate
processes, and its etcd has one member here.

There are two tables, because a JVM compiles Kafka's code while it runs: one with a cold JVM and one with a
warm JVM. Read both.
"""
TLS_INTRODUCTION = """\
# Benchmarks of TLS

`make bench BENCH_ARGS=--tls` writes this page. It compares Apache Kafka and tidelog, one broker each, on one
machine, with the same librdkafka clients over TLS 1.3. Both brokers have the same certificate with an EC key,
and clients and brokers choose the cipher themselves. It runs one case at a time, first against one side and
then against the other. All cases use acks=all.

- A figure is the median of all rounds.
- A ratio is tidelog / Kafka within one round. The table shows the median of the ratios, and the smallest and
  largest ratio as the spread.
- Broker CPU is the user and system time of the broker's process.

There are two tables, because a JVM compiles Kafka's code while it runs: one with a cold JVM and one with a
warm JVM. Read both.
"""
SHARE_INTRODUCTION = """\
# Benchmarks of share groups

`make bench BENCH_ARGS=--share` writes this page in less than ten minutes. It compares share groups (KIP-932)
of Apache Kafka and tidelog on one partition: with one broker each (RF 1), and with three brokers each (RF 3,
`min.insync.replicas` 2). The state of a share group has the same number of replicas.

The client is the same for both sides: tests/bench/sidebyside/share_cases.py sends the requests of share
consumers from one process. It needs about a tenth of a core, so the brokers are measured. Each consumer
is a member of the group with a connection of its own. It fetches up to 500 records, the default of
`max.poll.records`, and accepts them with its next fetch. The topic has two million records of 100 bytes in
batches of 100. All settings of share groups have their defaults, and every case has a new group.

- Records per second are accepted records: the broker has stored the acknowledgement and has said so. The
  client checks that no record is accepted twice.
- CPU is the user and system time of all processes of a side, including controllers, coordinators and etcd.
- "Release to another" is the time from the moment when a consumer sends the release of a record until a
  consumer has it again. In the cases with 8 and 64 consumers, after the rate was measured, a consumer
  releases a record every 10 ms under full load. In the case with one record at a time, the fetch of a second
  consumer waits for the record. Kafka 4.3.1 does not wake such a fetch when a record is released, so it waits
  for up to `fetch.max.wait.ms`.
- A figure is the median of all rounds.
- A ratio is tidelog / Kafka within one round. The table shows the median of the ratios, and the smallest and
  largest ratio as the spread.

There are two tables, because a JVM compiles Kafka's code while it runs: one with a cold JVM and one with a
warm JVM. Read both.
"""
COLD_JVM = """\
Number of rounds: {rounds}. Each round starts both sides and warms each up with one case. Kafka's JVM is still
compiling its code, and a part of its CPU time is the compiler's, so this table favours tidelog.
"""
WARM_JVM = """\
Number of rounds: {rounds}, with the brokers of the last round. This is closer to a Kafka that has been
running for days.
"""
HOW_TO_RUN = """\
## Run it

    make bench                              # needs Java 17, Maven, gcc, shared/peer and an idle machine
    make bench BENCH_ARGS="--replicated"    # three brokers each, three replicas; also needs etcd
    make bench BENCH_ARGS="--coordinated"   # groups and transactions; also needs etcd
    make bench BENCH_ARGS="--tls"           # clients use TLS
    make bench BENCH_ARGS="--share"         # share groups, one broker each and then three; also needs etcd
    make bench BENCH_ARGS="--quick"         # few rounds of shorter cases, writes nothing
    make bench BENCH_ARGS="--only latency"  # also produce, consume, sync, start; writes nothing

Before a produce case, the benchmark writes and frees as much page cache as the case needs. In a virtual
machine, a page that the host has to allocate first costs ten times as much, which would affect one side or
the other at random.
"""


def markdown(
    introduction: str,
    fresh: Sequence[Row],
    warm: Sequence[Row],
    rounds: int,
    warm_rounds: int,
    beside_brokers: Mapping[str, float],
    facts: Sequence[tuple[str, str]],
) -> str:
    """Returns the page. `beside_brokers` contains the MB of each process other than brokers."""
    parts = [
        introduction,
        f"## Cold JVM: {reached(fresh)}\n",
        COLD_JVM.format(rounds=rounds),
        *_markdown_table(fresh),
    ]
    if warm:
        parts += [
            f"## Warm JVM: {reached(warm)}\n",
            WARM_JVM.format(rounds=warm_rounds),
            *_markdown_table(warm),
        ]
    if beside_brokers:
        parts += ["## Memory of the other processes\n", "| process of tidelog | MB (PSS) |", "|---|---|"]
        parts += [f"| {name} | {figure(value)} |" for name, value in sorted(beside_brokers.items())] + [""]
    parts += ["## Machine", "", "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts), ""]
    return "\n".join([*parts, HOW_TO_RUN])
