"""Lets clients of this process use the listeners inside the cluster.

The lab's machine reaches the addresses of pods and services, but does not know their names, and certificates
contain names. A mount namespace of this thread, and of the threads and processes that it starts later, has
another /etc/hosts. The machine's own file is not changed.
"""

from __future__ import annotations

import ctypes
import http.client
import os
import socket
import ssl
import subprocess
import tempfile
from base64 import b64decode
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from e2e.kubectl import Kubectl

_CLONE_NEWNS: Final = 0x00020000
HOSTS: Final = Path("/etc/hosts")
CONSOLE_TIMEOUT_S: Final = 30.0


def know_services(kubectl: Kubectl, release: str, domain: str = "svc.cluster.local") -> None:
    """Makes the names of the release's brokers known. Raises OSError without root."""
    lines = [HOSTS.read_text()]
    labels = f"app.kubernetes.io/instance={release},app.kubernetes.io/component=broker"
    for service in kubectl.get("services", "-l", labels):
        address = service["spec"]["clusterIP"]
        if address != "None":
            lines.append(f"{address} {service['metadata']['name']}.{kubectl.namespace}.{domain}\n")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    with tempfile.NamedTemporaryFile("w", delete=False) as file:
        file.write("".join(lines))
    path = Path(file.name)
    path.chmod(0o644)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "--bind", str(path), str(HOSTS)], check=True)
    os.unlink(path)  # noqa: PTH108 - the mount keeps the file


def credentials(kubectl: Kubectl, release: str, user: str) -> Mapping[str, Any]:
    """Returns librdkafka's settings for this user, from the Secret that the chart's Job has created."""
    (data,) = (
        found["data"]
        for found in kubectl.get("secrets")
        if found["metadata"]["name"] == f"{release}-user-{user}"
    )
    texts = {name: b64decode(value).decode() for name, value in data.items()}
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": texts["username"],
        "sasl.password": texts["password"],
        "ssl.ca.pem": texts["ca.crt"],
    }


class ConsoleBrowser:
    """A user of the release's web console, through its Service and with the release's authority."""

    def __init__(self, kubectl: Kubectl, release: str, user: str) -> None:
        labels = "app.kubernetes.io/component=console"
        (service,) = (
            found
            for found in kubectl.get("services", "-l", labels)
            if found["metadata"]["name"] == f"{release}-console"
        )
        login = credentials(kubectl, release, user)
        self._address = (service["spec"]["clusterIP"], service["spec"]["ports"][0]["port"])
        self._name = f"{release}-console.{kubectl.namespace}.svc.cluster.local"
        self._tls = ssl.create_default_context(cadata=login["ssl.ca.pem"])
        form = urlencode({"user": login["sasl.username"], "password": login["sasl.password"]})
        status, headers, page = self._ask("POST", "/login", form)
        assert status == HTTPStatus.SEE_OTHER, page
        self._cookie = headers["set-cookie"].partition(";")[0]

    def get(self, path: str) -> str:
        """Returns a page."""
        status, _, page = self._ask("GET", path, cookie=self._cookie)
        assert status == HTTPStatus.OK, page
        return page

    def _ask(
        self, method: str, path: str, body: str | None = None, cookie: str = ""
    ) -> tuple[int, Mapping[str, str], str]:
        port = self._address[1]
        connection = http.client.HTTPSConnection(self._name, port, timeout=CONSOLE_TIMEOUT_S)
        plain = socket.create_connection(self._address, CONSOLE_TIMEOUT_S)
        connection.sock = self._tls.wrap_socket(plain, server_hostname=self._name)
        headers = {"Cookie": cookie, "Origin": f"https://{self._name}:{port}"}
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, found, answer.read().decode()
        finally:
            connection.close()
