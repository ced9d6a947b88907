"""The producer's shell: what becomes of records at a close, and how long a send waits."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tidelog.client.core.cluster_view import MetadataReceived, Node, PartitionLeader, TopicView
from tidelog.client.core.delivery_errors import ClosedError, TopicAuthorizationError
from tidelog.client.shell.delivery import BatchDelivery
from tidelog.client.shell.producer import Producer
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import ZERO_TOPIC_ID


class OvertakenLock:
    """A lock for which an append waits until the producer has been closed."""

    def __init__(self, producer: Producer[bytes, bytes], loop: asyncio.AbstractEventLoop) -> None:
        self._producer: Producer[bytes, bytes] | None = producer
        self._loop = loop

    def __enter__(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            asyncio.run_coroutine_threadsafe(producer.close(flushes=False), self._loop).result()

    def __exit__(self, *error: object) -> None: ...


@pytest.mark.parametrize("how", ["one", "many", "many with keys"])
def test_a_record_that_a_thread_adds_during_a_close_has_an_outcome(how: str) -> None:
    """Its delivery was never done, so a thread waited for it for ever."""
    producer = Producer[bytes, bytes]("127.0.0.1:1")
    shell = cast("Any", producer)

    def add() -> None:
        if how == "one":
            producer.append("t", 0, 0, None, b"v", ())
        else:
            keys = [b"k"] if how == "many with keys" else None
            producer.append_batch(BatchDelivery(), "t", 0, 0, (keys, [b"v"], None), 0)

    async def scenario() -> None:
        shell._tasks.start()
        topic = TopicView("t", ZERO_TOPIC_ID, (PartitionLeader(1, 0),))
        shell._core.step(MetadataReceived((Node(1, "h", 1),), (topic,)), 0)
        shell._lock = OvertakenLock(producer, asyncio.get_running_loop())
        with pytest.raises(ClosedError):
            await asyncio.to_thread(add)
        assert not shell._core.pending_batches()

    asyncio.run(scenario())


@pytest.mark.parametrize("is_still_refused", [True, False])
def test_a_send_asks_again_for_a_topic_that_was_refused(
    is_still_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first send after the ACL was added failed with the refusal from before."""
    producer = Producer[bytes, bytes]("127.0.0.1:1")
    shell = cast("Any", producer)
    refused = TopicView("t", ZERO_TOPIC_ID, (), ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    permitted = TopicView("t", ZERO_TOPIC_ID, (PartitionLeader(1, 0),))
    now = refused if is_still_refused else permitted

    async def answer(known: tuple[str, ...], wanted: tuple[str, ...]) -> None:
        shell._step(MetadataReceived((Node(1, "h", 1),), (now,)))

    async def scenario() -> None:
        shell._tasks.start()
        shell._core.partition_count("t")
        shell._core.step(MetadataReceived((Node(1, "h", 1),), (refused,)), 0)
        for send in (lambda: producer.send("t", b"v"), lambda: producer.partitions_for("t")):
            async with asyncio.timeout(1):
                if is_still_refused:
                    with pytest.raises(TopicAuthorizationError):
                        await send()
                else:
                    await send()

    monkeypatch.setattr(shell, "_request_metadata", answer)
    asyncio.run(scenario())
