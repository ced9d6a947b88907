"""DescribeTransactions and ListTransactions (KIP-664, KIP-994)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from tidelog.group_coordinator.answer_room import described_within_bound
from tidelog.group_coordinator.groups.consumer.topic_regex import TopicRegex
from tidelog.group_coordinator.transactions.transaction import STATUS_BY_KAFKA_NAME, Transaction, by_topic
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.instants import WallMs
from tidelog.timing.steps import Steps
from tidelog.wire.messages import describe_transactions, list_transactions
from tidelog.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
)
from tidelog.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse

MAX_PATTERN_WORK: Final = 3_000_000
"""The most work of matching a pattern with the transactional ids of a shard (`TopicRegex.work`), 45 ms in the
worst case. A pattern like `orders-.*` has room for 6,000 ids of 30 characters.
"""


def described(
    transactions: Mapping[str, Transaction], message: DescribeTransactionsRequest
) -> Steps[DescribeTransactionsResponse]:
    return described_within_bound(
        message.transactional_ids,
        lambda transactional_id: _description(transactional_id, transactions.get(transactional_id)),
        _refused,
        lambda states: DescribeTransactionsResponse(transaction_states=states),
    )


def _refused(transactional_id: str, error: ErrorCode) -> describe_transactions.TransactionState:
    return describe_transactions.TransactionState(error_code=error, transactional_id=transactional_id)


def _description(
    transactional_id: str, transaction: Transaction | None
) -> Steps[describe_transactions.TransactionState]:
    description = describe_transactions.TransactionState(transactional_id=transactional_id)
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


def describe_refused(message: DescribeTransactionsRequest, error: ErrorCode) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[
            _refused(transactional_id, error) for transactional_id in message.transactional_ids
        ]
    )


def listed(
    transactions: Mapping[str, Transaction], message: ListTransactionsRequest, now_ms: WallMs
) -> Steps[ListTransactionsResponse]:
    """Lists the transactions that match the filters at the first step. The response names the unknown states
    among these.

    Deviation: INVALID_REGULAR_EXPRESSION if the pattern might take more than MAX_PATTERN_WORK.
    """
    unknown = [name for name in message.state_filters if name not in STATUS_BY_KAFKA_NAME]
    statuses = {STATUS_BY_KAFKA_NAME[name] for name in message.state_filters if name not in unknown}
    producer_ids = frozenset(message.producer_id_filters)

    def is_wanted(transaction: Transaction) -> bool:
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
                list_transactions.TransactionState(
                    name, transaction.producer_id, transaction.status.kafka_name
                )
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
