"""A group coordinator as Prometheus samples: the lag of its groups, its shards.

Lag stands under the names of kafka_exporter (`kafka_consumergroup_lag`) and of kafka-lag-exporter
(`kafka_consumergroup_group_lag`, with seconds), so that dashboards made for either go on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


class GroupLag(NamedTuple):
    """Of one partition; `lag_seconds` is how old the first unread record is, 0 when all are read."""

    group: str
    topic: str
    partition: int
    committed_offset: int
    lag: int
    lag_seconds: float


class CoordinatorView(Protocol):
    """What is shown of a coordinator. Its values are replaced as a whole, never changed."""

    @property
    def lags(self) -> Sequence[GroupLag]: ...

    @property
    def member_counts(self) -> Mapping[str, int]:
        """Of each group."""
        ...

    @property
    def shard_counts(self) -> Mapping[tuple[str, str], int]:
        """By kind and state."""
        ...


class Gauges(Protocol):
    def gauge(self, name: str, doc: str, value: float, **labels: str) -> None: ...


def add_coordinator(families: Gauges, view: CoordinatorView) -> None:
    lags = view.lags
    members = view.member_counts
    _add_partitions(families, lags)
    _add_groups(families, lags)
    for group, count in sorted(members.items()):
        families.gauge("kafka_consumergroup_members", "Members of a group", count, consumergroup=group)
    prefix = "kafka_coordinator_group_groupmetadatamanager"
    families.gauge(f"{prefix}_numgroups", "Groups of this coordinator", len(members))
    families.gauge(f"{prefix}_numoffsets", "Offsets they have committed", len(lags))
    for (kind, state), count in sorted(view.shard_counts.items()):
        families.gauge(
            "tidelog_coordinator_shards", "Shards this coordinator has claimed", count, kind=kind, state=state
        )


def _add_partitions(families: Gauges, lags: Sequence[GroupLag]) -> None:
    records, seconds, offset = (
        "Records behind the last that can be read",
        "Age of the first unread record",
        "Committed offset",
    )
    for lag in lags:
        labels = {"consumergroup": lag.group, "topic": lag.topic, "partition": str(lag.partition)}
        families.gauge("kafka_consumergroup_lag", records, lag.lag, **labels)
        families.gauge("kafka_consumergroup_lag_seconds", seconds, lag.lag_seconds, **labels)
        families.gauge("kafka_consumergroup_current_offset", offset, lag.committed_offset, **labels)
        labels = {"group": lag.group, "topic": lag.topic, "partition": str(lag.partition)}
        families.gauge("kafka_consumergroup_group_lag", records, lag.lag, **labels)
        families.gauge("kafka_consumergroup_group_lag_seconds", seconds, lag.lag_seconds, **labels)
        families.gauge("kafka_consumergroup_group_offset", offset, lag.committed_offset, **labels)


def _add_groups(families: Gauges, lags: Sequence[GroupLag]) -> None:
    by_topic: dict[tuple[str, str], list[GroupLag]] = defaultdict(list)
    by_group: dict[str, list[GroupLag]] = defaultdict(list)
    for lag in lags:
        by_topic[lag.group, lag.topic].append(lag)
        by_group[lag.group].append(lag)
    for (group, topic), of_topic in sorted(by_topic.items()):
        families.gauge(
            "kafka_consumergroup_lag_sum",
            "Lag over all partitions of a topic",
            sum(lag.lag for lag in of_topic),
            consumergroup=group,
            topic=topic,
        )
        families.gauge(
            "kafka_consumergroup_current_offset_sum",
            "Committed offsets over all partitions of a topic",
            sum(lag.committed_offset for lag in of_topic),
            consumergroup=group,
            topic=topic,
        )
    for group, of_group in sorted(by_group.items()):
        prefix = "kafka_consumergroup_group"
        total, most = sum(lag.lag for lag in of_group), max(lag.lag for lag in of_group)
        oldest = max(lag.lag_seconds for lag in of_group)
        families.gauge(f"{prefix}_sum_lag", "Lag over all partitions of a group", total, group=group)
        families.gauge(f"{prefix}_max_lag", "Greatest lag of a group's partitions", most, group=group)
        families.gauge(
            f"{prefix}_max_lag_seconds", "Age of a group's oldest unread record", oldest, group=group
        )
