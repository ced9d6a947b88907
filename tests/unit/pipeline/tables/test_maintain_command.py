"""The arguments that `tidelog pipeline maintain` rejects before it starts Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tidelog.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["{}"], "holds no table of an archive"),
        (["{}", "--keep-hours", "0"], "--keep-hours"),
        (["{}", "--target-file-size", "big"], "'big' is not a size"),
        ([], "PATH"),
    ],
)
def test_wrong_arguments_are_refused_at_once(tmp_path: Path, arguments: list[str], expected: str) -> None:
    filled = [argument.format(tmp_path) for argument in arguments]
    result = CliRunner().invoke(main, ["pipeline", "maintain", *filled])
    assert result.exit_code != 0
    assert expected in result.output
