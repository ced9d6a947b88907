"""Scenarios of public reports about transactions, with requests that no correct client sends in this order.

TIDELOG_TEST_BOOTSTRAP runs them against Apache Kafka, which answers in the same way.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from brokerlab.batches import build_batch
from brokerlab.clients import consume_messages
from tidelog.client.address import Address
from tidelog.client.cluster import BrokerConnection
from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from tidelog.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

pytestmark = pytest.mark.integration

TRANSACTIONAL = 0x10
TRANSACTION_KEY = 1
ACKS_ALL = -1
TIMEOUT_MS = 10_000
RETRY_S = 20.0
RETRIABLE = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}
Producer = tuple[int, int]
"""A producer id and epoch."""


class TransactionalClient:
    """Sends single requests of a transactional producer. `version` is its transaction version: 2 raises the
    epoch with each end (KIP-890), 0 is the protocol before.
    """

    def __init__(self, bootstrap: str, topic: str, version: int) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._connection = BrokerConnection.open(Address(host, int(port)))
        self._topic, self._version = topic, version
        self._name = f"scenario-{uuid.uuid4().hex[:8]}"

    def close(self) -> None:
        self._connection.close()

    def init(self) -> Producer:
        self._find_coordinator()
        request = InitProducerIdRequest(self._name, 60_000)
        answer = self._again(
            lambda: self._connection.call(request, InitProducerIdResponse, at_least=4, at_most=5)
        )
        assert answer.error_code == 0, answer
        return answer.producer_id, answer.producer_epoch

    def _find_coordinator(self) -> None:
        """Lets the broker create the transactions' topic."""
        request = FindCoordinatorRequest(key_type=TRANSACTION_KEY, coordinator_keys=[self._name])
        self._again(
            lambda: self._connection.call(request, FindCoordinatorResponse, at_least=4, at_most=4),
            lambda answer: answer.coordinators[0].error_code,
        )

    def produce(self, producer: Producer, sequence: int, value: bytes) -> tuple[int, int]:
        """Returns the error and the offset."""
        if self._version == 0:
            topics = [AddPartitionsToTxnTopic(self._topic, [0])]
            added = self._again(
                lambda: self._connection.call(
                    AddPartitionsToTxnRequest([], self._name, *producer, topics),
                    AddPartitionsToTxnResponse,
                    at_least=3,
                    at_most=3,
                ),
                lambda answer: (
                    answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
                ),
            )
            assert added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0
        records = build_batch(
            [value],
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )
        data = [TopicProduceData(self._topic, partition_data=[PartitionProduceData(0, records)])]
        at = 12 if self._version == 2 else 11
        answer = self._again(
            lambda: self._connection.call(
                ProduceRequest(self._name, ACKS_ALL, TIMEOUT_MS, data),
                ProduceResponse,
                at_least=at,
                at_most=at,
            ),
            lambda answer: answer.responses[0].partition_responses[0].error_code,
        )
        found = answer.responses[0].partition_responses[0]
        return found.error_code, found.base_offset

    def end(self, producer: Producer, *, commits: bool) -> Any:
        at = 5 if self._version == 2 else 4
        request = EndTxnRequest(self._name, *producer, commits)
        return self._again(lambda: self._connection.call(request, EndTxnResponse, at_least=at, at_most=at))

    def _again(
        self, call: Callable[[], Any], error_of: Callable[[Any], int] = lambda answer: answer.error_code
    ) -> Any:
        """Repeats the call while its error is retriable, as clients do."""
        deadline_s = time.monotonic() + RETRY_S
        while error_of(answer := call()) in RETRIABLE and time.monotonic() < deadline_s:
            time.sleep(0.05)
        return answer


@pytest.fixture
def client(bootstrap: str, topic: str) -> Iterator[TransactionalClient]:
    made = TransactionalClient(bootstrap, topic, 2)
    yield made
    made.close()


@pytest.fixture
def old_client(bootstrap: str, topic: str) -> Iterator[TransactionalClient]:
    made = TransactionalClient(bootstrap, topic, 0)
    yield made
    made.close()


def committed(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    messages = consume_messages(bootstrap, topic, count, isolation_level="read_committed")
    return [message.value() for message in messages]


@pytest.mark.parametrize("commits", [True, False])
def test_a_delayed_end_does_not_end_the_next_transaction(
    client: TransactionalClient, bootstrap: str, topic: str, commits: bool
) -> None:
    """The end of the first transaction arrives again after the second one began, which then does the
    opposite.
    """
    first = client.init()
    assert client.produce(first, 0, b"first")[0] == 0
    ended = client.end(first, commits=True)
    second = (ended.producer_id, ended.producer_epoch)
    assert second == (first[0], first[1] + 1)
    assert client.produce(second, 0, b"second")[0] == 0
    assert client.end(first, commits=commits).error_code in {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
    ended = client.end(second, commits=not commits)
    assert ended.error_code == 0
    third = (ended.producer_id, ended.producer_epoch)
    assert client.produce(third, 0, b"third")[0] == 0
    assert client.end(third, commits=True).error_code == 0
    expected = [b"first", b"third"] if commits else [b"first", b"second", b"third"]
    assert committed(bootstrap, topic, len(expected)) == expected


def test_a_sequence_number_that_is_reused_after_an_abort_is_another_record(
    client: TransactionalClient, bootstrap: str, topic: str
) -> None:
    """Each transaction has an epoch of its own, in which sequence numbers begin at 0."""
    first = client.init()
    assert client.produce(first, 0, b"aborted") == (0, 0)
    ended = client.end(first, commits=False)
    second = (ended.producer_id, ended.producer_epoch)
    assert client.produce(second, 0, b"kept") == (0, 2)  # 1 is the marker
    assert client.produce(first, 0, b"aborted")[0] == ErrorCode.INVALID_PRODUCER_EPOCH
    assert client.end(second, commits=True).error_code == 0
    assert committed(bootstrap, topic, 1) == [b"kept"]


def test_without_an_epoch_per_transaction_a_reused_sequence_number_is_a_repeat(
    old_client: TransactionalClient, bootstrap: str, topic: str
) -> None:
    """Before KIP-890, the epoch stays, so the broker must take the batch for the first one. It refuses what
    follows in this transaction. Clients therefore continue their numbers after an abort.
    """
    producer = old_client.init()
    assert old_client.produce(producer, 0, b"aborted") == (0, 0)
    assert old_client.end(producer, commits=False).error_code == 0
    assert old_client.produce(producer, 0, b"taken for the first one") == (0, 0)
    refused, _ = old_client.produce(producer, 1, b"not the next one")
    assert refused == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_before_kip_890_sequence_numbers_continue_after_an_abort(
    old_client: TransactionalClient, bootstrap: str, topic: str
) -> None:
    producer = old_client.init()
    assert old_client.produce(producer, 0, b"aborted") == (0, 0)
    assert old_client.end(producer, commits=False).error_code == 0
    assert old_client.produce(producer, 1, b"kept") == (0, 2)
    assert old_client.end(producer, commits=True).error_code == 0
    assert committed(bootstrap, topic, 1) == [b"kept"]
