"""The duration of a fault's impact, computed from acknowledgements and samples."""

from __future__ import annotations

import pytest

from chaoslab.__main__ import KILLS, OTHERS, schedule
from chaoslab.history import ACKNOWLEDGED, History, Send
from chaoslab.recovery import Acknowledgements, by_kind, faults_of, kills_in, whole_isr_s
from chaoslab.run import EXPERIMENTS

TICK_S = 0.1


def acknowledgements(pauses: dict[int, tuple[float, float]], until_s: float = 60.0) -> Acknowledgements:
    """Returns acknowledgements of two partitions every `TICK_S`; those sent during a pause follow it."""
    history = History()
    for partition in (0, 1):
        from_s, to_s = pauses.get(partition, (-1.0, -1.0))
        for number in range(int(until_s / TICK_S)):
            sent_s = number * TICK_S
            settled_s = to_s if from_s <= sent_s < to_s else sent_s + 0.01
            history.sends.append(
                Send("p", "log", partition, f"k{partition}", number, ACKNOWLEDGED, number, sent_s, settled_s)
            )
    return Acknowledgements(history, "log")


def kill(target: str, at_s: float, role: str = "leader") -> dict[str, object]:
    return {"action": "kill", "role": role, "target": target, "at_s": at_s}


def sample(at_s: float, under_replicated: int, *, is_view_known: bool = True) -> dict[str, object]:
    return {"at_s": at_s, "under_replicated": under_replicated, "is_view_known": is_view_known}


def test_the_end_of_the_longest_pause_is_the_next_write() -> None:
    found = acknowledgements({0: (10.5, 14.0), 1: (10.5, 12.0)})
    (fault,) = faults_of([kill("b-0", 10.0)], [], found)
    assert fault.next_write_s == pytest.approx(4.0)
    assert fault.silence_s == pytest.approx(3.6, abs=0.1)


def test_without_a_pause_it_is_the_first_record_sent_after_the_fault() -> None:
    (fault,) = faults_of([kill("b-0", 10.05)], [], acknowledgements({}))
    assert fault.next_write_s == pytest.approx(0.06)


def test_a_pause_long_after_an_upgrade_began_is_not_its_next_write() -> None:
    upgrade = {"action": "upgrade", "role": "release", "target": "new", "at_s": 10.05, "until_s": 50.0}
    (fault,) = faults_of([upgrade], [], acknowledgements({0: (40.0, 43.0)}))
    assert fault.next_write_s == pytest.approx(0.06)
    assert fault.silence_s == pytest.approx(3.1, abs=0.1)


def test_problems_after_a_later_fault_are_attributed_to_it() -> None:
    found = acknowledgements({0: (30.0, 38.0)})
    first, second = faults_of([kill("b-0", 10.0), kill("b-1", 29.9)], [], found)
    assert first.silence_s < 0.2
    assert second.silence_s == pytest.approx(8.1, abs=0.1)


def test_pods_killed_at_once_are_one_fault_and_two_kills() -> None:
    events = [kill("b-0", 10.0), kill("b-1", 10.0), kill("c-0", 20.0, "controller")]
    faults = faults_of(events, [], acknowledgements({}))
    assert [fault.targets for fault in faults] == [("b-0", "b-1"), ("c-0",)]
    assert kills_in(events) == 3
    assert by_kind(faults)["kill leader"]["count"] == 1


def test_the_isr_is_whole_after_the_last_time_it_was_not() -> None:
    samples = [
        sample(10.2, 0),
        sample(10.5, 3),
        sample(12.0, 0),
        sample(12.5, 1),
        sample(15.0, 0),
        sample(16.0, 0),
    ]
    assert whole_isr_s(samples, 10.0, 60.0) == pytest.approx(5.0)


def test_an_isr_that_was_never_short_is_whole_at_once() -> None:
    assert whole_isr_s([sample(10.2, 0), sample(11.0, 0)], 10.0, 60.0) == 0.0


def test_an_isr_that_stays_short_is_not_reported_as_whole() -> None:
    samples = [sample(10.2, 3), sample(11.0, 0, is_view_known=False)]
    assert whole_isr_s(samples, 10.0, 60.0) is None


def test_a_schedule_kills_as_often_as_asked_and_has_every_other_kind_once() -> None:
    names = schedule(30)
    assert sum(KILLS.get(name, 0) for name in names) >= 30
    assert sorted(name for name in names if name not in KILLS) == sorted(OTHERS)
    assert {path.stem for path in EXPERIMENTS.glob("*.yaml")} == set(KILLS) | set(OTHERS)
