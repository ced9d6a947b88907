"""Plans by load are valid and balanced, and copy little."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.client.admin.reassignments import PlanError, after_moves, plan_json, plan_moves
from tidelog.model.topics import TopicPartition
from tidelog.pipeline.analytics.loads import (
    TOLERANCE,
    PartitionLoad,
    broker_loads,
    holders_of,
    over_mean,
    plan_by_load,
    propose,
    told_assignment,
    topic_skews,
    weights_of,
)

Loads = dict[TopicPartition, PartitionLoad]
THREE = {1: None, 2: None, 3: None}


def load(
    partition: int, holders: tuple[int, ...], size: float, rate: float = 0.0, topic: str = "t"
) -> PartitionLoad:
    return PartitionLoad(topic, partition, holders[0], len(holders), holders, size, size, rate, rate)


def by_key(loads: list[PartitionLoad]) -> Loads:
    return {one.key: one for one in loads}


def carried(
    assignment: dict[TopicPartition, tuple[int, ...]], loads: Loads, brokers: list[int]
) -> list[float]:
    weights = weights_of(loads)
    return [
        sum(weights.get(key, 0) for key, members in assignment.items() if broker in members)
        for broker in brokers
    ]


def test_heavy_partitions_are_separated() -> None:
    # The counts are equal (two each), but both heavy partitions are on broker 1.
    loads = [load(0, (1,), 1000), load(1, (1,), 1000)]
    loads += [load(index, (2 + index % 2,), 10) for index in range(2, 6)]
    current, _ = told_assignment(loads)
    moves = plan_by_load(current, THREE, by_key(loads))
    after = after_moves(current, moves)
    assert after["t", 0] != after["t", 1]
    assert plan_moves(current, THREE) == [], "by counts there is nothing to do"
    assert len([move for move in moves if move.adding]) == 1, "one heavy replica is enough"


def test_an_even_cluster_gives_an_empty_plan() -> None:
    loads = [load(p, tuple((p + place) % 3 + 1 for place in range(2)), 100 + p % 2, 5) for p in range(12)]
    assert plan_by_load(told_assignment(loads)[0], THREE, by_key(loads)) == []


def test_one_giant_stays_where_it_is() -> None:
    loads = [load(0, (1,), 1_000_000), load(1, (2,), 1), load(2, (3,), 1)]
    assert plan_by_load(told_assignment(loads)[0], THREE, by_key(loads)) == [], "elsewhere it is as heavy"


def test_leaders_are_separated_without_a_copy() -> None:
    loads = [load(p, (1, 2, 3), 100, 50) for p in range(6)]
    moves = plan_by_load(told_assignment(loads)[0], THREE, by_key(loads))
    assert moves
    assert not any(move.adding for move in moves)
    after = broker_loads(after_moves(told_assignment(loads)[0], moves), by_key(loads), THREE)
    assert [one.leaders for one in after] == [2, 2, 2]


def test_racks_are_kept_apart() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    loads = [load(p, (1, 3), 100, 10) for p in range(4)]
    moves = plan_by_load(told_assignment(loads)[0], racks, by_key(loads))
    after = after_moves(told_assignment(loads)[0], moves)
    assert all(len({racks[broker] for broker in members}) == 2 for members in after.values())
    assert over_mean(carried(after, by_key(loads), [1, 2, 3, 4])) <= 1 + TOLERANCE


def test_leaving_brokers_are_emptied() -> None:
    loads = [load(p, (1 + p % 3,), 100) for p in range(6)]
    current, _ = told_assignment(loads)
    after = after_moves(current, plan_by_load(current, THREE, by_key(loads), leaving=(3,)))
    assert {broker for members in after.values() for broker in members} == {1, 2}
    with pytest.raises(PlanError, match="would remain"):
        plan_by_load(current, {1: None}, by_key([load(0, (1, 2), 1)]), leaving=(2, 3, 1))


def test_a_dead_broker_with_replicas_is_refused_with_the_next_step() -> None:
    proposal = propose([load(0, (1, 9), 5)], THREE)
    assert proposal.refused is not None
    assert "--without 9" in proposal.refused
    assert propose([load(0, (1, 9), 5)], THREE, leaving=(9,)).refused is None


def test_incomplete_partitions_are_omitted() -> None:
    half = PartitionLoad("t", 1, 1, 3, (1, 2), 5, 5, 0, 0)
    proposal = propose([load(0, (1, 2), 5), half], THREE)
    assert proposal.left_out == 1
    assert all(move.partition != 1 for move in proposal.moves)


def test_kafkas_tool_reads_the_plan() -> None:
    loads = [load(p, (1, 2, 3), 100, 50) for p in range(6)]
    found = json.loads(plan_json(propose(loads, THREE).moves))
    assert found["version"] == 1
    assert set(found["partitions"][0]) == {"topic", "partition", "replicas"}


def test_a_moved_replicas_old_home_is_forgotten() -> None:
    told = {1: [(0, 1.0), (100, 1.0)], 2: [(0, 1.0), (40, 1.0)], 3: [(60, 1.0), (100, 1.0)]}

    def holders(replicas: int) -> tuple[int, ...]:
        return holders_of(told, replicas, 3, leads_as_preferred=True, history_end_ms=100, interval_ms=10)

    assert holders(2) == (3, 1), "3 is the preferred leader; 2 reported nothing lately"
    assert holders(3) == (3, 1, 2), "unless a replica is missing: then it is on the broker that fell silent"


def test_skew_names_the_hottest() -> None:
    (skew,) = topic_skews([load(0, (1,), 10, 1), load(1, (1,), 10, 9), load(2, (1,), 40, 2)])
    assert (skew.hottest_partition, skew.rate_over_mean, skew.bytes_over_mean) == (1, 2.25, 2.0)
    (idle,) = topic_skews([load(0, (1,), 0)])
    assert (idle.rate_over_mean, idle.bytes_over_mean) == (1, 1)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_plans_are_sound_and_never_worse(data: st.DataObject) -> None:
    brokers = list(range(1, data.draw(st.integers(3, 6)) + 1))
    racks = {broker: data.draw(st.sampled_from(["a", "b", "c", None])) for broker in brokers}
    loads = []
    for partition in range(data.draw(st.integers(1, 20))):
        factor = data.draw(st.integers(1, 3))
        holders = tuple(data.draw(st.permutations(brokers))[:factor])
        loads.append(
            load(partition, holders, data.draw(st.integers(0, 10_000)), data.draw(st.integers(0, 1000)))
        )
    current, _ = told_assignment(loads)
    moves = plan_by_load(current, racks, by_key(loads))
    after = after_moves(current, moves)
    for key, members in after.items():
        assert len(set(members)) == len(members) == len(current[key])
        assert set(members) <= set(brokers)

        def rack_count(holders: tuple[int, ...]) -> int:
            return len({racks[b] or f"none-{b}" for b in holders})

        assert rack_count(members) >= rack_count(current[key])
    before_loads = carried(dict(current), by_key(loads), brokers)
    after_loads = carried(after, by_key(loads), brokers)
    assert max(after_loads) <= max(before_loads) + 1e-9
    again = plan_by_load(after, racks, by_key(loads))
    assert not any(move.adding for move in again), "a plan that was carried out asks for no further copies"
