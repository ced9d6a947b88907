"""Measures a cluster with many partitions: creation, recovery after a leader's kill, idle cost."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from confluent_kafka.admin import NewTopic

from brokerlab.clients import admin_client
from clusterlab.processes import cpu_s, pss_bytes
from clusterlab.tidelog_cluster import TidelogCluster
from clusterlab.topic_view import topic_view

CREATE_TIMEOUT_S = 300.0
SETTLE_TIMEOUT_S = 120.0
SETTLE_BEFORE_IDLE_S = 10.0
ASK_AGAIN_S = 0.02
REPLICAS = 3


class Row(NamedTuple):
    title: str
    value: float
    unit: str
    limit: float | None

    @property
    def is_reached(self) -> bool:
        return self.limit is None or self.value < self.limit

    @property
    def cells(self) -> tuple[str, ...]:
        limit = "" if self.limit is None else f"< {self.limit:g} {self.unit}"
        return self.title, f"{self.value:.1f} {self.unit}", limit, "yes" if self.is_reached else "no"


@dataclass(frozen=True)
class Limits:
    """The limits for 2,000 partitions."""

    create_s: float = 60.0
    settle_s: float = 10.0
    idle_cpu_percent: float = 25.0
    memory_mb: float = 250.0


@dataclass(frozen=True)
class Figures:
    """`detected_s` is the time from the kill to the end of the broker's registration. `settled_s` is the time
    from then until every partition has a live leader in the view of both other brokers.
    """

    create_s: float
    detected_s: float
    settled_s: float
    idle_cpu_percent: float
    others_idle_cpu_percent: float
    memory_mb: dict[str, float]
    restarted_s: float

    def rows(self, limits: Limits) -> list[Row]:
        brokers = {name: size for name, size in self.memory_mb.items() if name.startswith("broker-")}
        others = {name: size for name, size in self.memory_mb.items() if name not in brokers}
        return [
            Row("created, every broker shows every leader", self.create_s, "s", limits.create_s),
            Row("death of a broker noticed", self.detected_s, "s", None),
            Row("then settled: leaders for all, shown by all", self.settled_s, "s", limits.settle_s),
            Row("broker started again and in every ISR", self.restarted_s, "s", None),
            Row("idle CPU, three brokers together", self.idle_cpu_percent, "%", limits.idle_cpu_percent),
            Row("idle CPU, controllers, coordinator, etcd", self.others_idle_cpu_percent, "%", None),
            *(Row(f"memory of {n}", mb, "MB", limits.memory_mb) for n, mb in sorted(brokers.items())),
            *(Row(f"memory of {n}", mb, "MB", None) for n, mb in sorted(others.items())),
        ]


def measure(cluster: TidelogCluster, partitions: int, topics: int, idle_s: float) -> Figures:
    names = [f"many-{uuid.uuid4().hex[:6]}-{number}" for number in range(topics)]
    each = partitions // topics
    began_s = time.monotonic()
    _create(cluster, names, each)
    await_settled(cluster.addresses.values(), names, each, set(), REPLICAS, CREATE_TIMEOUT_S)
    create_s = time.monotonic() - began_s

    time.sleep(SETTLE_BEFORE_IDLE_S)
    idle_brokers, idle_others = idle_cpu_percent(cluster, idle_s)
    memory = {name: pss_bytes(pid) / 1e6 for name, pid in cluster.pids().items()}

    victim = topic_view(cluster.address(1), names[0])[0].leader
    killed_s = cluster.kill(f"broker-{victim}")
    etcd = cluster.etcd()
    while etcd.get(f"/brokers/ids/{victim}") is not None:
        time.sleep(ASK_AGAIN_S)
    detected_s = time.monotonic()
    live = [address for name, address in cluster.addresses.items() if name != f"broker-{victim}"]
    await_settled(live, names, each, {victim}, REPLICAS - 1, SETTLE_TIMEOUT_S)
    settled_s = time.monotonic()
    cluster.start(f"broker-{victim}")
    await_settled(cluster.addresses.values(), names, each, set(), REPLICAS, SETTLE_TIMEOUT_S)
    return Figures(
        create_s,
        detected_s - killed_s,
        settled_s - detected_s,
        idle_brokers,
        idle_others,
        memory,
        time.monotonic() - settled_s,
    )


def _create(cluster: TidelogCluster, names: list[str], partitions: int) -> None:
    admin = admin_client(cluster.bootstrap)
    new = [NewTopic(name, partitions, REPLICAS, config={"min.insync.replicas": "2"}) for name in names]
    for future in admin.create_topics(new, request_timeout=CREATE_TIMEOUT_S).values():
        future.result(CREATE_TIMEOUT_S)


def await_settled(
    addresses: Iterable[str],
    names: Iterable[str],
    partitions: int,
    dead: set[int],
    in_sync: int,
    timeout_s: float,
) -> None:
    """Waits until every broker shows, for every partition, a live leader and `in_sync` replicas in sync."""
    deadline_s = time.monotonic() + timeout_s
    for address in addresses:
        for name in names:
            while not _is_settled(address, name, partitions, dead, in_sync):
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"{name} is not settled at {address} in {timeout_s} s")
                time.sleep(ASK_AGAIN_S)


def _is_settled(address: str, name: str, partitions: int, dead: set[int], in_sync: int) -> bool:
    try:
        view = topic_view(address, name)
    except (OSError, KeyError):
        return False
    return len(view) == partitions and all(
        state.leader >= 0 and state.leader not in dead and len(set(state.isr) - dead) == in_sync
        for state in view.values()
    )


def idle_cpu_percent(cluster: TidelogCluster, seconds: float) -> tuple[float, float]:
    """Returns the CPU use of (brokers, everything else), in percent of a core."""
    pids = cluster.pids()
    before = {name: cpu_s(pid) for name, pid in pids.items()}
    began_s = time.monotonic()
    time.sleep(seconds)
    elapsed_s = time.monotonic() - began_s
    used = {name: (cpu_s(pid) - before[name]) / elapsed_s * 100 for name, pid in pids.items()}
    brokers = sum(percent for name, percent in used.items() if name.startswith("broker-"))
    return brokers, sum(used.values()) - brokers
