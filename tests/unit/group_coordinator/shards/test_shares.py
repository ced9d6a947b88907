"""The assignment of shards to coordinators."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tidelog.group_coordinator.shards.claims import plan_shares

COORDINATORS = st.sets(st.integers(0, 9), min_size=1, max_size=6)
OWNERS = st.dictionaries(st.integers(0, 59), st.integers(0, 9))


def test_without_coordinators_no_shard_has_an_owner() -> None:
    assert plan_shares((), {0: 1}, 5) == {}


def test_free_shards_are_distributed_in_turn() -> None:
    assert plan_shares((1, 2), {}, 5) == {0: 1, 1: 2, 2: 1, 3: 2, 4: 1}


def test_a_new_owner_gets_the_highest_shards_of_overloaded_owners() -> None:
    assert plan_shares((1, 2), dict.fromkeys(range(6), 1), 6) == {0: 1, 1: 1, 2: 1, 3: 2, 4: 2, 5: 2}


@given(COORDINATORS, OWNERS, st.integers(0, 60))
def test_shares_are_equal_and_every_shard_has_an_owner(
    coordinators: set[int], owners: dict[int, int], count: int
) -> None:
    shares = plan_shares(coordinators, owners, count)
    assert sorted(shares) == list(range(count))
    counts = Counter(dict.fromkeys(coordinators, 0))
    counts.update(shares.values())
    assert set(counts) == coordinators
    assert max(counts.values()) - min(counts.values()) <= 1


@given(COORDINATORS, OWNERS, st.integers(0, 60))
def test_the_number_of_moves_is_minimal(coordinators: set[int], owners: dict[int, int], count: int) -> None:
    shares = plan_shares(coordinators, owners, count)
    held = Counter(owner for shard, owner in owners.items() if shard < count and owner in coordinators)
    kept = sum(owners.get(shard) == owner for shard, owner in shares.items())
    least, extra = divmod(count, len(coordinators))
    quotas = sorted((least + (rank < extra) for rank in range(len(coordinators))), reverse=True)
    possible = sum(
        min(number, quota)
        for number, quota in zip(sorted((held[c] for c in coordinators), reverse=True), quotas, strict=True)
    )
    assert kept == possible


@given(COORDINATORS, OWNERS, st.integers(0, 60))
def test_a_plan_made_from_its_own_result_is_the_same(
    coordinators: set[int], owners: dict[int, int], count: int
) -> None:
    shares = plan_shares(coordinators, owners, count)
    assert plan_shares(coordinators, shares, count) == shares
