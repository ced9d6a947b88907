"""Medians, ratios and their spread, as a table on the terminal and as docs/benchmarks.md."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from .cases import OTHERS_PREFIX, Case, Metric, Sample

SIDES = ("tidelog", "Kafka")
Samples = Mapping[str, Mapping[str, Sequence[Sample]]]
"""case name -> side -> one sample a round."""


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
    """Ratios are taken round by round: what disturbs one round disturbs both sides of it."""
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
    """Name of a process beside the brokers -> the greatest MB (PSS) it was seen with; ours only."""
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

Written by `make bench`: Apache Kafka and tidelog on one machine, the same librdkafka clients, one case
after the other, first one side and then the other. Figures are medians; a ratio is tidelog / Kafka, taken
round by round: its median, and the least and greatest as its spread. All with acks=all, on one broker.
Every case runs in a client process of its own; broker CPU is the user and system time of the broker's
process. Memory is the greatest PSS seen after a case of the round. Both brokers run in sessions of their
own, as services do: Linux shares the cores out among sessions before it does among threads.
Three brokers with three replicas: [benchmarks-replicated.md](benchmarks-replicated.md).

There are two tables, as a JVM's age matters. Neither alone is the whole truth.
"""
COORDINATED_INTRODUCTION = """\
# Benchmarks of groups and transactions

`make bench BENCH_ARGS=--coordinated`: three brokers each, three replicas, `min.insync.replicas` 2, clients
and brokers on one machine. Groups are driven by a bare client, the same for both sides, transactions by
librdkafka. Internal topics have ten partitions and a group's first rebalance doesn't wait
(`group.initial.rebalance.delay.ms=0`), on both sides.
"""
REPLICATED_INTRODUCTION = """\
# Benchmarks of three brokers

Written by `make bench BENCH_ARGS="--replicated"`: three brokers of Apache Kafka and three of tidelog on one
machine, with the client; the same librdkafka cases, one after the other, first one side and then the other.
Three replicas, acks=all, `min.insync.replicas` 2. Figures are medians; a ratio is tidelog / Kafka, taken
round by round: its median, and the least and greatest as its spread. CPU is the user and system time of all
the cluster's processes: controllers, coordinator and etcd, too. Memory is the summed PSS of the brokers,
the greatest seen after a case of the round. All processes run in sessions of their own on both sides.

Kafka's brokers are also its controllers, with a quorum of three; tidelog's controllers are processes of
their own, and its etcd has one member here.
"""
YOUNG = """\
{rounds} rounds; each starts both sides anew and warms each up by one case. Kafka's JVM
still compiles here: part of its CPU time is its compiler's, and this table favours tidelog.
"""
GOING_ON = """\
{rounds} more rounds against the brokers of the last one: nearer to a Kafka that serves for days.
"""
HOW_TO_RUN = """\
## Run it

    make bench                              # needs Java 17, Maven, gcc, shared/peer and an idle machine
    make bench BENCH_ARGS="--replicated"    # three brokers each, three replicas; also needs etcd
    make bench BENCH_ARGS="--quick"         # few rounds of shorter cases, writes nothing
    make bench BENCH_ARGS="--only latency"  # also produce, consume, sync, start; writes nothing

Before a produce case as much page cache as it needs is written and freed: in a virtual machine a page that
the host has to find first costs ten times as much, and would hit one side or the other by chance.
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
    """The page; `beside_brokers`: name of a process -> its MB."""
    parts = [
        introduction,
        f"## Young brokers: {reached(fresh)}\n",
        YOUNG.format(rounds=rounds),
        *_markdown_table(fresh),
    ]
    if warm:
        parts += [
            f"## Brokers that go on: {reached(warm)}\n",
            GOING_ON.format(rounds=warm_rounds),
            *_markdown_table(warm),
        ]
    if beside_brokers:
        parts += ["## Memory beside the brokers\n", "| process of tidelog | MB (PSS) |", "|---|---|"]
        parts += [f"| {name} | {figure(value)} |" for name, value in sorted(beside_brokers.items())] + [""]
    parts += ["## Machine", "", "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts), ""]
    return "\n".join([*parts, HOW_TO_RUN])
