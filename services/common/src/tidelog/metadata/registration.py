"""How a broker says that it is alive."""

from __future__ import annotations

from tidelog.metadata.entries import BrokerEntry
from tidelog.metadata.store import Compare, Delete, Get, MetadataStore, Put
from tidelog.model.errors import ErrorCode, KafkaError


async def register_broker(store: MetadataStore, lease: int, entry: BrokerEntry) -> int:
    """Write `/brokers/ids/<id>` under `lease`; answers the broker epoch (the key's create_revision).

    Repeating it with the same lease answers the epoch of the first time. Raises
    KafkaError(DUPLICATE_BROKER_REGISTRATION) while another life of this id holds the key, LeaseNotFoundError,
    StoreUnavailableError.
    """
    result = await store.txn(
        [Compare.absent(entry.key)], [Put(entry.key, entry.encode(), lease)], [Get(entry.key)]
    )
    if result.succeeded:
        return result.revision
    held = result.reads[0]
    if held is not None and held.lease == lease:
        return held.create_revision
    raise KafkaError(
        ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        f"broker id {entry.broker_id} is held by another broker that is alive",
    )


async def unregister_broker(store: MetadataStore, broker_id: int, broker_epoch: int) -> None:
    """Take the registration of this life away (a clean stop); nothing happens if another life holds it."""
    key = BrokerEntry(broker_id, ()).key
    await store.txn([Compare.create_revision(key, broker_epoch)], [Delete(key)])
