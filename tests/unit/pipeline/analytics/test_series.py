"""Slopes, resets and gaps of series."""

from __future__ import annotations

import pytest

from tidelog.pipeline.analytics.facts import after_last_fall, interval_ms, latest, newest_by_time, slope_per_s


def test_a_slope_needs_three_times() -> None:
    assert slope_per_s([(0, 10), (1000, 12), (2000, 14)]) == 2.0
    assert slope_per_s([(0, 1), (1000, 2)]) is None, "two points are always on a line"
    assert slope_per_s([(7, 1.0), (7, 2.0), (7, 3.0)]) is None


def test_a_staircase_rises_as_its_steps_do() -> None:
    stairs = [(second * 1000, 90.0 * (second // 60 * 60)) for second in range(0, 3600, 15)]
    assert slope_per_s(stairs) == pytest.approx(90, rel=0.02)


def test_points_before_a_reset_belong_to_another_series() -> None:
    assert after_last_fall([(0, 9), (1, 10), (2, 3), (3, 4)]) == [(2, 3), (3, 4)]
    assert after_last_fall([(0, 1), (1, 2)]) == [(0, 1), (1, 2)]
    assert list(after_last_fall([])) == []


def test_the_usual_distance_of_samples_outlives_a_gap() -> None:
    assert interval_ms([0, 15, 30, 500, 515], 7) == 15
    assert interval_ms([3], 7) == 7


def test_windows_and_doubles() -> None:
    assert latest([(0, 1), (50, 2), (100, 3)], 50) == [(50, 2), (100, 3)]
    assert newest_by_time([(2, 1.0), (1, 5.0), (2, 4.0)]) == [(1, 5.0), (2, 4.0)]
