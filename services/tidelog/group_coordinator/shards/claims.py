"""The shards that this coordinator claims in the metadata store.

The `owner` key of a shard names its owner, as this process last saw the key: a claim counts when the watch
shows it, and so does the loss of a claim. A transaction with an unknown outcome therefore needs no special
handling. The keys only decide which coordinator tries to own a shard. Safety rests on the shard epoch, which
each claim raises by one: brokers and later owners ignore what an older owner writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import structlog

from tidelog.group_coordinator.shards.store_copies import StoreFollower
from tidelog.metadata.coordinators import (
    COORDINATORS,
    CoordinatorEntry,
    decode_coordinator,
    decode_epoch,
    decode_owner,
    encode_epoch,
    encode_owner,
    parse_shard_key,
    shard_epoch,
    shard_owner,
)
from tidelog.metadata.entries import InvalidEntryError
from tidelog.metadata.store import (
    Compare,
    Delete,
    LeaseNotFoundError,
    Listing,
    MetadataStore,
    Operation,
    Put,
    StoreUnavailableError,
    WatchBatch,
)
from tidelog.model.coordinator_shards import ShardId, ShardKind

CLAIMS_IN_TXN: Final = 32
RETRY_MS: Final = 200

_log = structlog.get_logger(__name__)


class _Owner(NamedTuple):
    coordinator_id: int
    lease: int
    create_revision: int


class _Epoch(NamedTuple):
    epoch: int
    mod_revision: int


_NO_EPOCH: Final = _Epoch(0, 0)


class ClaimListener(Protocol):
    def claimed(self, shard: ShardId, epoch: int) -> None: ...

    def claim_lost(self, shard: ShardId) -> None: ...

    def surplus(self, shard: ShardId) -> None:
        """Reports that another coordinator should own the shard: drain it, then `release` it."""
        ...


class Claims:
    """The claims of one coordinator. After `start`, call `lease_taken` with each lease."""

    _listener: ClaimListener

    def __init__(
        self, store: MetadataStore, coordinator_id: int, *, shard_count: Callable[[ShardKind], int]
    ) -> None:
        self._store = store
        self._id = coordinator_id
        self._shard_count = shard_count
        self._follower = StoreFollower(
            store, COORDINATORS, on_listing=self._on_listing, on_batch=self._on_batch
        )
        self._lease = 0
        self._is_leaving = False
        self._live: dict[str, set[int]] = {kind.value: set() for kind in ShardKind}
        self._owners: dict[ShardId, _Owner] = {}
        self._epochs: dict[ShardId, _Epoch] = {}
        self._revision = 0
        self._settled: dict[ShardId, int] = {}
        """For each shard, the revision that the watch must reach before the shard is claimed again."""
        self._mine: dict[ShardId, int] = {}
        self._least_epochs: dict[ShardId, int] = {}
        self._changed = asyncio.Event()
        self._balancing: asyncio.Task[None] | None = None

    @property
    def mine(self) -> dict[ShardId, int]:
        """The epochs of the owned shards."""
        return self._mine

    async def start(self, listener: ClaimListener) -> None:
        """Raises StoreUnavailableError."""
        self._listener = listener
        await self._follower.start()
        self._balancing = asyncio.create_task(self._balance(), name="shard-claims")

    async def lease_taken(self, lease: int) -> None:
        """Makes claims under this lease from now on. Claims under another lease are lost."""
        self._lease = lease
        entries = [
            CoordinatorEntry(kind.value, self._id) for kind in ShardKind if kind is not ShardKind.GROUP
        ]
        await self._store.txn([], [Put(entry.key, entry.encode(), lease) for entry in entries])
        self._compare_owned()

    def shards_changed(self) -> None:
        """Compares the claims with the shards, because their number has changed."""
        self._changed.set()

    def outbid(self, shard: ShardId, epoch: int) -> None:
        """Makes the next claim of the shard exceed `epoch`, which was found in the shard's log.

        The log can have a newer epoch than the metadata store if the store was rebuilt.
        """
        self._least_epochs[shard] = epoch

    async def leave(self) -> None:
        """Ends the registration, so that the other coordinators divide this one's shards.

        This coordinator claims nothing more, and it keeps its shards until `release`.
        """
        self._is_leaving = True
        if not self._lease:
            return  # another process is registered under this id
        deletes: list[Operation] = [Delete(CoordinatorEntry(kind.value, self._id).key) for kind in ShardKind]
        await self._store.txn([], deletes)

    async def release(self, shards: Iterable[ShardId]) -> None:
        """Deletes the claims of shards that are closed. Raises StoreUnavailableError."""
        owned = [(shard, self._owners[shard]) for shard in shards if self._is_mine(shard)]
        for at in range(0, len(owned), CLAIMS_IN_TXN):
            chunk = owned[at : at + CLAIMS_IN_TXN]
            compares = [Compare.create_revision(shard_owner(s), o.create_revision) for s, o in chunk]
            result = await self._store.txn(compares, [Delete(shard_owner(shard)) for shard, _ in chunk])
            for shard, _ in chunk:
                self._settled[shard] = result.revision

    async def stop(self) -> None:
        if self._balancing is not None:
            self._balancing.cancel()
            await asyncio.wait([self._balancing])
        await self._follower.stop()

    def _on_listing(self, listing: Listing) -> None:
        for live in self._live.values():
            live.clear()
        self._owners.clear()
        self._epochs.clear()
        for item in listing.items:
            self._take(item.key, item.value, item.create_revision, item.mod_revision, item.lease)
        self._seen(listing.revision)

    def _on_batch(self, batch: WatchBatch) -> None:
        for event in batch.events:
            self._take(event.key, event.value, event.create_revision, event.mod_revision, event.lease)
        self._seen(batch.revision)

    def _take(
        self, key: str, value: bytes | None, create_revision: int, mod_revision: int, lease: int
    ) -> None:
        try:
            parsed = parse_shard_key(key)
            if parsed is None:
                self._take_coordinator(key, value)
            elif not parsed.is_owner:
                epoch = 0 if value is None else decode_epoch(key, value)
                self._epochs[parsed.shard] = _Epoch(epoch, 0 if value is None else mod_revision)
            elif value is None:
                self._owners.pop(parsed.shard, None)
            else:
                self._owners[parsed.shard] = _Owner(decode_owner(key, value), lease, create_revision)
        except InvalidEntryError as error:
            _log.warning(
                "a key of the metadata store is ignored because its value is not valid", reason=str(error)
            )

    def _take_coordinator(self, key: str, value: bytes | None) -> None:
        match key.split("/"):
            case [_, _, kind, "ids", number] if kind in self._live and number.isdecimal():
                live = self._live[kind]
            case _:
                return
        if value is None:
            live.discard(int(number))
        else:
            live.add(decode_coordinator(key, value).coordinator_id)

    def _seen(self, revision: int) -> None:
        self._revision = revision
        self._compare_owned()
        self._changed.set()

    def _is_mine(self, shard: ShardId) -> bool:
        owner = self._owners.get(shard)
        return owner is not None and owner.coordinator_id == self._id and owner.lease == self._lease

    def _compare_owned(self) -> None:
        mine = {shard: self._epochs[shard].epoch for shard in self._owners if self._is_mine(shard)}
        before, self._mine = self._mine, mine
        for shard, epoch in before.items():
            if mine.get(shard) != epoch:
                self._listener.claim_lost(shard)
        for shard, epoch in mine.items():
            if before.get(shard) != epoch:
                self._listener.claimed(shard, epoch)

    def why_incomplete(self) -> str | None:
        """Returns None if this coordinator is registered and has claimed its share of the shards."""
        missing = total = 0
        for kind in ShardKind:
            if not self._lease or self._id not in self._live[kind.value]:
                return "not registered"
            wanted = self._wanted(kind)
            total += len(wanted)
            missing += sum(shard not in self._mine for shard in wanted)
        return f"{missing} of its {total} shards are not claimed yet" if missing else None

    def _wanted(self, kind: ShardKind) -> list[ShardId]:
        count = self._shard_count(kind)
        owners = {s.partition: o.coordinator_id for s, o in self._owners.items() if s.kind is kind}
        shares = plan_shares(self._live[kind.value], owners, count)
        return [ShardId(kind, number) for number in range(count) if shares[number] == self._id]

    async def _balance(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                for kind in ShardKind:
                    await self._balance_kind(kind)
            except LeaseNotFoundError:
                continue  # the next lease starts another attempt
            except StoreUnavailableError as error:
                _log.warning("claiming shards failed and will be repeated", reason=str(error))
                await asyncio.sleep(RETRY_MS / 1000)
                self._changed.set()
            except Exception:  # noqa: BLE001 - a bug must not end the task that claims shards
                _log.exception("claiming shards failed because of a bug and will be repeated")
                await asyncio.sleep(RETRY_MS / 1000)
                self._changed.set()

    async def _balance_kind(self, kind: ShardKind) -> None:
        live = self._live[kind.value]
        if self._is_leaving or not self._lease or self._id not in live:
            return  # without a lease, the registration may still be that of an earlier process
        wanted = self._wanted(kind)
        free = [s for s in wanted if s not in self._owners and self._is_settled(s)]
        for at in range(0, len(free), CLAIMS_IN_TXN):
            await self._claim(free[at : at + CLAIMS_IN_TXN])
        kept = set(wanted)
        for shard in list(self._mine):
            if shard.kind is kind and shard not in kept:  # also if its topic was deleted
                self._listener.surplus(shard)

    def _is_settled(self, shard: ShardId) -> bool:
        return self._settled.get(shard, 0) <= self._revision

    async def _claim(self, shards: Sequence[ShardId]) -> None:
        """Claims all of them in one transaction, or one by one if another coordinator has claimed some."""
        compares: list[Compare] = []
        puts: list[Operation] = []
        for shard in shards:
            known = self._epochs.get(shard, _NO_EPOCH)
            compares.append(Compare.absent(shard_owner(shard)))
            compares.append(Compare.mod_revision(shard_epoch(shard), known.mod_revision))
            puts.append(Put(shard_owner(shard), encode_owner(self._id), self._lease))
            epoch = max(known.epoch, self._least_epochs.get(shard, 0)) + 1
            puts.append(Put(shard_epoch(shard), encode_epoch(epoch)))
        result = await self._store.txn(compares, puts)
        if result.succeeded or len(shards) == 1:
            for shard in shards:
                self._settled[shard] = result.revision
            return
        for shard in shards:
            await self._claim([shard])


def plan_shares(coordinators: Iterable[int], owners: Mapping[int, int], shard_count: int) -> dict[int, int]:
    """Assigns each of `shard_count` shards to a live coordinator: equal shares with as few moves as possible.
    Returns coordinator ids by shard number, or {} if there is no coordinator.

    Every coordinator computes the assignment from the same keys, so all agree as soon as they have seen the
    same keys. Until then, two coordinators may claim one shard, and the metadata store gives it to one of
    them.

    `owners` has the present owner of each owned shard. A coordinator with more than a fair share gives up the
    shards with the highest numbers. Free shards go, in order, to the coordinator with the fewest shards, and
    among equals to the one with the lowest id.
    """
    planned: dict[int, list[int]] = {coordinator: [] for coordinator in sorted(coordinators)}
    if not planned:
        return {}
    for shard in range(shard_count):
        owner = owners.get(shard)
        if owner in planned:
            planned[owner].append(shard)
    least, extra = divmod(shard_count, len(planned))
    # The coordinators with the most shards keep one more than the others.
    by_load = sorted(planned, key=lambda coordinator: (-len(planned[coordinator]), coordinator))
    quotas = {coordinator: least + (rank < extra) for rank, coordinator in enumerate(by_load)}
    for coordinator, shards in planned.items():
        del shards[quotas[coordinator] :]
    placed = {shard for shards in planned.values() for shard in shards}
    shares = {shard: coordinator for coordinator, shards in planned.items() for shard in shards}
    for shard in range(shard_count):
        if shard not in placed:
            coordinator = min(
                (c for c in planned if len(planned[c]) < quotas[c]), key=lambda c: (len(planned[c]), c)
            )
            planned[coordinator].append(shard)
            shares[shard] = coordinator
    return shares
