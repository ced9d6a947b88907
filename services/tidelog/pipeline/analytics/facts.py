"""Samples of metrics, the meaning of their labels, and time series. The module does no I/O.

The metrics have the names of docs/metrics.md (the JMX exporter's and kafka_exporter's).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

IN_SYNC: Final = "kafka_topic_partition_in_sync_replica"
REPLICAS: Final = "kafka_topic_partition_replicas"
LEADER: Final = "kafka_topic_partition_leader"
IS_PREFERRED: Final = "kafka_topic_partition_leader_is_preferred"
UNDER_MIN_ISR: Final = "kafka_cluster_partition_underminisr"
END_OFFSET: Final = "kafka_topic_partition_current_offset"
START_OFFSET: Final = "kafka_topic_partition_oldest_offset"
LOG_SIZE: Final = "kafka_log_log_size"
HELD: Final = "kafka_server_replicamanager_partitioncount"
BROKER_INFO: Final = "kafka_broker_info"
BUILD_INFO: Final = "tidelog_build_info"

OF_GROUPS: Final = (
    "kafka_consumergroup_lag",
    "kafka_consumergroup_current_offset",
    "tidelog_consumergroup_unread_expires_seconds",
)
OF_PARTITIONS: Final = (
    *(IN_SYNC, REPLICAS, LEADER, IS_PREFERRED, UNDER_MIN_ISR, END_OFFSET, START_OFFSET, LOG_SIZE),
    "kafka_server_fetcherlagmetrics_consumerlag",
    *OF_GROUPS,
)
OF_BROKERS: Final = (
    *(HELD, BROKER_INFO),
    "kafka_server_replicamanager_isrshrinks_total",
    "kafka_server_replicamanager_isrexpands_total",
    "tidelog_log_directory_size_bytes",
    "tidelog_log_directory_free_bytes",
)
ALL: Final = (*OF_PARTITIONS, *OF_BROKERS)
"""The metrics of the history."""

SILENT_INTERVALS: Final = 3.0
"""A series with this many missing samples is silent. Fewer missing samples are failed scrapes."""
_FEWEST_POINTS: Final = 3
_POD_NUMBER: Final = re.compile(r"-(\d+)$")
_NUMBER: Final = re.compile(r"\d+")

Row: TypeAlias = dict[str, Any]
"""A row of a table by column. The columns' types are in `job`, as text for Spark."""
Point: TypeAlias = tuple[int, float]
"""A point is (milliseconds since 1970, value). A series is sorted by time."""


class Sample(NamedTuple):
    """A sample as the source delivers it."""

    metric: str
    labels: Mapping[str, str]
    at_ms: int
    value: float


class Fact(NamedTuple):
    """`broker` is the broker that reported the sample, or None if it is unknown. `detail` is the rack in a
    `kafka_broker_info` sample.
    """

    metric: str
    broker: int | None
    topic: str | None
    partition: int | None
    consumer_group: str | None
    detail: str | None
    at_ms: int
    value: float


def node_ids(samples: Iterable[Sample]) -> dict[str, int]:
    """Returns a map of instance to broker id, as the services report it."""
    return {
        sample.labels.get("instance", ""): int(sample.labels["node_id"])
        for sample in samples
        if sample.metric == BUILD_INFO and sample.labels.get("service") in ("broker", "dev")
    }


def fact_of(sample: Sample, nodes: Mapping[str, int]) -> Fact | None:
    """Converts a sample. Returns None for another metric, a value that is not a number (such as Prometheus'
    stale marks), and a sample without the necessary labels.
    """
    metric, labels, at_ms, value = sample
    if metric not in ALL or not math.isfinite(value):
        return None
    if metric == BROKER_INFO:
        broker_id = labels.get("id", "")
        if not _NUMBER.fullmatch(broker_id):
            return None
        return Fact(metric, int(broker_id), None, None, None, labels.get("rack") or None, at_ms, value)
    broker = _broker_of(labels, nodes)
    if metric in OF_BROKERS:
        return None if broker is None else Fact(metric, broker, None, None, None, None, at_ms, value)
    topic, partition, group = labels.get("topic"), labels.get("partition", ""), labels.get("consumergroup")
    if not topic or not _NUMBER.fullmatch(partition) or (metric in OF_GROUPS and not group):
        return None
    return Fact(metric, broker, topic, int(partition), group, None, at_ms, value)


def _broker_of(labels: Mapping[str, str], nodes: Mapping[str, int]) -> int | None:
    node = nodes.get(labels.get("instance", ""))
    if node is not None:
        return node
    for name in ("broker", "broker_id"):
        if _NUMBER.fullmatch(labels.get(name, "")):
            return int(labels[name])
    found = _POD_NUMBER.search(labels.get("pod", ""))
    return int(found[1]) if found else None


def interval_ms(times_ms: Sequence[int], default_ms: int) -> int:
    """Returns the usual distance of samples."""
    gaps = [after - before for before, after in pairwise(times_ms) if after > before]
    return int(median(gaps)) if gaps else default_ms


def after_last_fall(points: Sequence[Point]) -> Sequence[Point]:
    """Returns the points from the last fall on. After a fall, a series that only grows is a different
    series.
    """
    for index in range(len(points) - 1, 0, -1):
        if points[index][1] < points[index - 1][1]:
            return points[index:]
    return points


def latest(points: Sequence[Point], window_ms: int) -> Sequence[Point]:
    """Returns the points of the last `window_ms` before the last point."""
    return [point for point in points if point[0] >= points[-1][0] - window_ms]


def slope_per_s(points: Sequence[Point]) -> float | None:
    """Fits a line by least squares. Returns None with fewer than three different times."""
    if len(points) < _FEWEST_POINTS or points[0][0] == points[-1][0]:
        return None
    data = np.asarray(points, dtype=np.float64)
    times_s, values = (data[:, 0] - data[:, 0].mean()) / 1000, data[:, 1]
    return float((times_s * (values - values.mean())).sum() / (times_s * times_s).sum())


def newest_by_time(points: Iterable[Point]) -> list[Point]:
    """Returns the sorted points. Of several points at one time, from several tellers, the greatest is
    kept.
    """
    by_time: dict[int, float] = {}
    for at_ms, value in points:
        by_time[at_ms] = max(value, by_time.get(at_ms, value))
    return sorted(by_time.items())
