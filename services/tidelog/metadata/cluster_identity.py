"""The cluster's id and the layout's version: written once, compared at every start."""

from __future__ import annotations

import json
from typing import Final

from tidelog.metadata.entries import CLUSTER_ID_KEY, SCHEMA_VERSION_KEY
from tidelog.metadata.store import Compare, Get, MetadataStore, Put, StoreError

SCHEMA_VERSION: Final = 1


class SchemaVersionError(StoreError):
    """The store was written by a tidelog whose layout this one doesn't know."""


async def ensure_cluster_id(store: MetadataStore, proposed: str) -> str:
    """The id of the store's cluster; `proposed` becomes it if the store is new.

    Raises SchemaVersionError, StoreUnavailableError.
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
        raise SchemaVersionError(f"the metadata store has layout {found}, not {SCHEMA_VERSION}")
    assert cluster is not None, "the compare failed, so the key is there"
    return str(json.loads(cluster.value)["id"])
