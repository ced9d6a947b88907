"""The producer's shell: what becomes of records at a close."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tidelog.client.core.cluster_view import MetadataReceived, Node, PartitionLeader, TopicView
from tidelog.client.core.delivery_errors import ClosedError
from tidelog.client.shell.delivery import BatchDelivery
from tidelog.client.shell.producer import Producer
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
