"""A start waits for its controller as long as the logs of partitions are being opened."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tidelog.broker import server
from tidelog.broker.hosting.hosting import Hosting
from tidelog.broker.hosting.replica import Replica
from tidelog.embedded.cluster import EmbeddedCluster
from tidelog.settings.broker_settings import BrokerSettings

TIMEOUT_MS = 500


def start_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int, opening_s: float) -> float:
    """Starts a broker with `partitions`, each of which takes `opening_s` to open the second time. Returns how
    long the second start took, in seconds.
    """
    settings = BrokerSettings.parse(
        {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path / "data")}
    )
    gate = asyncio.Lock()
    really_open = Hosting._open

    async def open_slowly(hosting: Hosting, *arguments: Any) -> Replica:
        async with gate:
            await asyncio.sleep(opening_s)
            return await really_open(hosting, *arguments)

    async def run() -> float:
        cluster = await EmbeddedCluster.start([settings], tmp_path)
        await cluster.ensure_topic("topic", partitions)
        await cluster.stop()
        monkeypatch.setattr(server, "FIRST_COMMANDS_TIMEOUT_MS", TIMEOUT_MS)
        monkeypatch.setattr(Hosting, "_open", open_slowly)
        began = asyncio.get_running_loop().time()
        cluster = await EmbeddedCluster.start([settings], tmp_path)
        took_s = asyncio.get_running_loop().time() - began
        await cluster.stop()
        return took_s

    return asyncio.run(run())


def test_a_start_takes_as_long_as_logs_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert start_twice(tmp_path, monkeypatch, 8, 0.2) > 3 * TIMEOUT_MS / 1000


def test_a_start_without_progress_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TimeoutError, match="sent no commands"):
        start_twice(tmp_path, monkeypatch, 1, 4 * TIMEOUT_MS / 1000)
