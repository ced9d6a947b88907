"""Election of the active controller: the first one that creates the key `/controller`."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.metadata.entries import (
    CONTROLLER_EPOCH_KEY,
    CONTROLLER_KEY,
    CandidateEntry,
    ControllerEntry,
    ControllerEpochEntry,
)
from tidelog.metadata.store import CompactedError, Compare, Delete, Get, KeyValue, MetadataStore, Put


@dataclass(frozen=True, slots=True)
class Office:
    """Proof that this process is the active controller, valid while `/controller` has this create_revision.

    Every transaction of the controller compares the key's mod_revision. If the controller writes the key
    again (`key`: the same value and lease), every earlier transaction without a known outcome becomes void,
    and the controller stays active.
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
    """Tries once to become the active controller. Returns the office, or the key of the active controller.

    `/controller` and the next `/controller_epoch` are written in one transaction, so each term has its own
    epoch. If this lease already holds the key, because the outcome of an attempt was unknown or a term broke
    off, the existing office is returned. Raises LeaseNotFoundError, StoreUnavailableError.
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
            continue  # another controller took and lost the office in between
        if holder.lease == lease and current is not None:
            return Office(int(current.value), holder.create_revision, holder.mod_revision, put)
        return holder


async def stand(store: MetadataStore, controller_id: int, lease: int) -> None:
    """Registers a controller that takes part in elections, for DescribeQuorum. The election itself does not
    depend on it. Raises LeaseNotFoundError, StoreUnavailableError.
    """
    candidate = CandidateEntry(controller_id)
    await store.txn([], [Put(candidate.key, candidate.encode(), lease)])


async def resign(store: MetadataStore, office: Office) -> None:
    """Deletes the key `/controller` if this office still holds it. Raises StoreUnavailableError."""
    await store.txn([office.is_held], [Delete(CONTROLLER_KEY)])


async def until_office_is_vacant(store: MetadataStore, holder: KeyValue) -> None:
    """Returns once `holder`'s key may be gone. Raises StoreUnavailableError."""
    watch = store.watch(CONTROLLER_KEY, holder.mod_revision + 1)
    try:
        async for batch in watch:
            if any(event.key == CONTROLLER_KEY and event.value is None for event in batch.events):
                return
    except CompactedError:
        return
    finally:
        await watch.aclose()
