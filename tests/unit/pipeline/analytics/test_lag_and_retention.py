"""The trend of lag, and the records that retention deletes before they are read."""

from __future__ import annotations

import pytest

from tidelog.pipeline.analytics.lag import LagTrend, lag_trend
from tidelog.pipeline.analytics.retention import forecast, lost_records

Points = list[tuple[int, float]]
STEP_S = 15
WINDOW_MS = 1_800_000


def line(begin: float, per_s: float, seconds: int = 3600) -> Points:
    return [(second * 1000, begin + per_s * second) for second in range(0, seconds + 1, STEP_S)]


def look(lags: Points, committed: Points, end_ms: int | None = None) -> LagTrend:
    return lag_trend(
        lags,
        committed,
        window_ms=WINDOW_MS,
        interval_ms=STEP_S * 1000,
        history_end_ms=lags[-1][0] if end_ms is None else end_ms,
    )


def test_a_reader_faster_than_the_writer_drains() -> None:
    found = look(line(40_000, -10), line(0, 110))
    assert found.state == "draining"
    assert found.drain_s == pytest.approx(400)
    assert (found.produced_per_s, found.consumed_per_s) == (pytest.approx(100), pytest.approx(110))


def test_the_lag_of_a_slower_reader_grows_for_ever() -> None:
    found = look(line(0, 40), line(0, 60))
    assert (found.state, found.drain_s) == ("growing", None)


def test_a_group_that_commits_nothing_is_stalled_with_and_without_new_records() -> None:
    assert look(line(5, 100), line(7, 0)).state == "stalled"
    assert look(line(5, 0), line(7, 0)).state == "stalled"


def test_a_group_that_has_read_everything_and_a_deleted_one() -> None:
    assert look(line(0, 0), line(0, 100)).state == "read"
    assert look(line(40, 0), line(0, 100), end_ms=4_000_000).state == "gone"


def test_a_sawtooth_around_a_level_is_steady() -> None:
    lags = [(second * 1000, 1000.0 + 500 * (second // STEP_S % 2)) for second in range(0, 3600, STEP_S)]
    found = look(lags, line(0, 100))
    assert (found.state, found.drain_s) == ("steady", None)


def test_a_seek_back_is_not_a_negative_rate() -> None:
    lags = line(0, 0, 1800) + [(at_ms + 1_815_000, 50_000 + lag) for at_ms, lag in line(0, -20, 600)]
    committed = line(100_000, 10, 1800) + [(at_ms + 1_815_000, 50_000 + c) for at_ms, c in line(0, 30, 600)]
    found = look(lags, committed)
    assert found.consumed_per_s == pytest.approx(30)
    assert found.drain_s == pytest.approx((50_000 - 20 * 600) / 20)


def test_only_the_window_counts() -> None:
    lags = line(0, 100, 1800) + [(at_ms + 1_815_000, 180_000 + lag) for at_ms, lag in line(0, -50, 1800)]
    committed = line(0, 0, 1800) + [(at_ms + 1_815_000, c) for at_ms, c in line(0, 150, 1800)]
    assert look(lags, committed).state == "draining"


def test_too_little_history_gives_the_lag_and_no_rates() -> None:
    found = look(line(9, 0, 15), line(0, 0, 15))
    assert (found.lag, found.state, found.produced_per_s, found.drain_s) == (9, "steady", None, None)


# -- retention


def test_a_group_that_falls_back_towards_expiry_is_at_risk() -> None:
    lag = look(line(0, 40), line(0, 60))
    found = forecast(lag, line(0, 60), [], line(7200, -0.5), window_ms=WINDOW_MS)
    assert (found.verdict, found.lost) == ("at risk", 0)
    assert found.loses_in_s == pytest.approx(5400 / 0.5)


def test_a_group_that_drains_before_expiry_is_safe() -> None:
    lag = look(line(40_000, -10), line(0, 110))
    found = forecast(lag, line(0, 110), [], line(5000, -1), window_ms=WINDOW_MS)
    assert found.verdict == "safe"
    assert found.loses_in_s == pytest.approx(1400), "reported, because 400 s are enough"


def test_a_log_start_that_is_faster_overtakes() -> None:
    committed = line(100_000, 80)
    starts: Points = [(at_ms, 90.0 * (at_ms // 60_000 * 60)) for at_ms, _ in committed]
    found = forecast(look(line(900_000, 20), committed), committed, starts, [], window_ms=WINDOW_MS)
    assert found.verdict == "at risk"
    assert found.by_offset_s == pytest.approx(64_000 / 10, rel=0.05)
    assert found.margin == 64_000


def test_lost_records_are_counted_once() -> None:
    committed: Points = [(0, 10.0), (1, 10.0), (2, 10.0), (3, 40.0)]
    assert lost_records(committed, [(0, 0.0), (1, 15.0), (2, 20.0), (3, 20.0)]) == 10
    assert lost_records(committed, [(0, 0.0), (3, 39.0)]) == 0
    assert lost_records([], [(0, 5.0)]) == 0
    assert lost_records([(10, 0.0)], [(0, 5.0)]) == 0, "there was no group yet"


def test_lost_records_determine_the_verdict() -> None:
    committed = line(0, 0)
    starts = [(at_ms, at_ms / 100) for at_ms, _ in committed]
    found = forecast(look(line(99_000, 0), committed), committed, starts, [], window_ms=WINDOW_MS)
    assert (found.verdict, found.lost, found.loses_in_s) == ("lost", 36_000, 0)


def test_without_retention_data_the_verdict_is_unknown() -> None:
    lag = look(line(5, 0), line(5, 0))
    assert forecast(lag, line(5, 0), [], [], window_ms=WINDOW_MS).verdict == "unknown"
    assert forecast(lag, line(5, 0), [], line(9000, 0), window_ms=WINDOW_MS).verdict == "safe"
    everything = look(line(0, 0), line(5, 0))
    assert forecast(everything, line(5, 0), [], [], window_ms=WINDOW_MS).verdict == "safe"


def test_an_outdated_expiry_is_not_used() -> None:
    lag = look(line(50, 0), line(5, 0))
    old = line(100, -1, 60)
    found = forecast(lag, line(5, 0), [], old, window_ms=WINDOW_MS)
    assert (found.expires_s, found.by_time_s) == (None, None)
