"""A console that serves in a thread of the test, in front of a cluster inside the process."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import uvicorn

from tidelog.client.cluster import Cluster as ClusterClient
from tidelog.console.pages import Console

HOST = "127.0.0.1"
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str


class ServedConsole:
    """A console with its address. `get` asks it as a browser does."""

    def __init__(self, bootstrap: str, *, timeout_s: float = 10, **options: Any) -> None:
        def connect(known: tuple[str, ...]) -> ClusterClient:
            addresses = ",".join((*bootstrap.split(","), *known))
            return ClusterClient(addresses, client_id="tidelog-console", timeout_s=timeout_s)

        self._console = Console(
            connect, is_stopping=lambda: self._server.should_exit, **{"interval_ms": 100, **options}
        )
        self._samples = "sample_interval_ms" in options
        application = self._console.application([HOST])
        self._server = uvicorn.Server(
            uvicorn.Config(application, HOST, 0, log_level="warning", lifespan="off", ws="none")
        )
        self._thread = threading.Thread(target=self._server.run, name="console", daemon=True)

    def start(self) -> ServedConsole:
        if self._samples:
            self._console.start()
        self._thread.start()
        deadline_s = time.monotonic() + TIMEOUT_S
        while not self._server.started:
            assert self._thread.is_alive() and time.monotonic() < deadline_s, "the console did not start"
            time.sleep(0.01)
        return self

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()
        self._console.close()

    @property
    def port(self) -> int:
        return int(self._server.servers[0].sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def get(self, path: str, *, host: str | None = None, method: str = "GET") -> Answer:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, headers={"Host": host or f"{HOST}:{self.port}"})
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, headers, response.read().decode())
        finally:
            connection.close()

    def events(self, path: str) -> Iterator[tuple[str, str]]:
        """Yields the name and the data of each event."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            assert response.status == 200
            name, data = "", []
            while line := response.readline().decode():
                field, _, text = line.rstrip("\n").partition(": ")
                if field == "event":
                    name = text
                elif field == "data":
                    data.append(text)
                elif not field:
                    yield name, "\n".join(data)
                    name, data = "", []
        finally:
            connection.close()


@pytest.fixture
def serve_console() -> Iterator[Callable[..., ServedConsole]]:
    """Returns serve_console(bootstrap, ...), which starts a console for one test."""
    served: list[ServedConsole] = []

    def start(bootstrap: str, **options: Any) -> ServedConsole:
        served.append(ServedConsole(bootstrap, **options).start())
        return served[-1]

    try:
        yield start
    finally:
        for each in served:
            each.stop()
