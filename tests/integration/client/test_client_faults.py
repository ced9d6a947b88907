"""Our own client against brokers that fail or answer late. Each test is a fault that a review found."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from tidelog.aio import Consumer, TopicPartition
from tidelog.testing import Cluster

pytestmark = pytest.mark.integration
EARLIEST = {"auto.offset.reset": "earliest"}
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    yield running
    running.clean()


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, DEADLINE_S))


def test_a_position_behind_the_end_of_a_shorter_log_is_reset(cluster: Cluster) -> None:
    cluster.produce("shorter", "a", "b")

    async def read() -> None:
        async with Consumer[bytes, bytes](cluster.bootstrap, EARLIEST) as consumer:
            consumer.assign([("shorter", 0)])
            consumer._core.partitions[TopicPartition("shorter", 0)].seek(5, 0)  # as a committed offset does
            assert [record.value for record in await consumer.poll(DEADLINE_S)] == [b"a", b"b"]

    run(read())
