"""Asks the brokers about an archive's topics, before and after Spark reads them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from tidelog.client.admin import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    list_offsets,
)
from tidelog.client.cluster import Cluster, Topic
from tidelog.client.errors import ClientError
from tidelog.client.security import parse_security
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import INTERNAL_TOPICS, TopicPartition
from tidelog.pipeline.archive.source_offsets import Offsets
from tidelog.pipeline.archive.spec import ArchiveSpec

RETRY_S: Final = 0.5
CALL_TIMEOUT_S: Final = 10.0
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Survey:
    """The current state of the archive's topics that exist."""

    topic_ids: dict[str, str]
    log_starts: Offsets
    log_ends: Offsets
    """The high watermarks."""
    readable_ends: Offsets
    """The ends for readers with the archive's isolation level."""


def survey(spec: ArchiveSpec) -> Survey:
    """Asks the brokers. Raises KafkaError, ClientError if they do not answer within the spec's timeout."""
    return asked(spec, lambda cluster: _survey(cluster, spec))


def topic_ids(spec: ArchiveSpec) -> dict[str, str]:
    """Returns the ids of the archive's topics that exist. Raises ClientError."""
    return asked(
        spec, lambda cluster: {name: str(topic.topic_id) for name, topic in _topics(cluster, spec).items()}
    )


def asked(spec: ArchiveSpec, ask: Callable[[Cluster], R]) -> R:
    """Repeats a request until the spec's timeout, because brokers restart under a job that runs for weeks."""
    deadline_s = time.monotonic() + spec.cluster_timeout_s
    security = parse_security(spec.client_settings)
    while True:
        try:
            with Cluster(
                spec.bootstrap,
                client_id=f"archive-{spec.name}",
                timeout_s=min(CALL_TIMEOUT_S, spec.cluster_timeout_s),
                security=security,
            ) as cluster:
                return ask(cluster)
        except (ClientError, KafkaError) as error:
            is_final = isinstance(error, KafkaError) and not error.is_retriable
            if is_final or _is_gone(error) or time.monotonic() > deadline_s:
                raise
        time.sleep(RETRY_S)


def _is_gone(error: Exception) -> bool:
    return isinstance(error, KafkaError) and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _topics(cluster: Cluster, spec: ArchiveSpec) -> dict[str, Topic]:
    if spec.pattern is None:
        return cluster.topics(spec.topics)
    found = cluster.topics()
    return {
        name: topic for name, topic in found.items() if spec.matches(name) and name not in INTERNAL_TOPICS
    }


def _survey(cluster: Cluster, spec: ArchiveSpec) -> Survey:
    topics = _topics(cluster, spec)
    isolation = READ_COMMITTED if spec.isolation_level == "read_committed" else READ_UNCOMMITTED
    return Survey(
        {name: str(topic.topic_id) for name, topic in topics.items()},
        _offsets(cluster, topics.values(), EARLIEST_TIMESTAMP, READ_UNCOMMITTED),
        _offsets(cluster, topics.values(), LATEST_TIMESTAMP, READ_UNCOMMITTED),
        _offsets(cluster, topics.values(), LATEST_TIMESTAMP, isolation),
    )


def _offsets(cluster: Cluster, topics: Iterable[Topic], timestamp: int, isolation_level: int) -> Offsets:
    found: Offsets = {}
    for topic in topics:
        leading = cluster.topic(topic.name)
        rows = list_offsets(cluster, leading, timestamp, isolation_level=isolation_level)
        found |= {TopicPartition(topic.name, index): row.offset for index, row in rows.items()}
    return found
