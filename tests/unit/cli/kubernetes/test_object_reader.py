"""Reading one object with a pod's service account."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kuberneteslab.scripted_api_server import ScriptedApiServer
from tidelog.cli.kubernetes.api_server import NotFoundError, PodReader
from tidelog.cli.tool_command import ToolError

NODE = "/api/v1/nodes/worker-1"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedApiServer]:
    monkeypatch.setattr("tidelog.cli.kubernetes.api_server.RETRY_BACKOFF_S", 0.01)
    with ScriptedApiServer() as server:
        server.put(NODE, metadata={"labels": {"zone": "a"}})
        yield server


@pytest.fixture
def reader(server: ScriptedApiServer, tmp_path: Path) -> PodReader:
    (tmp_path / "token").write_text("secret\n")
    return PodReader(server.url, tmp_path / "token", None)


def test_an_object_is_read(reader: PodReader) -> None:
    assert reader.get(NODE)["metadata"]["labels"] == {"zone": "a"}


def test_missing_objects_are_reported(reader: PodReader) -> None:
    with pytest.raises(NotFoundError):
        reader.get("/api/v1/nodes/other")


def test_a_server_that_is_busy_is_asked_again(server: ScriptedApiServer, reader: PodReader) -> None:
    server.refusals = [(429, "later"), (503, "starting")]
    assert reader.get(NODE)["metadata"]["name"] == "worker-1"


def test_an_error_names_the_next_step(server: ScriptedApiServer, reader: PodReader) -> None:
    server.refusals = [(403, 'nodes is forbidden: User "r" cannot get resource')]
    with pytest.raises(
        ToolError, match=r"cannot get resource; the chart's value rbac\.create=true grants this"
    ):
        reader.get(NODE)


def test_a_server_that_stays_away_is_given_up(
    reader: PodReader, server: ScriptedApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.cli.kubernetes.api_server.RETRY_FOR_S", 0.05)
    server.refusals = [(503, "no leader")] * 1000
    with pytest.raises(ToolError, match="the API server: no leader"):
        reader.get(NODE)


def test_only_a_pod_with_a_service_account_has_one(tmp_path: Path) -> None:
    inside = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    assert PodReader.here(inside, tmp_path) is None
    (tmp_path / "token").write_text("t")
    (tmp_path / "ca.crt").write_text("")
    assert PodReader.here({}, tmp_path) is None


def test_init_containers_do_not_import_the_official_client(server: ScriptedApiServer, tmp_path: Path) -> None:
    """The import takes longer than a broker's start."""
    (tmp_path / "token").write_text("t")
    script = (
        "import sys; from pathlib import Path\n"
        "from tidelog.cli.kubernetes import init_containers\n"
        "from tidelog.cli.kubernetes.api_server import PodReader\n"
        f"reader = PodReader({server.url!r}, Path({str(tmp_path / 'token')!r}), None)\n"
        f"print(reader.get({NODE!r})['metadata']['name'])\n"
        "print('kubernetes' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["worker-1", "False"]
