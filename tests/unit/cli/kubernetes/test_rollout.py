"""The progress of a workload, and the deletion costs of the controllers' pods."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidelog.cli.doctor.facts import sum_of
from tidelog.cli.kubernetes.upgrade_plan import ServicePod, Workload, cost_changes, pending

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
