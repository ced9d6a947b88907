"""A service that starts before etcd waits for the metadata store and logs that it waits."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from tidelog.metadata.entries import SCHEMA_VERSION_KEY
from tidelog.metadata.store import MetadataStore, StoreUnavailableError

RETRY_MS: Final = 500
REMIND_MS: Final = 10_000

_log = structlog.get_logger(__name__)


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
