"""Becoming the controller: whoever creates `/controller` first (SPEC D2)."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.metadata.entries import (
    CONTROLLER_EPOCH_KEY,
    CONTROLLER_KEY,
    ControllerEntry,
    ControllerEpochEntry,
)
from tidelog.metadata.store import CompactedError, Compare, Delete, Get, KeyValue, MetadataStore, Put


@dataclass(frozen=True, slots=True)
class Office:
    """Held as long as `/controller` has this create_revision.

    Every transaction of the controller compares the key's mod_revision. Writing the key again (`key`, same
    value, same lease) therefore voids all that was sent before and hasn't been decided, without an end of
    the term.
    """

    controller_epoch: int
    create_revision: int
    mod_revision: int
    key: Put

    @property
    def is_held(self) -> Compare:
        return Compare.create_revision(CONTROLLER_KEY, self.create_revision)


async def take_office(
    store: MetadataStore, controller_id: int, lease: int, rpc_address: str = ""
) -> Office | KeyValue:
    """One attempt: the office, or the key of the one who holds it.

    `/controller` and the next `/controller_epoch` are written in one transaction, so no two terms share an
    epoch. If the lease holds the office already (an attempt whose outcome was unknown, a term that broke
    off), it is that one. Raises LeaseNotFoundError, StoreUnavailableError.
    """
    while True:
        epoch_item = await store.get(CONTROLLER_EPOCH_KEY)
        epoch = int(epoch_item.value) if epoch_item is not None else 0
        controller, next_epoch = ControllerEntry(controller_id, rpc_address), ControllerEpochEntry(epoch + 1)
        put = Put(controller.key, controller.encode(), lease)
        result = await store.txn(
            [
                Compare.absent(CONTROLLER_KEY),
                Compare.mod_revision(CONTROLLER_EPOCH_KEY, epoch_item.mod_revision if epoch_item else 0),
            ],
            [put, Put(next_epoch.key, next_epoch.encode())],
            [Get(CONTROLLER_KEY), Get(CONTROLLER_EPOCH_KEY)],
        )
        if result.succeeded:
            return Office(next_epoch.controller_epoch, result.revision, result.revision, put)
        holder, current = result.reads
        if holder is None:
            continue  # someone came and went in between
        if holder.lease == lease and current is not None:
            return Office(int(current.value), holder.create_revision, holder.mod_revision, put)
        return holder


async def resign(store: MetadataStore, office: Office) -> None:
    """Vacate the office, if it is still held: the next term has the next epoch. Raises
    StoreUnavailableError.
    """
    await store.txn([office.is_held], [Delete(CONTROLLER_KEY)])


async def until_office_is_vacant(store: MetadataStore, holder: KeyValue) -> None:
    """Returns once `holder`'s key may be gone; raises StoreUnavailableError."""
    watch = store.watch(CONTROLLER_KEY, holder.mod_revision + 1)
    try:
        async for batch in watch:
            if any(event.key == CONTROLLER_KEY and event.value is None for event in batch.events):
                return
    except CompactedError:
        return
    finally:
        await watch.aclose()
