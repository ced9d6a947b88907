"""Makes what `tidelog dev --secure` needs: certificates, the user `admin`, and the properties for clients.

Everything is in the data directory. `security/authority` and `security/broker` contain the certificate
authority and the broker's certificate. `client.properties` is for clients on this machine. The first user's
SCRAM credentials are written to the metadata store before any broker serves clients.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Iterable, MutableMapping, Sequence
from pathlib import Path
from typing import Final

import structlog

from tidelog.cli.local_cluster.certificate_authority import CertificateAuthority, CertificateFiles
from tidelog.cli.local_cluster.plan import ADMIN, CLIENT_PROPERTIES, KEYSTORE
from tidelog.client.admin.access import SALT_RANDOM_BYTES
from tidelog.kernel.clock import SystemClock
from tidelog.metadata.entries import ScramCredentialEntry
from tidelog.metadata.file_store import FileMetadataStore
from tidelog.metadata.store import Compare, MetadataStore, Put
from tidelog.sasl import SCRAM_SHA_512
from tidelog.sasl.jaas import scram_login
from tidelog.sasl.scram import MECHANISM_BY_NAME, MIN_ITERATIONS, new_credential, salt_from

PASSWORD_BYTES: Final = 24
LOOK_S: Final = 3_600
"""The time between two looks whether the certificate is due."""
_log = structlog.get_logger(__name__)
_PRIVATE_FILE: Final = 0o600
_WILDCARDS: Final = frozenset({"", "0.0.0.0", "::"})


def secure_settings(given: MutableMapping[str, str], listen: str, data_dir: Path) -> None:
    """Adds the settings of a secure listener to the given ones, which take precedence. Creates or renews the
    certificates. Raises OSError.
    """
    keystore = renew_certificate(listen, data_dir)
    given.setdefault("listeners", f"SASL_SSL://{listen}")
    given.setdefault("security.inter.broker.protocol", "SASL_SSL")
    given.setdefault("ssl.keystore.location", str(keystore.resolve()))
    given.setdefault("ssl.keystore.type", "PEM")
    given.setdefault("sasl.enabled.mechanisms", SCRAM_SHA_512)
    given.setdefault("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer")
    given.setdefault("super.users", f"User:{ADMIN}")


def renew_certificate(listen: str, data_dir: Path) -> Path:
    """Renews the certificate of the listener if it is due. Returns the keystore, which the running listener
    reads again when it changes. Raises OSError.
    """
    host = listen.rpartition(":")[0].strip("[]")
    names = ["localhost", "127.0.0.1", "::1", socket.gethostname()]
    if host not in _WILDCARDS and host not in names:
        names.append(host)
    clock = SystemClock()
    authority = CertificateAuthority.open(data_dir / "security" / "authority", now_ms=clock.wall_ms())
    directory = data_dir / "security" / "broker"
    authority.renew(directory, names, now_ms=clock.wall_ms())
    return write_keystore(directory)


async def keep_certificate(listen: str, data_dir: Path) -> None:
    """Renews the certificate whenever it is due, until the task is cancelled."""
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            await asyncio.to_thread(renew_certificate, listen, data_dir)
        except OSError as error:
            _log.error("the certificate cannot be renewed", reason=str(error))


async def ensure_admin(data_dir: Path, metadata_dir: Path) -> Path:
    """Creates the user `admin` with a random password, unless `client.properties` exists, which contains it.
    Returns this file. Raises OSError and StoreError.
    """
    path = data_dir / CLIENT_PROPERTIES
    if path.exists():
        return path
    store = FileMetadataStore.open(metadata_dir, monotonic_ms=SystemClock().monotonic_ms)
    await write_admin(store, path, CertificateFiles.within(data_dir / "security" / "broker").ca.resolve())
    return path


async def write_admin(store: MetadataStore, path: Path, ca: Path) -> None:
    """Writes the credentials of `admin` with a random password to the store, which it closes, and the
    properties with the password to `path`. Raises OSError and StoreError.
    """
    password = secrets.token_urlsafe(PASSWORD_BYTES)
    try:
        entries = new_entries(ADMIN, password, [SCRAM_SHA_512], MIN_ITERATIONS)
        await store.txn([], [Put(entry.key, entry.encode()) for entry in entries])
    finally:
        await store.close()
    write_private(path, client_properties(password, ca))


def client_properties(password: str, ca: Path) -> str:
    """Returns the properties with which clients log in as `admin`."""
    return (
        "security.protocol=SASL_SSL\n"
        f"sasl.mechanism={SCRAM_SHA_512}\n"
        f"sasl.jaas.config={scram_login(ADMIN, password)}\n"
        "ssl.truststore.type=PEM\n"
        f"ssl.truststore.location={ca}\n"
    )


def write_keystore(directory: Path) -> Path:
    """Writes the key and the certificate of a directory into one file, as a listener needs them. Returns it.
    Raises OSError.
    """
    files, keystore = CertificateFiles.within(directory), directory / KEYSTORE
    text = files.key.read_text() + files.certificate.read_text()
    if not keystore.exists() or keystore.read_text() != text:
        write_private(keystore, text)
    return keystore


def write_private(path: Path, text: str) -> None:
    """Writes a file that only this user can read. Readers find the old or the new file, never a part."""
    beside = path.with_name(path.name + ".new")
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _PRIVATE_FILE), "w") as file:
        file.write(text)
    beside.replace(path)


def new_entries(
    user: str, password: str, mechanisms: Iterable[str], iterations: int
) -> list[ScramCredentialEntry]:
    """Returns the entries of a user's credentials, with new salts."""
    entries = []
    for name in mechanisms:
        mechanism, salt = MECHANISM_BY_NAME[name], salt_from(secrets.token_bytes(SALT_RANDOM_BYTES))
        credential = new_credential(mechanism, password, salt, iterations)
        entries.append(ScramCredentialEntry(user, mechanism.name, credential))
    return entries


async def write_first_user(store: MetadataStore, entries: Sequence[ScramCredentialEntry]) -> bool:
    """Writes the entries, unless one of them exists. Returns whether it wrote. Raises StoreError."""
    result = await store.txn(
        [Compare.absent(entry.key) for entry in entries],
        [Put(entry.key, entry.encode()) for entry in entries],
    )
    return result.succeeded
