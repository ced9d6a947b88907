"""The responses to requests that no coordinator can answer, in the form of each API.

As in Kafka, some responses do not state the real error. While a group is being loaded, a heartbeat succeeds,
and a SyncGroup makes the member join again, because clients treat other errors there as final.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from tidelog.model.errors import ErrorCode
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_share_group_offsets,
    consumer_group_describe,
    consumer_group_heartbeat,
    delete_groups,
    delete_share_group_offsets,
    describe_groups,
    describe_share_group_offsets,
    describe_transactions,
    end_txn,
    heartbeat,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_transactions,
    offset_commit,
    offset_delete,
    offset_fetch,
    share_group_describe,
    share_group_heartbeat,
    streams_group_describe,
    streams_group_heartbeat,
    sync_group,
    txn_offset_commit,
)
from tidelog.wire.schema import Message

_LOADING: Final = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
_NO_NULL_PROTOCOL_BEFORE: Final = 7
_FIRST_OFFSET_FETCH_WITH_GROUPS: Final = 8
_FIRST_OFFSET_FETCH_WITH_ERROR: Final = 2
_FIRST_ADD_PARTITIONS_WITH_TRANSACTIONS: Final = 4
_NO_OFFSET: Final = -1


def refuse(api_key: int, version: int, body: bytes, error: ErrorCode) -> Message:
    """Returns the response to the request in `body`. Raises MalformedMessageError."""
    request = codec.request_decoder(api_key, version)(body, 0)[0]
    return refuse_message(api_key, version, request, error)


def refuse_message(api_key: int, version: int, request: Any, error: ErrorCode) -> Message:
    """Returns the response to a decoded request of one of the APIs below."""
    return _REFUSALS[api_key](request, version, error)


def _join_group(
    request: join_group.JoinGroupRequest, version: int, error: ErrorCode
) -> join_group.JoinGroupResponse:
    return join_group.JoinGroupResponse(
        error_code=error,
        protocol_name="" if version < _NO_NULL_PROTOCOL_BEFORE else None,
    )


def _sync_group(
    request: sync_group.SyncGroupRequest, version: int, error: ErrorCode
) -> sync_group.SyncGroupResponse:
    told = ErrorCode.REBALANCE_IN_PROGRESS if error is _LOADING else error
    return sync_group.SyncGroupResponse(error_code=told)


def _heartbeat(
    request: heartbeat.HeartbeatRequest, version: int, error: ErrorCode
) -> heartbeat.HeartbeatResponse:
    return heartbeat.HeartbeatResponse(error_code=ErrorCode.NONE if error is _LOADING else error)


def _leave_group(
    request: leave_group.LeaveGroupRequest, version: int, error: ErrorCode
) -> leave_group.LeaveGroupResponse:
    return leave_group.LeaveGroupResponse(error_code=error)


def _offset_commit(
    request: offset_commit.OffsetCommitRequest, version: int, error: ErrorCode
) -> offset_commit.OffsetCommitResponse:
    return offset_commit.OffsetCommitResponse(
        topics=[refused_commit(topic, error) for topic in request.topics]
    )


def refused_commit(
    topic: offset_commit.OffsetCommitRequestTopic, error: ErrorCode
) -> offset_commit.OffsetCommitResponseTopic:
    refused = offset_commit.OffsetCommitResponsePartition
    return offset_commit.OffsetCommitResponseTopic(
        topic.name, topic.topic_id, [refused(part.partition_index, error) for part in topic.partitions]
    )


def _txn_offset_commit(
    request: txn_offset_commit.TxnOffsetCommitRequest, version: int, error: ErrorCode
) -> txn_offset_commit.TxnOffsetCommitResponse:
    return txn_offset_commit.TxnOffsetCommitResponse(
        topics=[refused_transactional_commit(topic, error) for topic in request.topics]
    )


def refused_transactional_commit(
    topic: txn_offset_commit.TxnOffsetCommitRequestTopic, error: ErrorCode
) -> txn_offset_commit.TxnOffsetCommitResponseTopic:
    refused = txn_offset_commit.TxnOffsetCommitResponsePartition
    return txn_offset_commit.TxnOffsetCommitResponseTopic(
        topic.name, topic.topic_id, [refused(part.partition_index, error) for part in topic.partitions]
    )


def _offset_fetch(
    request: offset_fetch.OffsetFetchRequest, version: int, error: ErrorCode
) -> offset_fetch.OffsetFetchResponse:
    if version >= _FIRST_OFFSET_FETCH_WITH_GROUPS:
        return offset_fetch.OffsetFetchResponse(
            groups=[refused_offsets(group, error) for group in request.groups]
        )
    if version >= _FIRST_OFFSET_FETCH_WITH_ERROR:
        return offset_fetch.OffsetFetchResponse(error_code=error)
    return offset_fetch.OffsetFetchResponse(
        topics=[
            offset_fetch.OffsetFetchResponseTopic(
                topic.name,
                [
                    offset_fetch.OffsetFetchResponsePartition(index, _NO_OFFSET, error_code=error)
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ]
    )


def refused_offsets(
    group: offset_fetch.OffsetFetchRequestGroup, error: ErrorCode
) -> offset_fetch.OffsetFetchResponseGroup:
    return offset_fetch.OffsetFetchResponseGroup(group.group_id, error_code=error)


def _offset_delete(
    request: offset_delete.OffsetDeleteRequest, version: int, error: ErrorCode
) -> offset_delete.OffsetDeleteResponse:
    return offset_delete.OffsetDeleteResponse(error_code=error)


def _describe_groups(
    request: describe_groups.DescribeGroupsRequest, version: int, error: ErrorCode
) -> describe_groups.DescribeGroupsResponse:
    return describe_groups.DescribeGroupsResponse(
        groups=[refused_group(group_id, error) for group_id in request.groups]
    )


def refused_group(group_id: str, error: ErrorCode) -> describe_groups.DescribedGroup:
    return describe_groups.DescribedGroup(error_code=error, group_id=group_id)


def _delete_groups(
    request: delete_groups.DeleteGroupsRequest, version: int, error: ErrorCode
) -> delete_groups.DeleteGroupsResponse:
    return delete_groups.DeleteGroupsResponse(
        results=[refused_deletion(group_id, error) for group_id in request.groups_names]
    )


def refused_deletion(group_id: str, error: ErrorCode) -> delete_groups.DeletableGroupResult:
    return delete_groups.DeletableGroupResult(group_id, error)


def _list_groups(
    request: list_groups.ListGroupsRequest, version: int, error: ErrorCode
) -> list_groups.ListGroupsResponse:
    return list_groups.ListGroupsResponse(error_code=error)


def _consumer_group_heartbeat(
    request: consumer_group_heartbeat.ConsumerGroupHeartbeatRequest, version: int, error: ErrorCode
) -> consumer_group_heartbeat.ConsumerGroupHeartbeatResponse:
    return consumer_group_heartbeat.ConsumerGroupHeartbeatResponse(error_code=error)


def _consumer_group_describe(
    request: consumer_group_describe.ConsumerGroupDescribeRequest, version: int, error: ErrorCode
) -> consumer_group_describe.ConsumerGroupDescribeResponse:
    return consumer_group_describe.ConsumerGroupDescribeResponse(
        groups=[refused_consumer_group(group_id, error) for group_id in request.group_ids]
    )


def refused_consumer_group(group_id: str, error: ErrorCode) -> consumer_group_describe.DescribedGroup:
    return consumer_group_describe.DescribedGroup(error_code=error, group_id=group_id)


def _share_group_heartbeat(
    request: share_group_heartbeat.ShareGroupHeartbeatRequest, version: int, error: ErrorCode
) -> share_group_heartbeat.ShareGroupHeartbeatResponse:
    return share_group_heartbeat.ShareGroupHeartbeatResponse(error_code=error)


def _share_group_describe(
    request: share_group_describe.ShareGroupDescribeRequest, version: int, error: ErrorCode
) -> share_group_describe.ShareGroupDescribeResponse:
    return share_group_describe.ShareGroupDescribeResponse(
        groups=[refused_share_group(group_id, error) for group_id in request.group_ids]
    )


def refused_share_group(group_id: str, error: ErrorCode) -> share_group_describe.DescribedGroup:
    return share_group_describe.DescribedGroup(error_code=error, group_id=group_id)


def _streams_group_heartbeat(
    request: streams_group_heartbeat.StreamsGroupHeartbeatRequest, version: int, error: ErrorCode
) -> streams_group_heartbeat.StreamsGroupHeartbeatResponse:
    return streams_group_heartbeat.StreamsGroupHeartbeatResponse(error_code=error)


def _streams_group_describe(
    request: streams_group_describe.StreamsGroupDescribeRequest, version: int, error: ErrorCode
) -> streams_group_describe.StreamsGroupDescribeResponse:
    return streams_group_describe.StreamsGroupDescribeResponse(
        groups=[refused_streams_group(group_id, error) for group_id in request.group_ids]
    )


def refused_streams_group(group_id: str, error: ErrorCode) -> streams_group_describe.DescribedGroup:
    return streams_group_describe.DescribedGroup(error_code=error, group_id=group_id)


def _describe_share_group_offsets(
    request: describe_share_group_offsets.DescribeShareGroupOffsetsRequest, version: int, error: ErrorCode
) -> describe_share_group_offsets.DescribeShareGroupOffsetsResponse:
    return describe_share_group_offsets.DescribeShareGroupOffsetsResponse(
        groups=[refused_share_offsets(group, error) for group in request.groups]
    )


def refused_share_offsets(
    group: describe_share_group_offsets.DescribeShareGroupOffsetsRequestGroup, error: ErrorCode
) -> describe_share_group_offsets.DescribeShareGroupOffsetsResponseGroup:
    return describe_share_group_offsets.DescribeShareGroupOffsetsResponseGroup(
        group.group_id, error_code=error
    )


def _alter_share_group_offsets(
    request: alter_share_group_offsets.AlterShareGroupOffsetsRequest, version: int, error: ErrorCode
) -> alter_share_group_offsets.AlterShareGroupOffsetsResponse:
    return alter_share_group_offsets.AlterShareGroupOffsetsResponse(error_code=error)


def _delete_share_group_offsets(
    request: delete_share_group_offsets.DeleteShareGroupOffsetsRequest, version: int, error: ErrorCode
) -> delete_share_group_offsets.DeleteShareGroupOffsetsResponse:
    return delete_share_group_offsets.DeleteShareGroupOffsetsResponse(error_code=error)


def _init_producer_id(
    request: init_producer_id.InitProducerIdRequest, version: int, error: ErrorCode
) -> init_producer_id.InitProducerIdResponse:
    return init_producer_id.InitProducerIdResponse(error_code=error, producer_id=-1, producer_epoch=-1)


def _add_partitions_to_txn(
    request: add_partitions_to_txn.AddPartitionsToTxnRequest, version: int, error: ErrorCode
) -> add_partitions_to_txn.AddPartitionsToTxnResponse:
    if version >= _FIRST_ADD_PARTITIONS_WITH_TRANSACTIONS:
        return add_partitions_to_txn.AddPartitionsToTxnResponse(
            results_by_transaction=[
                refused_transaction(transaction, error) for transaction in request.transactions
            ]
        )
    return add_partitions_to_txn.AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=_refused_partitions(request.v3_and_below_topics, error)
    )


def refused_transaction(
    transaction: add_partitions_to_txn.AddPartitionsToTxnTransaction, error: ErrorCode
) -> add_partitions_to_txn.AddPartitionsToTxnResult:
    return add_partitions_to_txn.AddPartitionsToTxnResult(
        transaction.transactional_id, _refused_partitions(transaction.topics, error)
    )


def _refused_partitions(
    topics: Iterable[add_partitions_to_txn.AddPartitionsToTxnTopic], error: ErrorCode
) -> list[add_partitions_to_txn.AddPartitionsToTxnTopicResult]:
    return [
        add_partitions_to_txn.AddPartitionsToTxnTopicResult(
            topic.name,
            [
                add_partitions_to_txn.AddPartitionsToTxnPartitionResult(index, error)
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


def _add_offsets_to_txn(
    request: add_offsets_to_txn.AddOffsetsToTxnRequest, version: int, error: ErrorCode
) -> add_offsets_to_txn.AddOffsetsToTxnResponse:
    return add_offsets_to_txn.AddOffsetsToTxnResponse(error_code=error)


def _end_txn(request: end_txn.EndTxnRequest, version: int, error: ErrorCode) -> end_txn.EndTxnResponse:
    return end_txn.EndTxnResponse(error_code=error)


def _describe_transactions(
    request: describe_transactions.DescribeTransactionsRequest, version: int, error: ErrorCode
) -> describe_transactions.DescribeTransactionsResponse:
    return describe_transactions.DescribeTransactionsResponse(
        transaction_states=[
            refused_state(transactional_id, error) for transactional_id in request.transactional_ids
        ]
    )


def refused_state(transactional_id: str, error: ErrorCode) -> describe_transactions.TransactionState:
    return describe_transactions.TransactionState(error_code=error, transactional_id=transactional_id)


def _list_transactions(
    request: list_transactions.ListTransactionsRequest, version: int, error: ErrorCode
) -> list_transactions.ListTransactionsResponse:
    return list_transactions.ListTransactionsResponse(error_code=error)


# `Any`: each function takes the request of its API.
_REFUSALS: Final[dict[int, Callable[[Any, int, ErrorCode], Message]]] = {
    ApiKey.JOIN_GROUP: _join_group,
    ApiKey.SYNC_GROUP: _sync_group,
    ApiKey.HEARTBEAT: _heartbeat,
    ApiKey.LEAVE_GROUP: _leave_group,
    ApiKey.OFFSET_COMMIT: _offset_commit,
    ApiKey.TXN_OFFSET_COMMIT: _txn_offset_commit,
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.OFFSET_DELETE: _offset_delete,
    ApiKey.DESCRIBE_GROUPS: _describe_groups,
    ApiKey.DELETE_GROUPS: _delete_groups,
    ApiKey.LIST_GROUPS: _list_groups,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _consumer_group_heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: _consumer_group_describe,
    ApiKey.SHARE_GROUP_HEARTBEAT: _share_group_heartbeat,
    ApiKey.SHARE_GROUP_DESCRIBE: _share_group_describe,
    ApiKey.STREAMS_GROUP_HEARTBEAT: _streams_group_heartbeat,
    ApiKey.STREAMS_GROUP_DESCRIBE: _streams_group_describe,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: _describe_share_group_offsets,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: _alter_share_group_offsets,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: _delete_share_group_offsets,
    ApiKey.INIT_PRODUCER_ID: _init_producer_id,
    ApiKey.ADD_PARTITIONS_TO_TXN: _add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: _add_offsets_to_txn,
    ApiKey.END_TXN: _end_txn,
    ApiKey.DESCRIBE_TRANSACTIONS: _describe_transactions,
    ApiKey.LIST_TRANSACTIONS: _list_transactions,
}
