"""Plans are correct and even, and move few replicas."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.admin.reassignments import (
    Assignment,
    Move,
    PlanError,
    after_moves,
    plan_moves,
    replica_counts,
)

NO_RACKS = dict.fromkeys(range(5))


def even_topic(
    name: str, partitions: int, brokers: int, factor: int
) -> dict[tuple[str, int], tuple[int, ...]]:
    return {
        (name, index): tuple((index + place) % brokers for place in range(factor))
        for index in range(partitions)
    }


def moved(moves: list[Move]) -> int:
    return sum(len(move.adding) for move in moves)


def spread(assignment: Assignment, brokers: list[int]) -> tuple[int, int]:
    """Returns the greatest differences between brokers in replicas and in preferred leaders."""
    counts = replica_counts(assignment, brokers)
    replicas = [counts[broker][0] for broker in brokers]
    leaders = [counts[broker][1] for broker in brokers]
    return max(replicas) - min(replicas), max(leaders) - min(leaders)


def test_a_balanced_cluster_stays_as_it_is() -> None:
    assert plan_moves(even_topic("t", 6, 3, 3), {0: None, 1: None, 2: None}) == []


def test_new_brokers_get_exactly_their_share() -> None:
    current = even_topic("t", 20, 3, 3)
    moves = plan_moves(current, NO_RACKS)
    assert spread(after_moves(current, moves), list(range(5))) == (0, 0)
    assert moved(moves) == 24, "60 replicas on 5 brokers: two of them need 12 each, no other replica moves"


def test_leaving_brokers_are_emptied_without_unnecessary_moves() -> None:
    current = even_topic("t", 20, 5, 3)
    moves = plan_moves(current, NO_RACKS, leaving=(3, 4))
    after = after_moves(current, moves)
    assert all(set(replicas) == {0, 1, 2} for replicas in after.values())
    assert moved(moves) == 24
    assert spread(after, [0, 1, 2])[1] <= 1


def test_a_dead_broker_is_emptied_only_on_request() -> None:
    current = {("t", 0): (0, 7)}
    with pytest.raises(PlanError, match="brokers 7 hold replicas but are not alive; --without 7"):
        plan_moves(current, {0: None, 1: None})
    moves = plan_moves(current, {0: None, 1: None}, leaving=(7,))
    assert [set(move.after) for move in moves] == [{0, 1}]


def test_draining_moves_nothing_else() -> None:
    current = {**even_topic("t", 12, 3, 2), **{("u", i): (0, 1) for i in range(6)}}
    moves = plan_moves(current, {0: None, 1: None, 2: None, 3: None}, leaving=(2,), evens_out=False)
    held = sum(replicas.count(2) for replicas in current.values())
    assert moved(moves) == held
    assert all(2 in move.before for move in moves if move.adding)


@pytest.mark.parametrize(
    ("racks", "leaving", "part"),
    [({0: None, 1: None}, (0, 1), "no broker"), ({0: None, 1: None}, (1,), "t-0 has 2 replicas, but only 1")],
)
def test_too_few_brokers_are_refused(racks: dict[int, None], leaving: tuple[int, ...], part: str) -> None:
    with pytest.raises(PlanError, match=part):
        plan_moves({("t", 0): (0, 1)}, racks, leaving)


def test_a_partition_in_one_rack_is_spread() -> None:
    racks = {0: "a", 1: "a", 2: "b", 3: "b"}
    (move,) = plan_moves({("t", 0): (0, 1)}, racks)
    assert len({racks[broker] for broker in move.after}) == 2
    assert move.after[0] == 0, "rather a follower moves than the leader"


def test_a_leaving_broker_is_replaced_from_its_own_rack_if_that_keeps_racks_apart() -> None:
    racks = {0: "a", 1: "b", 2: "c", 3: "a"}
    moves = plan_moves({("t", 0): (0, 1, 2)}, racks, leaving=(0,))
    assert [set(move.after) for move in moves] == [{1, 2, 3}]


def test_leaders_are_balanced_along_a_chain_without_moving_data() -> None:
    """Broker 0 leads three partitions and shares none with broker 2, which leads none."""
    current = {("a", 0): (0, 1), ("b", 0): (0, 1), ("c", 0): (0, 1), ("d", 0): (1, 2), ("e", 0): (1, 2)}
    board = {0: None, 1: None, 2: None}
    after = after_moves(current, plan_moves(current, board))
    assert spread(after, [0, 1, 2])[1] <= 1


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Assignment, dict[int, str | None], tuple[int, ...]]:
    count = draw(st.integers(2, 7))
    has_racks = draw(st.booleans())
    racks = {b: f"rack-{draw(st.integers(0, 2))}" if has_racks else None for b in range(count)}
    leaving = tuple(draw(st.lists(st.integers(0, count - 1), unique=True, max_size=count - 1)))
    most = min(3, count - len(leaving))
    current: dict[tuple[str, int], tuple[int, ...]] = {}
    for topic in range(draw(st.integers(1, 4))):
        factor = draw(st.integers(1, most))
        for index in range(draw(st.integers(1, 8))):
            order = draw(st.permutations(list(range(count))))
            current[f"t{topic}", index] = tuple(order[:factor])
    return current, racks, leaving


@given(clusters())
def test_any_plan_is_sound(case: tuple[Assignment, dict[int, str | None], tuple[int, ...]]) -> None:
    current, racks, leaving = case
    moves = plan_moves(current, racks, leaving)
    after = after_moves(current, moves)
    staying = [broker for broker in racks if broker not in leaving]
    rack_total = len({racks[broker] or broker for broker in staying})
    for key, replicas in after.items():
        assert len(set(replicas)) == len(replicas) == len(current[key])
        assert set(replicas) <= set(staying)
        assert len({racks[broker] or broker for broker in replicas}) == min(len(replicas), rack_total)
    if not any(racks.values()):
        for topic in {name for name, _ in after}:
            of_topic = {key: replicas for key, replicas in after.items() if key[0] == topic}
            assert spread(of_topic, staying)[0] <= 1, "each topic is even"
    assert all(move.before != move.after for move in moves)
    assert plan_moves(after, racks, leaving) == [], "a plan that was carried out leaves nothing to do"
