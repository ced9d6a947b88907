"""A cluster of processes under traffic, scraped in the same way as by the chart's monitors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from brokerlab.raw_client import set_quota
from clusterlab.metrics import METRICS_LISTENER, metrics_url
from clusterlab.tidelog_cluster import TidelogCluster
from kuberneteslab.chart_files import FULLNAME, NAMESPACE, RELEASE, RULES, filled_in
from kuberneteslab.foreign import ForeignExporters
from kuberneteslab.prometheus import Prometheus, Target
from kuberneteslab.traffic import Traffic, create_topics

COMPONENTS = {
    "broker": "broker",
    "controller": "controller",
    "coordinator": "group-coordinator",
    "etcd": "etcd",
}
SETTINGS = {
    **METRICS_LISTENER,
    "log.cleaner.backoff.ms": "1000",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}
UNREACHED_BYTES_PER_S = 1e9


@dataclass(frozen=True)
class WatchedCluster:
    cluster: TidelogCluster
    traffic: Traffic
    prometheus: Prometheus
    foreign: ForeignExporters

    def start(self, name: str) -> None:
        """Restarts a killed process and scrapes it at its new port."""
        self.cluster.start(name)
        self.prometheus.retarget(all_targets(self.cluster, self.foreign))


def all_targets(cluster: TidelogCluster, foreign: ForeignExporters) -> list[Target]:
    """Returns the cluster's processes and the recorded exporters."""
    recorded = [Target(name[1:], foreign.address, {}, path=name) for name in foreign.names]
    return targets_of(cluster) + recorded


def targets_of(cluster: TidelogCluster) -> list[Target]:
    """Returns a target for each process, with the labels that the chart's monitors add."""
    found = []
    for name, pid in cluster.pids().items():
        kind, number = name.rsplit("-", 1)
        url = cluster.etcd_url("--listen-metrics-urls") if kind == "etcd" else metrics_url(pid)
        labels = {"namespace": NAMESPACE, "release": RELEASE, "component": COMPONENTS[kind]}
        labels["pod"] = f"{FULLNAME}-{COMPONENTS[kind]}-{number}"
        if kind == "broker":
            labels |= {"broker": number, "pod": f"{FULLNAME}-broker-{number}-0"}
        found.append(Target("tidelog", url.removeprefix("http://").removesuffix("/metrics"), labels))
    return found


@contextlib.contextmanager
def watched_cluster(directory: Path) -> Iterator[WatchedCluster]:
    """Runs brokers, controllers, coordinators and etcd under traffic, and a Prometheus with the chart's
    rules.
    """
    cluster = TidelogCluster(directory / "cluster", settings=SETTINGS, options=["--coordinators", "2"])
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.destroy)
        cluster.up()
        create_topics(cluster.bootstrap)
        everyone = {"user": None, "client-id": None}
        set_quota(cluster.bootstrap.split(",")[0], everyone, producer_byte_rate=UNREACHED_BYTES_PER_S)
        rules = []
        for path in RULES:
            rules.append(directory / path.name)
            rules[-1].write_text(filled_in(path.read_text()))
        foreign = stack.enter_context(ForeignExporters())
        targets = all_targets(cluster, foreign)
        prometheus = stack.enter_context(Prometheus(directory / "prometheus", targets, rules))
        traffic = stack.enter_context(Traffic(cluster.bootstrap))
        yield WatchedCluster(cluster, traffic, prometheus, foreign)
