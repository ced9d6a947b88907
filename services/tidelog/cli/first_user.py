"""The first user of a cluster, whose SCRAM credentials are written to the metadata store before any broker
serves clients.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

from tidelog.client.admin.access import SALT_RANDOM_BYTES
from tidelog.metadata.entries import ScramCredentialEntry
from tidelog.metadata.store import Compare, MetadataStore, Put
from tidelog.sasl.scram import MECHANISM_BY_NAME, new_credential, salt_from


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
