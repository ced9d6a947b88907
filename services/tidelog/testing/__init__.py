"""Brokers inside a test: a pytest fixture, a context manager and a mixin for unittest, and their faults.

    from tidelog.testing import Cluster

    with Cluster() as cluster:
        cluster.create_topic("flights", partitions=3)
        cluster.produce("flights", "EWR-IAH", "LGA-MIA")
        ...  # any client, in any language, connects to cluster.bootstrap
        assert len(cluster.records("flights")) == 2

The pytest plugin `tidelog.testing.plugin` has the fixtures `tidelog` and `tidelog_cluster`. This package
loads its modules at their first use, because pytest imports the plugin in every project where tidelog is
installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidelog.model.errors import ErrorCode
    from tidelog.testing.cluster import Cluster
    from tidelog.testing.faults import Fault
    from tidelog.testing.rebalance import Rebalance
    from tidelog.testing.requests import Record, RequestFailedError
    from tidelog.testing.unittest_mixin import TidelogMixin

__all__ = [
    "Cluster",
    "ErrorCode",
    "Fault",
    "Rebalance",
    "Record",
    "RequestFailedError",
    "TidelogMixin",
]

_MODULES = {
    "Cluster": "tidelog.testing.cluster",
    "ErrorCode": "tidelog.model.errors",
    "Fault": "tidelog.testing.faults",
    "Rebalance": "tidelog.testing.rebalance",
    "Record": "tidelog.testing.requests",
    "RequestFailedError": "tidelog.testing.requests",
    "TidelogMixin": "tidelog.testing.unittest_mixin",
}


def __getattr__(name: str) -> Any:  # the type of each name is given above
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(module), name)
