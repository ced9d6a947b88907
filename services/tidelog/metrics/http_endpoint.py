"""An HTTP server in a thread of its own, with a bounded number of connections, and the answers to probes.

The probes `/livez` and `/readyz` answer 200 or 503 with one line of reason (`health.py`). They also have a
port of their own, because readers of metrics need not be trusted with the life of a process: slow scrapes and
unfinished requests at the port of the metrics do not delay a probe.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from tidelog.metrics.health import Health, Verdict

_STOP_TIMEOUT_S: Final = 5
_POLL_INTERVAL_S: Final = 0.1
_CLIENT_TIMEOUT_S: Final = 10
MAX_CONNECTIONS: Final = 32
"""The connections that are served at a time, each by a thread. One more connection ends the oldest, so that
unfinished requests cannot keep others out.
"""
LISTEN_BACKLOG: Final = 128


class HttpEndpoint:
    """A server of one application, from its creation until `close`."""

    def __init__(self, app: WSGIApplication, host: str, port: int, name: str) -> None:
        """Starts a thread with this name. Raises OSError if the address is not available."""

        class Server(ThreadingMixIn, WSGIServer):
            daemon_threads = True
            address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            # With the default of 5, the kernel drops connections of a burst, and probes wait for a second.
            request_queue_size = LISTEN_BACKLOG

            def process_request(self, request: Any, client_address: Any) -> None:
                """Starts a thread for the request, after ending the oldest one if there are too many."""
                with lock:
                    open_requests[request] = None
                    oldest = next(iter(open_requests)) if len(open_requests) > MAX_CONNECTIONS else None
                    if oldest is not None:
                        del open_requests[oldest]
                if oldest is not None:
                    with suppress(OSError):
                        oldest.shutdown(socket.SHUT_RDWR)
                super().process_request(request, client_address)

            def shutdown_request(self, request: Any) -> None:
                with lock:
                    open_requests.pop(request, None)
                super().shutdown_request(request)

            def handle_error(self, request: object, client_address: object) -> None:
                """Ignores errors of clients that have disconnected."""

        open_requests: dict[socket.socket, None] = {}
        lock = threading.Lock()
        self._server = make_server(host, port, app, Server, handler_class=_SilentHandler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_INTERVAL_S,), name=name, daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that the endpoint listens on."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Stops answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_STOP_TIMEOUT_S)


class _SilentHandler(WSGIRequestHandler):
    timeout = _CLIENT_TIMEOUT_S

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        """Does not log requests."""

    def address_string(self) -> str:
        """Returns the client's address without asking DNS for its name."""
        return str(self.client_address[0])


class ProbesEndpoint(HttpEndpoint):
    """A server of probes, from its creation until `close`."""

    def __init__(self, health: Health, host: str, port: int) -> None:
        """Raises OSError if the address is not available."""
        super().__init__(with_probes(health, _not_found), host, port, "probes")


def with_probes(health: Health, others: WSGIApplication) -> WSGIApplication:
    """Returns an application that answers probes, and leaves other paths to `others`."""
    probes: dict[str, Callable[[], Verdict]] = {"/livez": health.liveness, "/readyz": health.readiness}

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        probe = probes.get(environ["PATH_INFO"])
        if probe is None:
            return others(environ, start_response)
        verdict = probe()
        status = "200 OK" if verdict.is_good else "503 Service Unavailable"
        return _line(start_response, status, verdict.reason)

    return app


def _not_found(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    return _line(start_response, "404 Not Found", "only /livez and /readyz are served here")


def _line(start_response: StartResponse, status: str, text: str) -> Iterable[bytes]:
    body = f"{text}\n".encode()
    start_response(
        status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
    )
    return [body]
