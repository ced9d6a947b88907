"""Fixtures that make the controllers of `clusterlab.controllers`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from clusterlab.controllers import Cluster, Core


@pytest.fixture
def core() -> type[Core]:
    return Core


@pytest.fixture
def run_cluster(tmp_path: Path) -> Callable[..., None]:
    """Runs `scenario(cluster)` on a new loop. The scenario starts the brokers."""

    def run(scenario: Callable[[Cluster], Awaitable[None]], **settings: str) -> None:
        async def with_cluster() -> None:
            cluster = Cluster(tmp_path / "metadata", **settings)
            await cluster.start(())
            try:
                await scenario(cluster)
            finally:
                await cluster.stop()

        asyncio.run(with_cluster())

    return run


@pytest.fixture
def make_cluster() -> type[Cluster]:
    return Cluster
