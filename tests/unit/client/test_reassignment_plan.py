"""Requested moves and their progress."""

from __future__ import annotations

import pytest

from tidelog.client.admin.reassignments import (
    Move,
    PlanError,
    Progress,
    Reassignment,
    progress_of,
    requested_moves,
    running_moves,
)

CURRENT = {("t", 0): (1, 2), ("t", 1): (2, 3)}


def test_requested_moves_have_the_replicas_before_and_after() -> None:
    assert requested_moves(CURRENT, {("t", 1): (3, 1)}, [1, 2, 3]) == [Move("t", 1, (2, 3), (3, 1))]


@pytest.mark.parametrize(
    ("key", "replicas", "message"),
    [
        (("t", 2), (1,), "partition t-2 does not exist"),
        (("t", 0), (), "t-0 has no replicas"),
        (("t", 0), (1, 1), "t-0 has two replicas on the same broker"),
        (("t", 0), (1, 4), "t-0 has a replica on broker 4, which is not alive"),
    ],
)
def test_impossible_moves_are_refused(key: tuple[str, int], replicas: tuple[int, ...], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        requested_moves(CURRENT, {key: replicas}, [1, 2, 3])


def test_a_running_move_goes_from_the_old_to_the_new_replicas() -> None:
    assert running_moves({("t", 0): Reassignment((3, 1, 2), (3,), (2,))}) == [Move("t", 0, (1, 2), (3, 1))]


def test_the_progress_of_each_move() -> None:
    wanted = {("t", 0): (1, 2), ("t", 1): (3, 2), ("t", 2): (1,), ("u", 0): (1,)}
    current = {**CURRENT, ("t", 2): (1,)}
    assert progress_of(wanted, current, {("t", 2)}) == {
        ("t", 0): Progress.FINISHED,
        ("t", 1): Progress.DIFFERENT,  # the order decides which leader is preferred
        ("t", 2): Progress.MOVING,
        ("u", 0): Progress.MISSING,
    }
