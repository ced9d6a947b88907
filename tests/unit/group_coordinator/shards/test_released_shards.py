"""Release of the claims of shards that another coordinator shall own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.group_coordinator.shards import runner
from tidelog.group_coordinator.shards.runner import CoordinatorRuntime, Loop, Parts
from tidelog.metadata.store import StoreUnavailableError
from tidelog.model.coordinator_shards import ShardId, ShardKind

SHARD = ShardId(ShardKind.GROUP, 0)


class UnansweredClaims:
    """Claims whose store does not answer the first release."""

    def __init__(self) -> None:
        self.attempts = 0
        self.released: list[ShardId] = []

    async def release(self, shards: Sequence[ShardId]) -> None:
        self.attempts += 1
        if self.attempts == 1:
            raise StoreUnavailableError("store gave no answer")
        self.released += shards


def _runtime(claims: UnansweredClaims) -> CoordinatorRuntime:
    unused: Any = None
    view: Any = SimpleNamespace(leader=lambda partition: None)
    sessions: Any = []
    given: Any = claims
    return CoordinatorRuntime(
        1,
        {ShardKind.GROUP: unused},
        Parts(view, given, sessions, unused),
        Loop(unused, unused, lambda callback: None),
    )


@pytest.fixture(autouse=True)
def _retry_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "RELEASE_RETRY_MS", 0)


def test_a_release_without_an_answer_is_repeated() -> None:
    async def run() -> None:
        claims = UnansweredClaims()
        runtime = _runtime(claims)
        runtime.claimed(SHARD, 3)
        runtime.surplus(SHARD)
        for _ in range(20):
            await asyncio.sleep(0)
        assert claims.released == [SHARD]

    asyncio.run(run())


def test_a_release_is_not_repeated_after_a_new_claim() -> None:
    """It would delete the new claim."""

    async def run() -> None:
        claims = UnansweredClaims()
        runtime = _runtime(claims)
        runtime.claimed(SHARD, 3)
        runtime.surplus(SHARD)
        await asyncio.sleep(0)  # the first attempt fails
        runtime.claimed(SHARD, 4)
        for _ in range(20):
            await asyncio.sleep(0)
        assert (claims.attempts, claims.released) == (1, [])

    asyncio.run(run())
