"""The probes of `tidelog dev` report what it does: starting, ready, stopping."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from brokerlab.broker_process import free_port
from tidelog.broker.server import BrokerServer
from tidelog.embedded.cluster import EmbeddedCluster
from tidelog.settings.broker_settings import BrokerSettings


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
