"""The share consumer's shell: what it sends while an application iterates, and when it closes."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, cast

import pytest

from brokerlab.client_parts import ClientParts
from tidelog.client.core.cluster_view import MetadataReceived, Node, PartitionLeader, TopicView
from tidelog.client.core.consuming.consumer_events import AcknowledgeType
from tidelog.client.core.consuming.membership import HeartbeatAnswered
from tidelog.client.core.consuming.share_consumer import ShareAnswered, SharedPartition
from tidelog.client.shell.consuming.share_consumer import ShareConsumer
from tidelog.model.topics import TopicPartition
from tidelog.records.builder import build_batch
from tidelog.records.record import Record

TOPIC_ID = uuid.UUID(int=1)
PLACE = TopicPartition("t", 0)
RECORDS = 200  # so many that several heartbeats are due before the last one
BATCH = memoryview(
    bytes(build_batch([Record(number, 1_000, None, b"v") for number in range(RECORDS)], leader_epoch=0))
)


class Calls:
    """A broker with one batch of records. `acknowledged` has the offsets that it was told."""

    def __init__(self) -> None:
        self.acknowledged: set[int] = set()
        self.types: set[int] = set()
        self.heartbeats = self.fetches = 0
        self.coordinator = cast("Any", self)

    def forget(self) -> None: ...

    async def fetch(self, effect: Any) -> ShareAnswered:
        self._note(effect.acknowledgements)
        self.fetches += 1
        if self.fetches > 1:
            await asyncio.sleep(3600)
        part = SharedPartition(0, None, 0, None, BATCH, ((0, RECORDS - 1, 1),), None)
        return ShareAnswered(effect.request_id, 0, None, 30_000, {PLACE: part})

    async def acknowledge(self, effect: Any) -> ShareAnswered:
        self._note(effect.acknowledgements)
        empty = SharedPartition(0, None, 0, None, memoryview(b""), (), None)
        return ShareAnswered(
            effect.request_id, 0, None, 30_000, dict.fromkeys(effect.acknowledgements, empty)
        )

    async def end_session(self, node: int, acknowledgements: Any) -> None:
        self._note(acknowledgements)

    async def ask(self, request: Any) -> HeartbeatAnswered:
        self.heartbeats += 1
        return HeartbeatAnswered(request, 0, None, 1, 1, frozenset({(TOPIC_ID, 0)}))

    async def leave(self, request: Any) -> None: ...

    def _note(self, acknowledgements: Any) -> None:
        for batches in acknowledgements.values():
            for batch in batches:
                self.acknowledged.update(range(batch.first_offset, batch.last_offset + 1))
                self.types.update(batch.types)


def subscribed(
    monkeypatch: pytest.MonkeyPatch, mode: str = "implicit"
) -> tuple[ShareConsumer[bytes, bytes], Calls]:
    consumer = ShareConsumer[bytes, bytes](
        "127.0.0.1:1",
        {"group.id": "g", "share.acknowledgement.mode": mode, "default.api.timeout.ms": 100},
    )
    calls = Calls()
    shell = ClientParts(consumer)
    shell.tasks.start()
    shell.calls = calls
    topic = TopicView("t", TOPIC_ID, (PartitionLeader(1, 0),))

    async def metadata(*arguments: Any, **options: Any) -> MetadataReceived:
        return MetadataReceived((Node(1, "h", 1),), (topic,))

    async def close() -> None: ...

    monkeypatch.setattr(shell.network, "metadata", metadata)
    monkeypatch.setattr(shell.network, "close", close)
    consumer.subscribe(["t"])
    return consumer, calls


def iterate(until: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Calls, set[int], int]:
    """Reads `until` records and closes. Returns the broker, and what it had been told before the close."""

    async def scenario() -> tuple[Calls, set[int], int]:
        consumer, calls = subscribed(monkeypatch)
        seen = 0
        async for _ in consumer:
            seen += 1
            if seen == until:
                break
        told, heartbeats = set(calls.acknowledged), calls.heartbeats
        await consumer.close()
        return calls, told, heartbeats

    return asyncio.run(scenario())


def test_acknowledgements_and_heartbeats_are_sent_while_records_are_buffered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The application's loop does not await anything."""
    _, told, heartbeats = iterate(RECORDS, monkeypatch)
    assert told
    assert heartbeats > 1


@pytest.mark.parametrize("until", [2, RECORDS])
def test_close_sends_what_was_accepted(monkeypatch: pytest.MonkeyPatch, until: int) -> None:
    """All but the last record, which the application has not returned for."""
    calls, _, _ = iterate(until, monkeypatch)
    assert calls.acknowledged >= set(range(until - 1))


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
def test_records_that_were_delivered_in_vain_go_to_other_members(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    async def scenario() -> Calls:
        consumer, calls = subscribed(monkeypatch, mode)
        records = await consumer.poll(5)
        consumer.release(records)
        await consumer.poll(0.01)
        await consumer.close()
        return calls

    calls = asyncio.run(scenario())
    assert calls.acknowledged == set(range(RECORDS))
    assert calls.types == {AcknowledgeType.RELEASE}
