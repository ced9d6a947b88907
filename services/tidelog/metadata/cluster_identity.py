"""The first words between a service and the metadata store: the service waits until the store answers, and
compares the cluster id and the version of the layout, which are written once.
"""

from __future__ import annotations

import asyncio
import json
from typing import Final

import structlog

from tidelog.metadata.entries import CLUSTER_ID_KEY, SCHEMA_VERSION_KEY
from tidelog.metadata.store import (
    Compare,
    Get,
    KeyValue,
    MetadataStore,
    Put,
    StoreError,
    StoreUnavailableError,
)

SCHEMA_VERSION: Final = 1
RETRY_MS: Final = 500
REMIND_MS: Final = 10_000

_log = structlog.get_logger(__name__)


class SchemaVersionError(StoreError):
    """The metadata store has a layout that this version of tidelog does not know."""


async def ensure_cluster_id(store: MetadataStore, proposed: str) -> str:
    """Returns the cluster id in the store. If the store is new, writes `proposed` and returns it. Only
    controllers, and those who build a cluster anew, may write it in etcd.

    Raises SchemaVersionError and StoreUnavailableError.
    """
    value = json.dumps({"version": 1, "id": proposed}).encode()
    result = await store.txn(
        [Compare.absent(CLUSTER_ID_KEY)],
        [Put(CLUSTER_ID_KEY, value), Put(SCHEMA_VERSION_KEY, b"%d" % SCHEMA_VERSION)],
        [Get(CLUSTER_ID_KEY), Get(SCHEMA_VERSION_KEY)],
    )
    return proposed if result.succeeded else _checked_id(*result.reads)


async def stored_cluster_id(store: MetadataStore) -> str | None:
    """Returns the cluster id in the store, or None if the store is new.

    Raises SchemaVersionError and StoreUnavailableError.
    """
    cluster = await store.get(CLUSTER_ID_KEY)
    # One transaction writes both keys, so the version is there if the id is.
    return None if cluster is None else _checked_id(cluster, await store.get(SCHEMA_VERSION_KEY))


def _checked_id(cluster: KeyValue | None, schema: KeyValue | None) -> str:
    found = int(schema.value) if schema is not None else 0
    if found != SCHEMA_VERSION:
        raise SchemaVersionError(
            f"the metadata store has layout {found}; this version of tidelog needs {SCHEMA_VERSION}"
        )
    assert cluster is not None, "the store has a layout, so it has an id"
    return str(json.loads(cluster.value)["id"])


async def until_store_answers(store: MetadataStore, where: str) -> None:
    """Returns when the store has answered. There is no timeout. `where` names the store in the log."""
    attempts = 0
    while True:
        try:
            await store.get(SCHEMA_VERSION_KEY)
        except StoreUnavailableError as error:
            if attempts % (REMIND_MS // RETRY_MS) == 0:
                _log.warning("waiting for the metadata store", where=where, reason=str(error))
            attempts += 1
            await asyncio.sleep(RETRY_MS / 1000)
        else:
            if attempts:
                _log.info("the metadata store answers", where=where)
            return
