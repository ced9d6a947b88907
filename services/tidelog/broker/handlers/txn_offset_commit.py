"""TxnOffsetCommit v0 to v6: offsets that become valid when their transaction is committed. The group's
coordinator answers.

Before the first commit of a transaction, the broker asks the transaction's coordinator whether the group's
partition belongs to the transaction; otherwise, no marker would ever end the offsets. From v5 on, the
question also adds the partition, because the client no longer sends AddOffsetsToTxn (KIP-890). If the
transaction's coordinator cannot answer, the client gets COORDINATOR_LOAD_IN_PROGRESS, which all clients
retry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidelog.broker.coordination.batched import WholeRequest
from tidelog.broker.coordination.coordination import client_call, forward_body
from tidelog.broker.requests.error_responses import error_response
from tidelog.broker.requests.request import PARKED
from tidelog.model.coordinator_shards import ShardKind
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from tidelog.broker.cluster.current_settings import CurrentSettings
    from tidelog.broker.cluster.metadata_view import MetadataView
    from tidelog.broker.coordination.coordination import Coordination
    from tidelog.broker.hosting.hosted_partitions import HostedPartitions
    from tidelog.broker.requests.request import Answer, RequestContext
    from tidelog.wire.messages.txn_offset_commit import TxnOffsetCommitRequest

FIRST_VERSION_WITH_ABORTABLE: Final = 4
FIRST_VERSION_THAT_ADDS: Final = 5
_FOR_NOW: Final = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)


class TxnOffsetCommitHandler:
    """Answers TxnOffsetCommit."""

    def __init__(
        self,
        settings: CurrentSettings,
        metadata: MetadataView,
        hosted: HostedPartitions,
        coordination: Coordination,
    ) -> None:
        self._settings = settings
        self._metadata = metadata
        self._hosted = hosted
        self._coordination = coordination

    def handle(self, request: WholeRequest, context: RequestContext) -> Answer:
        message, body = request.message, request.body
        refused = self._refused_at_once(message)
        if refused:
            return error_response(ApiKey.TXN_OFFSET_COMMIT, context.api_version, message, refused)
        adds = context.api_version >= FIRST_VERSION_THAT_ADDS
        coordination = self._coordination
        shard = coordination.shard_of(ShardKind.GROUP, message.group_id)
        replica = None if shard is None else self._hosted.replicas.get(shard.topic_partition)
        is_asked_for = adds or self._settings.broker.transaction_partition_verification_enable
        if (
            shard is None
            or replica is None
            or not is_asked_for
            or coordination.refusal(shard) is ErrorCode.NOT_COORDINATOR
            or replica.core.producers.has_open_transaction(message.producer_id, message.producer_epoch)
        ):
            return forward_body(self._coordination, ShardKind.GROUP, message.group_id, body, context)
        call = client_call(body, context)
        context.park(on_abandoned=call.abandon)

        def on_result(error: ErrorCode) -> None:
            error = coordination.pass_on(shard, call) if not error else _told(error, context.api_version)
            if error:
                call.answered(None, error)

        coordination.verification.add_one(
            message.transactional_id,
            message.producer_id,
            message.producer_epoch,
            shard.topic_partition,
            verify_only=not adds,
            on_result=on_result,
        )
        return PARKED

    def _refused_at_once(self, message: TxnOffsetCommitRequest) -> ErrorCode:
        """Returns why the transaction need not be asked about, or NONE. Topics that exist beside unknown ones
        are committed; the group's coordinator refuses the others.
        """
        if not message.group_id:
            return ErrorCode.INVALID_GROUP_ID
        known = self._metadata.topics
        if message.topics and all(topic.name and topic.name not in known for topic in message.topics):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE


def _told(error: ErrorCode, version: int) -> ErrorCode:
    """Returns the error of the transaction's coordinator as clients know it."""
    if error in _FOR_NOW:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if error == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error == ErrorCode.TRANSACTION_ABORTABLE and version < FIRST_VERSION_WITH_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    return error
