"""Messages of the runner without a cluster, and its totals. The other tests need a cluster (`make e2e`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from e2e import __main__ as runner
from e2e import kubectl as kubectl_module
from e2e.kubectl import Kubectl, await_none
from e2e.outcome import Outcome

TESTS = Path(__file__).resolve().parents[1]
NOT_RUN = 77


def test_without_a_lab_the_runner_reports_that_it_did_not_run(tmp_path: Path) -> None:
    without = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
    environment = {**without, "K8S_LAB": str(tmp_path / "absent"), "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-m", "e2e", "--short"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == NOT_RUN
    assert done.stdout.startswith("NOT RUN: ")
    assert str(tmp_path / "absent") in done.stdout


def test_a_lab_that_does_not_start_is_tried_twice_and_removed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    up, down = tmp_path / "cluster-up.sh", tmp_path / "cluster-down.sh"
    exports = f"export KUBECONFIG={tmp_path}/none PATH={tmp_path}:$PATH"
    up.write_text(
        f'#!/bin/sh\nif [ "$1" = env ]; then echo "{exports}"; exit 0; fi\n'
        f"echo up >> {log}; echo no bridge; exit 1\n"
    )
    down.write_text(f"#!/bin/sh\necho down >> {log}\n")
    up.chmod(0o755)
    down.chmod(0o755)
    without = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
    environment = {**without, "K8S_LAB": str(tmp_path), "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-m", "e2e", "--short"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == NOT_RUN, done.stderr
    if os.geteuid() or subprocess.run(["unshare", "-n", "-m", "true"], check=False).returncode:
        return  # it was not even tried
    assert "no bridge" in done.stdout
    assert log.read_text().split() == ["down", "up", "down", "up", "down"]


def test_every_suite_that_the_short_form_leaves_out_has_its_turn() -> None:
    suites = {path.name for path in runner.SUITES.glob("test_*.py")}
    assert suites == set(runner.FULL)
    turns = [runner.suites_in_turn(number) for number in range(1_000, 1_000 + len(runner.IN_TURN))]
    assert sorted(f"test_{first}.py" for first, *_ in turns) == sorted(runner.IN_TURN)
    assert all(sorted(turn) == sorted(turns[0]) for turn in turns)
    # The short form leaves out one test of the kills of pods.
    assert suites - set(runner.IN_TURN) == set(runner.SHORT) - {"test_pod_kills.py"}


def test_suites_add_to_one_line(tmp_path: Path) -> None:
    first = Outcome.load(tmp_path / "outcome.json")
    first.add(kills=3, anomalies=0, longest_gap_s=4.26)
    first.save(tmp_path / "outcome.json")
    second = Outcome.load(tmp_path / "outcome.json")
    second.add(kills=30, anomalies=1, longest_gap_s=2.0)
    assert second.line() == "e2e: 33 kills, 1 anomalies, longest gap 4.3 s"


def test_remaining_problems_are_named() -> None:
    answers = iter([["a", "b"], ["b"], []])
    await_none(lambda: next(answers), 10, "not ready")
    with pytest.raises(TimeoutError, match="not ready after 0 s: b"):
        await_none(lambda: ["b"], 0, "not ready")


@pytest.mark.parametrize(
    ("status", "wrong"),
    [
        ({"readyReplicas": 2}, []),
        ({"readyReplicas": 1}, ["Deployment controller"]),
        ({}, ["Deployment controller"]),
    ],
)
def test_a_release_is_ready_with_all_its_replicas(
    monkeypatch: pytest.MonkeyPatch, status: dict[str, Any], wrong: list[str]
) -> None:
    """A pod that does not exist yet is not among the pods, but its Deployment reports that it is missing."""
    deployment = {
        "kind": "Deployment",
        "metadata": {"name": "controller"},
        "spec": {"replicas": 2},
        "status": status,
    }

    def run(_: Kubectl, *arguments: str, **__: object) -> str:
        return json.dumps({"items": [] if arguments[1] == "pods" else [deployment]})

    monkeypatch.setattr(kubectl_module.Kubectl, "run", run)
    kubectl = Kubectl({}, "t")
    if wrong:
        with pytest.raises(TimeoutError, match=", ".join(wrong)):
            kubectl.await_ready("e2e", 0)
    else:
        kubectl.await_ready("e2e", 0)
