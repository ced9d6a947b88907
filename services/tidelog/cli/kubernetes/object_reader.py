"""Reads one object from the API server for init containers, which delay the start of a broker.

In a pod the standard library sends the request with the pod's service account. This takes a fifth of the CPU
time of importing the official client (0.5 s). Elsewhere the official client is used with the kubeconfig.
"""

from __future__ import annotations

import json
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

from tidelog.cli.kubernetes import api_server
from tidelog.cli.kubernetes.api_server import ApiServer, NotFoundError
from tidelog.cli.tool_command import ToolError
from tidelog.model.text import JsonObject
from tidelog.process.direct_requests import open_directly

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024
_NOT_FOUND: Final = 404


class PodReader:
    """Reads with the pod's service account. Every call reads the token, because Kubernetes renews it."""

    def __init__(self, url: str, token_file: Path, ca_file: Path | None) -> None:
        self._url = url
        self._token_file = token_file
        self._tls = ssl.create_default_context(cafile=ca_file) if ca_file else None

    @classmethod
    def here(
        cls, environment: Mapping[str, str] = os.environ, directory: Path = SERVICE_ACCOUNT
    ) -> PodReader | None:
        """Returns a reader, or None outside a pod or in a pod without a service account."""
        host = environment.get("KUBERNETES_SERVICE_HOST")
        token, authority = directory / "token", directory / "ca.crt"
        if not host or not token.exists() or not authority.exists():
            return None
        place = f"[{host}]" if ":" in host else host
        return cls(f"https://{place}:{environment.get('KUBERNETES_SERVICE_PORT', '443')}", token, authority)

    def get(self, path: str) -> JsonObject:
        """Reads an object, with the retries of ApiServer.

        Raises NotFoundError, ToolError with the API server's message.
        """
        give_up_s = time.monotonic() + api_server.RETRY_FOR_S
        while True:
            try:
                return self._get(path)
            except urllib.error.HTTPError as error:
                said = _message(error)
                if error.code == _NOT_FOUND:
                    raise NotFoundError(said) from error
                if error.code not in api_server.RETRIED_STATUS or time.monotonic() > give_up_s:
                    raise ToolError(f"the API server: {said}") from error
            except OSError as error:
                if time.monotonic() > give_up_s:
                    raise ToolError(f"the API server does not answer: {error}") from error
            time.sleep(api_server.RETRY_BACKOFF_S)

    def _get(self, path: str) -> JsonObject:
        token = self._token_file.read_text("utf-8").strip()
        request = urllib.request.Request(self._url + path, headers={"Authorization": f"Bearer {token}"})
        with open_directly(request, api_server.CALL_TIMEOUT_S, self._tls) as answer:
            found: JsonObject = json.loads(answer.read(MAX_ANSWER_BYTES))
            return found


def read_object(kind: str, name: str, namespace: str | None = None) -> JsonObject:
    """Returns a `node` or `service` from the API server. Raises NotFoundError, ToolError."""
    reader = PodReader.here()
    if reader is not None:
        within = "" if namespace is None else f"/namespaces/{quote(namespace, safe='')}"
        return reader.get(f"/api/v1{within}/{kind}s/{quote(name, safe='')}")
    server = ApiServer.connect()
    place = () if namespace is None else (namespace,)
    read = getattr(server.core, f"read_namespaced_{kind}" if place else f"read_{kind}")
    found: JsonObject = json.loads(server.call(read, name, *place, _preload_content=False).data)
    return found


def _message(error: urllib.error.HTTPError) -> str:
    try:
        message = str(json.loads(error.read(MAX_ANSWER_BYTES))["message"])
    except (ValueError, KeyError, TypeError):
        message = f"{error.code} {error.reason}"
    return api_server.with_next_step(message, error.code)
