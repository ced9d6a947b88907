"""The responses to transaction requests: errors in each API's form, and requests that wait for markers.

A request that arrives while a transaction's markers are written waits for up to a second. Nearly all ends
take less time than a client waits before a retry. (Kafka answers CONCURRENT_TRANSACTIONS at once.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from tidelog.group_coordinator.shard_core import CancelTimer, SetTimer, ShardDecision, ShardRequest
from tidelog.group_coordinator.transactions import joining, queries
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from tidelog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from tidelog.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from tidelog.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse

TransactionRequest: TypeAlias = (
    InitProducerIdRequest
    | AddPartitionsToTxnRequest
    | AddOffsetsToTxnRequest
    | EndTxnRequest
    | DescribeTransactionsRequest
    | ListTransactionsRequest
)
TransactionResponse: TypeAlias = (
    InitProducerIdResponse
    | AddPartitionsToTxnResponse
    | AddOffsetsToTxnResponse
    | EndTxnResponse
    | DescribeTransactionsResponse
    | ListTransactionsResponse
)

WAIT_MS: Final = 1_000
MAX_WAITING: Final = 4
"""The maximum number of waiting requests of one transactional id. Further ones are answered at once."""
_KNOWS_FENCED_FROM: Final = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}
"""The versions from which clients know PRODUCER_FENCED (KIP-588)."""


def refusal(request: ShardRequest[TransactionRequest], error: ErrorCode) -> TransactionResponse:
    """Returns the response that reports `error`; with ErrorCode.NONE, a response without other content.

    Clients that do not know PRODUCER_FENCED get INVALID_PRODUCER_EPOCH, as in Kafka's `KafkaApis`.
    """
    if error is ErrorCode.PRODUCER_FENCED and request.api_version < _KNOWS_FENCED_FROM.get(
        ApiKey(request.api_key), 0
    ):
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    message = request.message
    if isinstance(message, AddPartitionsToTxnRequest):
        return _partitions_refused(message, request.api_version, error)
    if isinstance(message, DescribeTransactionsRequest):
        return queries.describe_refused(message, error)
    if isinstance(message, ListTransactionsRequest):
        return ListTransactionsResponse(error_code=error)
    if isinstance(message, InitProducerIdRequest):
        return InitProducerIdResponse(error_code=error, producer_epoch=-1)
    if isinstance(message, EndTxnRequest):
        return EndTxnResponse(error_code=error)
    return AddOffsetsToTxnResponse(error_code=error)


def _partitions_refused(
    message: AddPartitionsToTxnRequest, api_version: int, error: ErrorCode
) -> AddPartitionsToTxnResponse:
    if api_version < joining.FIRST_BATCHED_VERSION:
        topics = message.v3_and_below_topics
        errors = dict.fromkeys(joining.partitions_of(topics), error)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=joining.topic_results(topics, errors))
    return joining.batched_response(
        [
            joining.result_of(asked, dict.fromkeys(joining.partitions_of(asked.topics), error))
            for asked in message.transactions
        ]
    )


# -- requests that wait


class WaitTimer(NamedTuple):
    """The key of the timer that ends the wait of a transactional id's requests."""

    transactional_id: str


def id_to_wait_for(request: ShardRequest[TransactionRequest], response: TransactionResponse) -> str | None:
    """Returns the transactional id if `response` is CONCURRENT_TRANSACTIONS, so that the request may wait."""
    message = request.message
    error: int = ErrorCode.NONE
    transactional_id: str | None = None
    if isinstance(message, AddPartitionsToTxnRequest):
        assert isinstance(response, AddPartitionsToTxnResponse)
        if request.api_version < joining.FIRST_BATCHED_VERSION:
            transactional_id = message.v3_and_below_transactional_id
            error = _first_error(response.results_by_topic_v3_and_below)
        elif len(message.transactions) == 1 and not message.transactions[0].verify_only:
            transactional_id = message.transactions[0].transactional_id
            error = _first_error(response.results_by_transaction[0].topic_results)
    elif isinstance(response, InitProducerIdResponse | AddOffsetsToTxnResponse | EndTxnResponse):
        assert isinstance(message, InitProducerIdRequest | AddOffsetsToTxnRequest | EndTxnRequest)
        error, transactional_id = response.error_code, message.transactional_id
    return transactional_id if error == ErrorCode.CONCURRENT_TRANSACTIONS else None


def _first_error(topics: Iterable[AddPartitionsToTxnTopicResult]) -> int:
    """Returns the error of the first partition: an error of a transaction is the same for all partitions."""
    for topic in topics:
        for partition in topic.results_by_partition:
            return partition.partition_error_code
    return ErrorCode.NONE


class Waiting:
    """The waiting requests by transactional id, each with its response if the wait takes too long."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[tuple[ShardRequest[TransactionRequest], TransactionResponse]]] = {}

    def add(
        self,
        transactional_id: str,
        request: ShardRequest[TransactionRequest],
        response: TransactionResponse,
        decision: ShardDecision,
    ) -> bool:
        """Adds a request. Returns False if too many requests of this id are waiting."""
        waiting = self._waiting.setdefault(transactional_id, [])
        if len(waiting) >= MAX_WAITING:
            return False
        if not waiting:
            decision.timers.append(SetTimer(WaitTimer(transactional_id), WAIT_MS))
        waiting.append((request, response))
        return True

    def take(self, transactional_id: str, decision: ShardDecision) -> list[ShardRequest[TransactionRequest]]:
        """Removes and returns the requests, to be decided again because the markers are written."""
        waiting = self._waiting.pop(transactional_id, [])
        if waiting:
            decision.timers.append(CancelTimer(WaitTimer(transactional_id)))
        return [request for request, _ in waiting]

    def overdue(
        self, transactional_id: str
    ) -> list[tuple[ShardRequest[TransactionRequest], TransactionResponse]]:
        """Removes and returns the requests with their responses, because the wait took too long."""
        return self._waiting.pop(transactional_id, [])

    def take_all(self) -> list[ShardRequest[TransactionRequest]]:
        """Removes and returns all requests."""
        requests = [request for waiting in self._waiting.values() for request, _ in waiting]
        self._waiting.clear()
        return requests
