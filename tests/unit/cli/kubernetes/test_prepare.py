"""`tidelog kubernetes prepare`: checks before any change, draining, volumes and paused Deployments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kuberneteslab.scripted_release import CLAIMS, DEPLOYMENTS, JOBS, STATEFUL_SETS, ScriptedRelease
from tidelog.cli.kubernetes.upgrade_plan import (
    Claim,
    VolumeSet,
    leaving_brokers,
    plan_growth,
    quantity,
    replicas_held,
)
from tidelog.cli.main import main


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedRelease]:
    monkeypatch.setattr("tidelog.cli.kubernetes.release.GONE_POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr("tidelog.cli.cluster.rebalance.POLL_INTERVAL_S", 0.01)
    with ScriptedRelease(wanted="old") as scripted:
        monkeypatch.setenv("KUBECONFIG", str(scripted.api.kubeconfig(tmp_path)))
        scripted.add_deployment("controller")
        scripted.add_deployment("group-coordinator")
        yield scripted


def prepare(scripted: ScriptedRelease, *arguments: str, brokers: str = "0,1,2") -> Result:
    places = ["--release", "r", "--namespace", "n", "--bootstrap-server", scripted.broker.bootstrap]
    return CliRunner().invoke(main, ["kubernetes", "prepare", *places, "--brokers", brokers, *arguments])


def writes(scripted: ScriptedRelease) -> list[tuple[str, str]]:
    return [(method, path) for method, path, _ in scripted.api.writes]


HELD = [("PATCH", f"{DEPLOYMENTS}/r-controller"), ("PATCH", f"{DEPLOYMENTS}/r-group-coordinator")]


def test_deployments_are_paused(scripted: ScriptedRelease) -> None:
    assert prepare(scripted).exit_code == 0
    assert writes(scripted) == HELD
    assert all(body == {"spec": {"paused": True}} for _, _, body in scripted.api.writes)


def test_an_earlier_roll_is_stopped(scripted: ScriptedRelease) -> None:
    assert prepare(scripted, "--roll-job", "r-roll").exit_code == 0
    assert writes(scripted) == HELD
    scripted.api.put(f"{JOBS}/r-roll", spec={"template": {}})
    assert prepare(scripted, "--roll-job", "r-roll").exit_code == 0
    assert ("DELETE", f"{JOBS}/r-roll") in writes(scripted)


def test_brokers_that_hold_replicas_are_not_removed(scripted: ScriptedRelease) -> None:
    result = prepare(scripted, brokers="0,1")
    assert result.exit_code == 1
    assert "brokers 2 would be removed with 1 replica (broker 2 1)" in result.stderr
    assert "tidelog rebalance --without 2 --execute" in result.stderr
    assert writes(scripted) == []


def test_brokers_without_replicas_may_be_removed(scripted: ScriptedRelease) -> None:
    scripted.assignment = [0, 1]
    result = prepare(scripted, brokers="0,1")
    assert result.exit_code == 0, result.output
    assert "brokers 2 hold no replicas and can be removed" in result.output


def test_draining_moves_the_replicas_first(scripted: ScriptedRelease) -> None:
    scripted.assignment = scripted.isr = [0, 2]
    result = prepare(scripted, "--drain", brokers="0,1")
    assert result.exit_code == 0, result.output
    assert sorted(scripted.assignment) == [0, 1]
    assert writes(scripted) == HELD


def test_impossible_draining_changes_nothing(scripted: ScriptedRelease) -> None:
    result = prepare(scripted, "--drain", brokers="0,1")
    assert result.exit_code == 1
    assert "t-0 has 3 replicas, but only 2 brokers would remain" in result.stderr
    assert writes(scripted) == []


def test_volumes_grow_and_statefulsets_are_orphaned(scripted: ScriptedRelease) -> None:
    result = prepare(scripted, "--volume", "broker=2Gi")
    assert result.exit_code == 0, result.output
    claims = [(m, p, b) for m, p, b in scripted.api.writes if p.startswith(CLAIMS)]
    patch = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
    assert (
        claims[:3] == claims[3:] == [("PATCH", f"{CLAIMS}/data-r-broker-{i}-0", patch) for i in range(3)]
    ), "first all are asked for (dry run), then all are done"
    orphaned = [(p, b) for m, p, b in scripted.api.writes if m == "DELETE"]
    assert orphaned == [(f"{STATEFUL_SETS}/r-broker-{i}", {"propagationPolicy": "Orphan"}) for i in range(3)]


def test_a_storage_class_without_expansion_is_refused_before_any_change(
    scripted: ScriptedRelease,
) -> None:
    scripted.api.refuse_paths[f"{CLAIMS}/data-r-broker-1-0"] = (403, "the storageclass must support resize")
    result = prepare(scripted, "--volume", "broker=2Gi")
    assert result.exit_code == 1
    assert "the storageclass must support resize" in result.stderr
    assert [m for m, p in writes(scripted)] == ["PATCH"], "the dry run of the first claim"


def test_volumes_of_the_same_size_do_not_change(scripted: ScriptedRelease) -> None:
    assert prepare(scripted, "--volume", "broker=1024Mi", "--volume", "etcd=5Gi").exit_code == 0
    assert writes(scripted) == HELD


def test_volumes_never_shrink() -> None:
    sets = [VolumeSet("s", "10Gi", [Claim("data-s-0", "10Gi")])]
    changes = plan_growth(sets, "5Gi")
    assert (changes.grown, changes.recreated) == ((), ("s",))
    assert [claim.name for claim in changes.kept] == ["data-s-0"]


def test_an_interrupted_expansion_is_completed() -> None:
    """The template already has the new size, but a claim does not."""
    changes = plan_growth([VolumeSet("s", "10Gi", [Claim("a", "10Gi"), Claim("b", "5Gi")])], "10Gi")
    assert ([claim.name for claim in changes.grown], changes.recreated) == (["b"], ())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("10Gi", 10 * 2**30),
        ("1.5Ki", 1536),
        ("500M", 500_000_000),
        ("1e3", 1000),
        ("2E", 2 * 10**18),
    ],
)
def test_quantities(text: str, value: int) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize("text", ["", "Gi", "10GB", "-1Gi", "0", "ten", "10 Gi", "NaN"])
def test_invalid_quantities(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        quantity(text)


def test_replicas_of_leaving_brokers() -> None:
    assert leaving_brokers([4, 0, 3, 1], [0, 1, 2]) == (3, 4)
    assert replicas_held({("t", 0): (0, 3), ("t", 1): (3, 4), ("u", 0): (0, 1)}, (3, 4, 5)) == {3: 2, 4: 1}


def test_json_has_the_brokers_and_progress_is_a_note(scripted: ScriptedRelease) -> None:
    scripted.assignment = scripted.isr = [0, 2]
    done = prepare(scripted, "--drain", "--format", "json", brokers="0,1")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {
        "brokers": [0, 1],
        "drained_brokers": [2],
        "paused_deployments": ["r-controller", "r-group-coordinator"],
    }
    assert "brokers 2 hold no replicas and can be removed" in done.stderr


def test_json_is_absent_if_nothing_was_done(scripted: ScriptedRelease) -> None:
    done = prepare(scripted, "--format", "json", brokers="0,1")
    assert (done.exit_code, done.stdout) == (1, "")
