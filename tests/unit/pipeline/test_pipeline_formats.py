"""JSON of the pipeline's commands that need no Spark, and failures before Spark starts: no half document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tidelog.cli.main import main
from tidelog.pipeline import session
from tidelog.testing import Cluster

CLOSED = "127.0.0.1:1"
REFUSED = "no connection to 127.0.0.1:1: connection refused; "
NO_TOPIC = "topic 'none' does not exist; 'tidelog topic list' shows the existing topics"


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object, **__: object) -> None:
        pytest.fail("Spark was started")

    monkeypatch.setattr(session, "spark_session", start)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["pipeline", *map(str, arguments), "--format", "json"])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["verify", "DIR/none", "--bootstrap-server", CLOSED], "DIR/none holds no table of an archive; "),
        (["verify", "DIR/table", "--bootstrap-server", CLOSED], REFUSED),
        (["archive", "--topic", "none", "--table", "DIR/t", "-b", CLOSED], REFUSED),
        (["archive", "--topic", "none", "--table", "DIR/t", "-b", "CLUSTER"], "have no topic none; "),
        (["maintain", "DIR/none"], "DIR/none holds no table of an archive; "),
        (["export-segments", "DIR/none", "--to", "DIR/out"], "DIR/none is not a log directory: "),
        (["quarantine", "list", "none", "--bootstrap-server", CLOSED], REFUSED),
        (["quarantine", "list", "none", "--bootstrap-server", "CLUSTER"], NO_TOPIC),
        (["quarantine", "replay", "none", "--bootstrap-server", "CLUSTER"], NO_TOPIC),
        (
            [*("analytics", "--prometheus", CLOSED, "--output", "DIR/o"), *("--bootstrap-server", CLOSED)],
            REFUSED,
        ),
        (
            ["analytics", "--prometheus", CLOSED, "--output", "DIR/o"],
            "does not have the form http://HOST:PORT",
        ),
        (["analytics", "--prometheus", f"http://{CLOSED}", "--output", "DIR/o"], "does not answer"),
        (
            [
                "analytics",
                "--prometheus",
                f"http://{CLOSED}",
                "--output",
                "DIR/o",
                "--step",
                "1m",
            ],
            "does not answer",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_failed_check_is_one_line_and_no_document(
    cluster: Cluster, tmp_path: Path, arguments: list[str], reason: str
) -> None:
    log = tmp_path / "table" / "_delta_log"
    log.mkdir(parents=True)
    (log / "00000000000000000000.json").write_text("{}")
    given = [each.replace("DIR", str(tmp_path)).replace("CLUSTER", cluster.bootstrap) for each in arguments]
    result = run(*given)
    assert result.exit_code == 1, result.exception
    assert result.stdout == ""
    assert result.stderr.startswith("tidelog: ")
    assert result.stderr.count("\n") == 1
    assert reason.replace("DIR", str(tmp_path)) in result.stderr


def test_the_jars_as_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.jar").touch()
    monkeypatch.setenv("TIDELOG_SPARK_JARS", str(tmp_path))
    assert json.loads(run("jars").stdout) == [str(tmp_path / "a.jar")]
