"""Waiting for fetches: what a client asks for follows from all requests of its fetch session."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from tidelog.model.protocol_values import FINAL_EPOCH, INITIAL_EPOCH
from tidelog.testing._interception import Faults, FetchWatch
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

TOPIC_ID = uuid.UUID(int=1)


class Client:
    """A connection."""

    is_closed = False


def request(epoch: int, offsets: dict[int, int], forgotten: tuple[int, ...] = ()) -> FetchRequest:
    rows = [FetchPartition(index, fetch_offset=offset) for index, offset in offsets.items()]
    return FetchRequest(
        session_epoch=epoch,
        topics=[FetchTopic(topic_id=TOPIC_ID, partitions=rows)] if rows else [],
        forgotten_topics_data=[ForgottenTopic(topic_id=TOPIC_ID, partitions=list(forgotten))],
    )


def is_done(faults: Faults, ends: dict[int, int]) -> bool:
    """Returns whether the requests so far satisfy a watch that is added now."""

    async def scenario() -> bool:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        faults.watch_fetches(FetchWatch("t", TOPIC_ID, ends, done))
        return done.done()

    return asyncio.run(scenario())


def test_a_consumer_that_waits_at_the_end_has_fetched_all() -> None:
    """Its next request of the session names no partition, because no offset has changed."""
    faults, connection = Faults(), Client()
    client: Any = connection
    faults.fetch_arrived(client, request(INITIAL_EPOCH, {0: 0, 1: 5}))
    assert not is_done(faults, {0: 2, 1: 5})
    faults.fetch_arrived(client, request(1, {0: 2}))
    assert is_done(faults, {0: 2, 1: 5})
    faults.fetch_arrived(client, request(2, {}))
    assert is_done(faults, {0: 2, 1: 5}) and not is_done(faults, {0: 3})
    connection.is_closed = True
    assert not is_done(faults, {0: 2})


def test_partitions_that_left_the_session_do_not_count() -> None:
    faults = Faults()
    client: Any = Client()
    faults.fetch_arrived(client, request(INITIAL_EPOCH, {0: 2, 1: 5}))
    faults.fetch_arrived(client, request(1, {}, forgotten=(1,)))
    assert is_done(faults, {0: 2}) and not is_done(faults, {1: 5})
    faults.fetch_arrived(client, request(FINAL_EPOCH, {1: 5}))
    assert is_done(faults, {1: 5}) and not is_done(faults, {0: 2})
