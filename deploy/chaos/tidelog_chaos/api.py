"""Reads from the API server through one `kubectl proxy`. A kubectl process for each question would cost too
much CPU on a small machine under load.
"""

from __future__ import annotations

import atexit
import http.client
import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from typing import Any

from chaoslib.exceptions import ActivityFailed

READ_TIMEOUT_S = 15.0
AGAIN_S = (0.3, 1.0, 3.0)
SERVES = re.compile(r"127\.0\.0\.1:(\d+)")
PATHS = {"pods": "api/v1", "statefulsets": "apis/apps/v1", "deployments": "apis/apps/v1"}
_proxies: list[tuple[subprocess.Popen[str], str]] = []


def read(path: str) -> str:
    """Returns the answer to a GET. Raises ActivityFailed if it is an error or there is no answer."""
    try:
        with urllib.request.urlopen(f"{_address()}/{path}", timeout=READ_TIMEOUT_S) as answer:
            text: str = answer.read().decode()
            return text
    except (OSError, http.client.HTTPException) as error:
        raise ActivityFailed(f"GET {path[:200]}: {error}") from error


def listed(namespace: str, kind: str, labels: str) -> list[dict[str, Any]]:
    """Returns the objects of one of `PATHS`."""
    path = f"{PATHS[kind]}/namespaces/{namespace}/{kind}?labelSelector={urllib.parse.quote(labels)}"
    for pause_s in AGAIN_S:
        try:
            return _items(path)
        except ActivityFailed:
            time.sleep(pause_s)  # an API server under load sometimes fails
    return _items(path)


def _items(path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(read(path))["items"]
    return found


def _address() -> str:
    """Returns the address of the proxy, which is started if necessary and ends with this process."""
    if _proxies and _proxies[-1][0].poll() is None:
        return _proxies[-1][1]
    try:
        process = subprocess.Popen(
            ["kubectl", "proxy", "--port=0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    except OSError as error:
        raise ActivityFailed(f"kubectl: {error}") from error
    atexit.register(process.kill)
    assert process.stdout is not None
    said = process.stdout.readline()
    found = SERVES.search(said)
    if found is None:
        process.kill()
        raise ActivityFailed(f"kubectl proxy: {said.strip()}")
    _proxies.append((process, f"http://127.0.0.1:{found[1]}"))
    return _proxies[-1][1]
