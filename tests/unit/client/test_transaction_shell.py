"""The producer's shell in transactions: what may follow a call that failed or was cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from brokerlab.client_parts import ClientParts
from tidelog.client.core.cluster_view import MetadataReceived, Node, PartitionLeader, TopicView
from tidelog.client.core.producing.producer_batch import ProducerIdReceived
from tidelog.client.errors import (
    ConnectionLostError,
    InvalidTransactionStateError,
    RecordTooLargeError,
    TransactionAbortableError,
)
from tidelog.client.shell.producing.producer import Producer
from tidelog.client.shell.producing.transactions import GroupMetadata, TransactionState
from tidelog.model.topics import ZERO_TOPIC_ID, TopicPartition

IDENTITY = ProducerIdReceived(7, 0)
PLACE = TopicPartition("t", 0)


class Calls:
    """A coordinator whose answers arrive when `answers` is set."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.ends: list[bool] = []

    async def end(self, identity: ProducerIdReceived, *, commits: bool) -> ProducerIdReceived:
        self.ends.append(commits)
        await self.answers.wait()
        return ProducerIdReceived(identity.producer_id, identity.producer_epoch + 1)

    async def commit_offsets(
        self, identity: ProducerIdReceived, offsets: Mapping[TopicPartition, int], group: GroupMetadata
    ) -> None:
        await self.answers.wait()
        raise ConnectionLostError("lost")


def begun() -> tuple[Producer[bytes, bytes], Calls]:
    """Returns a producer in a transaction that has content, and its coordinator."""
    producer = Producer[bytes, bytes]("127.0.0.1:1", {"transactional.id": "x", "max.request.size": 2_000})
    shell, calls = ClientParts(producer), Calls()
    shell.transaction_calls = calls
    shell.tasks.start()
    topic = TopicView("t", ZERO_TOPIC_ID, (PartitionLeader(1, 0),))
    shell.core.step(MetadataReceived((Node(1, "h", 1),), (topic,)), 0)
    shell.core.step(IDENTITY, 0)
    shell.transaction.move_to(TransactionState.READY)
    producer.begin_transaction()
    shell.transaction.has_content = True
    return producer, calls


@pytest.mark.parametrize("commits", [True, False])
def test_no_transaction_begins_while_one_ends(commits: bool) -> None:
    async def scenario() -> None:
        producer, calls = begun()
        ending = asyncio.create_task(
            producer.commit_transaction() if commits else producer.abort_transaction()
        )
        await asyncio.sleep(0)
        with pytest.raises(InvalidTransactionStateError):
            producer.begin_transaction()
        calls.answers.set()
        await ending
        producer.begin_transaction()

    asyncio.run(scenario())


@pytest.mark.parametrize("commits", [True, False])
def test_no_transaction_follows_one_of_unknown_outcome(commits: bool) -> None:
    """The coordinator may still end the former one, and would take records of the next one into it."""

    async def scenario() -> None:
        producer, calls = begun()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await (producer.commit_transaction() if commits else producer.abort_transaction())
        assert calls.ends == [commits]
        with pytest.raises(InvalidTransactionStateError):
            producer.begin_transaction()

    asyncio.run(scenario())


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_no_commit_follows_offsets_of_unknown_fate(is_cancelled: bool) -> None:
    async def scenario() -> None:
        producer, calls = begun()
        if not is_cancelled:
            calls.answers.set()
        with pytest.raises((TimeoutError, ConnectionLostError)):
            async with asyncio.timeout(0.01):
                await producer.send_offsets({PLACE: 1}, GroupMetadata("g"))
        calls.answers.set()
        with pytest.raises(TransactionAbortableError):
            await producer.commit_transaction()
        await producer.abort_transaction()
        assert calls.ends == [False]

    asyncio.run(scenario())


def test_a_record_that_is_refused_leaves_an_empty_transaction() -> None:
    """The coordinator does not know a transaction without records, and refuses its commit."""

    async def scenario() -> None:
        producer, calls = begun()
        calls.answers.set()
        await producer.abort_transaction()
        producer.begin_transaction()
        with pytest.raises(RecordTooLargeError):
            await producer.send("t", b"x" * 3_000)
        with pytest.raises(RecordTooLargeError):
            await producer.send_batch("t", [b"x" * 3_000])
        with pytest.raises(RecordTooLargeError):
            await producer.send_batch("t", [b"x" * 3_000], keys=[b"key"])
        await producer.commit_transaction()
        assert calls.ends == [False]

    asyncio.run(scenario())


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_producer_that_cannot_claim_its_id_leaves_no_connection(
    is_cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`async with` does not close what did not start."""
    producer = Producer[bytes, bytes]("127.0.0.1:1", {"transactional.id": "x"})
    shell = ClientParts(producer)
    closed: list[str] = []

    class Line:
        is_closed = False

        def close(self) -> None:
            closed.append("line")

    async def connect(address: object) -> Line:
        return Line()

    async def initialise() -> ProducerIdReceived:
        if is_cancelled:
            await asyncio.Event().wait()
        raise ConnectionLostError("lost")

    async def scenario() -> None:
        with pytest.raises((TimeoutError, ConnectionLostError)):
            async with asyncio.timeout(0.01):
                async with producer:
                    pass
        assert closed == ["line"]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    monkeypatch.setattr(shell.network, "_connect", connect)
    monkeypatch.setattr(shell.transaction_calls, "initialise", initialise)
    asyncio.run(scenario())
