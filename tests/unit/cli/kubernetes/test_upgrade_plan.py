"""The steps of an upgrade: which pod is replaced next, and how far a workload has come."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidelog.cli.doctor.facts import sum_of
from tidelog.cli.kubernetes.upgrade_plan import (
    BrokerPod,
    Finished,
    ReleaseView,
    Replace,
    ServicePod,
    Wait,
    Workload,
    cost_changes,
    next_step,
    pending,
)
from tidelog.observe.availability import PartitionView

LIVE = frozenset({0, 1, 2})


def pod(broker_id: int, **changes: object) -> BrokerPod:
    return replace(BrokerPod(broker_id, f"r-broker-{broker_id}-0"), **changes)  # type: ignore[arg-type]


def outdated(broker_id: int, **changes: object) -> BrokerPod:
    return pod(broker_id, is_outdated=True, **changes)


def partition(
    *isr: int, replicas: tuple[int, ...] = (0, 1, 2), min_isr: int = 2, adding: tuple[int, ...] = ()
) -> PartitionView:
    leader = isr[0] if isr else -1
    return PartitionView("t", 0, leader, replicas, frozenset(isr), min_isr, adding)


def reason(view: ReleaseView) -> str:
    step = next_step(view)
    assert isinstance(step, Wait), step
    return step.reason


def replaced(view: ReleaseView) -> int:
    step = next_step(view)
    assert isinstance(step, Replace), step
    return step.broker.broker_id


WHOLE = partition(0, 1, 2)


def test_the_roll_ends_when_all_pods_are_current_and_in_sync() -> None:
    assert next_step(ReleaseView([pod(0), pod(1), pod(2)], LIVE, [WHOLE])) == Finished()


def test_the_first_outdated_broker_is_replaced_when_all_are_in_sync() -> None:
    assert replaced(ReleaseView([pod(0), outdated(1), outdated(2)], LIVE, [WHOLE])) == 1


@pytest.mark.parametrize(
    ("view", "part"),
    [
        (ReleaseView([pod(0), outdated(1, uid=""), outdated(2)], LIVE, [WHOLE]), "broker 1 has no pod"),
        (ReleaseView([pod(0), pod(1, is_terminating=True), outdated(2)], LIVE, [WHOLE]), "1 is stopping"),
        (ReleaseView([pod(0, is_ready=False), pod(1), outdated(2)], LIVE, [WHOLE]), "broker 0 is not ready"),
        (
            ReleaseView([pod(0), pod(1), outdated(2)], frozenset({0, 2}), [WHOLE]),
            "broker 1 is not registered",
        ),
        (ReleaseView([pod(0), pod(1), outdated(2)], LIVE, [partition(0, 2)]), "out of sync: t-0"),
        (ReleaseView([pod(0), pod(1), outdated(2)], LIVE, [partition()]), "out of sync: t-0"),
        (
            ReleaseView([pod(0), pod(1), outdated(2)], LIVE, [replace(WHOLE, leader=-1)]),
            "partitions without a leader: t-0",
        ),
        (
            ReleaseView([pod(0, under_replicated=2), outdated(1)], LIVE, [WHOLE]),
            "broker 0 leads 2 partitions",
        ),
        (ReleaseView([pod(0, under_replicated=None), outdated(1)], LIVE, [WHOLE]), "broker 0 is not serving"),
        (
            ReleaseView([pod(0), outdated(1)], silence="connection refused"),
            "do not answer: connection refused",
        ),
    ],
)
def test_no_broker_is_replaced_while_the_cluster_is_degraded(view: ReleaseView, part: str) -> None:
    assert part in reason(view)


def test_the_last_replaced_broker_is_waited_for() -> None:
    assert "out of sync" in reason(ReleaseView([pod(0), pod(1), pod(2)], LIVE, [partition(0, 1)]))


def test_an_unready_outdated_pod_is_replaced_first() -> None:
    sick = outdated(2, is_ready=False)
    assert replaced(ReleaseView([outdated(0), pod(1), sick], LIVE - {2}, [partition(0, 1)])) == 2


def test_an_unready_pod_that_is_still_needed_stays() -> None:
    sick = outdated(2, is_ready=False)
    view = ReleaseView([outdated(0), pod(1), sick], LIVE, [partition(1, 2)])
    assert reason(view) == "broker 2 is not ready"


def test_an_unready_pod_of_the_new_revision_is_left_alone() -> None:
    assert "not ready" in reason(ReleaseView([outdated(0), pod(1, is_ready=False)], LIVE, [WHOLE]))


def test_outdated_pods_are_replaced_if_no_broker_answers() -> None:
    pods = [outdated(0, is_ready=False), outdated(1, is_ready=False)]
    assert replaced(ReleaseView(pods, silence="connection refused")) == 0
    assert "not ready" in reason(ReleaseView([pods[0], outdated(1)], silence="connection refused"))


@pytest.mark.parametrize("scarce", [partition(1, replicas=(1,)), partition(1, 2, replicas=(1, 2), min_isr=2)])
def test_a_partition_without_a_spare_replica_does_not_block_the_roll(scarce: PartitionView) -> None:
    step = next_step(ReleaseView([pod(0), outdated(1), pod(2)], LIVE, [WHOLE, scarce]))
    assert isinstance(step, Replace)
    assert step.interrupted == (scarce,)


def test_a_running_reassignment_is_not_waited_for() -> None:
    moving = partition(0, 1, 2, replicas=(0, 1, 2, 3), adding=(3,))
    pods = [outdated(0, under_replicated=1), pod(1), pod(2), pod(3)]
    assert replaced(ReleaseView(pods, LIVE | {3}, [moving])) == 0


def test_the_wait_for_replicas_of_removed_brokers_names_the_next_step() -> None:
    lost = partition(0, 1, replicas=(0, 1, 7))
    text = reason(ReleaseView([outdated(0), pod(1), pod(2)], LIVE, [lost]))
    assert "brokers 7 are not part of the release: run 'tidelog rebalance --without 7 --execute'" in text


def test_a_roll_replaces_each_broker_once_and_one_at_a_time() -> None:
    pods = [outdated(i) for i in range(3)]
    order = []
    for _ in range(20):
        isr = [p.broker_id for p in pods if p.is_ready]
        step = next_step(ReleaseView(pods, LIVE, [partition(*isr)]))
        if isinstance(step, Finished):
            break
        if isinstance(step, Replace):
            assert all(p.is_ready for p in pods)
            order.append(step.broker.broker_id)
            pods[step.broker.broker_id] = pod(step.broker.broker_id, is_ready=False)
        else:
            pods = [replace(p, is_ready=True) for p in pods]
    assert order == [0, 1, 2]


DONE = Workload("deployment", "c", 4, 4, wanted=2, existing=2, updated=2, available=2)


def test_a_finished_workload_is_not_waited_for() -> None:
    assert pending(DONE) == ""


@pytest.mark.parametrize(
    ("workload", "part"),
    [
        (replace(DONE, observed_generation=3), "not observed the change"),
        (replace(DONE, is_paused=True), "is paused"),
        (replace(DONE, updated=1, failure="quota"), "1 of 2 pods have the new revision (quota)"),
        (replace(DONE, existing=3), "1 old pods still exist"),
        (replace(DONE, available=1, failure="no node"), "1 of 2 pods are available (no node)"),
    ],
)
def test_reasons_to_wait_for_a_workload(workload: Workload, part: str) -> None:
    assert part in pending(workload)


def test_the_active_controller_has_the_highest_cost() -> None:
    pods = [ServicePod("a", "1000", False), ServicePod("b", "", True), ServicePod("c", "", False)]
    assert cost_changes(pods) == {"a": "0", "b": "1000"}


def test_without_an_active_controller_costs_remain() -> None:
    assert cost_changes([ServicePod("a", "1000", False), ServicePod("b", "", False)]) == {}


def test_a_metric_is_summed_over_its_labels() -> None:
    text = '# HELP m x\nm{a="1 } 2"} 2.0\nm{a="2"} 3 1700000000\nm_total 7\nn 1\n'
    assert sum_of(text, "m") == 5.0
    assert sum_of(text, "n") == 1.0
    assert sum_of(text, "o") is None
