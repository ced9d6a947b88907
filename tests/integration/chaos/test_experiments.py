"""The experiments are valid for Chaos Toolkit, and the functions that they name can be called with their
arguments.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from chaoslib.experiment import ensure_experiment_is_valid
from chaoslib.loader import load_experiment

from chaoslab.run import CHAOS, EXPERIMENTS


@pytest.fixture(autouse=True)
def _actions_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(CHAOS))


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*.yaml")), ids=lambda path: path.stem)
def test_an_experiment_is_valid(path: Path) -> None:
    experiment = load_experiment(str(path))
    ensure_experiment_is_valid(experiment)
    activities = [
        *experiment["steady-state-hypothesis"]["probes"],
        *experiment["method"],
        *experiment["rollbacks"],
    ]
    for activity in activities:
        _expect_callable(activity["provider"])


def _expect_callable(provider: dict[str, Any]) -> None:
    function = getattr(import_module(provider["module"]), provider["func"])
    inspect.signature(function).bind(**provider["arguments"])


def test_a_leader_and_its_followers_are_distinguished() -> None:
    kube, targets = import_module("tidelog_chaos.kube"), import_module("tidelog_chaos.targets")
    pods = [kube.Pod(f"b-{n}", f"u{n}", "", "", "broker", n, True) for n in range(3)]
    replicas = {0: (1, [0, 1, 2]), 1: (-1, [0, 1, 2])}
    (leader,) = targets.brokers_of(replicas, pods, "leader", 1)
    assert leader.broker_id == 1
    followers = targets.brokers_of(replicas, pods, "follower", 2)
    assert {pod.broker_id for pod in followers} == {0, 2}
    both = targets.brokers_of(replicas, pods, "leader", 2)
    assert both[0].broker_id == 1
    assert len({pod.broker_id for pod in both}) == 2


def test_the_output_of_describe_is_parsed() -> None:
    kube = import_module("tidelog_chaos.kube")
    text = (
        "Topic: t\tTopicId: x\tPartitionCount: 2\tReplicationFactor: 3\tConfigs: \n"
        "\tTopic: t\tPartition: 0\tLeader: 2\tReplicas: 2,0,1\tIsr: 2,0,1\n"
        "\tTopic: t\tPartition: 1\tLeader: none\tReplicas: 0,1,2\tIsr: \n"
    )
    assert kube.DESCRIBED.findall(text) == [("0", "2", "2,0,1"), ("1", "none", "0,1,2")]
