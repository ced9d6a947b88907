"""The messages of `tidelog console` when it cannot start."""

from __future__ import annotations

import sys

import pytest
from click.testing import CliRunner

from tidelog.cli.console import command


def said(*arguments: str) -> str:
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 1, done.output
    return done.output


def test_a_missing_extra_is_named_with_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "tidelog.console.server", raising=False)
    assert said() == "tidelog: the console needs the package uvicorn: pip install 'tidelog[console]'\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--listen", "8080"), "8080 is not an address: expected HOST:PORT, as in 127.0.0.1:8080"),
        (("--allowed-host", "*"), "--allowed-host *: expected a host name without *"),
        (("--bootstrap-server", "here"), "--bootstrap-server: 'here' is not a broker address"),
        (("--listen", "192.0.2.1:8080"), "the console cannot listen at 192.0.2.1:8080: "),
        (("--topic-schema", "a-value=a.avsc"), "--topic-schema names files of --schema-dir: give that, too"),
        (("--schema-dir", "/missing"), "--schema-dir: /missing: No such file or directory"),
        (("--schema-registry", "here"), "--schema-registry: here is not an http or https URL, such as http"),
    ],
)
def test_wrong_options_are_one_sentence(arguments: tuple[str, ...], message: str) -> None:
    output = said(*arguments)
    assert output.startswith(f"tidelog: {message}")
    assert output.count("\n") == 1
