"""Texts and checks before and after Spark: brokers, topics and tables are looked at first, times are read as
users write them, and the sentence in a stack trace is found.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tidelog.cli.main import main
from tidelog.pipeline import session
from tidelog.pipeline.commands.options import parse_ids, parse_moment, parse_span
from tidelog.pipeline.errors import PipelineError, sentence_of
from tidelog.pipeline.session import QUIET_LOG, embedded_settings
from tidelog.testing import Cluster

CLOSED = "127.0.0.1:1"
NOW_MS = 1_790_000_000_000
PAGE = """[PYTHON_DATA_SOURCE_ERROR] Failed to generate Python data source read partitions: Traceback:
  File "source.py", line 62, in partitions
    raise OffsetsMissingError(
tidelog.pipeline.segments.log_files.OffsetsMissingError: flights-1: offsets 3 to 5 cannot be read: gone
 SQLSTATE: 38000
\tat org.apache.spark.Something(Some.scala)
"""


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object, **__: object) -> None:
        pytest.fail("Spark was started")

    monkeypatch.setattr(session, "spark_session", start)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["pipeline", *map(str, arguments)])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    log = tmp_path / "flights" / "_delta_log"
    log.mkdir(parents=True)
    (log / "00000000000000000000.json").write_text("{}")
    return log.parent


def test_verify_needs_a_table(tmp_path: Path) -> None:
    result = run("verify", tmp_path / "none", "--bootstrap-server", CLOSED)
    assert result.exit_code == 1
    assert f"{tmp_path / 'none'} holds no table of an archive" in result.output


def test_verify_needs_brokers(table: Path) -> None:
    result = run("verify", table, "--bootstrap-server", CLOSED)
    assert result.exit_code == 1
    assert "connection refused; start the brokers that hold the log" in result.output


def test_an_archive_needs_brokers_and_topics(tmp_path: Path) -> None:
    options = ("--topic", "flights", "--table", tmp_path / "flights")
    result = run("archive", *options, "-b", CLOSED)
    assert result.exit_code == 1
    assert "connection refused; start the brokers that hold the log" in result.output
    with Cluster() as cluster:
        result = run("archive", *options, "-b", cluster.bootstrap)
        assert result.exit_code == 1
        assert (
            f"the brokers at {cluster.bootstrap} have no topic flights; 'tidelog topic list'" in result.output
        )


def test_the_log_of_sparks_start_is_quiet() -> None:
    assert "rootLogger.level = off" in QUIET_LOG.read_text()
    assert str(QUIET_LOG) in embedded_settings()["spark.driver.extraJavaOptions"]


@pytest.mark.parametrize(
    ("text", "span_ms"), [("90s", 90_000), ("1.5h", 5_400_000), ("7d", 604_800_000), ("250ms", 250)]
)
def test_spans(text: str, span_ms: int) -> None:
    assert parse_span("--x", text) == span_ms
    assert parse_moment("--x", text, NOW_MS) == NOW_MS - span_ms


def test_moments() -> None:
    assert parse_moment("--x", "now", NOW_MS) == NOW_MS
    assert parse_moment("--x", "1970-01-01T00:01", NOW_MS) == 60_000
    assert parse_moment("--x", "1970-01-01T01:00+01:00", NOW_MS) == 0
    assert parse_moment("--x", "123456", NOW_MS) == 123_456


@pytest.mark.parametrize("text", ["0s", "5", "h", "-3m", ""])
def test_invalid_spans(text: str) -> None:
    with pytest.raises(PipelineError, match="--x"):
        parse_span("--x", text)


def test_invalid_moments_and_ids() -> None:
    with pytest.raises(PipelineError, match="yesterday"):
        parse_moment("--x", "yesterday", NOW_MS)
    assert parse_ids("--x", "4, 3,4") == (3, 4)
    assert parse_ids("--x", None) == ()
    with pytest.raises(PipelineError, match="numbers"):
        parse_ids("--x", "a")


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        (PAGE, "flights-1: offsets 3 to 5 cannot be read: gone"),
        ("java.lang.Error\ntidelog.pipeline.errors.PipelineError: no topic\n", "no topic"),
        ("org.apache.spark.SparkException: tidelog isn't there", None),
        ("ValueError: tidelog.pipeline", None),
    ],
)
def test_the_sentence_in_sparks_error_is_found(page: str, sentence: str | None) -> None:
    assert sentence_of(Exception(page)) == sentence
