"""Asks the coordinator of a transaction whether partitions take part in it, or adds them (KIP-890)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from tidelog.broker.coordination.attachment import ShardCall
from tidelog.kernel.timer import Timer
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

_VERSION: Final = 5


class Verification:
    """Sends AddPartitionsToTxn requests of this broker to the coordinators of transactions.

    `ask_owner` passes a call on to the coordinator of a transactional id. It returns NONE, or why it did not.
    An answer that takes longer than `timeout_ms` (request.timeout.ms) is REQUEST_TIMED_OUT.
    """

    def __init__(
        self, ask_owner: Callable[[str, ShardCall], ErrorCode], timer: Timer, timeout_ms: int
    ) -> None:
        self._ask_owner = ask_owner
        self._timer = timer
        self._timeout_ms = timeout_ms

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        verify_only: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        """Returns the coordinator's error code for each partition. A failure between the services is an error
        code of coordinators, too.
        """
        body = _question(transactional_id, producer_id, producer_epoch, partitions, verify_only=verify_only)
        call = ShardCall(ApiKey.ADD_PARTITIONS_TO_TXN, _VERSION, body)
        pass_on = partial(self._ask_owner, transactional_id)
        answer, error = await call.ask_within(pass_on, self._timer, self._timeout_ms)
        return _results(answer, error, partitions)

    def add_one(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partition: TopicPartition,
        *,
        verify_only: bool,
        on_result: Callable[[ErrorCode], None],
    ) -> None:
        """Asks about one partition without a task. `on_result` is called as soon as the answer
        arrives, and therefore before all items that the coordinator sends later.
        """

        def on_answered(answer: bytes | None, error: ErrorCode) -> None:
            on_result(_results(answer, error, (partition,))[partition])

        body = _question(transactional_id, producer_id, producer_epoch, (partition,), verify_only=verify_only)
        call = ShardCall(ApiKey.ADD_PARTITIONS_TO_TXN, _VERSION, body, on_answered)
        refused = self._ask_owner(transactional_id, call)
        if refused:
            on_result(refused)


def _question(
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Collection[TopicPartition],
    *,
    verify_only: bool,
) -> bytes:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for partition in partitions:
        by_topic[partition.topic].append(partition.partition)
    transaction = AddPartitionsToTxnTransaction(
        transactional_id,
        producer_id,
        producer_epoch,
        verify_only,
        [AddPartitionsToTxnTopic(topic, indexes) for topic, indexes in by_topic.items()],
    )
    encode = codec.request_encoder(ApiKey.ADD_PARTITIONS_TO_TXN, _VERSION)
    return b"".join(encode(AddPartitionsToTxnRequest([transaction])))


def _results(
    answer: bytes | None, error: ErrorCode, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    if answer is None:
        return dict.fromkeys(partitions, error)
    response: AddPartitionsToTxnResponse = codec.response_decoder(ApiKey.ADD_PARTITIONS_TO_TXN, _VERSION)(
        answer, 0
    )[0]
    told = {
        TopicPartition(topic.name, result.partition_index): ErrorCode(result.partition_error_code)
        for transaction_result in response.results_by_transaction
        for topic in transaction_result.topic_results
        for result in topic.results_by_partition
    }
    otherwise = ErrorCode(response.error_code) or ErrorCode.UNKNOWN_SERVER_ERROR
    return {partition: told.get(partition, otherwise) for partition in partitions}
