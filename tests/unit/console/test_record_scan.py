"""Searches: they find what a plain loop finds, stop at each limit of the budget, and can be continued."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.console.core.record_query import (
    EVERY_RECORD,
    NEWEST_SEARCHED,
    FilterError,
    RecordFilter,
    RecordQuery,
    cursor_text,
)
from tidelog.console.core.record_scan import MIB, Budget, RecordScan, Spent
from tidelog.kernel.instants import MonotonicMs
from tidelog.records.builder import build_batch
from tidelog.records.compression import Compression
from tidelog.records.record import Record

NOW = MonotonicMs(0)
GENEROUS = Budget(max_bytes=MIB, max_records=10_000, max_ms=1_000)


class Log:
    """A partition as a list of values, in batches of `batch_records`."""

    def __init__(self, values: list[bytes], batch_records: int) -> None:
        self.values = values
        self._batch_records = batch_records

    def fetch(self, offset: int, batches: int = 2) -> memoryview:
        first = offset - offset % self._batch_records
        raw = b""
        for start in range(first, len(self.values), self._batch_records)[:batches]:
            part = self.values[start : start + self._batch_records]
            raw += build_batch(Record(start + i, 0, None, value) for i, value in enumerate(part))
        return memoryview(raw)


def run(
    logs: Mapping[int, Log],
    wanted: RecordFilter = EVERY_RECORD,
    *,
    budget: Budget = GENEROUS,
    max_found: int = 10_000,
    starts: Mapping[int, int] | None = None,
) -> RecordScan:
    ends = {index: len(log.values) for index, log in logs.items()}
    scan = RecordScan(starts or dict.fromkeys(logs, 0), ends, wanted, budget, max_found, NOW)
    while (index := scan.next_partition(NOW)) is not None:
        scan.take(logs[index].fetch(scan.positions[index]), (), lambda: NOW)
    return scan


LOGS = st.dictionaries(
    st.integers(0, 5),
    st.builds(Log, st.lists(st.sampled_from([b"a", b"b", b"ab", b"c"]), max_size=30), st.integers(1, 7)),
    min_size=1,
)


def found(scan: RecordScan) -> set[tuple[int, int]]:
    return {(record.partition, record.offset) for record in scan.found}


@given(LOGS)
def test_a_search_finds_what_a_loop_finds(logs: dict[int, Log]) -> None:
    scan = run(logs, RecordFilter(value="a"))
    assert found(scan) == {
        (index, offset)
        for index, log in logs.items()
        for offset, value in enumerate(log.values)
        if b"a" in value
    }
    assert scan.spent.records == sum(len(log.values) for log in logs.values())
    assert not scan.has_more
    assert scan.stopped_at is None


@given(LOGS, st.integers(1, 9), st.integers(1, 9))
def test_searches_that_continue_find_every_record_once(
    logs: dict[int, Log], max_records: int, max_found: int
) -> None:
    seen: list[tuple[int, int]] = []
    starts: dict[int, int] = dict.fromkeys(logs, 0)
    total = sum(len(log.values) for log in logs.values())
    for _ in range(total + 1):
        scan = run(
            logs,
            RecordFilter(value="a"),
            budget=GENEROUS._replace(max_records=max_records),
            max_found=max_found,
            starts=starts,
        )
        # The search looks at the clock and the budget only between some records.
        assert scan.spent.records <= max_records + 64
        seen += found(scan)
        starts = scan.positions
        if not scan.has_more:
            break
    assert not scan.has_more
    assert len(seen) == len(set(seen))
    assert set(seen) == found(run(logs, RecordFilter(value="a")))


def test_each_limit_of_the_budget_is_named() -> None:
    budget = Budget(64 * MIB, 500_000, 5_000)
    assert Spent(NOW, fetched_bytes=64 * MIB).limit_reached(budget, NOW) == "64.0 MiB"
    assert Spent(NOW, record_bytes=64 * MIB).limit_reached(budget, NOW) == "64.0 MiB"
    assert Spent(NOW, records=500_000).limit_reached(budget, NOW) == "500,000 records"
    assert Spent(NOW).limit_reached(budget, MonotonicMs(5_000)) == "5.0 s"
    assert Spent(NOW, fetched_bytes=64 * MIB - 1).limit_reached(budget, MonotonicMs(4_999)) is None


def test_a_search_stops_at_its_bytes_and_says_where() -> None:
    log = Log([b"%d" % number + bytes(100) for number in range(1_000)], 10)
    scan = run({3: log}, RecordFilter(value="no such text"), budget=GENEROUS._replace(max_bytes=20_000))
    assert scan.stopped_at == "0.0 MiB"
    assert scan.has_more
    assert 100 < scan.positions[3] < 300


def test_bytes_after_decompression_count() -> None:
    batch = build_batch([Record(0, 0, None, bytes(100_000))], compression=Compression.GZIP)
    scan = RecordScan({0: 0}, {0: 2}, EVERY_RECORD, GENEROUS._replace(max_bytes=50_000), 10, NOW)
    assert scan.next_partition(NOW) == 0
    scan.take(memoryview(batch), (), lambda: NOW)
    assert len(batch) < 1_000
    assert scan.next_partition(NOW) is None
    assert scan.stopped_at is not None


def test_a_search_stops_when_its_time_is_over() -> None:
    log = Log([b"a"] * 1_000, 100)
    scan = RecordScan({0: 0}, {0: 1_000}, RecordFilter(value="b"), GENEROUS, 10, NOW)
    assert scan.next_partition(NOW) == 0
    scan.take(log.fetch(0), (), lambda: MonotonicMs(1_000))
    assert scan.positions == {0: 64}
    assert scan.next_partition(MonotonicMs(1_000)) is None
    assert scan.stopped_at == "1.0 s"


def test_a_leader_without_the_promised_records_ends_the_search() -> None:
    scan = RecordScan({0: 0}, {0: 5}, EVERY_RECORD, GENEROUS, 10, NOW)
    assert scan.next_partition(NOW) == 0
    scan.take(memoryview(b""), (), lambda: NOW)
    assert scan.next_partition(NOW) is None
    assert scan.stopped_at is None


def test_damaged_batches_are_errors() -> None:
    batch = build_batch([Record(0, 0, None, b"value")])
    batch[-1] ^= 1
    scan = RecordScan({0: 0}, {0: 1}, EVERY_RECORD, GENEROUS, 10, NOW)
    scan.next_partition(NOW)
    with pytest.raises(ValueError, match="wrong CRC"):
        scan.take(memoryview(batch), (), lambda: NOW)


STARTS = {0: 0, 1: 50_000}
ENDS = {0: 1_000, 1: 90_000}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {0: 975, 1: 89_975}),
        ({"value": "x"}, {0: 0, 1: 90_000 - NEWEST_SEARCHED}),
        ({"start": "oldest"}, {0: 0, 1: 50_000}),
        ({"start": "offset", "offset": "700"}, {0: 700, 1: 50_000}),
        ({"start": "time", "time": "1970-01-01T00:01"}, {0: 1_000, 1: 60_000}),
        ({"from": cursor_text({1: 70_000, 0: 5})}, {0: 5, 1: 70_000}),
        ({"from": "1:99999999999"}, {0: 1_000, 1: 90_000}),
    ],
)
def test_a_query_says_where_to_begin(fields: dict[str, str], expected: dict[int, int]) -> None:
    query = RecordQuery.parse(fields)
    assert query.time_ms == (60_000 if "time" in fields else 0)
    assert query.starts(STARTS, ENDS, {0: -1, 1: 60_000}) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"start": "middle"},
        {"partition": "x"},
        {"partition": "\u0663"},
        {"start": "offset", "offset": "-1"},
        {"start": "time", "time": "yesterday"},
        {"limit": "501"},
        {"from": "0:1;1:2"},
        {"json": "a"},
        {"value": "x" * 1_001},
    ],
)
def test_a_wrong_field_is_refused_with_a_sentence(fields: dict[str, str]) -> None:
    with pytest.raises(FilterError, match=r"\.$"):
        RecordQuery.parse(fields)


def test_records_before_the_start_of_a_search_count_against_its_time() -> None:
    """A search that begins at the end of a large batch decodes the whole batch."""
    count, ticks = 50_000, itertools.count()
    raw = memoryview(build_batch(Record(at, 0, None, b"v") for at in range(count)))
    scan = RecordScan({0: count - 1}, {0: count}, EVERY_RECORD, Budget(max_ms=5), 10, NOW)
    assert scan.next_partition(NOW) == 0
    scan.take(raw, (), lambda: MonotonicMs(next(ticks)))
    assert scan.stopped_at is not None
    assert not scan.found
    assert scan.positions == {0: count - 1}


@given(st.lists(st.sampled_from([b"a", b"b"]), max_size=60), st.integers(1, 7), st.integers(1, 5))
def test_the_latest_records_are_kept(values: list[bytes], batch_records: int, max_found: int) -> None:
    log, wanted = Log(values, batch_records), RecordFilter(value="a")
    scan = RecordScan({0: 0}, {0: len(values)}, wanted, GENEROUS, max_found, NOW, keeps_latest=True)
    while (index := scan.next_partition(NOW)) is not None:
        scan.take(log.fetch(scan.positions[index]), (), lambda: NOW)
    matching = [offset for offset, value in enumerate(values) if value == b"a"]
    assert [record.offset for record in scan.found][-max_found:] == matching[-max_found:]
    assert len(scan.found) < 2 * max_found


@given(st.lists(st.integers(0, 200), max_size=60), st.integers(1, 500))
def test_the_newest_records_fill_the_page(sizes: list[int], limit: int) -> None:
    window = RecordQuery(limit=limit).window(sizes)
    taken = sum(min(size, window) for size in sizes)
    assert taken >= min(limit, sum(sizes))
    # One offset less of each partition would be too few.
    assert sum(min(size, window - 1) for size in sizes) < max(1, limit)
