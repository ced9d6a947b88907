"""`tidelog delete-records` refuses wrong parameters before it connects."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tidelog.cli.admin import offsets


@pytest.fixture
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*args: object) -> None:
        pytest.fail("the command connects")

    monkeypatch.setattr(offsets, "connect", connect)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(offsets.delete_records_command, arguments)


@pytest.mark.usefixtures("no_cluster")
def test_a_time_before_1970_deletes_no_records() -> None:
    """Its milliseconds were -1, which ListOffsets answers with the end of the log."""
    result = run("t", "--to-datetime", "1969-12-31T23:59:59.999")
    assert result.exit_code == 1
    assert "the time must not be before 1970-01-01T00:00:00Z" in result.output


@pytest.mark.usefixtures("no_cluster")
def test_a_file_excludes_a_time(tmp_path: Path) -> None:
    file = tmp_path / "offsets.json"
    file.write_text("{}")
    result = run("--offset-json-file", str(file), "--to-datetime", "2026-01-31T08:00:00.000")
    assert result.exit_code == 2
    assert "Give either --offset-json-file, or a topic and --to-datetime, or" in result.output
