"""The HTTP server of the console."""

from __future__ import annotations

import signal
import socket
from collections.abc import Sequence
from types import FrameType
from typing import Final

import uvicorn

from tidelog.client.address import Address
from tidelog.console.cluster_reader import Connect
from tidelog.console.pages import Console
from tidelog.console.record_decoder import NO_SCHEMAS, RecordDecoder

MAX_CONNECTIONS: Final = 128
LOCAL_HOSTS: Final = ("127.0.0.1", "localhost", "::1", "[::1]")
_GRACE_S: Final = 3


class _Server(uvicorn.Server):
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ends the server. uvicorn would raise the signal again after it has stopped, and the command would
        fail although it did what it was told.
        """
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


class ConsoleServer:
    """A console at an address. It listens from its creation, and answers while `run` runs."""

    def __init__(
        self,
        listen: Address,
        connect: Connect,
        *,
        interval_ms: int,
        allowed_hosts: Sequence[str] = (),
        schemas: RecordDecoder = NO_SCHEMAS,
    ) -> None:
        """Port 0 selects a free port. `allowed_hosts` are further host names by which browsers call the
        console. Raises OSError if the address is not available.
        """
        family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
        self._listener = socket.create_server((listen.host, listen.port), family=family)
        self.address = Address(listen.host, self._listener.getsockname()[1])
        self._console = Console(
            connect,
            interval_ms=interval_ms,
            schemas=schemas,
            is_stopping=lambda: self._server.should_exit,
        )
        hosts = [*LOCAL_HOSTS, *allowed_hosts]
        if listen.host not in ("0.0.0.0", "::"):  # the addresses that mean all addresses
            hosts += [listen.host, f"[{listen.host}]"]
        self._server = _Server(
            uvicorn.Config(
                self._console.application(hosts),
                log_level="warning",
                access_log=False,
                server_header=False,
                lifespan="off",
                ws="none",
                limit_concurrency=MAX_CONNECTIONS,
                timeout_graceful_shutdown=_GRACE_S,
            )
        )

    @property
    def url(self) -> str:
        return f"http://{self.address}/"

    def run(self) -> None:
        """Answers until `stop`, or until SIGINT or SIGTERM if it runs in the main thread."""
        self._console.start()
        try:
            with self._listener:
                self._server.run(sockets=[self._listener])
        finally:
            self._console.close()

    def stop(self) -> None:
        """Makes `run` return soon. It may be called from any thread."""
        self._server.should_exit = True
