"""Our own clients log in with each mechanism, and a wrong login is an error at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from brokerlab.secured_broker import CASES, GROUP, TOPIC, Case, SecuredBroker
from tidelog.aio import Consumer, Producer
from tidelog.client import Admin
from tidelog.client.errors import ClientError, TopicAuthorizationError

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    broker = SecuredBroker(tmp_path_factory.mktemp("secured"))
    yield broker
    broker.close()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_logins(secured: SecuredBroker, case: Case) -> None:
    settings: dict[str, str | int] = {**secured.java_properties(case)}

    async def run() -> None:
        async with Producer[bytes, bytes](settings=settings) as producer:
            offset = (await producer.send_and_wait(TOPIC, b"v")).offset
            with pytest.raises(TopicAuthorizationError):
                await producer.send("forbidden", b"v")
        group = {**settings, "group.id": GROUP, "auto.offset.reset": "earliest"}
        async with Consumer[bytes, bytes](settings=group) as consumer:
            consumer.assign([(TOPIC, 0)])
            consumer.seek_to_beginning()
            seen = -1
            while seen < offset:
                for record in await consumer.poll(5):
                    seen = record.offset
            await consumer.commit()

    if case.is_right:
        asyncio.run(run())
        with Admin(settings=settings) as admin:
            assert TOPIC in admin.topics()
    else:
        with pytest.raises(ClientError):
            asyncio.run(run())
