"""The offsets to which groups are reset, and the search for the leader epochs of a range."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.admin.logs import EpochStart, EpochWalk, OffsetRange
from tidelog.client.admin.offsets import KnownOffsets, NewOffset, Reset, ResetError, ResetMethod, plan_reset
from tidelog.client.core.cluster_view import EpochEnd
from tidelog.model.topics import TopicPartition

PLACE = TopicPartition("t", 0)
HISTORY = [EpochStart(2, 0), EpochStart(5, 100), EpochStart(9, 250)]


@st.composite
def partitions(draw: st.DrawFn) -> dict[TopicPartition, KnownOffsets]:
    found = {}
    for index in range(draw(st.integers(0, 4))):
        earliest = draw(st.integers(0, 50))
        latest = earliest + draw(st.integers(0, 50))
        found[TopicPartition("t", index)] = KnownOffsets(
            earliest,
            latest,
            draw(st.none() | st.integers(0, 150)),
            draw(st.none() | st.integers(earliest, latest)),
        )
    return found


@given(st.sampled_from(ResetMethod), partitions(), st.integers(-200, 200), st.integers(0, 200))
def test_new_offsets_exist_and_are_the_nearest_to_the_request(
    method: ResetMethod, known: Mapping[TopicPartition, KnownOffsets], number: int, in_file: int
) -> None:
    reset = Reset(method, number, offsets=dict.fromkeys(known, in_file))
    if method is ResetMethod.SHIFT_BY and any(offsets.committed is None for offsets in known.values()):
        with pytest.raises(ResetError, match="no committed offset"):
            plan_reset(reset, known)
        return
    plan = plan_reset(reset, known)
    assert plan.keys() == known.keys()
    for place, new in plan.items():
        offsets = known[place]
        wanted = {
            ResetMethod.TO_EARLIEST: offsets.earliest,
            ResetMethod.TO_LATEST: offsets.latest,
            ResetMethod.TO_OFFSET: number,
            ResetMethod.SHIFT_BY: (offsets.committed or 0) + number,
            ResetMethod.TO_DATETIME: offsets.at_time,
            ResetMethod.BY_DURATION: offsets.at_time,
            ResetMethod.TO_CURRENT: offsets.latest if offsets.committed is None else offsets.committed,
            ResetMethod.FROM_FILE: in_file,
        }[method]
        if method is ResetMethod.TO_CURRENT:  # a committed offset may have been deleted
            assert new == NewOffset(wanted)
            continue
        assert offsets.earliest <= new.offset <= offsets.latest
        assert (new.warning is None) == (new.offset == wanted)
        if wanted is None:
            assert new.offset == offsets.latest
        else:
            assert new.offset == sorted((offsets.earliest, wanted, offsets.latest))[1]


def test_a_warning_names_the_partition_and_both_offsets() -> None:
    plan = plan_reset(Reset(ResetMethod.TO_OFFSET, 99), {PLACE: KnownOffsets(3, 7)})
    assert plan == {
        PLACE: NewOffset(7, "offset 99 of t-0 is higher than the latest one, so it gets offset 7")
    }


def test_a_partition_that_the_file_does_not_name_is_an_error() -> None:
    with pytest.raises(ResetError, match="no offset of t-0"):
        plan_reset(Reset(ResetMethod.FROM_FILE), {PLACE: KnownOffsets(0, 7)})


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
