"""The table of what each API needs: API -> operations and resources. All decisions about requests come from
it.

The rows are those of Kafka's `KafkaApis`, `ControllerApis` and `AclApis`. An API without a row is not served
while an authorizer is configured. A row without requirements means that everyone may send the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from tidelog.broker.authorization.judging import (
    DENIAL,
    By,
    Each,
    InHandler,
    Judgement,
    Refuse,
    Requirement,
    Shown,
    Whole,
)
from tidelog.broker.authorized_operations import NOT_ASKED
from tidelog.broker.coordination.refusals import (
    refuse_message,
    refused_consumer_group,
    refused_deletion,
    refused_group,
    refused_offsets,
    refused_share_group,
    refused_share_offsets,
    refused_state,
    refused_streams_group,
)
from tidelog.broker.handlers.controller_refusals import controller_refusal
from tidelog.model.acl import AclOperation, ResourceType
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import ZERO_TOPIC_ID, DescribableTopics
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages import (
    add_partitions_to_txn,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_share_group_offsets,
    alter_user_scram_credentials,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_records,
    delete_share_group_offsets,
    delete_topics,
    describe_configs,
    describe_producers,
    describe_share_group_offsets,
    describe_topic_partitions,
    find_coordinator,
    incremental_alter_configs,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    txn_offset_commit,
    write_txn_markers,
)
from tidelog.wire.schema import Message

READ, WRITE, CREATE, DELETE = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
)
ALTER, DESCRIBE, CLUSTER_ACTION = AclOperation.ALTER, AclOperation.DESCRIBE, AclOperation.CLUSTER_ACTION
DESCRIBE_CONFIGS, ALTER_CONFIGS = AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS
IDEMPOTENT_WRITE = AclOperation.IDEMPOTENT_WRITE
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID

_MESSAGES: Final = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
}
_FIRST_METADATA_WITH_NULL_FOR_ALL: Final = 1
_FIRST_METADATA_WITH_AUTO_CREATE_FLAG: Final = 4
_FIRST_ADD_PARTITIONS_OF_BROKERS: Final = 4
_FIRST_FIND_COORDINATOR_WITH_KEYS: Final = 4
_FIRST_OFFSET_FETCH_WITH_GROUPS: Final = 8
_FIRST_DELETE_TOPICS_WITH_TOPIC_ID: Final = 6
_GROUP_KEY, _TRANSACTION_KEY = 0, 1
_NO_OFFSET: Final = -1
_CONFIG_TOPIC, _CONFIG_GROUP = 2, 32
"""Kafka's `ConfigResource.Type`. All other types belong to the cluster."""

Refusal = Callable[[Any, int, ErrorCode], Message]

# -- responses to requests that are refused as a whole


def _of_shards(api_key: int) -> Refusal:
    return lambda message, version, code: refuse_message(api_key, version, message, code)


def _of_controller(api_key: int) -> Refusal:
    return lambda message, version, code: controller_refusal(api_key, version, message, code, _MESSAGES[code])


def _with_code(api_key: int) -> Refusal:
    """Returns a refusal with the error code in the field that the response has for it."""
    response = codec.response_class(api_key)
    return lambda message, version, code: response(error_code=code)


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


def _refused_markers(message: Any, version: int, code: ErrorCode) -> Message:
    return write_txn_markers.WriteTxnMarkersResponse(
        [_refused_marker(marker, code) for marker in message.markers]
    )


def _refused_log_dirs(message: Any, version: int, code: ErrorCode) -> Message:
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


def _refused_reassignments(message: Any, version: int, code: ErrorCode) -> Message:
    partition = alter_partition_reassignments.ReassignablePartitionResponse
    return alter_partition_reassignments.AlterPartitionReassignmentsResponse(
        error_code=code,
        error_message=_MESSAGES[code],
        responses=[
            alter_partition_reassignments.ReassignableTopicResponse(
                topic.name,
                [partition(part.partition_index, code, _MESSAGES[code]) for part in topic.partitions],
            )
            for topic in message.topics
        ],
    )


def _refused_creations(message: Any, version: int, code: ErrorCode) -> Message:
    result = create_acls.AclCreationResult(code, _MESSAGES[code])
    return create_acls.CreateAclsResponse(results=[result for _ in message.creations])


def _refused_filters(message: Any, version: int, code: ErrorCode) -> Message:
    result = delete_acls.DeleteAclsFilterResult(code, _MESSAGES[code])
    return delete_acls.DeleteAclsResponse(filter_results=[result for _ in message.filters])


def _refused_users(message: Any, version: int, code: ErrorCode) -> Message:
    users = dict.fromkeys(item.name for item in (*message.deletions, *message.upsertions))
    return alter_user_scram_credentials.AlterUserScramCredentialsResponse(
        results=[
            alter_user_scram_credentials.AlterUserScramCredentialsResult(user, code, _MESSAGES[code])
            for user in users
        ]
    )


def _cluster(operation: AclOperation, refuse: Refusal) -> tuple[Whole]:
    return (Whole(operation, CLUSTER, refuse),)


def _group(api_key: int) -> tuple[Whole]:
    return (Whole(READ, GROUP, _of_shards(api_key), lambda message: message.group_id),)


# -- results of denied items


def _partitions(topic_class: Any, partition_class: Any) -> Any:
    """Returns a function that makes the result of a denied topic, with the error at each partition."""

    def result(topic: Any, code: ErrorCode) -> Any:
        return topic_class(
            topic.name,
            partitions=[
                partition_class(partition_index=part.partition_index, error_code=code)
                for part in topic.partitions
            ],
        )

    return result


def _commits(topic_class: Any, partition_class: Any) -> Any:
    """Returns a function that makes the result of a denied topic that may have an id instead of a name."""

    def result(topic: Any, code: ErrorCode) -> Any:
        partitions = [partition_class(part.partition_index, code) for part in topic.partitions]
        return topic_class(topic.name, topic.topic_id, partitions)

    return result


def _denied_epochs(topic: Any, code: ErrorCode) -> Any:
    return offset_for_leader_epoch.OffsetForLeaderTopicResult(
        topic.topic,
        [offset_for_leader_epoch.EpochEndOffset(code, part.partition) for part in topic.partitions],
    )


def _denied_deletion(topic: Any, code: ErrorCode) -> Any:
    denied = delete_records.DeleteRecordsPartitionResult
    return delete_records.DeleteRecordsTopicResult(
        topic.name, [denied(part.partition_index, _NO_OFFSET, code) for part in topic.partitions]
    )


def _denied_topic(topic: Any, code: ErrorCode) -> Any:
    return describe_topic_partitions.DescribeTopicPartitionsResponseTopic(code, topic.name)


def _denied_producers(topic: Any, code: ErrorCode) -> Any:
    return describe_producers.TopicResponse(
        topic.name,
        [
            describe_producers.PartitionResponse(index, code, _MESSAGES[code])
            for index in topic.partition_indexes
        ],
    )


def _denied_creation(topic: Any, code: ErrorCode) -> Any:
    return create_topics.CreatableTopicResult(topic.name, error_code=code, error_message=_MESSAGES[code])


# -- the rules that have no common form


def _metadata(judgement: Judgement) -> None:
    message, version = judgement.message, judgement.version
    wanted = message.topics
    if wanted is None or (version < _FIRST_METADATA_WITH_NULL_FOR_ALL and not wanted):
        shown = _shown_topics(judgement)
        if len(shown) < len(judgement.metadata.topics):
            if version < _FIRST_METADATA_WITH_NULL_FOR_ALL:  # an empty list would mean all topics
                judgement.edits.append(lambda response: _keep_topics(response, frozenset(shown)))
            else:
                topics = [metadata.MetadataRequestTopic(name=name) for name in shown]
                judgement.keep(topics=topics, allow_auto_topic_creation=False)
    else:
        _wanted_metadata(judgement, wanted)
    if message.include_topic_authorized_operations:
        judgement.edits.append(lambda response: _state_topic_operations(judgement, response))
    if message.include_cluster_authorized_operations:
        judgement.edits.append(lambda response: _state_cluster_operations(judgement, response))


def _shown_topics(judgement: Judgement) -> list[str]:
    """Returns the topics that the client may describe, without a report of the others."""
    return [
        name for name in judgement.metadata.topics if judgement.may(DESCRIBE, TOPIC, name, is_asked_for=False)
    ]


def _keep_topics(response: Any, names: frozenset[str]) -> None:
    response.topics = [topic for topic in response.topics if topic.name in names]


def _wanted_metadata(judgement: Judgement, wanted: list[Any]) -> None:
    message = judgement.message
    creates = judgement.creates_topics and (
        message.allow_auto_topic_creation or judgement.version < _FIRST_METADATA_WITH_AUTO_CREATE_FLAG
    )
    left: list[Any] = []
    denied: list[Any] = []
    for topic in wanted:
        name = judgement.topic_name(topic)
        allowed = name is None or (
            judgement.may_topic(DESCRIBE, name)
            and (not creates or name in judgement.metadata.topics or _may_create(judgement, name))
        )
        (left if allowed else denied).append(topic)
    if not denied:
        return
    if not left and judgement.version < _FIRST_METADATA_WITH_NULL_FOR_ALL:
        judgement.edits.append(lambda response: _keep_topics(response, frozenset()))
    judgement.keep(topics=left)
    # As in Kafka, a topic id may be stated, but not the name or the id that belongs to what the client named.
    results = [
        metadata.MetadataResponseTopic(
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            (topic.name or None) if topic.topic_id == ZERO_TOPIC_ID else None,
            topic.topic_id,
        )
        for topic in denied
    ]
    judgement.edits.append(lambda response: response.topics.extend(results))


def _may_create(judgement: Judgement, topic: str) -> bool:
    return judgement.may(CREATE, CLUSTER, is_asked_for=False) or judgement.may_topic(CREATE, topic)


def _state_topic_operations(judgement: Judgement, response: Any) -> None:
    for topic in response.topics:
        if topic.name is not None and topic.topic_authorized_operations != NOT_ASKED:
            topic.topic_authorized_operations = judgement.operations(TOPIC, topic.name)


def _state_cluster_operations(judgement: Judgement, response: Any) -> None:
    allowed = judgement.may(DESCRIBE, CLUSTER, is_asked_for=False)
    response.cluster_authorized_operations = judgement.operations(CLUSTER) if allowed else 0


def _describe_cluster(judgement: Judgement) -> None:
    if judgement.message.include_cluster_authorized_operations:
        judgement.edits.append(lambda response: _state_cluster_operations(judgement, response))


def _describe_topic_partitions(judgement: Judgement) -> None:
    if judgement.message.topics:
        Each(DESCRIBE, TOPIC, "topics", Refuse("topics", _denied_topic)).apply(judgement)
    else:
        shown = _shown_topics(judgement)
        if len(shown) < len(judgement.metadata.topics):
            judgement.keep(topics=[describe_topic_partitions.TopicRequest(name) for name in shown])
            judgement.is_nothing_left = not shown  # an empty list would mean all topics
    judgement.edits.append(lambda response: _state_topic_operations(judgement, response))


def _create_topics(judgement: Judgement) -> None:
    Each(CREATE, TOPIC, "topics", Refuse("topics", _denied_creation), unless=CREATE).apply(judgement)
    judgement.edits.append(lambda response: _hide_settings(judgement, response))


def _hide_settings(judgement: Judgement, response: Any) -> None:
    for topic in response.topics:
        if not topic.error_code and not judgement.may(
            DESCRIBE_CONFIGS, TOPIC, topic.name, is_asked_for=False
        ):
            topic.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            topic.num_partitions = topic.replication_factor = -1
            topic.configs = []


def _delete_topics(judgement: Judgement) -> None:
    message, left = judgement.message, list[Any]()
    refused: list[delete_topics.DeletableTopicResult] = []
    if judgement.version >= _FIRST_DELETE_TOPICS_WITH_TOPIC_ID:
        items, wanted = "topics", message.topics
    else:
        items, wanted = "topic_names", message.topic_names
    for item in wanted:
        topic = delete_topics.DeleteTopicState(item) if isinstance(item, str) else item
        code = _deletion_refusal(judgement, topic)
        if code:
            refused.append(_refused_topic_deletion(judgement, topic, code))
        else:
            left.append(item)
    if refused:
        judgement.keep(**{items: left})
        judgement.is_nothing_left = not left
        judgement.edits.append(lambda response: response.responses.extend(refused))


def _deletion_refusal(judgement: Judgement, topic: delete_topics.DeleteTopicState) -> ErrorCode:
    """Returns why the controller may not be asked to delete a topic, or NONE.

    The controller does not ask for ACLs, and may know topics that this broker does not know yet. So this
    broker answers that it does not know them, unless the client may delete a topic with that name.
    """
    name = judgement.topic_name(topic)
    if name is None:
        is_by_id = topic.name is None and topic.topic_id != ZERO_TOPIC_ID
        return ErrorCode.UNKNOWN_TOPIC_ID if is_by_id else ErrorCode.NONE  # the controller refuses it
    is_unknown = name not in judgement.metadata.topics and judgement.may(
        DESCRIBE, TOPIC, name, is_asked_for=False
    )
    if judgement.may(DELETE, TOPIC, name, is_asked_for=not is_unknown):
        return ErrorCode.NONE
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_unknown else ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _refused_topic_deletion(
    judgement: Judgement, topic: delete_topics.DeleteTopicState, code: ErrorCode
) -> delete_topics.DeletableTopicResult:
    """Returns the result of a topic by the name or the id with which the client named it. The name of an id
    is only for those who may describe the topic.
    """
    message = _MESSAGES.get(code)
    if topic.name is not None:
        return delete_topics.DeletableTopicResult(topic.name, ZERO_TOPIC_ID, code, message)
    name = judgement.metadata.topic_names.get(topic.topic_id)
    if name is not None and not judgement.may(DESCRIBE, TOPIC, name, is_asked_for=False):
        name = None
    return delete_topics.DeletableTopicResult(name, topic.topic_id, code, message)


def _init_producer_id(judgement: Judgement) -> None:
    transactional_id = judgement.message.transactional_id
    if transactional_id is not None:
        allowed = judgement.may(WRITE, TRANSACTIONAL_ID, transactional_id)
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    else:
        allowed = (
            judgement.may(IDEMPOTENT_WRITE, CLUSTER, is_asked_for=False)
            or judgement.authorizer.may_on_any(judgement.context, WRITE, TOPIC)
            or judgement.may(IDEMPOTENT_WRITE, CLUSTER)
        )
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if not allowed:
        judgement.refusal = refuse_message(
            ApiKey.INIT_PRODUCER_ID, judgement.version, judgement.message, code
        )


def _add_partitions_to_txn(judgement: Judgement) -> None:
    message, version = judgement.message, judgement.version
    if version >= _FIRST_ADD_PARTITIONS_OF_BROKERS:
        if not judgement.may(CLUSTER_ACTION, CLUSTER):
            judgement.refusal = add_partitions_to_txn.AddPartitionsToTxnResponse(
                error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            )
        return
    if not judgement.may(WRITE, TRANSACTIONAL_ID, message.v3_and_below_transactional_id):
        judgement.refusal = refuse_message(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            version,
            message,
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        )
        return
    codes = {
        topic.name: ErrorCode.OPERATION_NOT_ATTEMPTED
        if judgement.may_topic(WRITE, topic.name)
        else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        for topic in message.v3_and_below_topics
    }
    if ErrorCode.TOPIC_AUTHORIZATION_FAILED in codes.values():
        denied = add_partitions_to_txn.AddPartitionsToTxnPartitionResult
        judgement.refusal = add_partitions_to_txn.AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=[
                add_partitions_to_txn.AddPartitionsToTxnTopicResult(
                    topic.name, [denied(index, codes[topic.name]) for index in topic.partitions]
                )
                for topic in message.v3_and_below_topics
            ]
        )


def _find_coordinator(judgement: Judgement) -> None:
    message = judgement.message
    if message.key_type == _GROUP_KEY:
        kind = GROUP
    elif message.key_type == _TRANSACTION_KEY:
        kind = TRANSACTIONAL_ID
    else:
        if not judgement.may(CLUSTER_ACTION, CLUSTER):
            keys = message.coordinator_keys or [message.key]
            code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            judgement.refusal = _no_coordinator(code, [_unknown_coordinator(key, code) for key in keys])
        return
    if judgement.version >= _FIRST_FIND_COORDINATOR_WITH_KEYS:
        refuse = Refuse("coordinators", _unknown_coordinator)
        Each(DESCRIBE, kind, "coordinator_keys", refuse, name=None).apply(judgement)
    elif not judgement.may(DESCRIBE, kind, message.key):
        judgement.refusal = _no_coordinator(DENIAL[kind], [])


def _unknown_coordinator(key: str, code: ErrorCode) -> find_coordinator.Coordinator:
    return find_coordinator.Coordinator(key, -1, "", -1, code, _MESSAGES[code])


def _no_coordinator(code: ErrorCode, coordinators: list[find_coordinator.Coordinator]) -> Message:
    return find_coordinator.FindCoordinatorResponse(
        error_code=code,
        error_message=_MESSAGES[code],
        node_id=-1,
        host="",
        port=-1,
        coordinators=coordinators,
    )


def _offset_fetch(judgement: Judgement) -> None:
    message, version = judgement.message, judgement.version
    if version < _FIRST_OFFSET_FETCH_WITH_GROUPS:
        if not judgement.may(DESCRIBE, GROUP, message.group_id):
            judgement.refusal = refuse_message(
                ApiKey.OFFSET_FETCH, version, message, ErrorCode.GROUP_AUTHORIZATION_FAILED
            )
            return
        if message.topics is None:
            judgement.edits.append(lambda response: _show_offsets(judgement, response))
            return
        left, denied = _split_topics(judgement, message.topics)
        if denied:
            judgement.keep(topics=left)
            results = [_denied_offsets(topic) for topic in denied]
            judgement.edits.append(lambda response: response.topics.extend(results))
        return
    Each(DESCRIBE, GROUP, "groups", Refuse("groups", refused_offsets), name="group_id").apply(judgement)
    groups, results_by_group, with_all_topics = [], {}, set()
    for group in judgement.message.groups:
        if group.topics is None:
            with_all_topics.add(group.group_id)
        else:
            left, denied = _split_topics(judgement, group.topics)
            if denied:
                results_by_group[group.group_id] = [_denied_offsets_of_group(topic) for topic in denied]
                group = replace(group, topics=left)
        groups.append(group)
    if results_by_group:
        judgement.keep(groups=groups)

    def edit(response: Any) -> None:
        for group in response.groups:
            if group.group_id in with_all_topics:
                _show_offsets(judgement, group)
            if not group.error_code:
                group.topics.extend(results_by_group.get(group.group_id, ()))

    if results_by_group or with_all_topics:
        judgement.edits.append(edit)


def _split_topics(judgement: Judgement, topics: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    left: list[Any] = []
    denied: list[Any] = []
    for topic in topics:
        name = judgement.topic_name(topic)
        (left if name is None or judgement.may_topic(DESCRIBE, name) else denied).append(topic)
    return left, denied


def _show_offsets(judgement: Judgement, holder: Any) -> None:
    """Removes the topics that the client may not describe from a response or a group in it."""
    shown = []
    for topic in holder.topics:
        name = judgement.topic_name(topic)
        if name is not None and judgement.may(DESCRIBE, TOPIC, name, is_asked_for=False):
            shown.append(topic)
    holder.topics = shown


def _denied_offsets(topic: Any) -> Any:
    code, denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED, offset_fetch.OffsetFetchResponsePartition
    return offset_fetch.OffsetFetchResponseTopic(
        topic.name, [denied(index, _NO_OFFSET, error_code=code) for index in topic.partition_indexes]
    )


def _denied_offsets_of_group(topic: Any) -> Any:
    code, denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED, offset_fetch.OffsetFetchResponsePartitions
    return offset_fetch.OffsetFetchResponseTopics(
        topic.name,
        topic.topic_id,
        [denied(index, _NO_OFFSET, error_code=code) for index in topic.partition_indexes],
    )


def _describe_groups(judgement: Judgement) -> None:
    refuse = Refuse("groups", refused_group)
    Each(DESCRIBE, GROUP, "groups", refuse, name=None).apply(judgement)
    if judgement.message.include_authorized_operations:
        judgement.edits.append(lambda response: _state_group_operations(judgement, response))


def _state_group_operations(judgement: Judgement, response: Any) -> None:
    for group in response.groups:
        if not group.error_code:
            group.authorized_operations = judgement.operations(GROUP, group.group_id)


def _describe_consumer_groups(judgement: Judgement) -> None:
    refuse = Refuse("groups", refused_consumer_group)
    Each(DESCRIBE, GROUP, "group_ids", refuse, name=None).apply(judgement)
    judgement.edits.append(lambda response: _hide_members(judgement, response))
    if judgement.message.include_authorized_operations:
        judgement.edits.append(lambda response: _state_group_operations(judgement, response))


def _describe_share_groups(judgement: Judgement) -> None:
    refuse = Refuse("groups", refused_share_group)
    Each(DESCRIBE, GROUP, "group_ids", refuse, name=None).apply(judgement)
    judgement.edits.append(lambda response: _hide_members(judgement, response))
    if judgement.message.include_authorized_operations:
        judgement.edits.append(lambda response: _state_group_operations(judgement, response))


def _describe_streams_groups(judgement: Judgement) -> None:
    refuse = Refuse("groups", refused_streams_group)
    Each(DESCRIBE, GROUP, "group_ids", refuse, name=None).apply(judgement)
    judgement.edits.append(lambda response: _hide_topologies(judgement, response))
    if judgement.message.include_authorized_operations:
        judgement.edits.append(lambda response: _state_group_operations(judgement, response))


def _hide_topologies(judgement: Judgement, response: Any) -> None:
    """Hides a streams group that has topics that the client may not describe."""
    for at, group in enumerate(response.groups):
        if group.topology is None:
            continue
        names = dict.fromkeys(_topics_of_topology(group.topology))
        if not all(judgement.may(DESCRIBE, TOPIC, name, is_asked_for=False) for name in names):
            hidden = refused_streams_group(group.group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            hidden.error_message = (
                "The described group uses topics that the client is not authorized to describe."
            )
            response.groups[at] = hidden


def _topics_of_topology(topology: Any) -> Iterable[str]:
    """Returns all topics of a topology in a request or response. A topic may occur more than once."""
    for subtopology in topology.subtopologies or ():
        yield from subtopology.source_topics
        yield from subtopology.repartition_sink_topics
        yield from (topic.name for topic in subtopology.repartition_source_topics)
        yield from (topic.name for topic in subtopology.state_changelog_topics)


def _describe_share_offsets(judgement: Judgement) -> None:
    """Refuses groups. Topics that the client may not describe are left out, or refused if it names topics. A
    group that it names twice, with topics and without, has them left out.
    """
    asks_for_all = {group.group_id for group in judgement.message.groups if group.topics is None}
    refuse = Refuse("groups", refused_share_offsets)
    Each(DESCRIBE, GROUP, "groups", refuse, name="group_id").apply(judgement)

    def edit(response: Any) -> None:
        for group in response.groups:
            topics = []
            for topic in group.topics:
                if judgement.may(DESCRIBE, TOPIC, topic.topic_name, is_asked_for=False):
                    topics.append(topic)
                elif group.group_id not in asks_for_all:
                    topics.append(_denied_share_offsets(topic))
            group.topics = topics

    judgement.edits.append(edit)


def _denied_share_offsets(
    topic: describe_share_group_offsets.DescribeShareGroupOffsetsResponseTopic,
) -> describe_share_group_offsets.DescribeShareGroupOffsetsResponseTopic:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return describe_share_group_offsets.DescribeShareGroupOffsetsResponseTopic(
        topic.topic_name,
        ZERO_TOPIC_ID,
        [
            describe_share_group_offsets.DescribeShareGroupOffsetsResponsePartition(
                partition.partition_index, _NO_OFFSET, error_code=code, error_message=_MESSAGES[code]
            )
            for partition in topic.partitions
        ],
    )


def _denied_share_reset(
    topic: alter_share_group_offsets.AlterShareGroupOffsetsRequestTopic, code: ErrorCode
) -> alter_share_group_offsets.AlterShareGroupOffsetsResponseTopic:
    return alter_share_group_offsets.AlterShareGroupOffsetsResponseTopic(
        topic.topic_name,
        ZERO_TOPIC_ID,
        [
            alter_share_group_offsets.AlterShareGroupOffsetsResponsePartition(
                partition.partition_index, code, _MESSAGES[code]
            )
            for partition in topic.partitions
        ],
    )


def _denied_share_deletion(
    topic: delete_share_group_offsets.DeleteShareGroupOffsetsRequestTopic, code: ErrorCode
) -> delete_share_group_offsets.DeleteShareGroupOffsetsResponseTopic:
    return delete_share_group_offsets.DeleteShareGroupOffsetsResponseTopic(
        topic.topic_name, ZERO_TOPIC_ID, code, _MESSAGES[code]
    )


def _hide_members(judgement: Judgement, response: Any) -> None:
    """Hides the members of a group that has topics that the client may not describe. Members of share groups
    have no target assignment in responses.
    """
    for group in response.groups:
        names = {
            partitions.topic_name
            for member in group.members
            for assignment in (member.assignment, getattr(member, "target_assignment", member.assignment))
            for partitions in assignment.topic_partitions
        }
        if not all(judgement.may(DESCRIBE, TOPIC, name, is_asked_for=False) for name in names):
            group.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            group.error_message = (
                "The group has described topic(s) that the client is not authorized to describe."
            )
            group.members = []


def _streams_topics(judgement: Judgement) -> None:
    topology = judgement.message.topology
    if topology is not None:
        _need_topics(ApiKey.STREAMS_GROUP_HEARTBEAT, judgement, _topics_of_topology(topology))


def _heartbeat_topics(api_key: int, judgement: Judgement) -> None:
    _need_topics(api_key, judgement, judgement.message.subscribed_topic_names or ())


def _tell_topics(judgement: Judgement) -> None:
    """Lets a coordinator ask which topics the client may describe, because regular expressions of a consumer
    group match no others.
    """
    judgement.describable = lambda: DescribableTopics(
        frozenset(_shown_topics(judgement)), len(judgement.metadata.topics)
    )


def _need_topics(api_key: int, judgement: Judgement, names: Iterable[str]) -> None:
    """Refuses a heartbeat of a client that may not describe all of these topics."""
    if not all(judgement.may_topic(DESCRIBE, name) for name in dict.fromkeys(names)):
        judgement.refusal = refuse_message(
            api_key,
            judgement.version,
            judgement.message,
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        )


def _describe_transactions(judgement: Judgement) -> None:
    refuse = Refuse("transaction_states", refused_state)
    Each(DESCRIBE, TRANSACTIONAL_ID, "transactional_ids", refuse, name=None).apply(judgement)

    def edit(response: Any) -> None:
        for state in response.transaction_states:
            state.topics = [
                topic
                for topic in state.topics
                if judgement.may(DESCRIBE, TOPIC, topic.topic, is_asked_for=False)
            ]

    judgement.edits.append(edit)


def _write_txn_markers(judgement: Judgement) -> None:
    if not judgement.may(ALTER, CLUSTER, is_asked_for=False) and not judgement.may(CLUSTER_ACTION, CLUSTER):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        judgement.refusal = _refused_markers(judgement.message, judgement.version, code)


def _configs(operation: AclOperation, answers: str, result: Callable[[Any, ErrorCode], Any]) -> By:
    """Returns the rule of an API about settings: it needs the operation on the resource that has them."""

    def apply(judgement: Judgement) -> None:
        left: list[Any] = []
        denied: list[Any] = []
        for resource in judgement.message.resources:
            kind = {_CONFIG_TOPIC: TOPIC, _CONFIG_GROUP: GROUP}.get(resource.resource_type, CLUSTER)
            allowed = (
                judgement.may(operation, CLUSTER)
                if kind is CLUSTER
                else judgement.may(operation, kind, resource.resource_name)
            )
            if allowed:
                left.append(resource)
            else:
                denied.append(result(resource, DENIAL[kind]))
        if denied:
            judgement.keep(resources=left)
            judgement.is_nothing_left = not left
            judgement.edits.append(lambda response: getattr(response, answers).extend(denied))

    return By(apply, ((operation, TOPIC), (operation, GROUP), (operation, CLUSTER)))


def _described(resource: Any, code: ErrorCode) -> Any:
    return describe_configs.DescribeConfigsResult(
        code, _MESSAGES[code], resource.resource_type, resource.resource_name
    )


def _altered(resource: Any, code: ErrorCode) -> Any:
    return alter_configs.AlterConfigsResourceResponse(
        code, _MESSAGES[code], resource.resource_type, resource.resource_name
    )


def _altered_incrementally(resource: Any, code: ErrorCode) -> Any:
    return incremental_alter_configs.AlterConfigsResourceResponse(
        code, _MESSAGES[code], resource.resource_type, resource.resource_name
    )


# -- the table

_TRANSACTION: Final = Whole(
    WRITE,
    TRANSACTIONAL_ID,
    _of_shards(ApiKey.ADD_OFFSETS_TO_TXN),
    lambda message: message.transactional_id,
)

TABLE: Final[dict[int, tuple[Requirement, ...]]] = {
    ApiKey.PRODUCE: (InHandler(WRITE, TRANSACTIONAL_ID), InHandler(WRITE, TOPIC)),
    ApiKey.FETCH: (InHandler(READ, TOPIC), InHandler(CLUSTER_ACTION, CLUSTER)),
    ApiKey.LIST_OFFSETS: (
        Each(
            DESCRIBE,
            TOPIC,
            "topics",
            Refuse(
                "topics",
                _partitions(list_offsets.ListOffsetsTopicResponse, list_offsets.ListOffsetsPartitionResponse),
            ),
        ),
    ),
    ApiKey.METADATA: (
        By(_metadata, ((DESCRIBE, TOPIC), (CREATE, TOPIC), (CREATE, CLUSTER), (DESCRIBE, CLUSTER))),
    ),
    ApiKey.OFFSET_COMMIT: (
        *_group(ApiKey.OFFSET_COMMIT),
        Each(
            READ,
            TOPIC,
            "topics",
            Refuse(
                "topics",
                _commits(
                    offset_commit.OffsetCommitResponseTopic, offset_commit.OffsetCommitResponsePartition
                ),
            ),
        ),
    ),
    ApiKey.OFFSET_FETCH: (By(_offset_fetch, ((DESCRIBE, GROUP), (DESCRIBE, TOPIC))),),
    ApiKey.FIND_COORDINATOR: (
        By(_find_coordinator, ((DESCRIBE, GROUP), (DESCRIBE, TRANSACTIONAL_ID), (CLUSTER_ACTION, CLUSTER))),
    ),
    ApiKey.JOIN_GROUP: (*_group(ApiKey.JOIN_GROUP), By(_tell_topics, ((DESCRIBE, TOPIC),))),
    ApiKey.HEARTBEAT: (*_group(ApiKey.HEARTBEAT), By(_tell_topics, ((DESCRIBE, TOPIC),))),
    ApiKey.LEAVE_GROUP: _group(ApiKey.LEAVE_GROUP),
    ApiKey.SYNC_GROUP: _group(ApiKey.SYNC_GROUP),
    ApiKey.DESCRIBE_GROUPS: (By(_describe_groups, ((DESCRIBE, GROUP),)),),
    ApiKey.LIST_GROUPS: (Shown(DESCRIBE, GROUP, "groups", "group_id", unless=DESCRIBE),),
    ApiKey.SASL_HANDSHAKE: (),
    ApiKey.API_VERSIONS: (),
    ApiKey.CREATE_TOPICS: (
        By(_create_topics, ((CREATE, TOPIC), (CREATE, CLUSTER), (DESCRIBE_CONFIGS, TOPIC))),
    ),
    ApiKey.DELETE_TOPICS: (By(_delete_topics, ((DELETE, TOPIC), (DESCRIBE, TOPIC))),),
    ApiKey.DELETE_RECORDS: (Each(DELETE, TOPIC, "topics", Refuse("topics", _denied_deletion)),),
    ApiKey.INIT_PRODUCER_ID: (
        By(_init_producer_id, ((WRITE, TRANSACTIONAL_ID), (IDEMPOTENT_WRITE, CLUSTER), (WRITE, TOPIC))),
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (
        Each(
            DESCRIBE,
            TOPIC,
            "topics",
            Refuse("topics", _denied_epochs),
            name="topic",
            unless=CLUSTER_ACTION,
        ),
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        By(_add_partitions_to_txn, ((WRITE, TRANSACTIONAL_ID), (WRITE, TOPIC), (CLUSTER_ACTION, CLUSTER))),
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: (_TRANSACTION, *_group(ApiKey.ADD_OFFSETS_TO_TXN)),
    ApiKey.END_TXN: (_TRANSACTION._replace(refuse=_of_shards(ApiKey.END_TXN)),),
    ApiKey.WRITE_TXN_MARKERS: (By(_write_txn_markers, ((ALTER, CLUSTER), (CLUSTER_ACTION, CLUSTER))),),
    ApiKey.TXN_OFFSET_COMMIT: (
        _TRANSACTION._replace(refuse=_of_shards(ApiKey.TXN_OFFSET_COMMIT)),
        *_group(ApiKey.TXN_OFFSET_COMMIT),
        Each(
            READ,
            TOPIC,
            "topics",
            Refuse(
                "topics",
                _commits(
                    txn_offset_commit.TxnOffsetCommitResponseTopic,
                    txn_offset_commit.TxnOffsetCommitResponsePartition,
                ),
            ),
        ),
    ),
    ApiKey.DESCRIBE_ACLS: _cluster(DESCRIBE, _of_controller(ApiKey.DESCRIBE_ACLS)),
    ApiKey.CREATE_ACLS: _cluster(ALTER, _refused_creations),
    ApiKey.DELETE_ACLS: _cluster(ALTER, _refused_filters),
    ApiKey.DESCRIBE_CONFIGS: (_configs(DESCRIBE_CONFIGS, "results", _described),),
    ApiKey.ALTER_CONFIGS: (_configs(ALTER_CONFIGS, "responses", _altered),),
    ApiKey.ALTER_REPLICA_LOG_DIRS: _cluster(ALTER, _refused_log_dirs),
    ApiKey.DESCRIBE_LOG_DIRS: _cluster(DESCRIBE, _with_code(ApiKey.DESCRIBE_LOG_DIRS)),
    ApiKey.SASL_AUTHENTICATE: (),
    ApiKey.CREATE_PARTITIONS: (
        Each(
            ALTER,
            TOPIC,
            "topics",
            Refuse(
                "results",
                lambda topic, code: create_partitions.CreatePartitionsTopicResult(
                    topic.name, code, _MESSAGES[code]
                ),
            ),
        ),
    ),
    # Everyone may use their own tokens. The ACLs open those of others, except for renewal and expiry.
    ApiKey.CREATE_DELEGATION_TOKEN: (InHandler(AclOperation.CREATE_TOKENS, ResourceType.USER),),
    ApiKey.RENEW_DELEGATION_TOKEN: (),
    ApiKey.EXPIRE_DELEGATION_TOKEN: (),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: (
        InHandler(DESCRIBE, ResourceType.DELEGATION_TOKEN),
        InHandler(AclOperation.DESCRIBE_TOKENS, ResourceType.USER),
    ),
    ApiKey.DELETE_GROUPS: (
        Each(DELETE, GROUP, "groups_names", Refuse("results", refused_deletion), name=None),
    ),
    ApiKey.ELECT_LEADERS: _cluster(ALTER, _of_controller(ApiKey.ELECT_LEADERS)),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (_configs(ALTER_CONFIGS, "responses", _altered_incrementally),),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _cluster(ALTER, _refused_reassignments),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _cluster(
        DESCRIBE, _of_controller(ApiKey.LIST_PARTITION_REASSIGNMENTS)
    ),
    ApiKey.OFFSET_DELETE: (
        Whole(DELETE, GROUP, _of_shards(ApiKey.OFFSET_DELETE), lambda message: message.group_id),
        Each(
            READ,
            TOPIC,
            "topics",
            Refuse(
                "topics",
                _partitions(
                    offset_delete.OffsetDeleteResponseTopic, offset_delete.OffsetDeleteResponsePartition
                ),
            ),
        ),
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _cluster(DESCRIBE_CONFIGS, _of_controller(ApiKey.DESCRIBE_CLIENT_QUOTAS)),
    ApiKey.ALTER_CLIENT_QUOTAS: _cluster(ALTER_CONFIGS, _of_controller(ApiKey.ALTER_CLIENT_QUOTAS)),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _cluster(
        DESCRIBE, _of_controller(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS)
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _cluster(ALTER, _refused_users),
    ApiKey.DESCRIBE_QUORUM: _cluster(DESCRIBE, _of_controller(ApiKey.DESCRIBE_QUORUM)),
    ApiKey.UPDATE_FEATURES: _cluster(ALTER, _of_controller(ApiKey.UPDATE_FEATURES)),
    ApiKey.DESCRIBE_CLUSTER: (By(_describe_cluster, ((DESCRIBE, CLUSTER),)),),
    ApiKey.DESCRIBE_PRODUCERS: (Each(READ, TOPIC, "topics", Refuse("topics", _denied_producers)),),
    ApiKey.UNREGISTER_BROKER: _cluster(ALTER, _of_controller(ApiKey.UNREGISTER_BROKER)),
    ApiKey.DESCRIBE_TRANSACTIONS: (
        By(_describe_transactions, ((DESCRIBE, TRANSACTIONAL_ID), (DESCRIBE, TOPIC))),
    ),
    ApiKey.LIST_TRANSACTIONS: (Shown(DESCRIBE, TRANSACTIONAL_ID, "transaction_states", "transactional_id"),),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (
        *_group(ApiKey.CONSUMER_GROUP_HEARTBEAT),
        By(partial(_heartbeat_topics, ApiKey.CONSUMER_GROUP_HEARTBEAT), ((DESCRIBE, TOPIC),)),
        By(_tell_topics, ((DESCRIBE, TOPIC),)),
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (By(_describe_consumer_groups, ((DESCRIBE, GROUP), (DESCRIBE, TOPIC))),),
    ApiKey.SHARE_GROUP_HEARTBEAT: (
        *_group(ApiKey.SHARE_GROUP_HEARTBEAT),
        By(partial(_heartbeat_topics, ApiKey.SHARE_GROUP_HEARTBEAT), ((DESCRIBE, TOPIC),)),
    ),
    ApiKey.SHARE_GROUP_DESCRIBE: (By(_describe_share_groups, ((DESCRIBE, GROUP), (DESCRIBE, TOPIC))),),
    ApiKey.STREAMS_GROUP_HEARTBEAT: (
        *_group(ApiKey.STREAMS_GROUP_HEARTBEAT),
        By(_streams_topics, ((DESCRIBE, TOPIC),)),
        InHandler(CREATE, CLUSTER),
        InHandler(CREATE, TOPIC),
    ),
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: (
        Whole(
            READ,
            GROUP,
            _with_code(ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE),
            lambda message: message.group_id,
        ),
    ),
    ApiKey.STREAMS_GROUP_DESCRIBE: (By(_describe_streams_groups, ((DESCRIBE, GROUP), (DESCRIBE, TOPIC))),),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (
        By(_describe_share_offsets, ((DESCRIBE, GROUP), (DESCRIBE, TOPIC))),
    ),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: (
        *_group(ApiKey.ALTER_SHARE_GROUP_OFFSETS),
        Each(READ, TOPIC, "topics", Refuse("responses", _denied_share_reset), name="topic_name"),
    ),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: (
        Whole(DELETE, GROUP, _of_shards(ApiKey.DELETE_SHARE_GROUP_OFFSETS), lambda message: message.group_id),
        Each(READ, TOPIC, "topics", Refuse("responses", _denied_share_deletion), name="topic_name"),
    ),
    # Everyone may push metrics, as in Kafka: the subscriptions say whose are wanted.
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: (),
    ApiKey.PUSH_TELEMETRY: (),
    ApiKey.LIST_CONFIG_RESOURCES: _cluster(DESCRIBE_CONFIGS, _with_code(ApiKey.LIST_CONFIG_RESOURCES)),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (By(_describe_topic_partitions, ((DESCRIBE, TOPIC),)),),
    ApiKey.SHARE_FETCH: (
        Whole(READ, GROUP, _with_code(ApiKey.SHARE_FETCH), lambda message: message.group_id),
        InHandler(READ, TOPIC),
    ),
    ApiKey.SHARE_ACKNOWLEDGE: (
        Whole(READ, GROUP, _with_code(ApiKey.SHARE_ACKNOWLEDGE), lambda message: message.group_id),
        InHandler(READ, TOPIC),
    ),
}
