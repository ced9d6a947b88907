"""AlterReplicaLogDirs v1 and v2. There is one data directory, so a replica cannot move. Naming the directory
that it is in succeeds and has no effect. A broker without a replica answers REPLICA_NOT_AVAILABLE.

Any other directory gets LOG_DIR_NOT_FOUND, as from a Kafka broker that does not have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)

if TYPE_CHECKING:
    from tidelog.broker.hosting.hosted_partitions import HostedPartitions
    from tidelog.broker.log.log_directory import LogDirectory
    from tidelog.broker.requests.request import RequestContext


class AlterReplicaLogDirsHandler:
    """Answers AlterReplicaLogDirs."""

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
