"""DescribeLogDirs and AlterReplicaLogDirs: the one data directory of this broker."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import TYPE_CHECKING

import structlog

from tidelog.kernel.slices import in_slices
from tidelog.kernel.steps import Steps
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from tidelog.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from tidelog.broker.hosting.hosted_partitions import HostedPartitions
    from tidelog.broker.log.log_directory import LogDirectory
    from tidelog.broker.requests.request import Answer, RequestContext


_log = structlog.get_logger(__name__)


class DescribeLogDirsHandler:
    """DescribeLogDirs v1 to v5: the size of each partition on this broker's disk and, from v4 on, the size of
    the disk, in bytes.

    There is one data directory, so there are no lags, no future replicas and no cordoned directories.
    """

    def __init__(self, hosted: HostedPartitions, log_directory: LogDirectory) -> None:
        self._hosted = hosted
        self._log_directory = log_directory

    def handle(self, request: DescribeLogDirsRequest, context: RequestContext) -> Answer:
        return in_slices(self._answer(request))

    def _answer(self, request: DescribeLogDirsRequest) -> Steps[DescribeLogDirsResponse]:
        path = str(self._log_directory.path)
        try:
            disk = os.statvfs(path)
        except OSError as error:
            _log.warning("cannot read the size of the data directory's disk", path=path, error=str(error))
            return DescribeLogDirsResponse(
                results=[DescribeLogDirsResult(ErrorCode.KAFKA_STORAGE_ERROR, path)]
            )
        found = yield from self._partitions(request)
        topics = [
            DescribeLogDirsTopic(name=name, partitions=partitions) for name, partitions in found.items()
        ]
        return DescribeLogDirsResponse(
            results=[
                DescribeLogDirsResult(
                    log_dir=path,
                    topics=topics,
                    total_bytes=disk.f_blocks * disk.f_frsize,
                    usable_bytes=disk.f_bavail * disk.f_frsize,
                )
            ]
        )

    def _partitions(
        self, request: DescribeLogDirsRequest
    ) -> Steps[dict[str, list[DescribeLogDirsPartition]]]:
        """Returns the requested partitions that this broker hosts. Other partitions are left out."""
        replicas = self._hosted.replicas
        if request.topics is None:
            wanted = sorted(replicas)
        else:
            asked = (
                TopicPartition(topic.topic, index) for topic in request.topics for index in topic.partitions
            )
            wanted = list(dict.fromkeys(asked))
        found: defaultdict[str, list[DescribeLogDirsPartition]] = defaultdict(list)
        for topic_partition in wanted:
            yield
            replica = replicas.get(topic_partition)
            if replica is None:
                continue
            size = replica.log.size_bytes
            found[topic_partition.topic].append(
                DescribeLogDirsPartition(partition_index=topic_partition.partition, partition_size=size)
            )
        return found


class AlterReplicaLogDirsHandler:
    """AlterReplicaLogDirs v1 and v2. There is one data directory, so a replica cannot move. Naming the
    directory that it is in succeeds and has no effect. A broker without a replica answers
    REPLICA_NOT_AVAILABLE.

    Any other directory gets LOG_DIR_NOT_FOUND, as from a Kafka broker that does not have it.
    """

    def __init__(self, hosted: HostedPartitions, log_directory: LogDirectory) -> None:
        self._hosted = hosted
        self._log_directory = log_directory

    def handle(
        self, request: AlterReplicaLogDirsRequest, context: RequestContext
    ) -> AlterReplicaLogDirsResponse:
        own_path = str(self._log_directory.path)
        return AlterReplicaLogDirsResponse(
            results=[
                AlterReplicaLogDirTopicResult(
                    topic.name,
                    [
                        AlterReplicaLogDirPartitionResult(
                            index, self._error(wanted.path == own_path, topic.name, index)
                        )
                        for index in topic.partitions
                    ],
                )
                for wanted in request.dirs
                for topic in wanted.topics
            ]
        )

    def _error(self, is_own_path: bool, topic: str, partition: int) -> ErrorCode:
        if not is_own_path:
            return ErrorCode.LOG_DIR_NOT_FOUND
        if TopicPartition(topic, partition) in self._hosted.replicas:
            return ErrorCode.NONE
        error = self._hosted.no_replica_error(topic, partition).code
        return ErrorCode.REPLICA_NOT_AVAILABLE if error is ErrorCode.NOT_LEADER_OR_FOLLOWER else error
