"""The cluster id and the version of the layout. Both are written once and compared at every start."""

from __future__ import annotations

import json
from typing import Final

from tidelog.metadata.entries import CLUSTER_ID_KEY, SCHEMA_VERSION_KEY
from tidelog.metadata.store import Compare, Get, KeyValue, MetadataStore, Put, StoreError

SCHEMA_VERSION: Final = 1


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
