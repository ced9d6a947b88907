"""The responses to requests that are denied as a whole, and the results of denied items in other responses.

Kafka has no common place for a denial, so there is a function for each form. The functions of whole requests
have the signature of `refuse_message` of the coordinators' APIs.
"""

from __future__ import annotations

from typing import Any, Final

from tidelog.broker.handlers.controller_refusals import controller_refusal
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import ZERO_TOPIC_ID
from tidelog.wire import codec
from tidelog.wire.messages import (
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_share_group_offsets,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_records,
    delete_share_group_offsets,
    describe_configs,
    describe_producers,
    describe_share_group_offsets,
    describe_topic_partitions,
    find_coordinator,
    incremental_alter_configs,
    list_offsets,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    write_txn_markers,
)
from tidelog.wire.schema import Message

MESSAGES: Final = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
}
_NO_OFFSET: Final = -1

# -- responses to requests that are denied as a whole


def with_code(api_key: int, version: int, message: Any, code: ErrorCode) -> Message:
    """Returns a response with only the error code, in the field that the response has for it."""
    return codec.response_class(api_key)(error_code=code)


def with_controller_refusal(api_key: int, version: int, message: Any, code: ErrorCode) -> Message:
    """Returns the response that the controller's refusal has, too."""
    return controller_refusal(api_key, version, message, code, MESSAGES[code])


def _refused_marker(marker: Any, code: ErrorCode) -> Any:
    result = write_txn_markers.WritableTxnMarkerPartitionResult
    return write_txn_markers.WritableTxnMarkerResult(
        marker.producer_id,
        [
            write_txn_markers.WritableTxnMarkerTopicResult(
                topic.name, [result(index, code) for index in topic.partition_indexes]
            )
            for topic in marker.topics
        ],
    )


def refused_markers(api_key: int, version: int, message: Any, code: ErrorCode) -> Message:
    return write_txn_markers.WriteTxnMarkersResponse(
        [_refused_marker(marker, code) for marker in message.markers]
    )


def refused_log_dirs(api_key: int, version: int, message: Any, code: ErrorCode) -> Message:
    partition = alter_replica_log_dirs.AlterReplicaLogDirPartitionResult
    return alter_replica_log_dirs.AlterReplicaLogDirsResponse(
        results=[
            alter_replica_log_dirs.AlterReplicaLogDirTopicResult(
                topic.name, [partition(index, code) for index in topic.partitions]
            )
            for directory in message.dirs
            for topic in directory.topics
        ]
    )


def refused_reassignments(api_key: int, version: int, message: Any, code: ErrorCode) -> Message:
    partition = alter_partition_reassignments.ReassignablePartitionResponse
    return alter_partition_reassignments.AlterPartitionReassignmentsResponse(
        error_code=code,
        error_message=MESSAGES[code],
        responses=[
            alter_partition_reassignments.ReassignableTopicResponse(
                topic.name,
                [partition(part.partition_index, code, MESSAGES[code]) for part in topic.partitions],
            )
            for topic in message.topics
        ],
    )


def refused_acl_creations(api_key: int, version: int, message: Any, code: ErrorCode) -> Message:
    result = create_acls.AclCreationResult(code, MESSAGES[code])
    return create_acls.CreateAclsResponse(results=[result for _ in message.creations])


def refused_acl_deletions(api_key: int, version: int, message: Any, code: ErrorCode) -> Message:
    result = delete_acls.DeleteAclsFilterResult(code, MESSAGES[code])
    return delete_acls.DeleteAclsResponse(filter_results=[result for _ in message.filters])


# -- results of denied items, from the item of the request and the error code


def denied_offset_lookup(topic: Any, code: ErrorCode) -> Any:
    denied = list_offsets.ListOffsetsPartitionResponse
    return list_offsets.ListOffsetsTopicResponse(
        topic.name, [denied(part.partition_index, code) for part in topic.partitions]
    )


def denied_offset_deletion(topic: Any, code: ErrorCode) -> Any:
    denied = offset_delete.OffsetDeleteResponsePartition
    return offset_delete.OffsetDeleteResponseTopic(
        topic.name, [denied(part.partition_index, code) for part in topic.partitions]
    )


def denied_epochs(topic: Any, code: ErrorCode) -> Any:
    return offset_for_leader_epoch.OffsetForLeaderTopicResult(
        topic.topic,
        [offset_for_leader_epoch.EpochEndOffset(code, part.partition) for part in topic.partitions],
    )


def denied_record_deletion(topic: Any, code: ErrorCode) -> Any:
    denied = delete_records.DeleteRecordsPartitionResult
    return delete_records.DeleteRecordsTopicResult(
        topic.name, [denied(part.partition_index, _NO_OFFSET, code) for part in topic.partitions]
    )


def denied_description(topic: Any, code: ErrorCode) -> Any:
    return describe_topic_partitions.DescribeTopicPartitionsResponseTopic(code, topic.name)


def denied_producers(topic: Any, code: ErrorCode) -> Any:
    return describe_producers.TopicResponse(
        topic.name,
        [
            describe_producers.PartitionResponse(index, code, MESSAGES[code])
            for index in topic.partition_indexes
        ],
    )


def denied_topic_creation(topic: Any, code: ErrorCode) -> Any:
    return create_topics.CreatableTopicResult(topic.name, error_code=code, error_message=MESSAGES[code])


def denied_partition_creation(topic: Any, code: ErrorCode) -> Any:
    return create_partitions.CreatePartitionsTopicResult(topic.name, code, MESSAGES[code])


def unknown_coordinator(key: str, code: ErrorCode) -> find_coordinator.Coordinator:
    return find_coordinator.Coordinator(key, -1, "", -1, code, MESSAGES[code])


def no_coordinator(code: ErrorCode, coordinators: list[find_coordinator.Coordinator]) -> Message:
    return find_coordinator.FindCoordinatorResponse(
        error_code=code,
        error_message=MESSAGES[code],
        node_id=-1,
        host="",
        port=-1,
        coordinators=coordinators,
    )


def denied_offsets(topic: Any) -> Any:
    code, denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED, offset_fetch.OffsetFetchResponsePartition
    return offset_fetch.OffsetFetchResponseTopic(
        topic.name, [denied(index, _NO_OFFSET, error_code=code) for index in topic.partition_indexes]
    )


def denied_offsets_of_group(topic: Any) -> Any:
    code, denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED, offset_fetch.OffsetFetchResponsePartitions
    return offset_fetch.OffsetFetchResponseTopics(
        topic.name,
        topic.topic_id,
        [denied(index, _NO_OFFSET, error_code=code) for index in topic.partition_indexes],
    )


def denied_share_offsets(
    topic: describe_share_group_offsets.DescribeShareGroupOffsetsResponseTopic,
) -> describe_share_group_offsets.DescribeShareGroupOffsetsResponseTopic:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return describe_share_group_offsets.DescribeShareGroupOffsetsResponseTopic(
        topic.topic_name,
        ZERO_TOPIC_ID,
        [
            describe_share_group_offsets.DescribeShareGroupOffsetsResponsePartition(
                partition.partition_index, _NO_OFFSET, error_code=code, error_message=MESSAGES[code]
            )
            for partition in topic.partitions
        ],
    )


def denied_share_reset(
    topic: alter_share_group_offsets.AlterShareGroupOffsetsRequestTopic, code: ErrorCode
) -> alter_share_group_offsets.AlterShareGroupOffsetsResponseTopic:
    return alter_share_group_offsets.AlterShareGroupOffsetsResponseTopic(
        topic.topic_name,
        ZERO_TOPIC_ID,
        [
            alter_share_group_offsets.AlterShareGroupOffsetsResponsePartition(
                partition.partition_index, code, MESSAGES[code]
            )
            for partition in topic.partitions
        ],
    )


def denied_share_deletion(
    topic: delete_share_group_offsets.DeleteShareGroupOffsetsRequestTopic, code: ErrorCode
) -> delete_share_group_offsets.DeleteShareGroupOffsetsResponseTopic:
    return delete_share_group_offsets.DeleteShareGroupOffsetsResponseTopic(
        topic.topic_name, ZERO_TOPIC_ID, code, MESSAGES[code]
    )


def denied_settings(resource: Any, code: ErrorCode) -> Any:
    return describe_configs.DescribeConfigsResult(
        code, MESSAGES[code], resource.resource_type, resource.resource_name
    )


def denied_change(resource: Any, code: ErrorCode) -> Any:
    return alter_configs.AlterConfigsResourceResponse(
        code, MESSAGES[code], resource.resource_type, resource.resource_name
    )


def denied_incremental_change(resource: Any, code: ErrorCode) -> Any:
    return incremental_alter_configs.AlterConfigsResourceResponse(
        code, MESSAGES[code], resource.resource_type, resource.resource_name
    )
