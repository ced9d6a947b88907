"""The log level of the process, which tests of handlers change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
import structlog

from tidelog.process.structured_log import set_log_level


@pytest.fixture
def log_level() -> Iterator[Callable[[str], None]]:
    """Returns a function that sets the log level of the process until the test ends."""
    root = logging.getLogger()
    before, configuration = root.level, structlog.get_config()
    yield set_log_level
    root.setLevel(before)
    structlog.configure(**configuration)
