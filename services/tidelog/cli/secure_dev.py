"""Makes what `tidelog dev --secure` needs: certificates, the user `admin`, and the properties for clients.

Everything is in the data directory. `security/authority` and `security/broker` contain the certificate
authority and the broker's certificate. `client.properties` is for clients on this machine.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

from tidelog.cli.certificate_authority import CertificateAuthority, CertificateFiles
from tidelog.cli.first_user import new_entries
from tidelog.metadata.file_store import FileMetadataStore
from tidelog.metadata.store import Put
from tidelog.sasl import SCRAM_SHA_512
from tidelog.sasl.jaas import quoted
from tidelog.sasl.scram import MIN_ITERATIONS
from tidelog.timing.clock import SystemClock

ADMIN: Final = "admin"
CLIENT_PROPERTIES: Final = "client.properties"
PASSWORD_BYTES: Final = 24
_SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_PRIVATE_FILE: Final = 0o600
_WILDCARDS: Final = frozenset({"", "0.0.0.0", "::"})


def secure_settings(given: MutableMapping[str, str], listen: str, data_dir: Path) -> None:
    """Adds the settings of a secure listener to the given ones, which take precedence. Creates or renews the
    certificates. Raises OSError.
    """
    host = listen.rpartition(":")[0].strip("[]")
    names = ["localhost", "127.0.0.1", "::1", socket.gethostname()]
    if host not in _WILDCARDS and host not in names:
        names.append(host)
    clock = SystemClock()
    authority = CertificateAuthority.open(data_dir / "security" / "authority", now_ms=clock.wall_ms())
    directory = data_dir / "security" / "broker"
    authority.renew(directory, names, now_ms=clock.wall_ms())
    files = CertificateFiles.within(directory)
    keystore = directory / "keystore.pem"
    _write_private(keystore, files.key.read_text() + files.certificate.read_text())
    given.setdefault("listeners", f"SASL_SSL://{listen}")
    given.setdefault("security.inter.broker.protocol", "SASL_SSL")
    given.setdefault("ssl.keystore.location", str(keystore.resolve()))
    given.setdefault("ssl.keystore.type", "PEM")
    given.setdefault("sasl.enabled.mechanisms", SCRAM_SHA_512)
    given.setdefault("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer")
    given.setdefault("super.users", f"User:{ADMIN}")


async def ensure_admin(data_dir: Path, metadata_dir: Path) -> Path:
    """Creates the user `admin` with a random password, unless `client.properties` exists, which contains it.
    Returns this file. Raises OSError and StoreError.
    """
    path = data_dir / CLIENT_PROPERTIES
    if path.exists():
        return path
    password = secrets.token_urlsafe(PASSWORD_BYTES)
    store = FileMetadataStore.open(metadata_dir, monotonic_ms=SystemClock().monotonic_ms)
    try:
        entries = new_entries(ADMIN, password, [SCRAM_SHA_512], MIN_ITERATIONS)
        await store.txn([], [Put(entry.key, entry.encode()) for entry in entries])
    finally:
        await store.close()
    ca = CertificateFiles.within(data_dir / "security" / "broker").ca.resolve()
    _write_private(
        path,
        "security.protocol=SASL_SSL\n"
        f"sasl.mechanism={SCRAM_SHA_512}\n"
        f"sasl.jaas.config={_SCRAM_MODULE} required "
        f"username={quoted(ADMIN)} password={quoted(password)};\n"
        "ssl.truststore.type=PEM\n"
        f"ssl.truststore.location={ca}\n",
    )
    return path


def _write_private(path: Path, text: str) -> None:
    """Writes a file that only this user can read. Readers find the old or the new file, never a part."""
    beside = path.with_name(path.name + ".new")
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _PRIVATE_FILE), "w") as file:
        file.write(text)
    beside.replace(path)
