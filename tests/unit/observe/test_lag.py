"""The lag of groups for both isolation levels, and the forecast of the loss of records to retention."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.cluster import Topic
from tidelog.client.core.cluster_view import Partition
from tidelog.kernel.instants import WallMs
from tidelog.model.topics import ZERO_TOPIC_ID, TopicPartition
from tidelog.observe.cluster_reader import uncommitted_count
from tidelog.observe.lag import (
    NO_LIMIT,
    Forecast,
    LogEnds,
    Observation,
    Outlook,
    PartitionLag,
    Retention,
    forecast,
    full_in_ms,
    total_of,
    urgency,
)

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NOW_MS = 100 * DAY_MS
ONE_DAY = Retention(DAY_MS, NO_LIMIT)
PLACE = TopicPartition("t", 0)
OFFSETS = st.none() | st.integers(0, 100)


@pytest.mark.parametrize(
    ("policy", "is_deleting"),
    [(None, True), ("delete", True), ("compact,delete", True), ("compact", False), ("", False)],
)
def test_an_empty_cleanup_policy_deletes_nothing(policy: str | None, is_deleting: bool) -> None:
    assert Retention.of({"cleanup.policy": policy}).is_deleting is is_deleting


def observed(
    *,
    at_ms: int = NOW_MS,
    committed: int = 400,
    start: int = 0,
    high: int = 1_000,
    stable: int | None = None,
    age_ms: int | None = 6 * HOUR_MS,
    size_bytes: int | None = 10_000,
) -> Observation:
    return Observation(
        WallMs(at_ms),
        committed,
        start,
        high,
        high if stable is None else stable,
        None if age_ms is None else at_ms - age_ms,
        size_bytes,
    )


def test_lag_depends_on_the_isolation_level() -> None:
    seen = observed(committed=400, high=1_000, stable=900)
    assert (seen.lag_uncommitted, seen.lag_committed, seen.lag_ms) == (600, 500, 6 * HOUR_MS)


def test_a_group_ahead_of_the_last_stable_offset_has_no_lag_in_read_committed() -> None:
    assert observed(committed=950, high=1_000, stable=900).lag_committed == 0


@pytest.mark.parametrize(
    ("retention_ms", "age_ms", "expected"),
    [
        (HOUR_MS, 2_000, ""),  # keeps up
        (HOUR_MS, 35 * 60_000, "warn"),
        (HOUR_MS, 50 * 60_000, "bad"),
        (7 * DAY_MS, 6 * DAY_MS + HOUR_MS, "warn"),
        (7 * DAY_MS, 7 * DAY_MS - 1_000, "bad"),
    ],
)
def test_a_loss_is_near_by_its_time_and_by_its_share_of_the_retention(
    retention_ms: int, age_ms: int, expected: str
) -> None:
    seen = observed(age_ms=age_ms)
    assert urgency(forecast(seen, None, Retention(retention_ms, NO_LIMIT)), seen) == expected


def test_a_commit_beyond_the_end_has_a_negative_lag() -> None:
    seen = observed(committed=1_049, high=1_000, stable=900, age_ms=None)
    assert (seen.lag_uncommitted, seen.lag_committed, seen.lag_ms) == (-49, -49, 0)
    found = forecast(seen, None, ONE_DAY)
    assert (found.outlook, found.reason) == (
        Outlook.NONE,
        "the committed offset is beyond the end of the log",
    )


def test_a_group_that_has_read_all_has_no_lag_in_time() -> None:
    assert observed(committed=1_000, age_ms=None).lag_ms == 0
    assert observed(committed=999, age_ms=None).lag_ms is None


def test_records_that_retention_deleted_are_lost_and_no_lag() -> None:
    seen = observed(committed=400, start=700)
    assert (seen.lost_records, seen.lag_uncommitted) == (300, 300)
    found = forecast(seen, None, ONE_DAY)
    assert found == Forecast(Outlook.LOST, 0, "retention deleted 300 offsets that the group had not read")


def test_a_group_that_stands_still_loses_records_when_the_next_one_is_too_old() -> None:
    assert forecast(observed(), None, ONE_DAY) == Forecast(Outlook.SOON, 18 * HOUR_MS, "retention.ms")


@pytest.mark.parametrize(
    ("read_ms_in_a_minute", "expected_ms"),
    [
        (0, 18 * HOUR_MS),  # stands still
        (30_000, 36 * HOUR_MS),  # reads half as fast as time passes
        (60_000, None),  # keeps its distance
        (600_000, None),  # catches up
    ],
)
def test_the_speed_of_the_group_counts(read_ms_in_a_minute: int, expected_ms: int | None) -> None:
    now = observed()
    before = observed(at_ms=NOW_MS - 60_000, age_ms=6 * HOUR_MS - 60_000 + read_ms_in_a_minute)
    assert forecast(now, before, ONE_DAY).in_ms == expected_ms


def test_a_limit_of_size_counts_bytes_that_the_group_has_not_read() -> None:
    retention = Retention(NO_LIMIT, 9_000)  # 600 of 1000 records are 6000 bytes
    assert forecast(observed(), None, retention).outlook is Outlook.NONE
    before = observed(at_ms=NOW_MS - 60_000, committed=400, high=900)
    assert forecast(observed(), before, retention) == Forecast(Outlook.SOON, 180_000, "retention.bytes")
    assert forecast(observed(), before, Retention(NO_LIMIT, 5_000)).in_ms == 0


def test_the_earlier_of_two_losses_is_forecast() -> None:
    before = observed(at_ms=NOW_MS - 60_000, high=900, age_ms=6 * HOUR_MS - 60_000)
    assert forecast(observed(), before, Retention(DAY_MS, 9_000)).reason == "retention.bytes"
    assert forecast(observed(), before, Retention(DAY_MS, 10**9)).reason == "retention.ms"


def test_what_was_not_read_is_not_known() -> None:
    assert forecast(observed(age_ms=None), None, ONE_DAY).outlook is Outlook.UNKNOWN
    assert forecast(observed(size_bytes=None), None, Retention(NO_LIMIT, 9_000)).outlook is Outlook.UNKNOWN


def test_topics_without_limits_and_groups_without_lag_lose_nothing() -> None:
    for seen, retention in (
        (observed(), Retention(NO_LIMIT, NO_LIMIT)),
        (observed(), Retention(DAY_MS, NO_LIMIT, is_deleting=False)),
        (observed(committed=1_000), ONE_DAY),
    ):
        assert forecast(seen, None, retention).outlook is Outlook.NONE


OBSERVATIONS = st.builds(
    observed,
    at_ms=st.integers(NOW_MS, NOW_MS + DAY_MS),
    committed=st.integers(0, 2_000),
    start=st.integers(0, 1_000),
    high=st.integers(1_000, 3_000),
    age_ms=st.none() | st.integers(-DAY_MS, 3 * DAY_MS),
    size_bytes=st.none() | st.integers(0, 10**9),
)


@given(OBSERVATIONS, st.none() | OBSERVATIONS, st.integers(-1, DAY_MS), st.integers(-1, 10**9))
def test_a_forecast_names_a_time_only_for_a_loss(
    now: Observation, before: Observation | None, retention_ms: int, retention_bytes: int
) -> None:
    found = forecast(now, before, Retention(retention_ms, retention_bytes))
    assert (found.in_ms is not None) == (found.outlook in (Outlook.SOON, Outlook.LOST))
    assert found.in_ms is None or found.in_ms >= 0
    assert found.reason


def test_an_open_transaction_holds_back_only_the_stable_lag() -> None:
    lag = PartitionLag(4, high_watermark=10, last_stable_offset=6)
    assert (lag.lag, lag.stable_lag, lag.depends_on_isolation) == (6, 2, True)


@given(OFFSETS, OFFSETS, OFFSETS)
def test_only_a_commit_beyond_the_end_has_a_negative_lag_and_the_stable_one_is_not_greater(
    committed: int | None, end: int | None, stable: int | None
) -> None:
    def known(offset: int | None) -> dict[TopicPartition, int]:
        return {} if offset is None else {PLACE: offset}

    lag = LogEnds(known(end), known(stable)).lag_of(PLACE, committed)
    assert (lag.lag is None) == (committed is None or end is None)
    if lag.lag is not None and lag.stable_lag is not None:
        assert min(lag.lag, 0) <= lag.stable_lag <= lag.lag
    if committed is not None and end is not None:
        assert lag.lag == end - committed


def test_a_commit_beyond_the_end_is_shown_as_kafka_shows_it() -> None:
    lag = PartitionLag(150, high_watermark=101, last_stable_offset=90)
    assert (lag.lag, lag.stable_lag) == (-49, -49)


def test_a_commit_behind_an_open_transaction_is_not_beyond_the_end() -> None:
    assert PartitionLag(8, high_watermark=10, last_stable_offset=6).stable_lag == 0


def test_partitions_without_a_commit_are_counted_in_the_topics_of_the_group() -> None:
    topics = {"t": topic("t", 4), "u": topic("u", 2), "of others": topic("of others", 1)}
    committed = {PLACE, TopicPartition("t", 2), TopicPartition("gone", 0)}
    assert uncommitted_count(topics, committed) == 2
    assert uncommitted_count(topics, committed, owned=[TopicPartition("u", 1)]) == 4


def topic(name: str, partition_count: int) -> Topic:
    partitions = tuple(Partition(index, 1, 0, (1,), (1,), ()) for index in range(partition_count))
    return Topic(name, ZERO_TOPIC_ID, False, partitions)


def test_a_total_leaves_out_unknown_lags_and_commits_beyond_the_end() -> None:
    assert total_of([6, None, 0, -49]) == 6
    assert total_of([None]) is None
    assert total_of([]) is None


@given(
    usable=st.integers(0, 10_000),
    logs=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 1_000)), max_size=6),
)
def test_the_disk_is_full_when_the_logs_have_grown_by_its_free_bytes(
    usable: int, logs: list[tuple[int, int]]
) -> None:
    full_ms = full_in_ms(usable, [(float(rate), float(room)) for rate, room in logs])
    if full_ms is None:
        assert sum(room for _, room in logs) <= usable + 1e-6
    else:
        assert sum(min(rate * full_ms, room) for rate, room in logs) == pytest.approx(usable)
