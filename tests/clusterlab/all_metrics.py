"""The metrics of a process with all three services, in which every metric has a sample."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tidelog.broker.client_telemetry.receiver import ClientTelemetry
from tidelog.broker.hosting.log_cleaner import DONE, CleanerCounts, Cleaning
from tidelog.broker.metrics import BrokerMetrics
from tidelog.broker.net.listener import ConnectionLoad
from tidelog.broker.requests.waiting import Purgatory, Waiter
from tidelog.broker.security.client_quotas import ClientQuotas, Samples
from tidelog.broker.share.dead_letter_copies import DeadLetterLoad
from tidelog.broker.share.share_partitions import ShareGroupLoad
from tidelog.controller.metrics import BrokerInfo, ControllerCounts, ControllerMetrics, Overview
from tidelog.group_coordinator.groups.streams.streams_group import TaskCounts
from tidelog.group_coordinator.metrics import (
    CoordinatorMetrics,
    GroupLag,
    GroupSummary,
    ShardLoads,
    TransactionsSummary,
    UncommittedLag,
)
from tidelog.kernel.clock import ManualClock
from tidelog.kernel.instants import MonotonicMs
from tidelog.kernel.timer import VirtualTimer
from tidelog.metadata.entries import ClientQuotaEntry, QuotaEntity
from tidelog.metrics.certificates import CertificateExpiry
from tidelog.metrics.process_metrics import ContainerMemory, ProcessMetrics
from tidelog.metrics.telemetry import BROKER_RUNNING, Durations, Telemetry
from tidelog.model.acl import user_principal
from tidelog.model.errors import ErrorCode
from tidelog.model.fair_budget import BudgetUse, FairBudget
from tidelog.model.topics import TopicPartition

NOW_MS = 1_700_000_000_000


class Parked(Waiter):
    """An operation that never completes."""

    def on_change(self, key: Hashable | None) -> bool:
        return False

    def on_complete(self) -> None:
        pass


def replica(*, is_leader: bool, in_sync: int = 1, least: int = 1) -> SimpleNamespace:
    """Returns one of three replicas, of 1000 bytes and 7 records, the last two in an open transaction."""
    return SimpleNamespace(
        core=SimpleNamespace(
            is_leader=is_leader,
            in_sync_replicas=tuple(range(in_sync)),
            replicas=(0, 1, 2),
            effective_min_in_sync_replicas=least,
            log_start_offset=3,
            high_watermark=9,
            last_stable_offset=7,
            producers=(1, 2),
        ),
        log=SimpleNamespace(size_bytes=1000, log_start_offset=3, log_end_offset=10, segments=(1, 2)),
    )


def broker_view(**changed: Any) -> Any:
    """Returns broker 1, which leads three partitions and follows in one, with the attributes `changed`."""
    timer = VirtualTimer()
    fetch: Purgatory = Purgatory("Fetch", timer, lambda operation, error: None)
    fetch.watch(Parked(), ["x", "y"], 100)
    cleaner = CleanerCounts()
    cleaner.max_dirty_ratio = 0.25
    cleaner.ended(DONE, Cleaning(1.5, 1000, 400), 50.0)
    view = SimpleNamespace(
        broker_id=1,
        replicas={
            TopicPartition("t", 0): replica(is_leader=True, in_sync=3, least=1),
            TopicPartition("t", 1): replica(is_leader=True, in_sync=1, least=2),
            TopicPartition("t", 2): replica(is_leader=True, in_sync=2, least=2),
            TopicPartition("u", 0): replica(is_leader=False),
        },
        produce_purgatory=Purgatory("Produce", timer, lambda operation, error: None),
        fetch_purgatory=fetch,
        delete_records_purgatory=Purgatory("DeleteRecords", timer, lambda operation, error: None),
        offline_replica_count=7,
        parked_follower_fetch_count=2,
        fetch_session_counts=(3, 900),
        evicted_fetch_sessions=11,
        share_loads=[_share_load()],
        share_session_count=5,
        dead_letter_loads={"sharers": DeadLetterLoad(7, 2, 3)},
        fetchers=SimpleNamespace(
            failed_count=1,
            lags=lambda: [(TopicPartition("u", 0), 2, 7), (TopicPartition("t", 2), 3, 0)],
        ),
        log_cleaner=SimpleNamespace(counts=cleaner, uncleanable_count=2, now_s=lambda: 60.0),
        data_path=Path("/"),
        quotas=_quotas(),
        attachment_counts={"group": (2, 1), "transaction": (0, 0)},
        budget_uses={"share_sessions": BudgetUse(5, 2000, 1)},
    )
    vars(view).update(changed)
    return view


def _share_load() -> ShareGroupLoad:
    load = ShareGroupLoad("sharers")
    load.waiting, load.paused_partitions = 20, 1
    load.unfinished, load.acquired, load.full_partitions, load.oldest_age_ms = 70, 30, 1, 4_500
    load.counts.accepted, load.counts.redelivered = 900, 4
    return load


def controller_view() -> Any:
    overview = Overview(
        brokers=[BrokerInfo(1, "one:9092", "a"), BrokerInfo(2, "two:9092", "")],
        partition_counts={"t": 3, "u": 6},
        offline_partition_count=1,
        preferred_replica_imbalance_count=2,
        reassigning_partition_count=4,
        failed_replicas={2: 5},
        queued_items=6,
        queued_commands={1: 7, 2: 8},
        controller_epoch=9,
        absent_brokers=[3],
    )
    counts = ControllerCounts()
    counts.is_active = True
    return SimpleNamespace(counts=counts, overview=lambda: overview)


def coordinator_view() -> Any:
    return SimpleNamespace(
        lags=[
            GroupLag("g", "t", 0, 90, 10, 2.5, 600.0),
            GroupLag("g", "t", 1, 100, 0, 0.0, None, UncommittedLag(5, 1.5)),
        ],
        groups=[
            GroupSummary("g", "classic", "Stable", 2, 5),
            GroupSummary("h", "consumer", "Reconciling", 3, 7),
            GroupSummary("s", "streams", "NotReady", 1, 2, TaskCounts(3, 2, 0, 4)),
        ],
        shard_counts={("group", "serving"): 25, ("group", "loading"): 1, ("transaction", "serving"): 50},
        shard_loads=[ShardLoads("group", 26, 1500, 1), ShardLoads("transaction", 50, 20, 0)],
        broker_session_count=3,
        transactions=TransactionsSummary({"Ongoing": 2, "Empty": 1}, NOW_MS - 4_000),
        ended_transactions=(8, 1),
        ending_transaction_count=1,
        now_ms=lambda: NOW_MS,
    )


def _quotas() -> ClientQuotas:
    quotas = ClientQuotas(Samples(11, 1000), Samples(11, 1000))
    entry = ClientQuotaEntry(QuotaEntity((("user", "alice"),)), {"producer_byte_rate": 1000.0})
    quotas.update({entry.key: entry})
    sensor = quotas.of_client(user_principal("alice"), "app", MonotonicMs(NOW_MS)).produce
    assert sensor is not None
    sensor.take(5000, MonotonicMs(NOW_MS))
    return quotas


def full_metrics() -> ProcessMetrics:
    """Returns metrics with every collector registered and everything counted at least once."""
    telemetry = Telemetry(ManualClock(NOW_MS))
    lag = Durations()
    lag.took(0.002)
    loop: Any = SimpleNamespace(
        lag=lag, max_lag_s=0.05, busy_seconds=12.5, idle_share=lambda: 0.75, close=lambda: None
    )
    metrics = ProcessMetrics("dev", 1)
    metrics.loop = loop
    metrics.lease = SimpleNamespace(lease_renewed_s=0.0, leases_lost=1)
    metrics.read_memory = lambda: ContainerMemory(300, 1000)
    metrics.spans = SimpleNamespace(ended_total=100, dropped_total=2)
    produce = telemetry.request_metrics("Produce", 12)
    produce.observe(0.004, 100)
    produce.waits.took(0.003)
    telemetry.produce_failed("t", ErrorCode.NOT_LEADER_OR_FOLLOWER)
    telemetry.topic("t").produced(3, 300)
    telemetry.connection_opened("INTERNAL")
    telemetry.login_ended("INTERNAL", succeeded=True)
    telemetry.login_ended("INTERNAL", succeeded=False)
    telemetry.access_denied("WRITE", "TOPIC")
    telemetry.broker_state = BROKER_RUNNING
    telemetry.log_flushes.took(0.02)
    broker_metrics = BrokerMetrics(telemetry, loop)
    listener: Any = SimpleNamespace(load=lambda: ConnectionLoad(4, 1, 4096, 1))
    broker_metrics.listeners.append(listener)
    broker_metrics.budgets["request_memory"] = FairBudget(1_000)
    broker_metrics.observe(broker_view())
    broker_metrics.client_telemetry = ClientTelemetry(max_bytes=1000)
    controller_metrics = ControllerMetrics()
    controller_metrics.observe(controller_view())
    metrics.register(broker_metrics)
    metrics.register(controller_metrics)
    metrics.register(CoordinatorMetrics(coordinator_view()))
    certificate = Path(__file__).parent / "certificate.pem"
    metrics.register(CertificateExpiry(lambda: {"rpc": str(certificate)}))
    return metrics
