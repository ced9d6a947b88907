"""`tidelog kubernetes address`: writes a load balancer's address into the advertised listeners."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kuberneteslab.scripted_api_server import ScriptedApiServer
from tidelog.cli.main import main
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.properties_file import parse_properties

SERVICE = "/api/v1/namespaces/n/services/b"
LISTENERS = "INTERNAL://b.n:9092,EXTERNAL://{address}:9094"
MAP = "INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedApiServer]:
    with ScriptedApiServer() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        monkeypatch.setattr("tidelog.cli.kubernetes.init_containers.POLL_S", 0.01)
        yield server


def run(output: Path, listeners: str = LISTENERS, *more: str) -> Result:
    arguments = ("--service", "b", "-n", "n", "--listeners", listeners, "--output", str(output), *more)
    return CliRunner().invoke(main, ["kubernetes", "address", *arguments])


@pytest.mark.parametrize(
    ("ingress", "host"),
    [
        ([{"hostname": "x.elb.example.com"}], "x.elb.example.com"),
        ([{"ip": "192.0.2.7"}], "192.0.2.7"),
        ([{"ip": "2001:db8::7"}], "2001:db8::7"),
        ([{}, {"ip": "192.0.2.7"}], "192.0.2.7"),
    ],
)
def test_the_broker_advertises_it(
    server: ScriptedApiServer, tmp_path: Path, ingress: list[dict[str, str]], host: str
) -> None:
    server.put(SERVICE, status={"loadBalancer": {"ingress": ingress}})
    result = run(tmp_path / "listeners")
    assert result.exit_code == 0, result.output
    (entry,) = parse_properties((tmp_path / "listeners").read_text())
    settings = BrokerSettings.parse(
        {
            entry.name: entry.value,
            "listeners": "INTERNAL://:9092,EXTERNAL://:9094",
            "listener.security.protocol.map": MAP,
            "inter.broker.listener.name": "INTERNAL",
        }
    )
    told = {endpoint.listener_name: endpoint for endpoint in settings.listener_plan().advertised}
    assert (told["EXTERNAL"].host, told["EXTERNAL"].port) == (host, 9094)
    assert told["INTERNAL"].host == "b.n"


def test_it_waits_until_there_is_one(server: ScriptedApiServer, tmp_path: Path) -> None:
    server.put(SERVICE, status={"loadBalancer": {}})
    later = threading.Timer(
        0.2, lambda: server.put(SERVICE, status={"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}})
    )
    later.start()
    result = run(tmp_path / "listeners")
    later.join()
    assert result.exit_code == 0, result.output
    assert result.output.count("waiting: service b has no address") == 1
    assert "EXTERNAL://192.0.2.7:9094" in (tmp_path / "listeners").read_text()


def test_failures_are_one_line(server: ScriptedApiServer, tmp_path: Path) -> None:
    assert run(tmp_path / "l").stderr == "tidelog: --service b: no such service in namespace n\n"
    assert "{address} is missing" in run(tmp_path / "l", "INTERNAL://a:9092").stderr
    assert not (tmp_path / "l").exists()


def test_json_has_the_address_and_waiting_is_a_note(server: ScriptedApiServer, tmp_path: Path) -> None:
    server.put(SERVICE, status={"loadBalancer": {}})
    arrival = {"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}}
    later = threading.Timer(0.2, lambda: server.put(SERVICE, status=arrival))
    later.start()
    done = run(tmp_path / "listeners", LISTENERS, "--format", "json")
    later.join()
    assert json.loads(done.stdout) == {
        "message": "advertised.listeners=INTERNAL://b.n:9092,EXTERNAL://192.0.2.7:9094",
        "address": "192.0.2.7",
        "output": str(tmp_path / "listeners"),
    }
    assert done.stderr.startswith("waiting: service b ")
