"""The endpoint answers probes whatever other clients do, and makes one scrape at a time."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tidelog.metrics import endpoint as endpoint_module
from tidelog.metrics.endpoint import MAX_CONNECTIONS, MetricsEndpoint
from tidelog.metrics.families import Families


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
    made = MetricsEndpoint([collector], None, "127.0.0.1", 0)
    yield made
    made.close()


def scrape(served: MetricsEndpoint) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


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
