"""The search for the leader epochs of a range."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.admin.logs import EpochStart, EpochWalk, OffsetRange
from tidelog.client.core.cluster_view import EpochEnd


def answer(history: list[EpochStart], log_end: int, asked: int) -> EpochEnd:
    """Returns the response of a leader with this history."""
    known = [each for each in history if each.epoch <= asked]
    if not known:
        return EpochEnd(0, -1, -1)
    later = history[len(known) :]
    return EpochEnd(0, known[-1].epoch, later[0].start_offset if later else log_end)


def walked(
    history: list[EpochStart], log_end: int, wanted: OffsetRange, newest: int
) -> tuple[EpochStart, ...]:
    walk = EpochWalk(wanted, newest)
    asked = 0
    while walk.asks is not None:
        walk.answered(answer(history, log_end, walk.asks))
        asked += 1
        assert asked <= len(history) + 1, "one question an epoch is enough"
    return walk.epochs()


HISTORY = [EpochStart(2, 0), EpochStart(5, 100), EpochStart(9, 250)]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 300, ((2, 0), (5, 100), (9, 250))),
        (0, 100, ((2, 0),)),
        (99, 101, ((2, 99), (5, 100))),
        (100, 250, ((5, 100),)),
        (260, 300, ((9, 260),)),
    ],
)
def test_a_range_has_the_leader_epochs_of_its_records(
    start: int, end: int, expected: tuple[tuple[int, int], ...]
) -> None:
    assert walked(HISTORY, 300, OffsetRange(start, end), newest=11) == expected


def test_offsets_before_the_known_epochs_get_the_oldest_epoch() -> None:
    assert walked([EpochStart(5, 100)], 300, OffsetRange(40, 200), newest=5) == ((5, 40),)
    assert walked([], 0, OffsetRange(0, 10), newest=3) == ()


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 50)), min_size=1, max_size=8),
    st.data(),
)
def test_every_history_of_epochs_is_found(steps: list[tuple[int, int]], data: st.DataObject) -> None:
    history, epoch, offset = [], 0, 0
    for epochs, records in steps:
        history.append(EpochStart(epoch, offset))
        epoch, offset = epoch + epochs, offset + records
    start = data.draw(st.integers(0, offset - 1))
    end = data.draw(st.integers(start + 1, offset))
    found = walked(history, offset, OffsetRange(start, end), newest=epoch)

    def epoch_at(at: int) -> int:
        return [each.epoch for each in history if each.start_offset <= at][-1]

    for at in range(start, end):
        assert [each.epoch for each in found if each.start_offset <= at][-1] == epoch_at(at)
