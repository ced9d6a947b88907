"""The in-memory broker whose handlers are tested."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from brokerlab.in_memory_broker import InMemoryBroker
from tidelog.process.structured_log import set_log_level


@pytest.fixture
def make_broker(tmp_path: Path) -> Iterator[Callable[..., InMemoryBroker]]:
    """Returns make_broker(settings), which creates a broker for one test."""
    made: list[InMemoryBroker] = []

    def make(settings: dict[str, str] | None = None) -> InMemoryBroker:
        made.append(InMemoryBroker(tmp_path / f"data{len(made)}", settings))
        return made[-1]

    yield make
    for broker in made:
        broker.close()


@pytest.fixture
def lab(make_broker: Callable[..., InMemoryBroker]) -> InMemoryBroker:
    return make_broker()


@pytest.fixture
def log_level() -> Iterator[Callable[[str], None]]:
    """Returns a function that sets the log level of the process until the test ends."""
    root = logging.getLogger()
    before, configuration = root.level, structlog.get_config()
    yield set_log_level
    root.setLevel(before)
    structlog.configure(**configuration)
