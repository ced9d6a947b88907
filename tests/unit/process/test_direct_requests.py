"""Servers that redirect requests which carry a secret, or whose answers are trusted."""

from __future__ import annotations

import threading
import urllib.error
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tidelog.broker.net.bearer_tokens import _read_url
from tidelog.client.security import OAuthLogin
from tidelog.pipeline.errors import PipelineError
from tidelog.process.direct_requests import open_directly
from tidelog.sasl import AuthenticationError


class RedirectingServer:
    """Redirects each request for /from, and notes the requests for the other path."""

    def __init__(self, status: int) -> None:
        self.followed: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.path.startswith("/from"):
                    self.send_response(status)
                    self.send_header("Location", f"{server.url}/to")
                else:
                    server.followed.append(self.headers.get("Authorization", ""))
                    self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, *arguments: object) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


def _ask_prometheus(url: str) -> int:
    module = pytest.importorskip(
        "tidelog.pipeline.analytics.prometheus", reason="pandas is not installed: make pipeline-setup"
    )
    return int(module.Prometheus(url, token="secret").scrape_interval_ms("up", 0))


@pytest.fixture(params=[301, 302, 303, 307, 308])
def server(request: pytest.FixtureRequest) -> Iterator[RedirectingServer]:
    redirecting = RedirectingServer(request.param)
    yield redirecting
    redirecting.http.shutdown()
    redirecting.http.server_close()


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (lambda url: open_directly(url, 10.0), urllib.error.HTTPError),
        (_read_url, urllib.error.HTTPError),
        (lambda url: OAuthLogin(url, "alice", "secret", "").tokens("nonce"), AuthenticationError),
        (_ask_prometheus, PipelineError),
    ],
    ids=["request", "keys of the provider", "token of the provider", "Prometheus"],
)
def test_no_redirect_is_followed(
    server: RedirectingServer, ask: Callable[[str], object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        ask(f"{server.url}/from")
    assert server.followed == []


def test_the_message_names_the_other_address(server: RedirectingServer) -> None:
    with pytest.raises(AuthenticationError, match=f"the secret is not sent to {server.url}/to: set "):
        OAuthLogin(f"{server.url}/from", "alice", "secret", "").tokens("nonce")
