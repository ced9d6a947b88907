"""A console that serves in a thread of the test, in front of a cluster inside the process."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import pytest
import uvicorn

from brokerlab.console_users import SecuredCluster, secured_cluster
from tidelog.client.cluster import Cluster as ClusterClient
from tidelog.client.security import NO_SECURITY, ClientSecurity
from tidelog.console.login import LoginOptions
from tidelog.console.pages import Console
from tidelog.sasl.login import ClientLogin

HOST = "127.0.0.1"
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str


class ServedConsole:
    """A console with its address. `get` asks it as a browser does.

    With a SASL mechanism in `login`, users log in. `is_https` stands for a proxy that terminates TLS.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        timeout_s: float = 10,
        login: str | None = None,
        is_https: bool = False,
        **options: Any,
    ) -> None:
        def connect(known: tuple[str, ...], security: ClientSecurity = NO_SECURITY) -> ClusterClient:
            addresses = ",".join((*bootstrap.split(","), *known))
            return ClusterClient(
                addresses, client_id="tidelog-console", timeout_s=timeout_s, security=security
            )

        def connect_as(login: ClientLogin) -> Callable[[tuple[str, ...]], ClusterClient]:
            return lambda known: connect(known, ClientSecurity(None, login))

        way = connect if login is None else LoginOptions(login, connect_as, is_https, failure_delay_s=0.05)
        self._console = Console(
            way, is_stopping=lambda: self._server.should_exit, **{"interval_ms": 100, **options}
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

    def get(
        self,
        path: str,
        *,
        host: str | None = None,
        method: str = "GET",
        body: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=TIMEOUT_S)
        try:
            sent = {"Host": host or f"{HOST}:{self.port}", **(headers or {})}
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, headers, response.read().decode())
        finally:
            connection.close()

    def post(self, path: str, *, origin: str | None = None, cookie: str = "", **fields: str) -> Answer:
        """Sends a form as a page of this console does."""
        headers = {
            "Origin": self.url if origin is None else origin,
            "Content-Type": "application/x-www-form-urlencoded",
            "Cookie": cookie,
        }
        return self.get(path, method="POST", body=urlencode(fields), headers=headers)

    def log_in(self, user: str, password: str, **fields: str) -> str:
        """Logs in and returns the cookie of the session."""
        return self.log_in_with(user=user, password=password, **fields)

    def log_in_with(self, **fields: str) -> str:
        """Sends the login form and returns the cookie of the session."""
        answer = self.post("/login", **fields)
        assert answer.status == 303, answer.text
        return answer.headers["set-cookie"].partition(";")[0]

    def events(
        self, path: str, cookie: str = "", headers: Mapping[str, str] | None = None
    ) -> Iterator[tuple[str, str]]:
        """Yields the name and the data of each event."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", path, headers={"Cookie": cookie, **(headers or {})})
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


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    with secured_cluster(tmp_path_factory.mktemp("secured")) as cluster:
        yield cluster
