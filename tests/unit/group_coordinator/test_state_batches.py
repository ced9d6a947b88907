"""Combined batches say about each offset what a table of single offsets says."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.group_coordinator.share_log import (
    SharePartitionState,
    ShareUpdate,
    StateBatch,
    combine,
    updated,
    with_changes,
)
from tidelog.kernel.instants import WallMs

OFFSETS = st.integers(0, 30)
BATCHES = st.lists(
    st.builds(
        lambda first, length, *state: StateBatch(first, first + length, *state),
        OFFSETS,
        st.integers(0, 8),
        st.sampled_from((0, 2, 4)),
        st.integers(1, 3),
        st.sampled_from((0, 0, 50, 60)),
    ),
    max_size=12,
)


def by_offset(batches: list[StateBatch] | tuple[StateBatch, ...]) -> dict[int, tuple[int, int, int]]:
    """Returns the highest (delivery count, delivery state, time) of each offset."""
    found: dict[int, tuple[int, int, int]] = {}
    for batch in batches:
        for offset in range(batch.first_offset, batch.last_offset + 1):
            rank = batch.delivery_count, batch.delivery_state, batch.available_at_ms
            found[offset] = max(found.get(offset, (0, 0, 0)), rank)
    return found


@given(BATCHES, st.integers(-1, 35))
def test_each_offset_has_its_latest_state(batches: list[StateBatch], start: int) -> None:
    wanted = {offset: state for offset, state in by_offset(batches).items() if offset >= start}
    assert by_offset(combine(batches, start)) == wanted


@given(BATCHES, st.integers(-1, 35))
def test_batches_are_sorted_disjoint_and_as_few_as_possible(batches: list[StateBatch], start: int) -> None:
    combined = combine(batches, start)
    for batch in combined:
        assert start <= batch.first_offset <= batch.last_offset
    for left, right in itertools.pairwise(combined):
        assert left.last_offset < right.first_offset
        assert left.last_offset + 1 < right.first_offset or left[2:] != right[2:]


@given(BATCHES, BATCHES, st.integers(-1, 35))
def test_the_order_of_requests_does_not_matter(
    one: list[StateBatch], other: list[StateBatch], start: int
) -> None:
    assert combine((*combine(one, start), *other), start) == combine((*combine(other, start), *one), start)


FAR_BATCHES = st.lists(
    st.builds(
        lambda first, length, *state: StateBatch(first, first + length, *state),
        st.integers(0, 99),
        st.integers(0, 3),
        st.sampled_from((0, 2)),
        st.integers(1, 2),
    ),
    max_size=25,
)


@given(BATCHES | FAR_BATCHES, BATCHES | FAR_BATCHES, st.integers(-1, 35), st.integers(-1, 35))
@settings(max_examples=500)
def test_changes_are_combined_as_everything_together_is(
    batches: list[StateBatch], changes: list[StateBatch], start: int, new_start: int
) -> None:
    one, other = combine(batches, start), combine(changes, -1)
    assert with_changes(one, other, new_start) == combine((*one, *other), new_start)


def test_batches_far_from_a_change_are_not_combined_again() -> None:
    batches = combine([StateBatch(2 * at, 2 * at, at % 2 * 2, 1) for at in range(1_000)], 0)
    changes = (StateBatch(500, 500, 2, 2), StateBatch(1_500, 1_501, 2, 2))
    state = SharePartitionState(0, 1, 1, 0, 0, WallMs(0), WallMs(0), batches)
    after = updated(state, ShareUpdate(0, 1, 10, 0, changes)).batches
    assert len(after) == 1_000 - 5
    assert len(set(map(id, after)) - set(map(id, batches))) <= 6


def test_a_higher_delivery_count_splits_a_batch() -> None:
    combined = combine([StateBatch(0, 9, 0, 1), StateBatch(3, 5, 2, 2)], 2)
    assert combined == (StateBatch(2, 2, 0, 1), StateBatch(3, 5, 2, 2), StateBatch(6, 9, 0, 1))


def test_a_batch_that_ends_before_it_begins_is_ignored() -> None:
    assert combine([StateBatch(5, 4, 0, 1)], -1) == ()
