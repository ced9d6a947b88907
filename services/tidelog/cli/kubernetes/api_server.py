"""Calls of the API server with a pod's service account or with the kubeconfig.

Every call has a timeout, and is repeated for a while if the server is unavailable or asks the client to wait,
because Jobs and init containers run while nodes and control planes are replaced.

Jobs use the official client. Init containers delay the start of a broker, so `read_object` sends their
request with the standard library, which takes a fifth of the CPU time of importing the official client (0.5
s).
"""

from __future__ import annotations

import json
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import quote

from tidelog.cli.tool_command import ToolError
from tidelog.model.text import JsonObject
from tidelog.process.build import install_command
from tidelog.process.direct_requests import open_directly

CALL_TIMEOUT_S: Final = 10.0
RETRY_FOR_S: Final = 60.0
RETRY_BACKOFF_S: Final = 1.0
RETRIED_STATUS: Final = (0, 408, 409, 429, 500, 502, 503, 504)
_NOT_FOUND: Final = 404
_FORBIDDEN: Final = (401, 403)

T = TypeVar("T")

KubeObject: TypeAlias = Any
"""An object of the `kubernetes` package, which has no types."""
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024


class NotFoundError(Exception):
    """The object does not exist."""


class ApiServer:
    """The client and its errors. The modules that use it have the typed interfaces."""

    def __init__(self, client: KubeObject, *, retry_for_s: float = RETRY_FOR_S) -> None:
        from kubernetes import client as api

        self._api = api
        self.core = api.CoreV1Api(client)
        self.apps = api.AppsV1Api(client)
        self.batch = api.BatchV1Api(client)
        self.storage = api.StorageV1Api(client)
        self._retry_for_s = retry_for_s

    @classmethod
    def connect(cls, *, retry_for_s: float = RETRY_FOR_S) -> ApiServer:
        """Returns a connected client. Raises ToolError without a service account or kubeconfig."""
        try:
            from kubernetes import client, config
        except ImportError as error:
            raise ToolError(
                f"this command needs the package kubernetes: {install_command('kubernetes')}"
            ) from error
        settings = client.Configuration()
        settings.retries = False  # `call` retries, and reports when it gives up
        try:
            config.load_incluster_config(settings)  # type: ignore[no-untyped-call]
        except config.ConfigException:
            try:
                # The client reads KUBECONFIG only when it is imported.
                file = os.environ.get("KUBECONFIG") or None
                config.load_kube_config(file, client_configuration=settings)  # type: ignore[no-untyped-call]
            except (config.ConfigException, OSError) as error:
                raise ToolError(
                    "neither a pod's service account nor a kubeconfig was found "
                    f"({' '.join(str(error).split()).rstrip('.')}); set KUBECONFIG"
                ) from error
        return cls(client.ApiClient(settings), retry_for_s=retry_for_s)

    def call(self, function: Callable[..., T], *arguments: object, **options: object) -> T:
        """Calls a function of the client. Raises NotFoundError, ToolError with the API server's message."""
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        give_up_s = time.monotonic() + self._retry_for_s
        while True:
            try:
                return function(*arguments, _request_timeout=CALL_TIMEOUT_S, **options)
            except ApiException as error:
                if error.status == _NOT_FOUND:
                    raise NotFoundError(_reason_of(error)) from error
                if error.status not in RETRIED_STATUS or time.monotonic() > give_up_s:
                    raise ToolError(f"the API server: {_reason_of(error)}") from error
            except HTTPError as error:
                if time.monotonic() > give_up_s:
                    raise ToolError(f"the API server does not answer: {error}") from error
            time.sleep(RETRY_BACKOFF_S)


def _reason_of(error: KubeObject) -> str:
    """Returns the message of the Status object, or else the HTTP status."""
    try:
        message = str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        message = f"{error.status} {error.reason}"
    return with_next_step(message, error.status)


def with_next_step(message: str, status: int) -> str:
    """Returns the API server's message. If access is denied, the next step is added."""
    if (
        status in _FORBIDDEN and " cannot " in f" {message} "
    ):  # otherwise an admission plug-in has denied the request
        return f"{message}; the chart's value rbac.create=true grants this permission"
    return message


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
        give_up_s = time.monotonic() + RETRY_FOR_S
        while True:
            try:
                return self._get(path)
            except urllib.error.HTTPError as error:
                said = _message(error)
                if error.code == _NOT_FOUND:
                    raise NotFoundError(said) from error
                if error.code not in RETRIED_STATUS or time.monotonic() > give_up_s:
                    raise ToolError(f"the API server: {said}") from error
            except OSError as error:
                if time.monotonic() > give_up_s:
                    raise ToolError(f"the API server does not answer: {error}") from error
            time.sleep(RETRY_BACKOFF_S)

    def _get(self, path: str) -> JsonObject:
        token = self._token_file.read_text("utf-8").strip()
        request = urllib.request.Request(self._url + path, headers={"Authorization": f"Bearer {token}"})
        with open_directly(request, CALL_TIMEOUT_S, self._tls) as answer:
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
    return with_next_step(message, error.code)
