"""The requests and actions of a roll, with a scripted API server and a scripted broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from kubernetes import client

from kuberneteslab.scripted_release import DEPLOYMENTS, PODS, STATEFUL_SETS, ScriptedRelease
from tidelog.cli.kubernetes.api_server import ApiServer
from tidelog.cli.kubernetes.release import Entrances, Release
from tidelog.cli.kubernetes.upgrade import Progress, look, roll_brokers, roll_deployments
from tidelog.cli.kubernetes.upgrade_plan import DELETION_COST, Finished, Replace, Wait
from tidelog.cli.main import main
from tidelog.cli.tool_command import ToolError


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedRelease]:
    monkeypatch.setattr("tidelog.cli.kubernetes.upgrade.LOOK_INTERVAL_S", 0.01)
    with ScriptedRelease() as scripted:
        yield scripted


def release_of(scripted: ScriptedRelease) -> Release:
    api = client.ApiClient(client.Configuration(host=scripted.api.url))
    return Release(ApiServer(api, retry_for_s=0), "n", "r", metrics_port=scripted.metrics_port)


def container(state: dict[str, Any], last_state: dict[str, Any] | None = None) -> dict[str, Any]:
    names = {"name": "broker", "image": "i", "imageID": "i"}
    return {**names, "ready": False, "restartCount": 3, "state": state, "lastState": last_state or {}}


def look_at(scripted: ScriptedRelease) -> Finished | Wait | Replace:
    return look(release_of(scripted), Entrances(scripted.broker.bootstrap))


def reason(scripted: ScriptedRelease) -> str:
    step = look_at(scripted)
    assert isinstance(step, Wait), step
    return step.reason


def deleted(scripted: ScriptedRelease) -> list[str]:
    return [path.rpartition("/")[2] for method, path, _ in scripted.api.writes if method == "DELETE"]


def test_every_outdated_broker_is_replaced_once(scripted: ScriptedRelease) -> None:
    assert roll_brokers(release_of(scripted), Entrances(scripted.broker.bootstrap), Progress(10)) == 3
    assert deleted(scripted) == [f"r-broker-{i}-0" for i in range(3)]
    assert [body["preconditions"]["uid"] for method, _, body in scripted.api.writes] == ["uid-1"] * 3
    assert look_at(scripted) == Finished()


def test_pods_of_the_wanted_revision_stay(scripted: ScriptedRelease) -> None:
    for broker_id in range(3):
        scripted.add_pod(broker_id, "new", "uid-2")
    assert roll_brokers(release_of(scripted), Entrances(scripted.broker.bootstrap), Progress(10)) == 0
    assert deleted(scripted) == []


def test_an_isr_that_stays_short_ends_the_roll_with_its_reason(scripted: ScriptedRelease) -> None:
    scripted.isr = [0, 1]
    with pytest.raises(ToolError, match=r"not finished after 0.1 s: replicas out of sync: t-0"):
        roll_brokers(release_of(scripted), Entrances(scripted.broker.bootstrap), Progress(0.1))
    assert deleted(scripted) == []


def test_metrics_of_leaders_have_precedence_over_metadata(scripted: ScriptedRelease) -> None:
    scripted.metrics["kafka_server_replicamanager_underreplicatedpartitions"] = 1
    assert "leads 1 partition whose replicas are not all in sync" in reason(scripted)
    scripted.metrics.clear()
    assert "not serving metrics" in reason(scripted)


def test_a_spec_that_kubernetes_has_not_observed_is_waited_for(scripted: ScriptedRelease) -> None:
    scripted.api.objects[f"{STATEFUL_SETS}/r-broker-1"]["metadata"]["generation"] = 2
    assert "broker 1" in reason(scripted)


def test_a_pod_that_stops_is_waited_for(scripted: ScriptedRelease) -> None:
    scripted.api.objects[f"{PODS}/r-broker-2-0"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert reason(scripted) == "broker 2 is stopping"


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({}, "broker 2 is not ready"),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}]},
            "broker 2 is not ready (r-broker-2-0: no node: 0/3 nodes)",
        ),
        (
            {"containerStatuses": [container({"waiting": {"reason": "ErrImagePull"}})]},
            "broker 2 is not ready (r-broker-2-0: broker ErrImagePull)",
        ),
        (
            {"containerStatuses": [container({"running": {}}, {"terminated": {"exitCode": 1}})]},
            "broker 2 is not ready (r-broker-2-0: broker ended with 1, 3 times)",
        ),
        (
            {"containerStatuses": [container({"waiting": {"reason": "ContainerCreating"}})]},
            "broker 2 is not ready",
        ),
    ],
)
def test_a_pod_that_is_not_ready_says_why(scripted: ScriptedRelease, status: object, said: str) -> None:
    pod = scripted.add_pod(2, "new", "uid-2")
    pod["status"] = status
    assert reason(scripted) == said


def test_brokers_that_do_not_answer_are_waited_for(scripted: ScriptedRelease) -> None:
    step = look(release_of(scripted), Entrances("127.0.0.1:1"))
    assert isinstance(step, Wait)
    assert "do not answer" in step.reason


def test_a_release_without_brokers_is_an_error(scripted: ScriptedRelease) -> None:
    other = Release(release_of(scripted).server, "n", "other")
    with pytest.raises(ToolError, match="--release other: namespace n contains no brokers of this release"):
        other.brokers()


def test_held_deployments_are_resumed_and_the_active_controller_is_marked(scripted: ScriptedRelease) -> None:
    scripted.add_deployment("controller", paused=True)
    labels = {"app.kubernetes.io/instance": "r", "app.kubernetes.io/component": "controller"}
    scripted.metrics["kafka_controller_kafkacontroller_activecontrollercount"] = 1
    scripted.api.put(f"{PODS}/c-1", metadata={"labels": labels}, status={"podIP": "127.0.0.1"})
    scripted.api.put(f"{PODS}/c-2", metadata={"labels": labels}, status={})
    roll_deployments(release_of(scripted), "controller", Progress(10))
    patches: list[tuple[str, Any]] = [(path, body) for _, path, body in scripted.api.writes]
    assert patches == [
        (f"{PODS}/c-1", {"metadata": {"annotations": {DELETION_COST: "1000"}}}),
        (f"{DEPLOYMENTS}/r-controller", {"spec": {"paused": False}}),
    ]


def test_the_command_ends_with_preferred_leaders(
    scripted: ScriptedRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = release_of(scripted)
    monkeypatch.setattr("tidelog.cli.kubernetes.upgrade.open_release", lambda release, namespace: opened)
    places = ["--release", "r", "--namespace", "n", "--bootstrap-server", scripted.broker.bootstrap]
    rolled = CliRunner().invoke(main, ["kubernetes", "roll", *places])
    assert rolled.exit_code == 0, rolled.output
    assert "rolled: 3 brokers replaced, all replicas are in sync" in rolled.output
    assert scripted.elections == 1
    ready = CliRunner().invoke(main, ["kubernetes", "wait-ready", *places])
    assert ready.exit_code == 0, ready.output
    again = CliRunner().invoke(main, ["kubernetes", "roll", *places])
    assert "rolled: 0 brokers replaced" in again.output
    assert scripted.elections == 1


def test_waiting_for_readiness_changes_nothing(
    scripted: ScriptedRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = release_of(scripted)
    monkeypatch.setattr("tidelog.cli.kubernetes.upgrade.open_release", lambda release, namespace: opened)
    places = ["--release", "r", "--namespace", "n", "--bootstrap-server", scripted.broker.bootstrap]
    result = CliRunner().invoke(main, ["kubernetes", "wait-ready", *places, "--timeout", "0.1"])
    assert result.exit_code == 1
    assert "not finished after 0.1 s: r-broker-0-0 has another revision" in result.stderr
    assert scripted.api.writes == []


@pytest.mark.parametrize("plaintext_answers", [True, False])
def test_a_roll_uses_the_listener_that_answers_while_clients_move(
    scripted: ScriptedRelease, plaintext_answers: bool
) -> None:
    there, nowhere = scripted.broker.bootstrap, "127.0.0.1:1"
    entrances = Entrances(nowhere, there) if plaintext_answers else Entrances(there, nowhere)
    assert isinstance(look(release_of(scripted), entrances), Replace)
    with entrances.open("test") as cluster:
        assert len(cluster.describe().brokers) == 3


def test_a_roll_without_any_listener_waits(scripted: ScriptedRelease) -> None:
    step = look(release_of(scripted), Entrances("127.0.0.1:1", "127.0.0.1:1"))
    assert isinstance(step, Wait)
    assert "the brokers do not answer" in step.reason


def test_json_has_the_result_and_progress_is_a_note(
    scripted: ScriptedRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = release_of(scripted)
    monkeypatch.setattr("tidelog.cli.kubernetes.upgrade.open_release", lambda release, namespace: opened)
    places = ["--release", "r", "--namespace", "n", "--bootstrap-server", scripted.broker.bootstrap]
    rolled = CliRunner().invoke(main, ["kubernetes", "roll", *places, "--format", "json"])
    document = json.loads(rolled.stdout)
    assert document["replaced_brokers"] == 3
    assert document["message"].endswith("rolled: 3 brokers replaced, all replicas are in sync")
    assert "replacing r-broker-0-0" in rolled.stderr
    ready = CliRunner().invoke(main, ["kubernetes", "wait-ready", *places, "--format", "json"])
    assert set(json.loads(ready.stdout)) == {"elapsed_s", "message"}
