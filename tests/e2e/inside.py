"""Lets clients of this process use the listeners inside the cluster.

The lab's machine reaches the addresses of pods and services, but does not know their names, and certificates
contain names. A mount namespace of this thread, and of the threads and processes that it starts later, has
another /etc/hosts. The machine's own file is not changed.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from e2e.kubectl import Kubectl

_CLONE_NEWNS: Final = 0x00020000
HOSTS: Final = Path("/etc/hosts")


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
