"""A forked child gets an error from each client of its parent, and never waits."""

from __future__ import annotations

import asyncio
import os
import select
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tidelog.aio as aio
import tidelog.client as threads
from tidelog.client.exceptions import ClosedError
from tidelog.testing import Cluster

pytestmark = pytest.mark.integration
EARLIEST = {"auto.offset.reset": "earliest"}
PLACE = aio.TopicPartition("forked", 0)
CHILD_LIMIT_S = 20.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        running.produce("forked", "a")
        yield running


def in_child(*calls: Callable[[], Any]) -> list[str]:
    """Returns the outcome of each call in a forked child."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            for call in calls:
                os.write(writing, _outcome_of(call).encode() + b"\n")
        finally:
            os._exit(0)  # the child must not go on with the tests
    os.close(writing)
    said = b""
    try:
        while select.select([reading], [], [], CHILD_LIMIT_S)[0] and (part := os.read(reading, 4096)):
            said += part
    finally:
        os.close(reading)
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    return said.decode().splitlines()


def _outcome_of(call: Callable[[], Any]) -> str:
    try:
        return f"returned {call()}"
    except ClosedError as error:
        return f"ClosedError: {error}"


def test_consumers_and_admin_clients_of_threads(cluster: Cluster) -> None:
    with (
        threads.Consumer[bytes, bytes](cluster.bootstrap, {**EARLIEST, "group.id": "threads"}) as consumer,
        threads.ShareConsumer[bytes, bytes](cluster.bootstrap, {"group.id": "shared"}) as shared,
        threads.Admin(cluster.bootstrap) as admin,
    ):
        consumer.assign([PLACE])
        shared.subscribe(["forked"])
        assert admin.topics(["forked"])
        held, may_end = threading.Event(), threading.Event()

        def hold() -> None:
            with admin._lock:
                held.set()
                may_end.wait(CHILD_LIMIT_S)

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait()
        outcomes = in_child(
            lambda: consumer.poll(timeout_s=1),
            consumer.commit,
            lambda: shared.poll(timeout_s=1),
            lambda: admin.topics(["forked"]),
            consumer.close,
            shared.close,
            admin.close,
        )
        may_end.set()
        holder.join()
        assert [each.value for each in consumer.poll(timeout_s=CHILD_LIMIT_S)] == [b"a"], "of the parent"
        assert admin.topics(["forked"])
    assert [outcome.split(" belongs to process")[0] for outcome in outcomes] == [
        *["ClosedError: the client"] * 3,
        "ClosedError: the admin client",
        *["returned None"] * 3,
    ]


def test_consumers_on_asyncio(cluster: Cluster) -> None:
    async def work() -> None:
        async with (
            aio.Consumer[bytes, bytes](cluster.bootstrap, {**EARLIEST, "group.id": "asyncio"}) as consumer,
            aio.ShareConsumer[bytes, bytes](cluster.bootstrap, {"group.id": "shared"}) as shared,
            aio.Admin(cluster.bootstrap) as admin,
        ):
            consumer.assign([PLACE])
            shared.subscribe(["forked"])
            await admin.topics(["forked"])
            outcomes = in_child(
                lambda: asyncio.run(consumer.poll(timeout_s=1)),
                lambda: asyncio.run(consumer.commit({PLACE: 1})),
                lambda: asyncio.run(consumer.position(PLACE)),
                lambda: asyncio.run(consumer.committed([PLACE])),
                lambda: consumer.assign([PLACE]),
                lambda: asyncio.run(shared.poll(timeout_s=1)),
                lambda: asyncio.run(shared.commit()),
                lambda: asyncio.run(admin.topics(["forked"])),
                lambda: asyncio.run(consumer.close()),
                lambda: asyncio.run(shared.close()),
                lambda: asyncio.run(admin.close()),
            )
            assert [each.value for each in await consumer.poll(timeout_s=CHILD_LIMIT_S)] == [b"a"]
        assert [outcome.split(" belongs to process")[0] for outcome in outcomes] == [
            *["ClosedError: the client"] * 7,
            "ClosedError: the admin client",
            *["returned None"] * 3,
        ]

    asyncio.run(work())
