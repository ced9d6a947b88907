"""Derives the plan of a cluster from a seed: its size, its settings, its load."""

from __future__ import annotations

import random
from typing import Final, NamedTuple

from tidelog.model.topics import (
    GROUP_METADATA_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from tidelog.settings.setting import LONG_MAX

TOPIC: Final = "events"
TOPICS: Final = (TOPIC, GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC)
"""The topics that are checked."""
CONTROLLER_IDS_FROM: Final = 100
COORDINATOR_IDS_FROM: Final = 200
SESSION_TIMEOUTS_MS: Final = (1500, 3000, 6000)
NEVER_S: Final = 1e9
NEVER_PRUNES_MS: Final = 10_000_000
"""The time until old states of share groups are deleted. The invariants only know deletions by clients."""
COORDINATION_SHARE: Final = 0.35
APPLICATIONS_SHARE: Final = 0.3
SHARE_GROUP_SHARE: Final = 0.5
"""The part of the seeds with applications and coordinators that have a share group."""
SHARE_GROUP_BOUNDS: Final = {
    "group.share.min.session.timeout.ms": "500",
    "group.share.session.timeout.ms": "3000",
    "group.share.min.heartbeat.interval.ms": "100",
    "group.share.heartbeat.interval.ms": "500",
    "group.share.assignment.interval.ms": "200",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.initialize.retry.interval.ms": "1000",
}
STREAMS_GROUP_BOUNDS: Final = {
    "group.streams.min.session.timeout.ms": "500",
    "group.streams.session.timeout.ms": "3000",
    "group.streams.min.heartbeat.interval.ms": "100",
    "group.streams.heartbeat.interval.ms": "500",
    "group.streams.initial.rebalance.delay.ms": "200",
    "group.streams.assignment.interval.ms": "200",
}
STREAMS_SHARE: Final = 0.5
"""The share of the seeds with coordinators that have a streams group, too."""
HISTORY_EVENTS: Final = (30, 200, 50_000)
"""The number of revisions that the store keeps. With a smaller number, watches that lag are compacted more
often.
"""


class CoordinationPlan(NamedTuple):
    """`assignments` maps topic and partition of the internal topics to replicas."""

    coordinators: tuple[int, ...]
    assignments: dict[str, tuple[tuple[int, ...], ...]]
    coordinator_settings: dict[str, str]
    groups: int
    members_a_group: int
    mean_commit_pause_s: float
    transactional_producers: int
    transaction_timeout_ms: int
    mean_transaction_pause_s: float
    streams_members: int = 0


class ReadingGroupPlan(NamedTuple):
    members: int
    reads_committed: bool
    commits_itself: bool


class ShareGroupPlan(NamedTuple):
    members: int
    reads_committed: bool
    delivery_count_limit: int
    lock_ms: int


class ApplicationsPlan(NamedTuple):
    """Applications with tidelog's Python client."""

    senders: int
    delivery_timeout_ms: int
    mean_pause_s: float
    transactional: int
    transaction_timeout_ms: int
    groups: tuple[ReadingGroupPlan, ...]
    max_poll_interval_ms: int
    share_group: ShareGroupPlan | None


class Plan(NamedTuple):
    brokers: tuple[int, ...]
    controllers: tuple[int, ...]
    assignments: tuple[tuple[int, ...], ...]
    min_in_sync_replicas: int
    broker_settings: dict[str, str]
    controller_settings: dict[str, str]
    topic_settings: dict[str, str]
    history_events: int
    producers_a_partition: int
    mean_pause_s: float
    has_careless_producers: bool
    mean_fault_pause_s: float
    active_s: float
    mean_operation_pause_s: float
    has_rack_aware_consumers: bool
    coordination: CoordinationPlan | None
    applications: ApplicationsPlan | None = None

    @property
    def session_timeout_ms(self) -> int:
        return int(self.broker_settings["broker.session.timeout.ms"])

    @property
    def all_assignments(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """Returns the initial assignment of every checked topic."""
        internal = {} if self.coordination is None else self.coordination.assignments
        return {TOPIC: self.assignments, **internal}

    @property
    def topic_partitions(self) -> list[TopicPartition]:
        return [
            TopicPartition(topic, index)
            for topic, assignments in self.all_assignments.items()
            for index in range(len(assignments))
        ]

    @property
    def most_losses(self) -> int:
        """Returns the number of replicas that may lose their data at a time."""
        return self.min_in_sync_replicas - 1


def plan_for(chance: random.Random) -> Plan:
    broker_count = chance.choice((3, 3, 3, 3, 4, 5))
    brokers = tuple(range(1, broker_count + 1))
    replication_factor = 5 if broker_count == 5 and chance.random() < 0.5 else 3
    min_in_sync_replicas = 3 if replication_factor == 5 else 2
    session_ms = chance.choice(SESSION_TIMEOUTS_MS)
    partitions = chance.choice((1, 2, 2, 3))
    common = {
        "broker.session.timeout.ms": str(session_ms),
        "broker.heartbeat.interval.ms": str(session_ms // 3),
    }
    broker_settings = {
        **common,
        "replica.lag.time.max.ms": str(chance.choice((1000, 2000, 5000))),
        "replica.fetch.wait.max.ms": "300",
        "replica.socket.timeout.ms": "2000",
        "replica.fetch.backoff.ms": str(chance.choice((50, 200))),
        "replica.high.watermark.checkpoint.interval.ms": str(chance.choice((200, 1000, 5000))),
        "min.insync.replicas": str(min_in_sync_replicas),
        "log.retention.check.interval.ms": "1000",
        "log.initial.task.delay.ms": "500",
        "log.flush.start.offset.checkpoint.interval.ms": str(chance.choice((500, 5000))),
        **SHARE_GROUP_BOUNDS,
    }
    flush = chance.choice((None, 500, 3000))
    topic_settings = {"min.insync.replicas": str(min_in_sync_replicas)}
    if flush is not None:
        topic_settings["flush.ms"] = str(flush)
        broker_settings["log.flush.scheduler.interval.ms"] = "500"
    coordination = _coordination(chance, brokers, replication_factor, common)
    if coordination is not None:
        partitions = min(partitions, 2)
    return Plan(
        brokers=brokers,
        controllers=tuple(range(CONTROLLER_IDS_FROM, CONTROLLER_IDS_FROM + chance.choice((2, 2, 3)))),
        assignments=tuple(tuple(chance.sample(brokers, replication_factor)) for _ in range(partitions)),
        min_in_sync_replicas=min_in_sync_replicas,
        broker_settings=broker_settings,
        controller_settings={
            **common,
            "min.insync.replicas": str(min_in_sync_replicas),
            "leader.imbalance.check.interval.seconds": str(chance.choice((5, 300))),
            **SHARE_GROUP_BOUNDS,
        },
        topic_settings=topic_settings,
        history_events=chance.choice(HISTORY_EVENTS),
        producers_a_partition=2 if partitions == 1 and coordination is None else chance.choice((1, 2)),
        mean_pause_s=chance.choice((0.1, 0.2, 0.3)),
        has_careless_producers=chance.random() < 0.7,
        mean_fault_pause_s=chance.choice((0.5, 1.0, 2.0)),
        active_s=chance.choice((20.0, 30.0, 40.0)),
        mean_operation_pause_s=chance.choice((2.0, 5.0, NEVER_S)),
        has_rack_aware_consumers=chance.random() < 0.5,
        coordination=coordination,
    )


def _coordination(
    chance: random.Random, brokers: tuple[int, ...], replication_factor: int, common: dict[str, str]
) -> CoordinationPlan | None:
    """Plans groups and transactions for some seeds, which take more than twice the time of the others."""
    if chance.random() > COORDINATION_SHARE:
        return None
    partitions = {GROUP_METADATA_TOPIC: chance.choice((1, 2)), TRANSACTION_STATE_TOPIC: chance.choice((1, 2))}
    return CoordinationPlan(
        coordinators=(COORDINATOR_IDS_FROM, COORDINATOR_IDS_FROM + 1),
        assignments={
            topic: tuple(tuple(chance.sample(brokers, replication_factor)) for _ in range(count))
            for topic, count in partitions.items()
        },
        coordinator_settings={
            **common,
            "group.initial.rebalance.delay.ms": "200",
            "group.min.session.timeout.ms": "500",
            "group.consumer.min.session.timeout.ms": "500",
            "group.consumer.session.timeout.ms": "3000",
            "group.consumer.min.heartbeat.interval.ms": "100",
            "group.consumer.heartbeat.interval.ms": "500",
            "group.consumer.assignment.interval.ms": "200",
            **SHARE_GROUP_BOUNDS,
            "share.coordinator.state.topic.prune.interval.ms": str(NEVER_PRUNES_MS),
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        },
        groups=chance.choice((1, 2)),
        members_a_group=chance.choice((1, 2, 3)),
        mean_commit_pause_s=chance.choice((0.1, 0.3)),
        transactional_producers=chance.choice((1, 2, 3)),
        transaction_timeout_ms=chance.choice((2000, 5000, 10_000)),
        mean_transaction_pause_s=chance.choice((0.05, 0.2)),
    )


def with_applications(chance: random.Random, plan: Plan) -> Plan:
    """Adds applications to the plan of some seeds. Only coordinators serve groups and transactions."""
    if chance.random() > APPLICATIONS_SHARE:
        return plan
    coordination = plan.coordination
    has_share_group = coordination is not None and chance.random() < SHARE_GROUP_SHARE
    if coordination is not None and has_share_group:
        replicas = tuple(chance.sample(plan.brokers, len(plan.assignments[0])))
        assignments = {**coordination.assignments, SHARE_GROUP_STATE_TOPIC: (replicas,)}
        plan = plan._replace(coordination=coordination._replace(assignments=assignments))
    group = ReadingGroupPlan(
        members=chance.choice((1, 2, 3)),
        reads_committed=chance.random() < 0.6,
        commits_itself=chance.random() < 0.4,
    )
    applications = ApplicationsPlan(
        senders=chance.choice((1, 2)),
        delivery_timeout_ms=chance.choice((2_000, 10_000, 120_000)),
        mean_pause_s=chance.choice((0.2, 0.5)),
        transactional=0 if coordination is None else chance.choice((0, 1)),
        transaction_timeout_ms=chance.choice((2_000, 10_000)),
        groups=() if coordination is None or has_share_group else (group,),
        max_poll_interval_ms=chance.choice((1_000, 300_000)),
        share_group=_share_group(chance) if has_share_group else None,
    )
    # The clocks of applications are wrong by up to some hours.
    settings = {**plan.topic_settings, "message.timestamp.after.max.ms": str(LONG_MAX)}
    return plan._replace(applications=applications, topic_settings=settings)


def with_streams(chance: random.Random, plan: Plan) -> Plan:
    """Adds a streams group to the plan of some seeds with coordinators."""
    coordination = plan.coordination
    if coordination is None or chance.random() > STREAMS_SHARE:
        return plan
    coordination = coordination._replace(
        coordinator_settings={**coordination.coordinator_settings, **STREAMS_GROUP_BOUNDS},
        streams_members=chance.choice((2, 3, 4)),
    )
    return plan._replace(coordination=coordination)


def _share_group(chance: random.Random) -> ShareGroupPlan:
    return ShareGroupPlan(
        members=chance.choice((1, 2, 3)),
        reads_committed=chance.random() < 0.5,
        delivery_count_limit=chance.choice((2, 5)),
        lock_ms=chance.choice((1_000, 3_000)),
    )
