"""State machines: what the table allows, and what a machine remembers."""

from __future__ import annotations

from enum import Enum
from itertools import count

import pytest

from tidelog.kernel.machine import STORY_LENGTH, IllegalTransitionError, Machine, StateTable


class Door(Enum):
    OPEN = 1
    SHUT = 2
    GONE = 3


DOORS = StateTable("a door", {Door.OPEN: (Door.SHUT,), Door.SHUT: (Door.OPEN, Door.GONE), Door.GONE: ()})


def test_the_table_allows_what_it_contains() -> None:
    assert DOORS.enter(Door.OPEN, Door.SHUT) is Door.SHUT
    assert DOORS.allows(Door.SHUT, Door.GONE)
    assert not DOORS.allows(Door.OPEN, Door.GONE)
    assert [state for state in Door if DOORS.is_final(state)] == [Door.GONE]
    with pytest.raises(IllegalTransitionError, match="a door that is OPEN can't become GONE"):
        DOORS.enter(Door.OPEN, Door.GONE)


def test_a_machine_tells_how_it_came_to_its_state() -> None:
    times = count(1_000)
    machine = Machine(DOORS, Door.OPEN, lambda: next(times))
    machine.enter(Door.SHUT, "wind")
    machine.enter(Door.OPEN, "a guest")
    assert machine.state is Door.OPEN
    assert list(machine.story) == [
        (1_000, Door.OPEN, Door.SHUT, "wind"),
        (1_001, Door.SHUT, Door.OPEN, "a guest"),
    ]


def test_an_illegal_transition_changes_nothing() -> None:
    machine = Machine(DOORS, Door.OPEN, lambda: 0)
    with pytest.raises(IllegalTransitionError):
        machine.enter(Door.GONE, "magic")
    assert machine.state is Door.OPEN
    assert not machine.story


def test_attempts_that_repeat_do_not_displace_what_came_before_them() -> None:
    times = count()
    machine = Machine(DOORS, Door.OPEN, lambda: next(times))
    for _ in range(STORY_LENGTH):
        machine.enter(Door.SHUT, "wind")
        machine.enter(Door.OPEN, "it is tried again")
    assert [transition.at_ms for transition in machine.story] == [0, 1, 198, 199]


def test_a_machine_remembers_its_last_transitions() -> None:
    times = count()
    machine = Machine(DOORS, Door.OPEN, lambda: next(times))
    for number in range(STORY_LENGTH):
        machine.enter(Door.SHUT, f"guest {number} leaves")
        machine.enter(Door.OPEN, f"guest {number} comes back")
    assert [transition.at_ms for transition in machine.story] == list(range(STORY_LENGTH, 2 * STORY_LENGTH))
