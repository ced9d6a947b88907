"""Calls that are repeated for a time: to a group's coordinator, and to one of transactions."""

from __future__ import annotations

import asyncio

import pytest

from tidelog.client.core.settings import ProducerSettings
from tidelog.client.errors import ConnectionLostError, NetworkError, RequestTimeoutError
from tidelog.client.shell.consuming.group_calls import until_answered
from tidelog.model.errors import ErrorCode, KafkaError

TIMEOUT_MS = 30
SETTINGS = ProducerSettings(retry_backoff_ms=1, retry_backoff_max_ms=1)


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
