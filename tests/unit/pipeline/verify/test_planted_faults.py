"""Each kind of fault is planted in a partition of its own. One run must find each fault in its place and
nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final

import pytest

from brokerlab.memory_log import (
    START_MS,
    MemoryLog,
    MemoryPartition,
    batch,
    decoded_rows,
    example_partition,
    frame_of,
    ledger_by_hand,
    raw_rows,
    without,
)
from tidelog.pipeline.tables.ledger import CommitEntry, RangeEntry
from tidelog.pipeline.verify.job import reconcile
from tidelog.pipeline.verify.log_reader import Partition
from tidelog.pipeline.verify.verdict import PartitionVerdict, Verdict
from tidelog.records.builder import build_batch
from tidelog.records.record import Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC: Final = "t"
REMADE: Final = "remade"
OTHER_ID: Final = "00000000-0000-4000-8000-000000000001"
MARKERS_AND_ABORTS: Final = {"marker": 2, "abort": 2}


@dataclass
class Case:
    """A fault and the expected findings. Rows, records and ledger are those of a correct archive of `then`,
    unless they are changed. `now` is the log at the verification. `row_changes` holds (offset, column,
    value).
    """

    name: str
    problems: tuple[str, ...] = ()
    rows: int = 10
    lost: int = 0
    duplicated: int = 0
    changed: int = 0
    unexplained: int = 0
    holes: dict[str, int] = field(default_factory=lambda: dict(MARKERS_AND_ABORTS))
    only_in_ledger: int = 0
    then: MemoryPartition = field(default_factory=example_partition)
    now: MemoryPartition | None = field(default_factory=example_partition)
    removed: tuple[int, ...] = ()
    doubled: tuple[int, ...] = ()
    row_changes: tuple[tuple[int, str, Any], ...] = ()
    ranges: Callable[[list[RangeEntry]], list[RangeEntry]] = list
    topic: str = TOPIC


def dropping(number: int) -> Callable[[list[RangeEntry]], list[RangeEntry]]:
    return lambda ranges: ranges[:number] + ranges[number + 1 :]


def altered(number: int, **changes: object) -> Callable[[list[RangeEntry]], list[RangeEntry]]:
    return lambda ranges: [
        replace(each, **changes) if at == number else each  # type: ignore[arg-type]
        for at, each in enumerate(ranges)
    ]


def given_up(ranges: list[RangeEntry]) -> list[RangeEntry]:
    first = replace(
        ranges[0], first=None, last=None, count=0, log_hash="0", row_hash="0", skipped="retention"
    )
    return [first, *ranges[1:]]


def archived_twice(ranges: list[RangeEntry]) -> list[RangeEntry]:
    return [*ranges, replace(ranges[1], start=5, end=10), replace(ranges[2])]


EXAMPLE: Final = example_partition()
COMPACTED: Final = replace(example_partition(), is_compacted=True)
THINNED: Final = without(COMPACTED, 0, 1, 2, 3, 10, 12)
REWRITTEN: Final = replace(
    EXAMPLE,
    batches=(*EXAMPLE.batches[:-1], (batch(range(10, 14), value=b"other"), False)),
    epochs=((0, 0), (1, 7), (5, 10)),
)

CASES: Final = (
    Case("sound"),
    Case("row removed", ("lost",), rows=9, lost=1, removed=(2,)),
    Case("row doubled", ("duplicated",), rows=11, duplicated=1, doubled=(11,)),
    Case(
        "one removed, one doubled", ("lost", "duplicated"), lost=1, duplicated=1, removed=(0,), doubled=(1,)
    ),
    Case("value changed", ("changed",), changed=1, row_changes=((4, "kafka_value", b"x"),)),
    Case("value null", ("changed",), changed=1, row_changes=((4, "kafka_value", None),)),
    Case("key changed", ("changed",), changed=1, row_changes=((1, "kafka_key", b"x"),)),
    Case(
        "header gone",
        ("changed",),
        changed=1,
        row_changes=((12, "kafka_headers", []),),
    ),
    Case(
        "timestamp changed",
        ("changed",),
        changed=1,
        row_changes=((13, "kafka_timestamp", datetime(2030, 1, 1)),),
    ),
    Case("date changed", ("changed",), changed=1, row_changes=((13, "event_date", date(2001, 1, 1)),)),
    Case("row moved", ("lost", "phantom", "miscounted"), lost=1, row_changes=((0, "kafka_offset", 8),)),
    Case("entry missing between", ("gap", "unledgered"), holes={}, ranges=dropping(1)),
    Case("entry missing at the end", ("unledgered",), ranges=dropping(2)),
    Case(
        "entry and rows missing", ("gap", "lost"), rows=9, lost=1, holes={}, removed=(5,), ranges=dropping(1)
    ),
    Case(
        "archived twice",
        ("overlap", "overlap", "duplicated", "duplicated"),
        rows=15,
        duplicated=5,
        holes={},
        doubled=(5, 10, 11, 12, 13),
        ranges=archived_twice,
    ),
    Case(
        "truncated",
        ("truncated",),
        now=replace(EXAMPLE, batches=EXAMPLE.batches[:-1], end=10),
        only_in_ledger=4,
    ),
    Case("truncated and rewritten", ("diverged", "changed"), changed=4, now=REWRITTEN),
    Case("deleted since", now=replace(EXAMPLE, start=5), only_in_ledger=4 + 1),
    Case("half deleted since", now=replace(EXAMPLE, start=2), only_in_ledger=2),
    Case(
        "removed, then deleted in the log",
        ("lost",),
        rows=9,
        lost=1,
        now=replace(EXAMPLE, start=5),
        removed=(1,),
        only_in_ledger=4,
    ),
    Case(
        "doubled, then deleted in the log",
        ("duplicated",),
        rows=11,
        duplicated=1,
        now=replace(EXAMPLE, start=5),
        doubled=(1,),
        only_in_ledger=5,
    ),
    Case(
        "changed, then deleted in the log",
        ("changed",),
        changed=1,
        now=replace(EXAMPLE, start=5),
        row_changes=((1, "kafka_value", b"x"),),
        only_in_ledger=5,
    ),
    Case("holes deleted since", holes={"expired": 4}, now=replace(EXAMPLE, start=10), only_in_ledger=6),
    Case(
        "given up",
        rows=5,
        holes={"retention": 5, **MARKERS_AND_ABORTS},
        now=replace(EXAMPLE, start=5),
        removed=(0, 1, 2, 3, 4),
        ranges=given_up,
    ),
    Case(
        "given up too early",
        ("lost",),
        rows=5,
        lost=5,
        holes={"retention": 5, **MARKERS_AND_ABORTS},
        removed=(0, 1, 2, 3, 4),
        ranges=given_up,
    ),
    Case(
        "in quarantine",
        rows=9,
        holes={"quarantined": 1, **MARKERS_AND_ABORTS},
        removed=(3,),
        ranges=altered(0, quarantined=1, row_hash="sound"),
    ),
    Case(
        "in quarantine and lost",
        ("lost",),
        rows=8,
        lost=1,
        holes={"quarantined": 1, **MARKERS_AND_ABORTS},
        removed=(2, 3),
        ranges=altered(0, quarantined=1),
    ),
    Case(
        "in quarantine and in the table",
        ("miscounted",),
        holes={"quarantined": 1, **MARKERS_AND_ABORTS},
        ranges=altered(0, quarantined=1),
    ),
    Case("compacted since", then=COMPACTED, now=THINNED, only_in_ledger=6),
    Case(
        "compacted before", rows=4, holes={"compaction": 6, **MARKERS_AND_ABORTS}, then=THINNED, now=THINNED
    ),
    Case(
        "hole in a log that isn't compacted",
        ("unexplained",),
        rows=9,
        unexplained=1,
        then=without(EXAMPLE, 12),
        now=without(EXAMPLE, 12),
    ),
    Case("lost by the log", ("truncated",), now=without(EXAMPLE, 12)),
    Case("no log", ("no_log",), now=None, holes={"expired": 4}, only_in_ledger=10),
    Case("ledger's hash of the log", ("diverged",), ranges=altered(0, log_hash="1")),
    Case("ledger's hash of the rows", ("changed",), changed=1, ranges=altered(0, row_hash="1")),
    Case("ledger's count too high", ("lost", "miscounted"), lost=1, ranges=altered(0, count=6)),
    Case("remade", ("recreated",), now=replace(EXAMPLE, topic_id=OTHER_ID), topic=REMADE),
)
KEYS: Final[dict[str, Partition]] = {case.name: (case.topic, number) for number, case in enumerate(CASES)}


def test_cases_have_unique_names() -> None:
    assert len(KEYS) == len(CASES)


def changed_rows(rows: DataFrame, cases: Iterable[Case]) -> DataFrame:
    """Returns the rows with the faults of all cases."""
    by_key = {KEYS[case.name]: case for case in cases}
    changed: list[dict[str, Any]] = []
    for row in rows.collect():
        content = row.asDict(recursive=True)
        case = by_key[content["kafka_topic"], content["kafka_partition"]]
        offset = content["kafka_offset"]
        if offset in case.removed:
            continue
        content |= {column: value for at, column, value in case.row_changes if at == offset}
        changed += [content] * (2 if offset in case.doubled else 1)
    return rows.sparkSession.createDataFrame(changed, rows.schema)


def changed_ledger(ledger: list[CommitEntry], cases: Iterable[Case]) -> list[CommitEntry]:
    """Returns the changed ledger. Added entries belong to another archive."""
    batches: dict[int, list[RangeEntry]] = {entry.batch_id: [] for entry in ledger}
    added: list[RangeEntry] = []
    for case in cases:
        key = KEYS[case.name]
        sound = [each for entry in ledger for each in entry.ranges if (each.topic, each.partition) == key]
        for number, each in enumerate(case.ranges(sound)):
            fitting = next((n for n, one in enumerate(sound) if one.start == each.start), len(sound))
            (batches[fitting] if number < len(sound) else added).append(each)
    columns = ledger[0].columns
    entries = [replace(entry, ranges=tuple(batches[entry.batch_id])) for entry in ledger]
    return [*entries, CommitEntry("another", 0, columns, tuple(added))]


@pytest.fixture(scope="module")
def verdict(spark: SparkSession) -> Verdict:
    then = MemoryLog({KEYS[case.name]: case.then for case in CASES})
    now = MemoryLog({KEYS[case.name]: case.now for case in CASES if case.now is not None})
    records = frame_of(spark, then).persist()
    rows = raw_rows(records)
    quarantined = KEYS["in quarantine"]
    stored = rows.where(
        f"not (kafka_topic = '{TOPIC}' and kafka_partition = {quarantined[1]} and kafka_offset = 3)"
    )
    ledger = ledger_by_hand(records, stored, then)
    cases = [
        replace(case, ranges=altered(0, quarantined=1)) if case.name == "in quarantine" else case
        for case in CASES
    ]
    found = reconcile(spark, changed_rows(rows, cases), changed_ledger(ledger, cases), now)
    records.unpersist()
    return found


@pytest.mark.spark
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_fault_is_found(verdict: Verdict, case: Case) -> None:
    topic, number = KEYS[case.name]
    found = {(each.topic, each.partition): each for each in verdict.partitions}[topic, number]
    problems = [p for p in verdict.problems if p.topic == topic and p.partition in (number, -1)]
    told = "\n".join(problem.text for problem in problems)
    assert sorted(problem.kind for problem in problems) == sorted(case.problems), told
    expected = PartitionVerdict(topic, number, found.start, found.end, behind=found.behind)
    for name in ("rows", "lost", "duplicated", "changed", "unexplained", "holes", "only_in_ledger"):
        setattr(expected, name, getattr(case, name))
    if case.name == "entry missing at the end":
        assert (found.end, found.behind) == (10, 4)
    assert found == expected, told


@pytest.mark.spark
def test_the_total_is_the_sum_of_the_parts(verdict: Verdict) -> None:
    assert verdict.rows == sum(case.rows for case in CASES)
    assert verdict.lost == sum(case.lost for case in CASES)
    assert verdict.changed == sum(case.changed for case in CASES)
    assert verdict.duplicated == sum(case.duplicated for case in CASES)
    assert not verdict.is_complete


IN_QUARANTINE: Final = {"quarantined": 1, **MARKERS_AND_ABORTS}
QUARANTINE: Final = "bad"
DECODED: Final = (
    Case("sound"),
    Case("row removed", ("lost",), rows=9, lost=1, removed=(2,)),
    Case("row doubled", ("duplicated",), rows=11, duplicated=1, doubled=(11,)),
    Case("value changed", ("changed",), changed=1, row_changes=((4, "text", "x"),)),
    Case("key changed", ("changed",), changed=1, row_changes=((1, "kafka_key", b"x"),)),
    Case("in quarantine", rows=9, holes=IN_QUARANTINE, removed=(3,)),
    Case("in quarantine and lost", ("lost",), rows=9, lost=1, removed=(3,)),
)


def quarantine_of(*origins: tuple[Partition, int]) -> MemoryPartition:
    records = [
        Record(
            number,
            START_MS,
            None,
            b"bad",
            (
                ("tidelog.error.offset", b"none"),
                ("tidelog.error.topic", topic.encode()),
                ("tidelog.error.partition", b"%d" % partition),
                ("tidelog.error.offset", b"%d" % offset),
            ),
        )
        for number, ((topic, partition), offset) in enumerate(origins)
    ]
    strange = Record(len(records), START_MS, None, b"no origin", ())
    batches = ((bytes(build_batch([*records, strange])), False),)
    return MemoryPartition(batches, 0, len(records) + 1)


@pytest.mark.spark
def test_faults_of_decoded_values_and_of_the_quarantine_are_found(spark: SparkSession) -> None:
    """One of the two records that the ledger claims are in quarantine is there."""
    log = MemoryLog({KEYS[case.name]: case.then for case in DECODED})
    records = frame_of(spark, log)
    rows = decoded_rows(records)
    sent = [KEYS[name] for name in ("in quarantine", "in quarantine and lost")]
    kept = [f"not (kafka_partition = {partition} and kafka_offset = 3)" for _, partition in sent]
    stored = rows.where(" and ".join(kept))
    ledger = ledger_by_hand(records, stored, log, quarantined={(key, 0): 1 for key in sent})
    log.partitions[QUARANTINE, 0] = quarantine_of((sent[0], 3), (sent[0], 3))
    found = reconcile(spark, changed_rows(rows, DECODED), ledger, log, quarantine_topic=QUARANTINE)
    partitions = {(each.topic, each.partition): each for each in found.partitions}
    for case in DECODED:
        one = partitions[KEYS[case.name]]
        told = (one.rows, one.lost, one.duplicated, one.changed, one.holes)
        assert told == (case.rows, case.lost, case.duplicated, case.changed, case.holes), case.name
        kinds = tuple(p.kind for p in found.problems if p.partition == one.partition)
        assert kinds == case.problems, case.name
