"""The pytest plugin: the fixtures `tidelog`, `tidelog_cluster` and `tidelog_settings`.

pytest imports this module in every project of an environment in which tidelog is installed, so it imports
nothing but pytest.

pytest also rewrites the assertions of all modules of a distribution with a plugin, which are about 400 here.
`_PlainFinder` spares the first test of an environment two seconds for that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tidelog.testing.cluster import Cluster


class _PlainFinder:
    """Finds the modules of tidelog ahead of pytest, as Python does."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(name, path, target) if name.startswith("tidelog.") else None


sys.meta_path.insert(0, _PlainFinder)


@pytest.fixture(scope="session")
def tidelog_settings() -> Mapping[str, str]:
    """The broker settings of the fixture `tidelog`, by Kafka's names. Override it in conftest.py."""
    return {}


@pytest.fixture(scope="session")
def _tidelog_of_session(tidelog_settings: Mapping[str, str]) -> Iterator[Cluster]:
    from tidelog.testing.cluster import Cluster

    with Cluster(settings=tidelog_settings) as cluster:
        yield cluster


@pytest.fixture
def tidelog(_tidelog_of_session: Cluster) -> Iterator[Cluster]:
    """A Kafka broker in this process: `tidelog.bootstrap` is its address for any client.

    All tests of a session share the broker. After each test, its topics, groups and faults are removed.
    """
    yield _tidelog_of_session
    _tidelog_of_session.clean()


@pytest.fixture
def tidelog_cluster() -> Iterator[Callable[..., Cluster]]:
    """A function that starts a cluster for this test: `tidelog_cluster(brokers=3)`. It takes the arguments of
    `tidelog.testing.Cluster`.
    """
    from tidelog.testing.cluster import Cluster

    with ExitStack() as clusters:

        def start(brokers: int = 3, *, settings: Mapping[str, str] | None = None) -> Cluster:
            return clusters.enter_context(Cluster(brokers, settings=settings))

        yield start
