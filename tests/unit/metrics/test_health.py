"""Probes over HTTP, for an event loop that runs, is blocked, or is closed."""

from __future__ import annotations

import asyncio
import time
import urllib.error
import urllib.request

import pytest

from tidelog.metrics import health as health_module
from tidelog.metrics.health import LIVENESS_STALL_MS, TICK_MS, Health, Verdict
from tidelog.metrics.process_metrics import ProcessMetrics


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_probes_over_http() -> None:
    asyncio.run(_probes_over_http())


async def _probes_over_http() -> None:
    health = Health()
    metrics = ProcessMetrics("broker", 1, health)
    port = metrics.serve("127.0.0.1:0")
    try:
        assert await asyncio.to_thread(get, port, "/livez") == (200, "alive\n")
        assert await asyncio.to_thread(get, port, "/readyz") == (503, "starting\n")
        why_not: list[str | None] = ["catching up"]
        health.ready_when(lambda: why_not[0])
        assert await asyncio.to_thread(get, port, "/readyz") == (503, "catching up\n")
        why_not[0] = None
        assert await asyncio.to_thread(get, port, "/readyz") == (200, "ready\n")
        health.not_ready("stopping")
        assert await asyncio.to_thread(get, port, "/readyz") == (503, "stopping\n")
        assert (await asyncio.to_thread(get, port, "/metrics"))[0] == 200
    finally:
        health.close()
        metrics.close()


def test_a_blocked_loop_is_not_alive() -> None:
    asyncio.run(_loop_that_stands_still_is_not_alive())


async def _loop_that_stands_still_is_not_alive() -> None:
    now_s = [100.0]
    health = Health(lambda: now_s[0])
    try:
        now_s[0] += LIVENESS_STALL_MS / 1000
        assert health.liveness().is_good
        now_s[0] += 1
        assert health.liveness() == Verdict(False, "the event loop has not run for 11 s")
        await asyncio.sleep(2 * TICK_MS / 1000)
        assert health.liveness().is_good
    finally:
        health.close()


def test_a_busy_loop_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_module, "ANSWER_TIMEOUT_MS", 20)
    asyncio.run(_busy_loop_is_not_ready())


async def _busy_loop_is_not_ready() -> None:
    health = Health()
    health.ready_when(lambda: None)
    asked = asyncio.get_running_loop().run_in_executor(None, health.readiness)
    time.sleep(0.2)  # noqa: ASYNC251 - the loop is not to turn
    assert await asked == Verdict(False, "the event loop is busy")
    assert (await asyncio.to_thread(health.readiness)).is_good
    health.close()


def test_an_error_in_the_readiness_check_is_the_reason() -> None:
    asyncio.run(_an_error_in_the_readiness_check())


async def _an_error_in_the_readiness_check() -> None:
    health = Health()
    health.ready_when(lambda: str(1 // 0))
    verdict = await asyncio.to_thread(health.readiness)
    assert not verdict.is_good and "ZeroDivisionError" in verdict.reason
    health.close()


def test_a_closed_loop_is_not_ready() -> None:
    async def made() -> Health:
        return Health()

    assert asyncio.run(made()).readiness() == Verdict(False, "stopped")
