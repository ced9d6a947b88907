"""The HTTP server of the console."""

from __future__ import annotations

import logging
import signal
import socket
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Final

import uvicorn

from tidelog.client.address import Address
from tidelog.console.login import LoginOptions
from tidelog.console.page_reader import Connect
from tidelog.console.pages import Console
from tidelog.console.record_decoder import NO_SCHEMAS, RecordDecoder

MAX_CONNECTIONS: Final = 128
LOCAL_HOSTS: Final = ("127.0.0.1", "localhost", "::1", "[::1]")
CERTIFICATE_CHECK_TICKS: Final = 600
"""Files with a certificate are looked at after this many tenths of a second."""
SWITCH_INTERVAL_S: Final = 0.0005
"""The time after which a thread that waits for Python's lock gets it. Searches decode records for seconds.
With Python's 5 ms, a page of another user, which needs the lock a dozen times, took six times as long.
"""
_GRACE_S: Final = 3
_log: Final = logging.getLogger(__name__)


class Certificate:
    """The console's certificate and its key, from files in PEM that may be replaced at any time."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Raises OSError with one sentence if the files are not a certificate and its key."""
        self._paths = (certificate, key)
        self._seen = self._signature()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._load()

    def renew(self) -> None:
        """Uses new files for new connections. If they are wrong, the earlier ones stay."""
        try:
            seen = self._signature()
            if seen == self._seen:
                return
            self._seen = seen
            self._load()
        except OSError as error:
            _log.warning("The console keeps its earlier certificate: %s.", error)

    def _load(self) -> None:
        certificate, key = self._paths
        try:
            # A key with a password is refused. Otherwise, OpenSSL would ask the terminal for it.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
            self.context.load_cert_chain(certificate, key, password="")
        except (ssl.SSLError, ValueError) as error:
            reason = getattr(error, "reason", None) or "they are not PEM, or the key has a password"
            raise OSError(f"{certificate} and {key} are not a certificate and its key: {reason}") from error

    def _signature(self) -> tuple[tuple[int, int, int], ...]:
        stats = [path.stat() for path in self._paths]
        return tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, certificate: Certificate | None) -> None:
        super().__init__(config)
        self._certificate = certificate
        if certificate is not None:
            config.load()
            config.ssl = certificate.context

    async def on_tick(self, counter: int) -> bool:
        if self._certificate is not None and counter % CERTIFICATE_CHECK_TICKS == 0:
            self._certificate.renew()
        return await super().on_tick(counter)

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
        way: Connect | LoginOptions,
        *,
        interval_ms: int,
        allowed_hosts: Sequence[str] = (),
        schemas: RecordDecoder = NO_SCHEMAS,
        certificate: Certificate | None = None,
    ) -> None:
        """Port 0 selects a free port. `allowed_hosts` are further host names by which browsers call the
        console. Raises OSError if the address is not available.
        """
        family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
        self._listener = socket.create_server((listen.host, listen.port), family=family)
        self.address = Address(listen.host, self._listener.getsockname()[1])
        self._is_https = certificate is not None
        self._console = Console(
            way,
            interval_ms=interval_ms,
            schemas=schemas,
            is_stopping=lambda: self._server.should_exit,
        )
        hosts = [*LOCAL_HOSTS, *allowed_hosts]
        if listen.host not in ("0.0.0.0", "::"):  # the addresses that mean all addresses
            hosts += [listen.host, f"[{listen.host}]"]
        config = uvicorn.Config(
            self._console.application(hosts),
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,  # anybody on this machine could invent addresses
            lifespan="off",
            ws="none",
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=_GRACE_S,
        )
        self._server = _Server(config, certificate)

    @property
    def url(self) -> str:
        return f"{'https' if self._is_https else 'http'}://{self.address}/"

    def run(self) -> None:
        """Answers until `stop`, or until SIGINT or SIGTERM if it runs in the main thread."""
        interval_s = sys.getswitchinterval()
        sys.setswitchinterval(min(interval_s, SWITCH_INTERVAL_S))
        self._console.start()
        try:
            with self._listener:
                self._server.run(sockets=[self._listener])
        finally:
            self._console.close()
            sys.setswitchinterval(interval_s)

    def stop(self) -> None:
        """Makes `run` return soon. It may be called from any thread."""
        self._server.should_exit = True
