"""An API server with a few objects in memory, and enough of Kubernetes' REST API for the official client."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

Object = dict[str, Any]


class ScriptedApiServer:
    """The objects by their paths (`/api/v1/namespaces/n/pods/p`). `writes` holds all writes in order."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.writes: list[tuple[str, str, Any]] = []
        """(method, path, body)"""
        self.refusals: list[tuple[int, str]] = []
        """The responses to the next requests: (status, message)."""
        self.refuse_paths: dict[str, tuple[int, str]] = {}
        """The responses to writes of these paths."""
        self.on_write: Callable[[str, str, Any], None] = lambda method, path, body: None
        """Functions that act like the controllers of a cluster after a write."""
        self.lock = threading.RLock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def put(self, path: str, **fields: Any) -> Object:
        """Adds an object with these fields. Its name and namespace come from the path."""
        parts = path.split("/")
        metadata = {"name": parts[-1], **fields.pop("metadata", {})}
        if "namespaces" in parts:
            metadata["namespace"] = parts[parts.index("namespaces") + 1]
        with self.lock:
            self.objects[path] = {"metadata": metadata, **fields}
            return self.objects[path]

    def kubeconfig(self, directory: Path) -> Path:
        """Writes a file for KUBECONFIG."""
        path = directory / "kubeconfig"
        cluster = {"name": "c", "cluster": {"server": self.url}}
        context = {"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "n"}}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [cluster],
            "contexts": [context],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "current-context": "c",
        }
        path.write_text(json.dumps(config), "utf-8")
        return path

    def __enter__(self) -> ScriptedApiServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method: str, target: str, body: Any) -> tuple[int, Any]:
        url = urlsplit(target)
        with self.lock:
            if self.refusals:
                status, message = self.refusals.pop(0)
                return status, {"kind": "Status", "message": message}
            if method != "GET" and url.path in self.refuse_paths:
                status, message = self.refuse_paths[url.path]
                return status, {"kind": "Status", "message": message}
            if method != "GET":
                self.writes.append((method, url.path, body))
            try:
                return self._answer(method, url.path, parse_qs(url.query), body)
            finally:
                if method != "GET":
                    self.on_write(method, url.path, body)

    def _answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        found = self.objects.get(path)
        if method == "GET" and found is None and _is_list(path):
            return 200, {"items": self._listed(path, query.get("labelSelector", [""])[0])}
        if method == "POST":
            self.put(f"{path}/{body['metadata'].get('name', 'generated')}", **body)
            return 201, body
        if found is None:
            return 404, {"kind": "Status", "message": f"{path} not found"}
        if method == "PATCH":
            if "dryRun" not in query:
                _merge(found, body)
        elif method == "DELETE":
            del self.objects[path]
        return 200, found

    def _listed(self, path: str, selector: str) -> list[Object]:
        wanted = dict(part.split("=", 1) for part in selector.split(",") if part)
        return [
            copy.deepcopy(found)
            for key, found in sorted(self.objects.items())
            if key.rpartition("/")[0] == path
            and wanted.items() <= found["metadata"].get("labels", {}).items()
        ]


def _is_list(path: str) -> bool:
    """Returns the path of a collection: `.../namespaces/NAMESPACE/KIND`, or `.../KIND` of the cluster."""
    parts = path.strip("/").split("/")
    within = (
        parts[parts.index("namespaces") + 2 :] if "namespaces" in parts else parts[parts.index("v1") + 1 :]
    )
    return len(within) == 1


def _merge(target: Object, patch: Object) -> None:
    """Applies a JSON merge patch."""
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            _merge(target.setdefault(key, {}), value)
        else:
            target[key] = value


def _handler_of(server: ScriptedApiServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, answer = server.answer(self.command, self.path, body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PATCH = do_DELETE = do_POST = _serve  # noqa: N815

        def log_message(self, *arguments: Any) -> None:
            """Keeps the log out of the tests' output."""

    return Handler
