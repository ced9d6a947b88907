"""One object of the API server, for init containers: what a broker waits for before it starts must be quick.

In a pod it is asked over the standard library by the pod's service account, which takes a fifth of the CPU
that importing the official client does (0.5 s). Elsewhere the official client reads the kubeconfig.
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
from typing import Any, Final
from urllib.parse import quote

from tidelog.cli.kubernetes import api_server
from tidelog.cli.kubernetes.api_server import ApiServer, NotFoundError
from tidelog.cli.tool_command import ToolError

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024
_NOT_FOUND: Final = 404


class PodReader:
    """Reads as the pod's service account. The token is read for each call: it is renewed."""

    def __init__(self, url: str, token_file: Path, ca_file: Path | None) -> None:
        self._url = url
        self._token_file = token_file
        self._tls = ssl.create_default_context(cafile=ca_file) if ca_file else None

    @classmethod
    def here(
        cls, environment: Mapping[str, str] = os.environ, directory: Path = SERVICE_ACCOUNT
    ) -> PodReader | None:
        """None if this is no pod, or one without a service account."""
        host = environment.get("KUBERNETES_SERVICE_HOST")
        token, authority = directory / "token", directory / "ca.crt"
        if not host or not token.exists() or not authority.exists():
            return None
        place = f"[{host}]" if ":" in host else host
        return cls(f"https://{place}:{environment.get('KUBERNETES_SERVICE_PORT', '443')}", token, authority)

    def get(self, path: str) -> dict[str, Any]:
        """Tried again as ApiServer does. Raises NotFoundError, ToolError with what the API server said."""
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

    def _get(self, path: str) -> dict[str, Any]:
        token = self._token_file.read_text("utf-8").strip()
        request = urllib.request.Request(self._url + path, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=api_server.CALL_TIMEOUT_S, context=self._tls) as answer:
            found: dict[str, Any] = json.loads(answer.read(MAX_ANSWER_BYTES))
            return found


def read_object(kind: str, name: str, namespace: str | None = None) -> dict[str, Any]:
    """A `node` or `service` as the API server has it. Raises NotFoundError, ToolError."""
    reader = PodReader.here()
    if reader is not None:
        within = "" if namespace is None else f"/namespaces/{quote(namespace, safe='')}"
        return reader.get(f"/api/v1{within}/{kind}s/{quote(name, safe='')}")
    server = ApiServer.connect()
    place = () if namespace is None else (namespace,)
    read = getattr(server.core, f"read_namespaced_{kind}" if place else f"read_{kind}")
    found: dict[str, Any] = json.loads(server.call(read, name, *place, _preload_content=False).data)
    return found


def _message(error: urllib.error.HTTPError) -> str:
    try:
        message = str(json.loads(error.read(MAX_ANSWER_BYTES))["message"])
    except (ValueError, KeyError, TypeError):
        message = f"{error.code} {error.reason}"
    return api_server.with_next_step(message, error.code)
