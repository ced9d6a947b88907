"""Carries out `ProposeIsr`: writes a leader's new ISR into the metadata store by compare-and-set.

A proposal compares the revision of the partition's state key and, for each follower that it adds, the broker
epoch with which that follower fetches (KIP-903). The store's answer goes back to the replica as `IsrWritten`
or `IsrRefused`. While the outcome is unknown, and while the store is unavailable, the proposal stays pending:
the same compare-and-set is sent again until the outcome is certain. If an earlier attempt succeeded, the key
already holds the proposed state. Because the compare names one revision, the write can happen only once.

Proposals that arrive together share transactions. When a transaction fails, the store reports at the same
revision which compares failed. Those proposals are refused, and the others are sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog

from tidelog.broker.partition.core import PartitionCore
from tidelog.broker.partition.events import Event, IsrRefused, IsrState, IsrWritten, ProposeIsr
from tidelog.kernel.clock import Clock
from tidelog.kernel.instants import Backoff
from tidelog.kernel.slices import run_in_slices
from tidelog.kernel.steps import Steps
from tidelog.metadata.entries import PartitionStateEntry, broker_key, decode_entry, partition_state_key
from tidelog.metadata.store import (
    MAX_TXN_OPERATIONS,
    Compare,
    Get,
    KeyValue,
    MetadataStore,
    Put,
    StoreError,
    StoreUnavailableError,
)
from tidelog.model.topics import TopicPartition

GROUPS_AT_A_TIME: Final = 4
"""The transactions that are in flight at the same time."""
BACKOFF: Final = Backoff(50, 1_000)
"""The pauses before a proposal is sent again while the store is unavailable."""

_log = structlog.get_logger(__name__)


class ProposingReplica(Protocol):
    """The part of a `Replica` that proposes changes of the ISR."""

    topic_partition: TopicPartition
    core: PartitionCore

    def step(self, event: Event) -> None: ...


class _Pending:
    """A proposal whose outcome is unknown."""

    __slots__ = ("is_settled", "key", "proposal", "replica")

    def __init__(self, replica: ProposingReplica, proposal: ProposeIsr) -> None:
        self.replica = replica
        self.proposal = proposal
        self.key = partition_state_key(*replica.topic_partition)
        self.is_settled = False

    @property
    def is_wanted(self) -> bool:
        """Whether the replica that proposed it still leads in the same epoch. A later leader decides by
        itself.
        """
        core = self.replica.core
        return not self.is_settled and core.is_leader and core.leader_epoch == self.proposal.leader_epoch


class IsrWriter:
    """Writes proposals in the background. `on_refused` is called for each proposal that the store refuses."""

    def __init__(self, store: MetadataStore, clock: Clock, on_refused: Callable[[], None]) -> None:
        self._store = store
        self._clock = clock
        self._on_refused = on_refused
        self._queued: dict[TopicPartition, _Pending] = {}
        self._work: asyncio.Task[None] | None = None
        self._is_stopped = False

    def propose(self, replica: ProposingReplica, proposal: ProposeIsr) -> None:
        """Starts to write a proposal. It replaces an earlier one of the same partition that has not been sent
        yet.
        """
        self._queued[replica.topic_partition] = _Pending(replica, proposal)
        if self._work is None and not self._is_stopped:
            self._work = asyncio.get_running_loop().create_task(self._write_queued(), name="isr-writer")
            self._work.add_done_callback(_report)

    @property
    def is_idle(self) -> bool:
        return self._work is None

    async def until_idle(self) -> None:
        """Returns when the outcome of every proposal is known."""
        while self._work is not None:
            await asyncio.wait([self._work])

    async def stop(self) -> None:
        """Stops writing. The store, or the next leader, decides the pending proposals."""
        self._is_stopped = True
        self._queued.clear()
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])

    async def _write_queued(self) -> None:
        try:
            while self._queued:
                groups = self._take_groups()
                ended = await asyncio.gather(*map(self._settle, groups), return_exceptions=True)
                for error in ended:
                    if error is not None:  # a bug in one group must not stop the others
                        _log.error("ISR changes failed", exc_info=error)
        finally:
            self._work = None

    def _take_groups(self) -> list[list[_Pending]]:
        """Removes and returns groups of proposals that may be in flight together, each small enough for one
        transaction.
        """
        groups: list[list[_Pending]] = []
        compared: set[tuple[int, int]] = set()
        for topic_partition in list(self._queued):
            pending = self._queued[topic_partition]
            together = compared.union(pending.proposal.added)
            if not groups or len(groups[-1]) + 1 + len(together) > MAX_TXN_OPERATIONS:
                if len(groups) == GROUPS_AT_A_TIME:
                    break
                groups.append([])
                together = set(pending.proposal.added)
            compared = together
            groups[-1].append(self._queued.pop(topic_partition))
        return groups

    async def _settle(self, group: Sequence[_Pending]) -> None:
        failures = 0
        while left := [pending for pending in group if pending.is_wanted]:
            try:
                await self._attempt(left)
            except StoreUnavailableError as error:
                failures += 1
                if failures == 1:
                    _log.warning(
                        "metadata store is unavailable; ISR changes wait",
                        partitions=len(left),
                        reason=str(error),
                    )
                await asyncio.sleep(BACKOFF.delay_ms(failures) / 1000)

    async def _attempt(self, group: list[_Pending]) -> None:
        """Sends one transaction. Raises StoreUnavailableError if the outcome of unsettled proposals is
        unknown.
        """
        stored = await self._store.txn([], [Get(pending.key) for pending in group])
        current: list[tuple[_Pending, PartitionStateEntry]] = []
        for pending, item in zip(group, stored.reads, strict=True):
            state = _state(item)
            if item is None or state is None or item.mod_revision != pending.proposal.partition_epoch:
                self._settle_moved(pending, item, state)
            else:
                current.append((pending, state))
        if current:
            await self._compare_and_set(current)

    async def _compare_and_set(self, current: list[tuple[_Pending, PartitionStateEntry]]) -> None:
        """Settles all proposals, or those whose compares fail."""
        added = dict(member for pending, _ in current for member in pending.proposal.added)
        result = await self._store.txn(
            [
                *(Compare.mod_revision(p.key, p.proposal.partition_epoch) for p, _ in current),
                *(
                    Compare.create_revision(broker_key(broker_id), broker_epoch)
                    for broker_id, broker_epoch in dict.fromkeys(
                        member for pending, _ in current for member in pending.proposal.added
                    )
                ),
            ],
            [Put(p.key, _with_isr(state, p.proposal).encode()) for p, state in current],
            [
                *(Get(p.key) for p, _ in current),
                *(Get(broker_key(broker_id)) for broker_id in added),
            ],
        )
        if result.succeeded:
            await run_in_slices(self._settle_written(current, result.revision))
            return
        alive = dict(zip(added, result.reads[len(current) :], strict=True))
        for (pending, _), item in zip(current, result.reads[: len(current)], strict=True):
            if item is None or item.mod_revision != pending.proposal.partition_epoch:
                self._settle_moved(pending, item, _state(item))
            elif not all(_is_alive(alive[member[0]], member[1]) for member in pending.proposal.added):
                self._refuse(pending, _state(item), item.mod_revision)

    def _settle_written(
        self, current: Sequence[tuple[_Pending, PartitionStateEntry]], revision: int
    ) -> Steps[None]:
        for pending, state in current:
            _log.info(
                "ISR changed",
                partition=str(pending.replica.topic_partition),
                before=state.isr,
                isr=pending.proposal.isr,
            )
            self._tell(pending, IsrWritten(pending.proposal, revision))
            yield

    def _settle_moved(
        self, pending: _Pending, item: KeyValue | None, state: PartitionStateEntry | None
    ) -> None:
        """Settles a proposal whose key has another revision: an earlier attempt succeeded, or another process
        wrote it.
        """
        proposal = pending.proposal
        if item is not None and state is not None and _holds(state, proposal, pending.replica.core.broker_id):
            self._tell(pending, IsrWritten(proposal, item.mod_revision))
        else:
            self._refuse(pending, state, 0 if item is None else item.mod_revision)

    def _refuse(self, pending: _Pending, state: PartitionStateEntry | None, mod_revision: int) -> None:
        self._on_refused()
        _log.info(
            "ISR change refused",
            partition=str(pending.replica.topic_partition),
            isr=pending.proposal.isr,
            stored_isr=None if state is None else state.isr,
        )
        current = None
        if state is not None:
            current = IsrState(state.leader, state.leader_epoch, tuple(state.isr), tuple(state.elr))
        self._tell(pending, IsrRefused(pending.proposal, current, mod_revision, self._clock.monotonic_ms()))

    def _tell(self, pending: _Pending, event: IsrWritten | IsrRefused) -> None:
        is_wanted, pending.is_settled = pending.is_wanted, True
        if is_wanted:
            pending.replica.step(event)


def _state(item: KeyValue | None) -> PartitionStateEntry | None:
    if item is None:
        return None
    try:
        entry = decode_entry(item.key, item.value)
    except StoreError as error:
        _log.error("state of a partition cannot be read", key=item.key, reason=str(error))
        return None
    return entry if isinstance(entry, PartitionStateEntry) else None


def _with_isr(state: PartitionStateEntry, proposal: ProposeIsr) -> PartitionStateEntry:
    return state._replace(isr=proposal.isr, elr=proposal.elr)


def _holds(state: PartitionStateEntry, proposal: ProposeIsr, leader: int) -> bool:
    return (state.leader, state.leader_epoch, tuple(state.isr), tuple(state.elr)) == (
        leader,
        proposal.leader_epoch,
        tuple(proposal.isr),
        tuple(proposal.elr),
    )


def _is_alive(item: KeyValue | None, broker_epoch: int) -> bool:
    return item is not None and item.create_revision == broker_epoch


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("the ISR writer failed", exc_info=error)
