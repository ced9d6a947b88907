"""The cases, their targets, and how a case runs against one side."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brokerlab.clients import admin_client, create_topic
from clusterlab.processes import cpu_s, pss_bytes

from .sides import Side

CLIENT = Path(__file__).with_name("client_cases.py")
COORDINATED_CLIENT = Path(__file__).with_name("coordinated_cases.py")
SHARE_CLIENT = Path(__file__).with_name("share_cases.py")
COORDINATED = frozenset(("rebalance", "commits", "many_groups", "transactions"))
CASE_LIMIT_S = 300
MEBIBYTE = 1024 * 1024
TOUCH_BLOCK = b"\0" * MEBIBYTE
TOUCHED_SHARE = 1.3
TOPIC_CONFIGS = {"file.delete.delay.ms": "500"}
"""Lets both sides release the page cache of deleted data soon, so that one case does not slow down the next.
"""
Sample = dict[str, float]


@dataclass(frozen=True)
class Metric:
    """A row of the table: `key` of a sample. `target` is the least (or greatest) ratio tidelog / Kafka."""

    key: str
    title: str
    target: float
    is_at_most: bool = False
    limit: float | None = None

    def passes(self, ratio: float, value: float) -> bool:
        """Returns True if the target is reached. `value` is tidelog's figure, for which `limit` is an upper
        bound.
        """
        is_within = ratio <= self.target if self.is_at_most else ratio >= self.target
        return is_within and (self.limit is None or value <= self.limit)


def cpu_metric(target: float) -> Metric:
    return Metric("cpu_s_per_gb", "broker CPU-s/GB", target, is_at_most=True)


def rate_metric(target: float) -> Metric:
    return Metric("mb_per_s", "MB/s", target)


@dataclass(frozen=True)
class Case:
    name: str
    group: str
    title: str
    metrics: tuple[Metric, ...]
    arguments: dict[str, Any] = field(default_factory=dict)
    partitions: int = 1


def _produce(
    name: str,
    title: str,
    size: int,
    batch: int,
    partitions: int,
    rate: float,
    mib: int = 400,
    cpu: float = 0.6,
) -> Case:
    settings = {"batch.size": batch}
    arguments = {
        "case": "produce",
        "size": size,
        "limit_s": 5,
        "limit_bytes": mib * 10**6,
        "settings": settings,
    }
    return Case(name, "produce", title, (rate_metric(rate), cpu_metric(cpu)), arguments, partitions)


CASES = (
    _produce("produce-1k-1m-p1", "produce 1 KB, 1 MB batches, 1 partition", 1000, MEBIBYTE, 1, 1.2, 600),
    _produce("produce-1k-1m-p6", "produce 1 KB, 1 MB batches, 6 partitions", 1000, MEBIBYTE, 6, 1.2, 600),
    Case(
        "consume-1k",
        "consume",
        "consume 1 KB, warm, 6 partitions",
        (rate_metric(0.95), cpu_metric(1.0)),
        {"case": "consume", "partitions": 6},
        6,
    ),
    _produce("produce-1k-16k", "produce 1 KB, 16 KB batches, 6 partitions", 1000, 16384, 6, 2.0),
    _produce("produce-10k-16k", "produce 10 KB, 16 KB batches, 6 partitions", 10_000, 16384, 6, 3.0),
    _produce("produce-100", "produce 100 B, 1 MB batches, 6 partitions", 100, MEBIBYTE, 6, 0.95, 150),
    Case(
        "latency",
        "latency",
        "1,000 messages/s, end to end",
        (Metric("p50_ms", "p50 ms", 0.7, True), Metric("p99_ms", "p99 ms", 1.0, True)),
        {"case": "latency", "rate": 1000, "seconds": 8, "size": 100},
    ),
    Case(
        "sync-1",
        "sync",
        "one message at a time, 1 client",
        (Metric("per_s", "requests/s", 1.1),),
        {"case": "one_at_a_time", "clients": 1, "seconds": 4, "size": 100},
        6,
    ),
    Case(
        "sync-16",
        "sync",
        "one message at a time, 16 clients",
        (Metric("per_s", "requests/s", 1.5),),
        {"case": "one_at_a_time", "clients": 16, "seconds": 4, "size": 100},
        6,
    ),
    Case("memory", "memory", "memory under this load", (Metric("pss_mb", "MB (PSS)", 0.1, True),)),
    Case(
        "start",
        "start",
        "start to first metadata answer",
        (Metric("start_s", "s", 0.33, is_at_most=True, limit=1.0),),
    ),
)
PRODUCED_FOR_CONSUME = "produce-1k-1m-p6"
REPLICATED_CASES = (
    _produce("produce-1k-1m-p6", "produce 1 KB, 1 MB batches", 1000, MEBIBYTE, 6, 1.5, 300, 0.5),
    Case(
        "consume-1k",
        "consume",
        "consume 1 KB, warm",
        (rate_metric(1.0), cpu_metric(0.5)),
        {"case": "consume", "partitions": 6},
        6,
    ),
    _produce("produce-1k-16k", "produce 1 KB, 16 KB batches", 1000, 16384, 6, 3.0, 300, 0.5),
    _produce("produce-10k-16k", "produce 10 KB, 16 KB batches", 10_000, 16384, 6, 3.0, 300, 0.5),
    Case(
        "latency",
        "latency",
        "1,000 messages/s, end to end",
        (Metric("p50_ms", "p50 ms", 0.8, True), Metric("p99_ms", "p99 ms", 1.0, True)),
        {"case": "latency", "rate": 1000, "seconds": 6, "size": 100},
    ),
    Case(
        "sync-1",
        "sync",
        "one message at a time, 1 client",
        (Metric("per_s", "requests/s", 2.0),),
        {"case": "one_at_a_time", "clients": 1, "seconds": 4, "size": 100},
        6,
    ),
    Case(
        "sync-16",
        "sync",
        "one message at a time, 16 clients",
        (Metric("per_s", "requests/s", 2.0),),
        {"case": "one_at_a_time", "clients": 16, "seconds": 4, "size": 100},
        6,
    ),
    Case(
        "memory", "memory", "memory of all brokers, this load", (Metric("pss_mb", "MB (PSS)", 0.125, True),)
    ),
)
"""Cases on three brokers with three replicas, min.insync.replicas 2 and, unless stated otherwise, 6
partitions.
"""
TLS_CASES = (
    _produce("produce-1k-1m-p6", "produce 1 KB, 1 MB batches", 1000, MEBIBYTE, 6, 1.0, 600, 0.7),
    Case(
        "consume-1k",
        "consume",
        "consume 1 KB, warm",
        (rate_metric(1.0), cpu_metric(0.7)),
        {"case": "consume", "partitions": 6},
        6,
    ),
    _produce("produce-1k-16k", "produce 1 KB, 16 KB batches", 1000, 16384, 6, 1.0, 400, 0.7),
    Case(
        "sync-16",
        "sync",
        "one message at a time, 16 clients",
        (Metric("per_s", "requests/s", 1.0),),
        {"case": "one_at_a_time", "clients": 16, "seconds": 4, "size": 100},
        6,
    ),
    Case("memory", "memory", "memory under this load", (Metric("pss_mb", "MB (PSS)", 0.125, True),)),
)
"""Cases over TLS 1.3 on one broker, with 6 partitions."""
RATE = (Metric("per_s", "a second", 1.0),)
COORDINATED_CASES = (
    Case(
        "rebalance-50",
        "groups",
        "a group of 50 forms; one more member joins",
        (Metric("first_s", "s to stable", 1.0, True), Metric("again_s", "s to stable again", 1.0, True)),
        {"case": "rebalance", "members": 50, "rounds": 3},
    ),
    Case(
        "commits-1",
        "groups",
        "offset commits of one group",
        RATE,
        {"case": "commits", "groups": 1, "seconds": 5},
    ),
    Case(
        "commits-100",
        "groups",
        "offset commits of 100 groups",
        RATE,
        {"case": "commits", "groups": 100, "seconds": 5},
    ),
    Case(
        "transactions-1",
        "transactions",
        "transactions of one message, 1 producer",
        RATE,
        {"case": "transactions", "producers": 1, "messages": 1, "size": 100, "seconds": 5},
        3,
    ),
    Case(
        "transactions-8",
        "transactions",
        "transactions of one message, 8 producers",
        RATE,
        {"case": "transactions", "producers": 8, "messages": 1, "size": 100, "seconds": 5},
        3,
    ),
    Case(
        "transactions-1000",
        "transactions",
        "transactions of 1,000 messages of 1 KB",
        (rate_metric(1.0),),
        {"case": "transactions", "producers": 1, "messages": 1000, "size": 1000, "seconds": 6},
        3,
    ),
    Case(
        "memory-1000",
        "groups",
        "1,000 groups x 10 partitions: the coordinator (Kafka: all brokers)",
        (Metric("coordinator_mb", "MB (PSS)", 1.0, is_at_most=True, limit=200),),
        {"case": "many_groups", "groups": 1000, "partitions": 10},
        10,
    ),
)
"""Cases on three brokers with three replicas. No case writes the records for another case that consumes them.
"""
SHARE_MESSAGES, SHARE_MESSAGE_BYTES, SHARE_BATCH = 2_000_000, 100, 100
"""The records of the topic that share consumers read, and the size of one in bytes and of a batch in records.
"""


def _share_cases(replication_factor: int) -> tuple[Case, ...]:
    place = f"RF {replication_factor}"
    rate = Metric("records_per_s", "accepted records/s", 1.5)
    cpu = Metric("cpu_s_per_million", "broker CPU-s/million records", 1.0, is_at_most=True)
    wait = Metric("p99_ms", "p99 ms release to another", 1.0, is_at_most=True)
    loads = tuple(
        Case(
            f"share-{consumers}-rf{replication_factor}",
            "share",
            f"{place}, {consumers} consumer{'s' if consumers > 1 else ''}",
            (rate, cpu, wait) if consumers > 1 else (rate, cpu),
            {"case": "share_throughput", "consumers": consumers, "seconds": 2.5, "messages": SHARE_MESSAGES},
        )
        for consumers in (1, 8, 64)
    )
    release = Case(
        f"share-release-rf{replication_factor}",
        "share",
        f"{place}, 2 consumers, one record at a time",
        (Metric("p50_ms", "p50 ms release to another", 1.0, is_at_most=True), wait),
        {"case": "share_release", "rounds": 300, "seconds": 3, "size": SHARE_MESSAGE_BYTES},
    )
    return (*loads, release)


SHARE_CASES = _share_cases(1)
SHARE_REPLICATED_CASES = _share_cases(3)
"""Cases of share groups on one partition. The first three read the same records, each with a new group."""
OTHERS_PREFIX = "others_mb_"
COORDINATOR = "coordinator-"


class Bench:
    """Runs cases against a side, each on its own topic."""

    def __init__(
        self,
        is_quick: bool,
        work_dir: Path,
        *,
        cases: tuple[Case, ...] = CASES,
        replication_factor: int = 1,
        min_in_sync_replicas: int = 1,
    ) -> None:
        self.is_quick = is_quick
        self._cases = cases
        self._replication_factor = replication_factor
        self._topic_configs = {**TOPIC_CONFIGS, "min.insync.replicas": str(min_in_sync_replicas)}
        self._touch_file = work_dir / "touch"
        self._left_topics: dict[str, tuple[str, int]] = {}

    def run(self, case: Case, side: Side) -> Sample:
        """Raises RuntimeError if the client failed."""
        if case.group == "share":
            return self._run_share(case, side)
        if case.group == "consume":
            topic, messages = self._left_topics.pop(side.name, None) or self._filled_topic(side)
            sample = self._client(side, case.arguments | {"topic": topic, "messages": messages})
            self._delete(side, topic)
            return sample
        topic = self._new_topic(case, side)
        arguments = self._shortened(case.arguments)
        size = arguments.get("limit_bytes", 0) * self._replication_factor
        self._touch_page_cache(int(size * TOUCHED_SHARE))
        sample = self._client(side, arguments | {"topic": topic})
        if case.name == PRODUCED_FOR_CONSUME:
            self._forget(side)
            self._left_topics[side.name] = (topic, int(sample["messages"]))
        else:
            self._delete(side, topic)
        return sample

    def _run_share(self, case: Case, side: Side) -> Sample:
        arguments = self._shortened(case.arguments)
        if arguments["case"] == "share_throughput":
            topic, _ = self._left_topics.get(side.name) or self._topic_of_share_groups(side)
            return self._client(side, arguments | {"topic": topic})
        topic = self._new_topic(case, side)
        sample = self._client(side, arguments | {"topic": topic})
        self._delete(side, topic)
        return sample

    def _topic_of_share_groups(self, side: Side) -> tuple[str, int]:
        topic = f"shared-{uuid.uuid4().hex[:6]}"
        create_topic(side.bootstrap, topic, 1, self._topic_configs, self._replication_factor)
        filling = {
            "case": "share_fill",
            "messages": SHARE_MESSAGES,
            "size": SHARE_MESSAGE_BYTES,
            "batch": SHARE_BATCH,
        }
        self._client(side, filling | {"topic": topic})
        left = self._left_topics[side.name] = topic, SHARE_MESSAGES
        return left

    def _new_topic(self, case: Case, side: Side) -> str:
        topic = f"{case.name}-{uuid.uuid4().hex[:6]}"
        create_topic(side.bootstrap, topic, case.partitions, self._topic_configs, self._replication_factor)
        return topic

    def _touch_page_cache(self, size: int) -> None:
        """Writes and frees page cache, because freed pages are reused first. In a virtual machine, a page
        that the host has to allocate first costs ten times as much: 2.7 instead of 0.2 CPU-s per GiB were
        measured, for either side.
        """
        with self._touch_file.open("wb", buffering=0) as file:
            for _ in range(size // MEBIBYTE):
                file.write(TOUCH_BLOCK)
        self._touch_file.unlink()

    def stopped(self, side: Side) -> None:
        """Forgets the topic of a stopped side. With `--only`, there may be a topic that no case consumed."""
        self._left_topics.pop(side.name, None)

    def _forget(self, side: Side) -> None:
        if left := self._left_topics.pop(side.name, None):
            self._delete(side, left[0])

    def _filled_topic(self, side: Side) -> tuple[str, int]:
        (case,) = [c for c in self._cases if c.name == PRODUCED_FOR_CONSUME]
        self.run(case, side)
        return self._left_topics.pop(side.name)

    def _shortened(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if not self.is_quick:
            return arguments
        halves: dict[str, Callable[[Any], Any]] = {
            "limit_bytes": lambda b: b // 3,
            "seconds": lambda s: s / 2,
        }
        return {key: halves[key](value) if key in halves else value for key, value in arguments.items()}

    def _client(self, side: Side, arguments: dict[str, Any]) -> Sample:
        brokers, others = side.broker_pids(), side.other_pids()
        counted = [*brokers, *others.values()]
        name = arguments["case"]
        client, place = CLIENT, dict[str, Any](connection=side.connection)
        if name in COORDINATED:
            client, place = COORDINATED_CLIENT, {"bootstrap": side.bootstrap}
        elif name.startswith("share_"):
            client, place = SHARE_CLIENT, {"bootstrap": side.bootstrap}
        if name == "share_throughput":
            place["pids"] = counted  # it reads the CPU itself, without the time in which the group forms
        request = json.dumps(arguments | place)
        cpu = sum(map(cpu_s, counted))
        done = subprocess.run(
            [sys.executable, str(client), request],
            capture_output=True,
            text=True,
            timeout=CASE_LIMIT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{arguments['case']} against {side.name} failed:\n{done.stderr[-2000:]}")
        sample: Sample = json.loads(done.stdout.splitlines()[-1])
        sample["cpu_s_per_gb"] = (sum(map(cpu_s, counted)) - cpu) / (sample["bytes"] / 1e9)
        sample["pss_mb"] = sum(map(pss_bytes, brokers)) / 1e6
        for name, pid in others.items():
            sample[OTHERS_PREFIX + name] = pss_bytes(pid) / 1e6
        coordinators = [pss_bytes(pid) for name, pid in others.items() if name.startswith(COORDINATOR)]
        # Kafka's brokers are its coordinators.
        sample["coordinator_mb"] = max(coordinators) / 1e6 if coordinators else sample["pss_mb"]
        return sample

    def _delete(self, side: Side, topic: str) -> None:
        admin = admin_client(side.bootstrap)
        admin.delete_topics([topic])[topic].result(30)
        time.sleep(0.7)
