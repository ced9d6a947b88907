"""The cluster id and the version of the layout. Both are written once and compared at every start."""

from __future__ import annotations

import json
from typing import Final

from tidelog.metadata.entries import CLUSTER_ID_KEY, SCHEMA_VERSION_KEY
from tidelog.metadata.store import Compare, Get, MetadataStore, Put, StoreError

SCHEMA_VERSION: Final = 1


class SchemaVersionError(StoreError):
    """The metadata store has a layout that this version of tidelog does not know."""


async def ensure_cluster_id(store: MetadataStore, proposed: str) -> str:
    """Returns the cluster id in the store. If the store is new, writes `proposed` and returns it.

    Raises SchemaVersionError and StoreUnavailableError.
    """
    value = json.dumps({"version": 1, "id": proposed}).encode()
    result = await store.txn(
        [Compare.absent(CLUSTER_ID_KEY)],
        [Put(CLUSTER_ID_KEY, value), Put(SCHEMA_VERSION_KEY, b"%d" % SCHEMA_VERSION)],
        [Get(CLUSTER_ID_KEY), Get(SCHEMA_VERSION_KEY)],
    )
    if result.succeeded:
        return proposed
    cluster, schema = result.reads
    found = int(schema.value) if schema is not None else 0
    if found != SCHEMA_VERSION:
        raise SchemaVersionError(
            f"the metadata store has layout {found}; this version of tidelog needs {SCHEMA_VERSION}"
        )
    assert cluster is not None, "the compare failed, so the key exists"
    return str(json.loads(cluster.value)["id"])
