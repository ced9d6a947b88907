"""Serves recordings of exporters that a cluster of processes does not have.

`recorded/NAME.txt` holds two scrapes of kube-state-metrics, the kubelet or node_exporter of a real cluster,
`SECONDS_APART` apart: each line is a series and its two values. The served values continue this change, so
counters grow.
"""

from __future__ import annotations

import contextlib
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

RECORDED = Path(__file__).parent / "recorded"
SECONDS_APART = 30.0


def exposition(text: str, elapsed_s: float) -> str:
    """Returns the exporter's response `elapsed_s` after the first recording."""
    lines = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            series, first, second = line.rsplit(" ", 2)
            value = float(first) + (float(second) - float(first)) * elapsed_s / SECONDS_APART
            lines.append(f"{series} {value!r}")
    return "\n".join(lines) + "\n"


class ForeignExporters:
    """In `with ForeignExporters() as address:`, each recording is served at /NAME."""

    def __init__(self) -> None:
        began_s = time.monotonic()
        texts = {f"/{path.stem}": path.read_text() for path in RECORDED.glob("*.txt")}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                text = texts.get(self.path)
                body = b"" if text is None else exposition(text, time.monotonic() - began_s).encode()
                self.send_response(404 if text is None else 200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(ConnectionError):  # the scrape was cancelled
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.names = sorted(texts)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> ForeignExporters:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"
