"""`tidelog kubernetes rack`: writes a node's label into the broker's properties file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kuberneteslab.scripted_api_server import ScriptedApiServer
from tidelog.cli.kubernetes.init_containers import ZONE_LABEL, rack_properties
from tidelog.cli.main import main
from tidelog.cli.tool_command import ToolError
from tidelog.settings.properties_file import parse_properties


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedApiServer]:
    with ScriptedApiServer() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        monkeypatch.setattr("tidelog.cli.kubernetes.api_server.RETRY_BACKOFF_S", 0.01)
        yield server


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["kubernetes", "rack", *arguments])


@pytest.mark.parametrize("zone", ["eu-west-1a", "rack 7", "größe"])
def test_the_broker_reads_what_is_written(zone: str) -> None:
    entries = parse_properties(rack_properties({ZONE_LABEL: zone}, ZONE_LABEL))
    assert [(entry.name, entry.value) for entry in entries] == [("broker.rack", zone)]


@pytest.mark.parametrize("labels", [{}, {ZONE_LABEL: ""}, {"zone": "a"}])
def test_a_node_without_a_zone_gives_no_rack(labels: dict[str, str]) -> None:
    assert list(parse_properties(rack_properties(labels, ZONE_LABEL))) == []


def test_a_label_with_a_line_break_is_refused() -> None:
    with pytest.raises(ToolError, match="is not a valid name of a rack"):
        rack_properties({ZONE_LABEL: "a\nlog.dirs=/"}, ZONE_LABEL)


def test_the_nodes_label_is_written(server: ScriptedApiServer, tmp_path: Path) -> None:
    server.put("/api/v1/nodes/worker-1", metadata={"labels": {ZONE_LABEL: "zone-a", "shelf": "7"}})
    output = tmp_path / "rack.properties"
    assert run("--node", "worker-1", "--output", str(output)).exit_code == 0
    assert output.read_text() == "broker.rack=zone-a\n"
    assert run("--node", "worker-1", "--output", str(output), "--label", "shelf").exit_code == 0
    assert output.read_text() == "broker.rack=7\n"


def test_an_api_server_that_is_busy_is_asked_again(server: ScriptedApiServer, tmp_path: Path) -> None:
    server.put("/api/v1/nodes/worker-1", metadata={"labels": {ZONE_LABEL: "zone-a"}})
    server.refusals = [(429, "later"), (503, "starting")]
    result = run("--node", "worker-1", "--output", str(tmp_path / "rack"))
    assert result.exit_code == 0, result.output


def test_failures_are_one_line(server: ScriptedApiServer, tmp_path: Path) -> None:
    result = run("--node", "other", "--output", str(tmp_path / "rack"))
    assert (result.exit_code, result.stderr) == (1, "tidelog: --node other: no such node\n")
    server.refusals = [(403, 'nodes is forbidden: User "r" cannot get resource')]
    result = run("--node", "other", "--output", str(tmp_path / "rack"))
    assert result.exit_code == 1
    assert "cannot get resource; the chart's value rbac.create=true grants this" in result.stderr


def test_json_has_the_rack_and_the_file(server: ScriptedApiServer, tmp_path: Path) -> None:
    server.put("/api/v1/nodes/worker-1", metadata={"labels": {ZONE_LABEL: "zone-a"}})
    output = tmp_path / "rack.properties"
    done = run("--node", "worker-1", "--output", str(output), "--format", "json")
    assert json.loads(done.stdout) == {
        "message": "broker.rack=zone-a",
        "node": "worker-1",
        "output": str(output),
    }
