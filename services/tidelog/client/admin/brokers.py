"""The directories of brokers, and the quorum of controllers."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from tidelog.client.cluster import Cluster, Topic
from tidelog.client.core.cluster_view import in_parts, partitions_by_topic
from tidelog.client.errors import ClientError, NoAnswerError, UnsupportedApiError, raise_on_error
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import NO_LEADER
from tidelog.model.topics import TopicPartition
from tidelog.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from tidelog.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    RequestPartitionData,
    RequestTopicData,
)

UNKNOWN_BYTES: Final = -1


@dataclass(frozen=True, slots=True)
class ReplicaSize:
    """A replica on disk.

    `lag` is the number of records that it misses, up to the high watermark. `is_future` marks a copy that
    moves to another directory of its broker.
    """

    place: TopicPartition
    size_bytes: int
    lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDir:
    """A directory of a broker. The bytes of its volume are -1 if the broker does not report them."""

    broker_id: int
    path: str
    error: ErrorCode
    total_bytes: int
    usable_bytes: int
    replicas: tuple[ReplicaSize, ...]

    @property
    def current_replicas(self) -> list[ReplicaSize]:
        """The replicas without copies that move to another directory."""
        return [replica for replica in self.replicas if not replica.is_future]

    @property
    def size_bytes(self) -> int:
        return sum(replica.size_bytes for replica in self.replicas)

    @property
    def max_lag(self) -> int:
        return max((replica.lag for replica in self.replicas), default=0)


def partition_bytes(directories: Iterable[LogDir]) -> dict[TopicPartition, int]:
    """Returns the size of the largest replica of each partition."""
    sizes: dict[TopicPartition, int] = {}
    for directory in directories:
        for replica in directory.replicas:
            sizes[replica.place] = max(replica.size_bytes, sizes.get(replica.place, 0))
    return sizes


def describe_log_dirs(
    cluster: Cluster,
    broker_ids: Collection[int],
    topics: Iterable[Topic] | None = None,
    *,
    silent: set[int] | None = None,
) -> list[LogDir]:
    """Returns the directories of these brokers with the replicas of `topics`, None for all topics.

    Brokers in `silent` are not asked, and one that does not answer joins them. Raises KafkaError
    CLUSTER_AUTHORIZATION_FAILED and, without `silent`, other KafkaErrors and ClientError.
    """
    asked: list[list[DescribableLogDirTopic] | None] = [None]
    if topics is not None:
        places = ((topic.name, partition.index) for topic in topics for partition in topic.partitions)
        asked = [
            [DescribableLogDirTopic(name, rows) for name, rows in partitions_by_topic(part).items()]
            for part in in_parts(TopicPartition(*place) for place in places)
        ] or [[]]
    found: list[LogDir] = []
    for broker_id in sorted(broker_ids):
        if silent is not None and broker_id in silent:
            continue
        try:
            answers = [_ask(cluster, broker_id, wanted) for wanted in asked]
        except (ClientError, KafkaError) as error:
            is_denied = isinstance(error, KafkaError) and error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            if silent is None or is_denied:
                raise
            silent.add(broker_id)
            continue
        replicas: dict[str, list[ReplicaSize]] = {}
        for row in (row for answer in answers for row in answer.results):
            replicas.setdefault(row.log_dir, []).extend(
                ReplicaSize(
                    TopicPartition(topic.name, part.partition_index),
                    part.partition_size,
                    part.offset_lag,
                    part.is_future_key,
                )
                for topic in row.topics
                for part in topic.partitions
            )
        found += [
            LogDir(
                broker_id,
                row.log_dir,
                ErrorCode(row.error_code),
                row.total_bytes,
                row.usable_bytes,
                tuple(sorted(replicas[row.log_dir], key=lambda replica: replica.place)),
            )
            for row in answers[-1].results
        ]
    return found


def _ask(
    cluster: Cluster, broker_id: int, wanted: list[DescribableLogDirTopic] | None
) -> DescribeLogDirsResponse:
    answer = cluster.broker(broker_id).call(DescribeLogDirsRequest(wanted), DescribeLogDirsResponse)
    raise_on_error(answer.error_code, f"log directories of broker {broker_id}")
    return answer


MAX_WAIT_S: Final = 2.0
"""The time after which the controllers are unknown. A broker answers at once if there is an active one."""
_TOPIC: Final = "__cluster_metadata"


@dataclass(frozen=True, slots=True)
class Quorum:
    """The controllers that are registered. Their ids are not those of brokers, unless a process is both.

    `active_id` is None if no controller is active. If the cluster does not tell, `unknown` states the reason,
    and nothing else is known.
    """

    active_id: int | None = None
    controller_ids: tuple[int, ...] = ()
    unknown: str = ""

    @property
    def active_text(self) -> str:
        """The id of the active controller, or what is known instead of it."""
        if self.unknown:
            return "unknown"
        return "none" if self.active_id is None else str(self.active_id)


def describe_quorum(cluster: Cluster) -> Quorum:
    """Returns the controllers. A user needs DESCRIBE on the cluster. Raises ClientError."""
    request = DescribeQuorumRequest([RequestTopicData(_TOPIC, [RequestPartitionData(0)])])
    try:
        limit_s = min(cluster.timeout_s, MAX_WAIT_S)
        answer = cluster.any_broker().call(request, DescribeQuorumResponse, timeout_s=limit_s)
        raise_on_error(answer.error_code, "the controllers", answer.error_message)
        (topic,) = answer.topics
        (partition,) = topic.partitions
        raise_on_error(partition.error_code, "the controllers", partition.error_message)
    except NoAnswerError:
        return Quorum(unknown=f"no active controller answered within {MAX_WAIT_S:g} s")
    except (KafkaError, UnsupportedApiError) as error:
        return Quorum(unknown=str(error))
    voters = tuple(sorted(voter.replica_id for voter in partition.current_voters))
    return Quorum(None if partition.leader_id == NO_LEADER else partition.leader_id, voters)
