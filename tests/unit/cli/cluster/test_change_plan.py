"""`tidelog plan`: what a change of the brokers would do, and which changes are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from tidelog.cli.cluster.plan import (
    ChangePlan,
    ClusterState,
    plan_add,
    plan_drain,
    plan_kill,
    plan_remove,
    plan_restart,
)
from tidelog.cli.kubernetes.upgrade_plan import BrokerPod, ReleaseView, Replace, Wait, next_step
from tidelog.cli.main import main
from tidelog.client.admin.topics import create_topic
from tidelog.client.cluster import Cluster as BrokerCluster
from tidelog.observe.availability import PartitionView
from tidelog.testing import Cluster

PLENTY = 10**15


def state_of(
    partitions: list[PartitionView], brokers: int, *, sizes: list[int] | None = None, usable: int = PLENTY
) -> ClusterState:
    live = range(1, brokers + 1)
    return ClusterState(
        racks=dict.fromkeys(live),
        partitions=partitions,
        replica_bytes={(p.topic, p.index): (sizes or [1] * len(partitions))[p.index] for p in partitions},
        usable_bytes=dict.fromkeys(live, usable),
        assignment={(p.topic, p.index): p.replicas for p in partitions},
    )


@st.composite
def clusters(draw: st.DrawFn, *, in_sync: bool = False) -> ClusterState:
    brokers = draw(st.integers(1, 6))
    partitions = []
    for index in range(draw(st.integers(1, 8))):
        replicas = draw(st.permutations(range(1, brokers + 1)))[: draw(st.integers(1, brokers))]
        isr = replicas if in_sync else draw(st.lists(st.sampled_from(replicas), unique=True))
        leader = isr[0] if isr else -1
        min_isr = draw(st.integers(1, 4))
        partitions.append(PartitionView("t", index, leader, tuple(replicas), frozenset(isr), min_isr))
    sizes = draw(st.lists(st.integers(0, 1_000), min_size=8, max_size=8))
    return state_of(partitions, brokers, sizes=sizes)


def is_writable(partition: PartitionView, isr: frozenset[int]) -> bool:
    return len(isr) >= min(partition.min_isr, len(partition.replicas))


@given(clusters(), st.data())
def test_a_kill_is_safe_exactly_if_it_makes_no_partition_unavailable(
    state: ClusterState, data: st.DataObject
) -> None:
    broker_id = data.draw(st.sampled_from(sorted(state.racks)))
    plan = plan_kill(state, broker_id)
    # Partitions that can't be written without the broker, although it could serve them.
    hurt = {
        str(p)
        for p in state.partitions
        if not is_writable(p, p.isr - {broker_id})
        and (is_writable(p, p.isr) or broker_id in p.isr or len(p.replicas) <= p.min_isr)
        and broker_id in p.replicas
    }
    refused = {str(p) for refusal in plan.refusals for p in refusal.partitions}
    assert refused == hurt
    assert plan.is_safe == (not hurt)
    (step,) = plan.steps
    assert {str(p) for p in step.unavailable} == {
        str(p) for p in state.partitions if not is_writable(p, p.isr - {broker_id})
    }


@given(clusters())
def test_a_restart_follows_the_rule_of_the_roll(state: ClusterState) -> None:
    pods = [BrokerPod(broker_id, f"b-{broker_id}", is_outdated=True) for broker_id in sorted(state.racks)]
    live = frozenset(state.racks)
    step = next_step(ReleaseView(pods, live, state.partitions))
    plan = plan_restart(state)
    if plan.is_safe:
        assert isinstance(step, Replace)
        assert {str(p) for p in step.interrupted} == {str(p) for p in plan.steps[0].unavailable}
    else:
        assert isinstance(step, Wait)
        assert plan.refusals[0].reason in step.reason or "out of sync" in step.reason


@given(clusters(in_sync=True))
def test_each_step_of_a_restart_interrupts_only_what_has_no_spare_replica(state: ClusterState) -> None:
    plan = plan_restart(state)
    assert plan.is_safe
    for broker_id, step in zip(sorted(state.racks), plan.steps, strict=True):
        stopped = {str(p) for p in step.unavailable}
        for partition in state.partitions:
            is_up = is_writable(partition, partition.isr - {broker_id})
            assert is_up == (str(partition) not in stopped)
            assert is_up or len(partition.replicas) <= partition.min_isr


@given(clusters(in_sync=True), st.data())
def test_a_drain_moves_the_bytes_of_the_broker_and_leaves_it_empty(
    state: ClusterState, data: st.DataObject
) -> None:
    broker_id = data.draw(st.sampled_from(sorted(state.racks)))
    plan = plan_drain(state, broker_id)
    is_possible = all(len(p.replicas) < len(state.racks) for p in state.partitions)
    assert plan.is_safe == is_possible
    if not plan.is_safe:
        assert "t-" in plan.refusals[0].reason or "no broker would remain" in plan.refusals[0].reason
        return
    held = [p for p in state.partitions if broker_id in p.replicas]
    assert plan.steps[0].moved_bytes == sum(state.replica_bytes[p.topic, p.index] for p in held)
    after = after_plan(state, plan)
    assert all(broker_id not in replicas for replicas in after.values())
    assert {key: len(r) for key, r in after.items()} == {k: len(r) for k, r in state.assignment.items()}
    removal = plan_remove(state, broker_id)
    assert removal.is_safe
    assert not removal.steps[-1].unavailable


@given(clusters(in_sync=True), st.integers(1, 3))
def test_new_brokers_get_replicas_and_no_partition_becomes_unavailable(
    state: ClusterState, count: int
) -> None:
    plan = plan_add(state, count)
    assert plan.is_safe
    added = set(range(len(state.racks) + 1, len(state.racks) + 1 + count))
    copied = sum(state.replica_bytes[move.topic, move.partition] * len(move.adding) for move in plan.moves)
    assert plan.steps[-1].moved_bytes == copied
    assert all(set(move.after) <= state.racks.keys() | added for move in plan.moves)
    assert not any(step.unavailable for step in plan.steps)


def after_plan(state: ClusterState, plan: ChangePlan) -> dict[tuple[str, int], tuple[int, ...]]:
    return {**state.assignment, **{(move.topic, move.partition): move.after for move in plan.moves}}


WHOLE = [PartitionView("t", 0, 1, (1, 2), frozenset({1, 2}), 1)]


def test_a_broker_without_enough_free_bytes_is_a_reason_to_refuse() -> None:
    full = state_of(WHOLE, 3, sizes=[1_000], usable=999)
    (refusal,) = plan_drain(full, 1).refusals
    assert refusal.reason == "broker 3 would receive 1000 bytes of t-0, and has 999 free"
    assert refusal.partitions == (WHOLE[0],)
    assert plan_drain(state_of(WHOLE, 3, sizes=[1_000], usable=1_000), 1).is_safe


def test_running_moves_and_lost_partitions_are_reasons_to_refuse() -> None:
    moving = replace(state_of(WHOLE, 3), under_way=(("t", 0),))
    assert plan_drain(moving, 1).refusals[0].reason == "1 partition is already moving: t-0"
    assert plan_add(moving, 1).refusals
    lost = [replace(WHOLE[0], leader=-1, isr=frozenset())]
    (refusal,) = plan_drain(state_of(lost, 3), 1).refusals
    assert refusal.reason == "partitions without a leader can't be copied: t-0"


def test_unknown_brokers_are_refused() -> None:
    state = state_of(WHOLE, 3)
    for plan in (plan_kill(state, 9), plan_drain(state, 9), plan_remove(state, 9), plan_restart(state, [9])):
        assert plan.refusals[0].reason == "broker 9 is not registered; the live brokers are 1, 2, 3"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3) as cluster:
        with BrokerCluster(cluster.bootstrap) as brokers:
            create_topic(
                brokers, "safe", assignment={0: [1, 2], 1: [2, 1]}, configs={"min.insync.replicas": "1"}
            )
            create_topic(brokers, "single", assignment={0: [3]})
        cluster.produce("safe", *"abc", key="one")
        yield cluster


def planned(cluster: Cluster, *arguments: object) -> Result:
    return CliRunner().invoke(main, ["plan", *map(str, arguments), "--bootstrap-server", cluster.bootstrap])


def as_object(cluster: Cluster, *arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(planned(cluster, *arguments, "--format", "json").stdout)
    return found


def test_a_kill_is_refused_with_the_partitions_that_need_the_broker(cluster: Cluster) -> None:
    assert planned(cluster, "kill", 1).exit_code == 0
    refused = planned(cluster, "kill", 3)
    assert refused.exit_code == 1
    assert "not safe" in refused.stderr
    assert "single-0" in refused.stderr
    report = as_object(cluster, "kill", 3)
    assert report["is_safe"] is False
    assert report["refusals"][0]["partitions"] == ["single-0"]
    assert report["steps"][0]["fewest_in_sync"] == {"partition": "single-0", "in_sync": 0, "needed": 1}


@pytest.mark.parametrize("command", ["kill", "drain", "remove", "restart"])
def test_an_unknown_broker_is_refused_without_a_plan(cluster: Cluster, command: str) -> None:
    """The table of a plan, or its heading, was printed before the refusal."""
    refused = planned(cluster, command, 9)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr == "tidelog: not safe: broker 9 is not registered; the live brokers are 1, 2, 3\n"


def test_a_drain_shows_the_bytes_that_move(cluster: Cluster) -> None:
    report = as_object(cluster, "drain", 1)
    assert report["is_safe"] is True
    assert report["steps"][0]["moved_bytes"] > 0
    assert {(move["topic"], move["partition"]) for move in report["moves"]} >= {("safe", 0), ("safe", 1)}
    assert "tidelog rebalance --without 1 --execute" in planned(cluster, "drain", 1).stdout
    assert [step["moved_bytes"] > 0 for step in as_object(cluster, "remove", 1)["steps"]] == [True, False]
    assert as_object(cluster, "add", 2)["is_safe"] is True


def test_a_restart_has_a_step_for_each_broker_and_names_whose_clients_wait(cluster: Cluster) -> None:
    report = as_object(cluster, "restart")
    assert [step["unavailable"] for step in report["steps"]] == [[], [], ["single-0"]]
    done = planned(cluster, "restart")
    assert (done.exit_code, "of 1 partition have to wait" in done.stderr) == (0, True)
