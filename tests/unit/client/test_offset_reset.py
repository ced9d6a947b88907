"""The offsets to which groups are reset."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.admin.offsets import KnownOffsets, NewOffset, Reset, ResetError, ResetMethod, plan_reset
from tidelog.model.topics import TopicPartition

PLACE = TopicPartition("t", 0)


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
