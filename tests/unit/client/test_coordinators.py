"""Calls to coordinators: which are repeated for a time, what classic members' assignments decode to, and
lists that all brokers answer.
"""

from __future__ import annotations

import asyncio
import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidelog.client.admin.groups import assigned_partitions, list_groups, list_transactions
from tidelog.client.core.settings import ProducerSettings
from tidelog.client.errors import ConnectionLostError, NetworkError, NoAnswerError, RequestTimeoutError
from tidelog.client.shell.consuming.group_calls import until_answered
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from tidelog.wire.messages.list_transactions import ListTransactionsResponse, TransactionState

TIMEOUT_MS = 30
SETTINGS = ProducerSettings(retry_backoff_ms=1, retry_backoff_max_ms=1)


def assignment(*topics: tuple[str, tuple[int, ...]], user_data: bytes = b"") -> bytes:
    """Kafka's ConsumerProtocolAssignment, version 1."""
    encoded = struct.pack(">hi", 1, len(topics))
    for name, partitions in topics:
        encoded += struct.pack(">h", len(name.encode())) + name.encode()
        encoded += struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return encoded + struct.pack(">i", len(user_data)) + user_data


def test_partitions_of_all_topics_are_read() -> None:
    encoded = assignment(("a", (0, 7)), ("tøpic", ()), ("b", (3,)), user_data=b"sticky")
    assert assigned_partitions(encoded) == (
        TopicPartition("a", 0),
        TopicPartition("a", 7),
        TopicPartition("b", 3),
    )


def test_a_malformed_assignment_has_no_partitions() -> None:
    whole = assignment(("a", (0, 7)))
    assert assigned_partitions(b"") == ()
    assert assigned_partitions(whole[:-8]) == ()
    assert assigned_partitions(b"\x00\x01\x00\x00\x00\x01\x00\x02\xff\xfe") == ()


class Cluster:
    """Brokers 1 and 2; the second does not answer."""

    timeout_s = 1.0

    def describe(self) -> SimpleNamespace:
        return SimpleNamespace(brokers=[SimpleNamespace(broker_id=1), SimpleNamespace(broker_id=2)])

    def broker(self, broker_id: int) -> SimpleNamespace:
        def call(request: object, answer: object, **options: object) -> object:
            if broker_id == 2:
                raise NoAnswerError("no answer")
            if isinstance(request, ListGroupsRequest):
                return ListGroupsResponse(groups=[ListedGroup("readers", "consumer")])
            return ListTransactionsResponse(transaction_states=[TransactionState("copier", 7, "Ongoing")])

        return SimpleNamespace(call=call)


def test_a_silent_broker_fails_lists_unless_the_caller_collects_such_brokers() -> None:
    cluster, silent = cast("Any", Cluster()), set[int]()
    assert [group.group_id for group in list_groups(cluster, [], [], silent=silent)] == ["readers"]
    assert [row.transactional_id for row in list_transactions(cluster, [], -1, silent=silent)] == ["copier"]
    assert silent == {2}
    with pytest.raises(NoAnswerError):
        list_groups(cluster, [], [])
    with pytest.raises(NoAnswerError):
        list_transactions(cluster, [], -1)


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (None, RequestTimeoutError),
        (KafkaError(ErrorCode.NOT_COORDINATOR, "moved"), KafkaError),
        (ConnectionLostError("lost"), NetworkError),
    ],
)
def test_a_call_ends_in_its_time_although_a_broker_is_frozen(
    first: Exception | None, expected: type[KafkaError]
) -> None:
    """It waited for the response of a frozen broker up to request.timeout.ms, however short its own time."""
    failures = [first]

    async def ask() -> None:
        failure = failures.pop() if failures else None
        if failure is not None:
            raise failure
        await asyncio.Event().wait()

    async def scenario() -> None:
        async with asyncio.timeout(2):
            with pytest.raises(expected, match=r"moved|lost|no answer in 30 ms"):
                await until_answered(SETTINGS, TIMEOUT_MS, "call", ask)

    asyncio.run(scenario())
    assert not failures


def test_a_timeout_of_the_caller_is_not_one_of_the_call() -> None:
    async def scenario() -> None:
        async with asyncio.timeout(0.01):
            await until_answered(SETTINGS, 60_000, "call", asyncio.Event().wait)

    with pytest.raises(TimeoutError):
        asyncio.run(scenario())
