"""The responses to transaction requests: errors in each API's form, descriptions, lists, and waits.

A request that arrives while a transaction's markers are written waits for up to a second. Nearly all ends
take less time than a client waits before a retry. (Kafka answers CONCURRENT_TRANSACTIONS at once.)
DescribeTransactions and ListTransactions are KIP-664 and KIP-994.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from tidelog.group_coordinator.groups.consumer.topic_regex import TopicRegex
from tidelog.group_coordinator.shard_core import (
    CancelTimer,
    SetTimer,
    ShardDecision,
    ShardRequest,
    described_within_bound,
)
from tidelog.group_coordinator.transactions.decisions import (
    FIRST_BATCHED_VERSION,
    batched_response,
    partitions_of,
    result_of,
    topic_results,
)
from tidelog.group_coordinator.transactions.transaction import (
    STATUS_BY_KAFKA_NAME,
    TransactionMetadata,
    by_topic,
)
from tidelog.kernel.instants import WallMs
from tidelog.kernel.steps import Steps
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages import describe_transactions as describing
from tidelog.wire.messages import list_transactions as listing
from tidelog.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from tidelog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from tidelog.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
)
from tidelog.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse

MAX_PATTERN_WORK: Final = 3_000_000
"""The most work of matching a pattern with the transactional ids of a shard (`TopicRegex.work`), 45 ms in the
worst case. A pattern like `orders-.*` has room for 6,000 ids of 30 characters.
"""


def describe_transactions(
    transactions: Mapping[str, TransactionMetadata], message: DescribeTransactionsRequest
) -> Steps[DescribeTransactionsResponse]:
    return described_within_bound(
        message.transactional_ids,
        lambda transactional_id: _description(transactional_id, transactions.get(transactional_id)),
        _refused,
        lambda states: DescribeTransactionsResponse(transaction_states=states),
    )


def _refused(transactional_id: str, error: ErrorCode) -> describing.TransactionState:
    return describing.TransactionState(error_code=error, transactional_id=transactional_id)


def _description(
    transactional_id: str, transaction: TransactionMetadata | None
) -> Steps[describing.TransactionState]:
    description = describing.TransactionState(transactional_id=transactional_id)
    if not transactional_id:
        description.error_code = ErrorCode.INVALID_REQUEST
    elif transaction is None:
        description.error_code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    else:
        description.transaction_state = transaction.status.kafka_name
        description.transaction_timeout_ms = transaction.timeout_ms
        description.transaction_start_time_ms = transaction.start_ms
        description.producer_id = transaction.producer_id
        description.producer_epoch = transaction.producer_epoch
        for topic, partitions in by_topic(transaction.partitions).items():
            description.topics.append(TopicData(topic, partitions))
            yield
    return description


def refuse_descriptions(
    message: DescribeTransactionsRequest, error: ErrorCode
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[
            _refused(transactional_id, error) for transactional_id in message.transactional_ids
        ]
    )


def list_transactions(
    transactions: Mapping[str, TransactionMetadata], message: ListTransactionsRequest, now_ms: WallMs
) -> Steps[ListTransactionsResponse]:
    """Lists the transactions that match the filters at the first step. The response names the unknown states
    among these.

    Deviation: INVALID_REGULAR_EXPRESSION if the pattern might take more than MAX_PATTERN_WORK.
    """
    unknown = [name for name in message.state_filters if name not in STATUS_BY_KAFKA_NAME]
    statuses = {STATUS_BY_KAFKA_NAME[name] for name in message.state_filters if name not in unknown}
    producer_ids = frozenset(message.producer_id_filters)

    def is_wanted(transaction: TransactionMetadata) -> bool:
        return (
            (not message.state_filters or transaction.status in statuses)
            and (not producer_ids or transaction.producer_id in producer_ids)
            and (message.duration_filter < 0 or now_ms - transaction.start_ms > message.duration_filter)
        )

    pattern = _compiled(message.transactional_id_pattern) if message.transactional_id_pattern else None
    if isinstance(pattern, ErrorCode):
        return ListTransactionsResponse(error_code=pattern)
    wanted = []
    work = 0
    for name, transaction in list(transactions.items()):
        if is_wanted(transaction):
            wanted.append((name, transaction))
            work += 0 if pattern is None else pattern.work(len(name))
        yield
    if work > MAX_PATTERN_WORK:
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    response = ListTransactionsResponse(unknown_state_filters=unknown)
    for name, transaction in wanted:
        if pattern is None or pattern.matches(name):
            response.transaction_states.append(
                listing.TransactionState(name, transaction.producer_id, transaction.status.kafka_name)
            )
        yield
    return response


@lru_cache(maxsize=1)
def _compiled(expression: str) -> TopicRegex | ErrorCode:
    """Returns the compiled pattern, or the error. All shards of a process get it one after the other."""
    try:
        return TopicRegex(expression)
    except KafkaError as error:
        return error.code


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
        return refuse_descriptions(message, error)
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
    if api_version < FIRST_BATCHED_VERSION:
        topics = message.v3_and_below_topics
        errors = dict.fromkeys(partitions_of(topics), error)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topic_results(topics, errors))
    return batched_response(
        [
            result_of(asked, dict.fromkeys(partitions_of(asked.topics), error))
            for asked in message.transactions
        ]
    )


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
        if request.api_version < FIRST_BATCHED_VERSION:
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
