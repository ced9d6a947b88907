"""Each kind of service of a local cluster reaches only the keys of etcd that it needs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clusterlab.etcd_gateway import EtcdGateway
from clusterlab.tidelog_cluster import TidelogCluster

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]
KEYS = (
    "/acls/evil",
    "/config/scram/evil",
    "/controller_epoch",
    "/brokers/ids/evil",
    "/brokers/topics/evil/partitions/0/state",
    "/coordinators/evil",
)
WRITABLE = {
    "broker-1": {"/brokers/ids/evil", "/brokers/topics/evil/partitions/0/state"},
    "coordinator-1": {"/coordinators/evil"},
    "controller-1": set(KEYS),
    "tools-1": set(KEYS),
    "etcd-1": set(),  # this certificate has no user
}
READABLE = {
    "broker-1": set(KEYS) - {"/acls/evil", "/config/scram/evil", "/coordinators/evil"},
    "coordinator-1": {"/brokers/ids/evil", "/brokers/topics/evil/partitions/0/state", "/coordinators/evil"},
    "controller-1": set(KEYS),
    "tools-1": set(KEYS),
    "etcd-1": set(),
}


def read_by(cluster: TidelogCluster, holder: str) -> set[str]:
    etcd = EtcdGateway(cluster.etcd_url(), cluster.data_dir / "certificates" / holder)
    found = set()
    for key in KEYS:
        try:
            etcd.keys(key)
            found.add(key)
        except OSError as error:
            assert "permission denied" in str(error)
    return found


def written_by(cluster: TidelogCluster, holder: str) -> set[str]:
    etcd = EtcdGateway(cluster.etcd_url(), cluster.data_dir / "certificates" / holder)
    found = set()
    for key in KEYS:
        try:
            # The controllers are stopped, so that nobody reads the values.
            etcd.put(key, b"evil")
            found.add(key)
        except OSError as error:
            assert "permission denied" in str(error)
    return found


def test_services_reach_only_the_keys_that_they_need(new_cluster: Callable[..., TidelogCluster]) -> None:
    cluster = new_cluster(brokers=1, controllers=1)
    for name in ("broker-1", "controller-1", "coordinator-1"):
        cluster.kill(name)
    assert {holder: written_by(cluster, holder) for holder in WRITABLE} == WRITABLE
    assert {holder: read_by(cluster, holder) for holder in READABLE} == READABLE
