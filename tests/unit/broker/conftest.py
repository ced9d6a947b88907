"""The in-memory broker for tests of handlers and of coordinators' sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from brokerlab.in_memory_broker import InMemoryBroker


@pytest.fixture
def make_broker(tmp_path: Path) -> Iterator[Callable[..., InMemoryBroker]]:
    """Returns `make_broker(settings)`, which creates a broker for one test."""
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
