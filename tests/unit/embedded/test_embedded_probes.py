"""The start of `tidelog dev`: its probes report it, and it waits for its controller as long as the logs of
partitions are being opened.
"""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from brokerlab.broker_process import free_port
from tidelog.broker import server
from tidelog.broker.hosting.hosting import Hosting
from tidelog.broker.hosting.replica import Replica
from tidelog.broker.server import BrokerServer
from tidelog.embedded.cluster import EmbeddedCluster
from tidelog.settings.broker_settings import BrokerSettings

TIMEOUT_MS = 500


def readiness(port: int) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_readiness_follows_the_life_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    settings = BrokerSettings.parse(
        {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(tmp_path),
            "tidelog.metrics.listener": f"127.0.0.1:{port}",
        }
    )

    async def live() -> list[tuple[int, str]]:
        is_recovering, may_end, is_stopping, may_stop = (asyncio.Event() for _ in range(4))
        start, stop = BrokerServer.start, BrokerServer.stop

        async def slow_start(server: BrokerServer) -> None:
            is_recovering.set()
            await may_end.wait()
            await start(server)

        async def slow_stop(server: BrokerServer, *, is_abrupt: bool) -> None:
            is_stopping.set()
            await may_stop.wait()
            await stop(server, is_abrupt=is_abrupt)

        monkeypatch.setattr(BrokerServer, "start", slow_start)
        monkeypatch.setattr(BrokerServer, "stop", slow_stop)
        starting = asyncio.create_task(EmbeddedCluster.start(settings, tmp_path))
        await is_recovering.wait()
        seen = [await asyncio.to_thread(readiness, port)]
        may_end.set()
        cluster = await starting
        seen.append(await asyncio.to_thread(readiness, port))
        stopping = asyncio.create_task(cluster.stop())
        await is_stopping.wait()
        seen.append(await asyncio.to_thread(readiness, port))
        may_stop.set()
        await stopping
        return seen

    assert asyncio.run(live()) == [(503, "starting\n"), (200, "ready\n"), (503, "stopping\n")]


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
