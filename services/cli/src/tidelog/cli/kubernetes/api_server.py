"""The API server, asked by the official client: in a pod by its service account, elsewhere by the kubeconfig.

Every call has a time limit and is tried again for a while when the server is away or asks to wait: Jobs and
init containers run while nodes and control planes are being replaced.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from tidelog.cli.tool_command import ToolError

CALL_TIMEOUT_S: Final = 10.0
RETRY_FOR_S: Final = 60.0
RETRY_BACKOFF_S: Final = 1.0
RETRIED_STATUS: Final = (0, 408, 409, 429, 500, 502, 503, 504)
_NOT_FOUND: Final = 404
_FORBIDDEN: Final = (401, 403)

T = TypeVar("T")


class NotFoundError(Exception):
    """The object does not exist."""


class ApiServer:
    """Typed doors are in the modules that use it; here are the client and its errors."""

    def __init__(self, client: Any, *, retry_for_s: float = RETRY_FOR_S) -> None:
        from kubernetes import client as api

        self._api = api
        self.core = api.CoreV1Api(client)
        self.apps = api.AppsV1Api(client)
        self.batch = api.BatchV1Api(client)
        self.storage = api.StorageV1Api(client)
        self._retry_for_s = retry_for_s

    @classmethod
    def connect(cls, *, retry_for_s: float = RETRY_FOR_S) -> ApiServer:
        """Raises ToolError if there is neither a service account nor a kubeconfig."""
        try:
            from kubernetes import client, config
        except ImportError as error:
            raise ToolError("this needs the extra 'kubernetes': pip install 'tidelog[kubernetes]'") from error
        settings = client.Configuration()
        settings.retries = False  # `call` does it, and tells when it gives up
        try:
            config.load_incluster_config(settings)  # type: ignore[no-untyped-call]
        except config.ConfigException:
            try:
                # The client itself looks at KUBECONFIG once, when it is imported.
                file = os.environ.get("KUBECONFIG") or None
                config.load_kube_config(file, client_configuration=settings)  # type: ignore[no-untyped-call]
            except (config.ConfigException, OSError) as error:
                raise ToolError(
                    "no API server is known: neither a pod's service account nor a kubeconfig is here "
                    f"({' '.join(str(error).split()).rstrip('.')}); KUBECONFIG names one"
                ) from error
        return cls(client.ApiClient(settings), retry_for_s=retry_for_s)

    def call(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Raises NotFoundError, ToolError with what the API server said."""
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


def _reason_of(error: Any) -> str:
    """The message inside a Status object, else what HTTP says."""
    try:
        message = str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        message = f"{error.status} {error.reason}"
    return with_next_step(message, error.status)


def with_next_step(message: str, status: int) -> str:
    """What the API server said, and who can grant it if it said no."""
    if status in _FORBIDDEN and " cannot " in f" {message} ":  # else an admission plug-in says no
        return f"{message}; rbac.create=true of the chart grants it"
    return message
