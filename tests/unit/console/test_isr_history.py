"""The history of the in-sync replicas: its bounds, its timeline and the changes in it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.console.core.isr_history import (
    MAX_CHANGES,
    MAX_SAMPLES,
    SAMPLE_INTERVAL_MS,
    SLOTS,
    SPAN_MS,
    Health,
    IsrHistory,
    IsrSample,
)
from tidelog.kernel.instants import WallMs


def sample(
    at_ms: int,
    *,
    brokers: tuple[int, ...] = (1, 2, 3),
    controller: str = "1",
    missing: int = 0,
    offline: int = 0,
) -> IsrSample:
    return IsrSample(WallMs(at_ms), brokers, controller, missing, offline)


def test_a_slot_shows_the_worst_health_in_it() -> None:
    history = IsrHistory()
    now_ms = WallMs(10 * SPAN_MS)
    for age_ms, missing, offline in ((3_000, 0, 0), (2_000, 4, 0), (1_000, 4, 1), (0, 0, 0)):
        history.add(sample(now_ms - age_ms, missing=missing, offline=offline))
    row = history.timeline(now_ms)[0]
    assert row.slots[-1] is Health.OFFLINE
    assert set(row.slots[:-1]) == {Health.UNKNOWN}


def test_a_broker_that_stopped_has_a_row_of_its_own() -> None:
    history = IsrHistory()
    slot_ms = SPAN_MS // SLOTS
    history.add(sample(0))
    history.add(sample(slot_ms, brokers=(1, 3), controller="3", missing=2))
    rows = {row.name: row.slots for row in history.timeline(WallMs(slot_ms))}
    assert list(rows) == ["In-sync replicas", "Broker 1", "Broker 2", "Broker 3"]
    assert rows["Broker 2"][-2:] == (Health.HEALTHY, Health.OFFLINE)
    assert rows["Broker 3"][-2:] == (Health.HEALTHY, Health.HEALTHY)
    assert [change.text for change in history.changes()] == [
        "Under-replicated partitions: 0 became 2.",
        "The active controller was 1 and became 3.",
        "Broker 2 stopped.",
    ]


def test_a_broker_that_was_down_all_the_time_has_a_row() -> None:
    history = IsrHistory()
    history.add(sample(0, brokers=(1, 2))._replace(down_ids=(3,)))
    rows = {row.name: row.slots[-1] for row in history.timeline(WallMs(0))}
    assert rows["Broker 3"] is Health.OFFLINE


def test_brokers_that_cannot_be_reached_are_down() -> None:
    history = IsrHistory()
    slot_ms = SPAN_MS // SLOTS
    history.add(sample(0))
    history.add(IsrSample(WallMs(slot_ms), (), "unknown", 0, 0, (1, 2, 3), is_reached=False))
    history.add(sample(2 * slot_ms))
    for row in history.timeline(WallMs(2 * slot_ms)):
        assert row.slots[-3:] == (Health.HEALTHY, Health.OFFLINE, Health.HEALTHY)
    texts = [change.text for change in history.changes()]
    assert "No broker answers." in texts
    assert "A broker answers again." in texts
    assert not [text for text in texts if "controller" in text]


def test_changes_are_the_newest_first_and_bounded() -> None:
    history = IsrHistory()
    for second in range(2 * MAX_CHANGES):
        history.add(sample(second * 1_000, missing=second % 2))
    changes = history.changes()
    assert len(changes) == MAX_CHANGES
    assert changes[0].at_ms == (2 * MAX_CHANGES - 1) * 1_000


def test_samples_from_before_a_clock_that_was_set_back_are_forgotten() -> None:
    history = IsrHistory()
    history.add(sample(5_000))
    history.add(sample(1_000))
    assert len(history) == 1


@given(st.lists(st.integers(0, SPAN_MS), max_size=200))
def test_no_sample_is_older_than_an_hour_and_none_is_lost_before(steps: list[int]) -> None:
    history = IsrHistory()
    times: list[int] = []
    for step in steps:
        times.append((times[-1] if times else 0) + step)
        history.add(sample(times[-1]))
    expected = [each for each in times if each >= times[-1] - SPAN_MS] if times else []
    assert len(history) == len(expected)


def test_the_history_has_a_most_of_samples() -> None:
    history = IsrHistory()
    for at_ms in range(MAX_SAMPLES + 10):
        history.add(sample(at_ms))
    assert len(history) == MAX_SAMPLES


@given(
    st.lists(st.integers(0, SAMPLE_INTERVAL_MS // 3), min_size=2 * SLOTS, max_size=2 * SLOTS), st.integers(0)
)
def test_samples_of_nobodys_looks_leave_no_gap(looks_ms: list[int], end_ms: int) -> None:
    """The sampler leaves a sample out if a viewer's is younger than a third of the interval."""
    history = IsrHistory()
    now_ms = WallMs(10 * SPAN_MS + end_ms % SPAN_MS)
    for number, before_ms in enumerate(reversed(looks_ms)):
        due_ms = WallMs(now_ms - (len(looks_ms) - 1 - number) * SAMPLE_INTERVAL_MS)
        if number % 2:
            history.add(sample(due_ms - before_ms))
        if not history.has_recent(due_ms, SAMPLE_INTERVAL_MS // 3):
            history.add(sample(due_ms))
    assert Health.UNKNOWN not in history.timeline(now_ms)[0].slots


def test_a_clock_that_was_set_back_has_no_recent_sample() -> None:
    history = IsrHistory()
    assert not history.has_recent(WallMs(0), 1_000)
    history.add(sample(10_000))
    assert history.has_recent(WallMs(10_999), 1_000)
    assert not history.has_recent(WallMs(11_000), 1_000)
    assert not history.has_recent(WallMs(9_999), 1_000)
