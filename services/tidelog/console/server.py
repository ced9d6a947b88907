"""The HTTP server of the console."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from types import FrameType
from typing import Final

import uvicorn

from tidelog.client.address import Address
from tidelog.console.cluster_reader import Connect
from tidelog.console.pages import Console

MAX_CONNECTIONS: Final = 128
LOCAL_HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")
_GRACE_S: Final = 3


class _Server(uvicorn.Server):
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ends the server. uvicorn would raise the signal again after it has stopped, and the command would
        fail although it did what it was told.
        """
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def serve(
    listen: Address,
    connect: Connect,
    *,
    interval_ms: int,
    allowed_hosts: tuple[str, ...],
    on_ready: Callable[[Address], None],
) -> None:
    """Serves until SIGINT or SIGTERM. Port 0 selects a free port. Raises OSError if the address is taken."""
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    with socket.create_server((listen.host, listen.port), family=family) as listener:
        port = listener.getsockname()[1]
        server: _Server | None = None
        console = Console(
            connect,
            interval_ms=interval_ms,
            is_stopping=lambda: server is not None and server.should_exit,
        )
        hosts = [*LOCAL_HOSTS, *allowed_hosts]
        if listen.host not in ("0.0.0.0", "::"):  # the addresses that mean all addresses
            hosts.append(f"[{listen.host}]" if ":" in listen.host else listen.host)
        try:
            server = _Server(
                uvicorn.Config(
                    console.application(hosts),
                    log_level="warning",
                    access_log=False,
                    server_header=False,
                    lifespan="off",
                    ws="none",
                    limit_concurrency=MAX_CONNECTIONS,
                    timeout_graceful_shutdown=_GRACE_S,
                )
            )
            on_ready(Address(listen.host, port))
            server.run(sockets=[listener])
        finally:
            console.close()
