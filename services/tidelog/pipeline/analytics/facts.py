"""A sample of a metric, and the meaning of its labels: the broker that reported it, and its partition or
group.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from tidelog.pipeline.analytics import metric_names as names

_POD_NUMBER: Final = re.compile(r"-(\d+)$")
_NUMBER: Final = re.compile(r"\d+")

Row: TypeAlias = dict[str, Any]
"""A row of a table by column. The columns' types are in `tables`, as text for Spark."""


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
    found: dict[str, int] = {}
    for sample in samples:
        labels = sample.labels
        if sample.metric == names.BUILD_INFO and labels.get("service") in ("broker", "dev"):
            found[labels.get("instance", "")] = int(labels["node_id"])
    return found


def facts_of(samples: Iterable[Sample], nodes: Mapping[str, int]) -> Iterator[Fact]:
    """Converts samples to facts. It leaves out samples of other metrics, samples that are not a number (such
    as Prometheus' stale marks), and samples without the necessary labels.
    """
    for sample in samples:
        fact = fact_of(sample, nodes)
        if fact is not None:
            yield fact


def fact_of(sample: Sample, nodes: Mapping[str, int]) -> Fact | None:
    metric, labels, at_ms, value = sample
    if metric not in _KNOWN or not math.isfinite(value):
        return None
    if metric == names.BROKER_INFO:
        broker_id = labels.get("id", "")
        if not _NUMBER.fullmatch(broker_id):
            return None
        return Fact(metric, int(broker_id), None, None, None, labels.get("rack") or None, at_ms, value)
    broker = _broker_of(labels, nodes)
    if metric not in _OF_PARTITIONS:
        return None if broker is None else Fact(metric, broker, None, None, None, None, at_ms, value)
    topic, partition = labels.get("topic"), labels.get("partition", "")
    if not topic or not _NUMBER.fullmatch(partition):
        return None
    group = labels.get("consumergroup")
    if metric in _OF_GROUPS and not group:
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


_KNOWN: Final = frozenset(names.ALL)
_OF_PARTITIONS: Final = frozenset(names.OF_PARTITIONS)
_OF_GROUPS: Final = frozenset((names.LAG, names.COMMITTED, names.UNREAD_EXPIRES))
