"""The broker for tests in unittest's style."""

from __future__ import annotations

import unittest
from collections.abc import Mapping
from typing import ClassVar

from tidelog.testing.cluster import Cluster


class TidelogMixin(unittest.TestCase):
    """Gives each test `self.tidelog`, a broker that all tests of the class share.

        class TestFlights(TidelogMixin):
            def test_count(self):
                self.tidelog.produce("flights", "EWR-IAH")

    After each test, its topics, groups and faults are removed. `tidelog_brokers` is the number of brokers,
    and `tidelog_settings` has their settings by Kafka's names.
    """

    tidelog_brokers: ClassVar[int] = 1
    tidelog_settings: ClassVar[Mapping[str, str]] = {}
    tidelog: ClassVar[Cluster]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls._start()

    @classmethod
    def _start(cls) -> None:
        cls.tidelog = Cluster(cls.tidelog_brokers, settings=cls.tidelog_settings).start()
        cls.addClassCleanup(cls.tidelog.close)

    def run(self, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        # Many tests have a setUpClass and a setUp of their own that do not call those of their base classes.
        if "tidelog" not in vars(type(self)):
            self._start()
        self.addCleanup(self.tidelog.clean)  # the first cleanup runs last
        return super().run(result)
