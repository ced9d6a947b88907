"""The broker for tests in unittest's style."""

from __future__ import annotations

import atexit
import threading
import unittest
from collections.abc import Mapping
from typing import ClassVar

from tidelog.testing.cluster import Cluster

_shared: dict[tuple[tuple[str, str], ...], Cluster] = {}
_starting = threading.Lock()


class TidelogMixin(unittest.TestCase):
    """Gives each test `self.tidelog`, a broker that all tests of the process share.

        class TestFlights(TidelogMixin):
            def test_count(self):
                self.tidelog.produce("flights", "EWR-IAH")

    After each test, its topics, groups and faults are removed. `tidelog_settings` are settings of the broker
    by Kafka's names; classes with the same settings share a broker.
    """

    tidelog_settings: ClassVar[Mapping[str, str]] = {}
    tidelog: Cluster

    def setUp(self) -> None:
        super().setUp()
        self.tidelog = _shared_cluster(self.tidelog_settings)
        self.addCleanup(self.tidelog.clean)


def _shared_cluster(settings: Mapping[str, str]) -> Cluster:
    key = tuple(sorted(settings.items()))
    with _starting:
        if key not in _shared:
            cluster = Cluster(settings=settings).start()
            atexit.register(cluster.close)
            _shared[key] = cluster
        return _shared[key]
