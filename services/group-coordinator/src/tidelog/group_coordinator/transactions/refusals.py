"""An error as each transaction API says it; ErrorCode.NONE where its response has nothing else to say.

Versions that don't know PRODUCER_FENCED get INVALID_PRODUCER_EPOCH (KIP-588), as in Kafka's `KafkaApis`.
"""

from __future__ import annotations

from typing import Any, Final

from tidelog.group_coordinator.shard_core import ShardRequest
from tidelog.group_coordinator.transactions import joining, queries
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.codec import response_class
from tidelog.wire.messages.add_partitions_to_txn import AddPartitionsToTxnResponse

_KNOWS_FENCED_FROM: Final = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}


def refusal(request: ShardRequest, error: ErrorCode) -> Any:
    """The response that says `error`."""
    if error is ErrorCode.PRODUCER_FENCED and request.api_version < _KNOWS_FENCED_FROM.get(
        ApiKey(request.api_key), 0
    ):
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    message = request.message
    if request.api_key == ApiKey.ADD_PARTITIONS_TO_TXN:
        return _partitions_refused(request, error)
    if request.api_key == ApiKey.DESCRIBE_TRANSACTIONS:
        return queries.describe_refused(message, error)
    response = response_class(request.api_key)()
    response.error_code = int(error)  # type: ignore[attr-defined]
    if request.api_key == ApiKey.INIT_PRODUCER_ID:
        response.producer_epoch = -1  # type: ignore[attr-defined]
    return response


def _partitions_refused(request: ShardRequest, error: ErrorCode) -> AddPartitionsToTxnResponse:
    message = request.message
    if request.api_version < joining.FIRST_BATCHED_VERSION:
        topics = message.v3_and_below_topics
        errors = dict.fromkeys(joining.partitions_of(topics), error)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=joining.topic_results(topics, errors))
    return joining.batched_response(
        [
            joining.result_of(asked, dict.fromkeys(joining.partitions_of(asked.topics), error))
            for asked in message.transactions
        ]
    )
