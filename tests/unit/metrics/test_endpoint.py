"""The endpoint answers probes whatever other clients do, also for a loop that is blocked, and makes one
scrape at a time.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tidelog.metrics import endpoint as endpoint_module
from tidelog.metrics import health as health_module
from tidelog.metrics.endpoint import MetricsEndpoint
from tidelog.metrics.families import Families
from tidelog.metrics.health import LIVENESS_STALL_MS, TICK_MS, Health, Verdict
from tidelog.metrics.http_endpoint import MAX_CONNECTIONS
from tidelog.metrics.process_metrics import ProcessMetrics

PAGES = {"/colours": lambda query: f'{{"query": "{query}"}}'}
UNFINISHED: int = 3_000
PROBE_TIMEOUT_S: float = 1.0
"""Kubelet's default."""


class CountingCollector:
    """A collector that counts the scrapes and how many of them ran at once."""

    def __init__(self) -> None:
        self.scrapes = self.most_at_once = self._running = 0
        self._lock = threading.Lock()

    def collect(self, families: Families) -> None:
        with self._lock:
            self.scrapes += 1
            self._running += 1
            self.most_at_once = max(self.most_at_once, self._running)
        with self._lock:
            self._running -= 1


@pytest.fixture
def collector() -> CountingCollector:
    return CountingCollector()


@pytest.fixture
def served(collector: CountingCollector) -> Iterator[MetricsEndpoint]:
    made = MetricsEndpoint([collector], PAGES, None, "127.0.0.1", 0)
    yield made
    made.close()


def scrape(served: MetricsEndpoint) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def test_a_page_answers_its_path_and_all_others_answer_metrics(served: MetricsEndpoint) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/colours?a=b", timeout=10) as answer:
        assert answer.read() == b'{"query": "a=b"}'
        assert answer.headers["Content-Type"] == "application/json"
    assert "python_info" in scrape(served)


def test_unfinished_requests_keep_nobody_out(served: MetricsEndpoint) -> None:
    with ExitStack() as unfinished:
        for _ in range(2 * MAX_CONNECTIONS):
            connection = unfinished.enter_context(socket.create_connection(("127.0.0.1", served.port)))
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: ")
        assert "python_info" in scrape(served)


def test_scrapes_at_the_same_time_share_one_body(
    served: MetricsEndpoint, collector: CountingCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_module, "SCRAPE_CACHE_S", 30.0)
    with ThreadPoolExecutor(10) as threads:
        bodies = list(threads.map(lambda _: scrape(served), range(20)))
    assert collector.scrapes == collector.most_at_once == 1
    assert len(set(bodies)) == 1


def test_a_later_scrape_is_made_again(
    served: MetricsEndpoint, collector: CountingCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_module, "SCRAPE_CACHE_S", 0.0)
    scrape(served)
    scrape(served)
    assert collector.scrapes == 2


class GarbageWatcher:
    """A collector that notes whether garbage may be collected during a scrape."""

    def __init__(self) -> None:
        self.is_collected = True

    def collect(self, families: Families) -> None:
        self.is_collected = gc.isenabled()


def test_scrapes_cause_no_collection_of_garbage() -> None:
    """With thousands of partitions, a collection stops the event loop for longer than a scrape may."""
    watcher = GarbageWatcher()
    made = MetricsEndpoint([watcher], {}, None, "127.0.0.1", 0)
    try:
        scrape(made)
        assert not watcher.is_collected
        assert gc.isenabled()
    finally:
        made.close()


class SlowCollector:
    """A collector whose scrapes last until the test ends."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def collect(self, families: Families) -> None:
        self.released.wait(30)


def probe(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PROBE_TIMEOUT_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


@pytest.mark.slow
def test_probes_at_their_own_port_do_not_wait_for_scrapes_and_unfinished_requests() -> None:
    async def run() -> None:
        health, slow = Health(), SlowCollector()
        metrics = ProcessMetrics("broker", 1, health)
        metrics.register(slow)
        scraped = metrics.serve("127.0.0.1:0")
        probed = metrics.serve_probes("127.0.0.1:0")
        health.ready_when(lambda: None)
        try:
            await asyncio.to_thread(attack, scraped, probed)
        finally:
            slow.released.set()
            metrics.close()
            health.close()

    def attack(scraped: int, probed: int) -> None:
        with ExitStack() as unfinished:
            for number in range(UNFINISHED):
                try:
                    connection = unfinished.enter_context(
                        socket.create_connection(("127.0.0.1", scraped), timeout=PROBE_TIMEOUT_S)
                    )
                    end = b"\r\n\r\n" if number % 2 else b""  # every other one is a scrape that lasts
                    connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: a" + end)
                except OSError:
                    continue  # the endpoint has ended it, or does not accept more
                if number % 100 == 0:
                    began_s = time.monotonic()
                    assert probe(probed, "/livez") == probe(probed, "/readyz") == 200
                    assert time.monotonic() - began_s < 2 * PROBE_TIMEOUT_S
        assert probe(probed, "/metrics") == 404

    asyncio.run(run())


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
