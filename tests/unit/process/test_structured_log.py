"""Names that clients choose, in logs for people."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest
import structlog

from tidelog.process.structured_log import configure_logging

NAME = "evil\x1b[2J\nfake line\u202e"


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_text_logs_escape_names() -> None:
    output = io.StringIO()
    configure_logging("text", stream=output)
    log = structlog.get_logger("test")
    log.warning(NAME, group=NAME, short="evil\x1b[2J", names=[NAME])
    assert " short=evil\\x1b[2J" in output.getvalue()
    assert output.getvalue().count("\n") == 1
    try:
        raise ValueError(NAME)
    except ValueError:
        log.exception("failed")  # a traceback has several lines
    assert output.getvalue().replace("\n", "").isprintable()


def test_json_logs_have_the_names_as_they_are() -> None:
    output = io.StringIO()
    configure_logging("json", stream=output)
    structlog.get_logger("test").warning("refused", group=NAME)
    assert json.loads(output.getvalue())["group"] == NAME
    assert output.getvalue().count("\n") == 1
