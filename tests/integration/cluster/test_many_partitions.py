"""A tenth of the two thousand partitions of tests/bench/many_partitions.py, with the same limits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clusterlab.many_partitions import Limits, measure
from clusterlab.tidelog_cluster import TidelogCluster

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]
PARTITIONS = 200
TOPICS = 4
IDLE_S = 5.0
# Other tests run at the same time.
LIMITS = Limits(create_s=20.0, settle_s=10.0, idle_cpu_percent=25.0, memory_mb=150.0)


def test_two_hundred_partitions(
    new_cluster: Callable[..., TidelogCluster], tell: Callable[..., None]
) -> None:
    found = measure(new_cluster(), PARTITIONS, TOPICS, IDLE_S)
    rows = found.rows(LIMITS)
    for row in rows:
        tell(row.title, row.value, row.unit)
    assert [row.title for row in rows if not row.is_reached] == []
