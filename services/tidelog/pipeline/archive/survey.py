"""The questions of an archive to the brokers, before Spark starts and before and after Spark reads the
topics, and the progress that it commits to a consumer group, so that lag tools show Spark like any consumer.

Spark's start takes long and hides the cause of a failure, so `check_brokers` and `check_topics` precede it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from tidelog.client.admin.groups import CommittedOffset, commit_offsets
from tidelog.client.admin.logs import EpochStart, OffsetRange, epoch_ends, epochs_of_ranges
from tidelog.client.admin.offsets import list_offsets
from tidelog.client.cluster import Cluster, Topic
from tidelog.client.errors import ClientError
from tidelog.client.security import parse_security
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    UNKNOWN_EPOCH,
)
from tidelog.model.topics import INTERNAL_TOPICS, TopicPartition
from tidelog.pipeline.archive.spec import ArchiveSpec, Offsets
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.tables.ledger import CommitEntry

if TYPE_CHECKING:
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


ANSWER_TIMEOUT_S: Final = 10.0


def check_brokers(bootstrap: str, client_settings: Mapping[str, str]) -> None:
    """Raises PipelineError unless a broker answers."""
    try:
        with Cluster(
            bootstrap, timeout_s=ANSWER_TIMEOUT_S, security=parse_security(client_settings)
        ) as cluster:
            cluster.describe()
    except ClientError as error:
        raise PipelineError(
            f"{error}; start the brokers that hold the log, or name them with --bootstrap-server"
        ) from error


def check_topics(spec: ArchiveSpec) -> None:
    """Checks that brokers answer and that one of the archive's topics exists.

    An archive with an interval waits for both, so nothing is checked for it. Raises PipelineError.
    """
    if spec.interval_ms is not None:
        return
    check_brokers(spec.bootstrap, spec.client_settings)
    found = topic_ids(replace(spec, cluster_timeout_s=ANSWER_TIMEOUT_S))
    if spec.topics and not found:
        raise PipelineError(
            f"the brokers at {spec.bootstrap} have no topic {' or '.join(spec.topics)}; "
            "'tidelog topic list' shows the existing topics"
        )


def leader_epochs(
    cluster: Cluster, ranges: Mapping[TopicPartition, OffsetRange]
) -> dict[TopicPartition, tuple[EpochStart, ...]]:
    """Returns the leader epochs of each range. Raises KafkaError, ClientError."""
    return epochs_of_ranges(cluster, ranges)


def next_offsets(entries: Sequence[CommitEntry]) -> dict[TopicPartition, CommittedOffset]:
    """Returns each partition's next offset after these commits, with the epoch of the last archived "
    "record."""
    found: dict[TopicPartition, CommittedOffset] = {}
    for entry in entries:
        for each in entry.ranges:
            place = TopicPartition(each.topic, each.partition)
            if place in found and found[place].offset >= each.end:
                continue
            epoch = each.leader_epochs[-1][0] if each.leader_epochs else UNKNOWN_EPOCH
            found[place] = CommittedOffset(each.end, epoch)
    return found


def commit_progress(cluster: Cluster, group: str, entries: Sequence[CommitEntry]) -> None:
    """Commits the offsets to the group, always after the table's commit. Raises KafkaError, ClientError."""
    offsets = next_offsets(entries)
    if offsets:
        commit_offsets(cluster, group, offsets)


def diverged(
    cluster: Cluster, offsets: Mapping[TopicPartition, CommittedOffset]
) -> dict[TopicPartition, int]:
    """Returns the partitions whose log was truncated and rewritten, with the offset at which the epoch of the
    last archived record ends now. That offset is before the record. Raises KafkaError, ClientError.
    """
    epochs = {
        place: each.leader_epoch for place, each in offsets.items() if each.leader_epoch != UNKNOWN_EPOCH
    }
    return {
        place: end.end_offset
        for place, end in (epoch_ends(cluster, epochs) if epochs else {}).items()
        if end.epoch != UNKNOWN_EPOCH and end.end_offset < offsets[place].offset
    }
