"""The ISR changes of the partitions that this broker leads.

`IsrMaintenance` does the periodic work, under Kafka's names. `isr-expiration` has each partition look for
followers that fell behind, every half of `replica.lag.time.max.ms`. `isr-change-propagation` tells the
controller which state keys this broker changed. `IsrPropagation` decides when, by the rules of Kafka's
`ReplicaManager.maybePropagateIsrChanges`: changes are collected and published after a quiet period, or at the
latest after a longer interval, so that many changes make few notifications.

`IsrWriter` carries out `ProposeIsr`: it writes a leader's new ISR into the metadata store by compare-and-set.
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
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from tidelog.broker.cluster.view import CurrentSettings
from tidelog.broker.hosting.hosted_partitions import HostedPartitions
from tidelog.broker.hosting.replica import Replica
from tidelog.broker.partition.events import IsrCheckDue, IsrRefused, IsrState, IsrWritten, ProposeIsr
from tidelog.kernel.clock import Clock
from tidelog.kernel.instants import Backoff, MonotonicMs
from tidelog.kernel.slices import run_in_slices
from tidelog.kernel.steps import Steps
from tidelog.metadata.entries import (
    ISR_CHANGE_COUNTER_KEY,
    IsrChangeEntry,
    PartitionStateEntry,
    broker_key,
    decode_entry,
    partition_state_key,
)
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
from tidelog.metrics.telemetry import Telemetry
from tidelog.model.errors import KafkaError
from tidelog.model.topics import TopicPartition

PARTITIONS_PER_TURN: Final = 200
"""The partitions that are checked before the event loop may do other work."""
MAX_NOTIFIED_PARTITIONS: Final = 2_500
"""The partitions of one notification. With the longest topic names it stays below the store's limit of 1
MiB.
"""
MAX_PUBLISH_ATTEMPTS: Final = 100
"""The attempts to write a notification. Other brokers may write theirs first each time; the next period tries
again.
"""
GROUPS_AT_A_TIME: Final = 4
"""The transactions that are in flight at the same time."""
BACKOFF: Final = Backoff(50, 1_000)
"""The pauses before a proposal is sent again while the store is unavailable."""
PROPAGATION_CHECK_INTERVAL_MS: Final = 2_500
"""The interval at which `take` is called."""
QUIET_MS: Final = 5_000
"""Changes are published if the last change is older than this, ..."""
MAX_PROPAGATION_INTERVAL_MS: Final = 60_000
"""... or if the last publication is older than this."""

_log = structlog.get_logger(__name__)


class IsrPropagation:
    """The changed partitions that are not published yet, and the times of the last change and publication."""

    __slots__ = ("_changed", "_last_change_ms", "_last_publication_ms", "_taken")

    def __init__(self, now_ms: MonotonicMs) -> None:
        self._changed: dict[TopicPartition, None] = {}
        self._taken: tuple[TopicPartition, ...] = ()
        self._last_change_ms = now_ms
        self._last_publication_ms = now_ms

    def __len__(self) -> int:
        """The number of partitions that wait to be published."""
        return len(self._changed)

    def isr_changed(self, topic_partition: TopicPartition, now_ms: MonotonicMs) -> None:
        """Records that the metadata store has accepted a new ISR of this partition."""
        self._changed[topic_partition] = None
        self._last_change_ms = now_ms

    def take(self, now_ms: MonotonicMs) -> tuple[TopicPartition, ...]:
        """Returns the partitions to publish now; none if it is too early or an earlier batch is not settled.

        The caller settles each batch with `published` or `not_published`.
        """
        if self._taken or not self._changed:
            return ()
        is_quiet = now_ms - self._last_change_ms > QUIET_MS
        is_overdue = now_ms - self._last_publication_ms > MAX_PROPAGATION_INTERVAL_MS
        if not (is_quiet or is_overdue):
            return ()
        self._taken = tuple(self._changed)
        self._changed.clear()
        return self._taken

    def published(self, now_ms: MonotonicMs) -> None:
        """Records that the store has the batch. Partitions that changed meanwhile are in the next batch."""
        self._taken = ()
        self._last_publication_ms = now_ms

    def not_published(self) -> None:
        """Records that the store refused the batch or that the outcome is unknown. The next check returns it
        again.
        """
        self._changed = dict.fromkeys((*self._taken, *self._changed))
        self._taken = ()


class IsrMaintenance:
    """The ISR of all partitions that this broker leads. `propose` and `isr_changed` may be called before
    `start`.
    """

    def __init__(
        self,
        hosted: HostedPartitions,
        settings: CurrentSettings,
        clock: Clock,
        telemetry: Telemetry,
        store: MetadataStore,
    ) -> None:
        self._hosted = hosted
        self._settings = settings
        self._clock = clock
        self._telemetry = telemetry
        self._store = store
        self.writer = IsrWriter(store, clock, self._on_refused)
        self._propagation = IsrPropagation(clock.monotonic_ms())
        self._tasks: list[asyncio.Task[None]] = []
        self._last_expiration_ms = MonotonicMs(0)
        self._has_skipped = False

    def start(self) -> None:
        """Starts the two periodic tasks."""
        self._last_expiration_ms = self._clock.monotonic_ms()
        self._tasks = [
            asyncio.create_task(
                self._repeat(self._expiration_interval_ms, self.expire_if_awake), name="isr-expiration"
            ),
            asyncio.create_task(
                self._repeat(lambda: PROPAGATION_CHECK_INTERVAL_MS, self.propagate_isr_changes),
                name="isr-change-propagation",
            ),
        ]

    async def stop(self) -> None:
        """Stops the tasks. The store, or the next leader, decides the pending proposals."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.writer.stop()

    def propose(self, replica: Replica, proposal: ProposeIsr) -> None:
        """Starts to write a proposal. The replica receives the outcome as an event."""
        self.writer.propose(replica, proposal)

    def isr_changed(self, topic_partition: TopicPartition, *, is_expansion: bool) -> None:
        """Counts a change that the store has accepted, and schedules a notification."""
        if is_expansion:
            self._telemetry.isr_expands += 1
        else:
            self._telemetry.isr_shrinks += 1
        self._propagation.isr_changed(topic_partition, self._clock.monotonic_ms())

    async def expire_if_awake(self) -> None:
        """Expires followers, except after the process was suspended. It has not received their fetches in
        that time, so they get one more period.
        """
        now_ms = self._clock.monotonic_ms()
        interval_ms = self._expiration_interval_ms()
        late_ms = now_ms - self._last_expiration_ms - interval_ms
        self._last_expiration_ms = now_ms
        self._has_skipped = late_ms > interval_ms and not self._has_skipped
        if self._has_skipped:
            _log.warning("this broker was suspended; it skips one check of the ISR", late_ms=late_ms)
        else:
            await self.expire_followers()

    async def expire_followers(self) -> None:
        """Proposes to remove followers that fell behind from the ISRs that this broker leads."""
        replicas = self._hosted.replicas
        for number, (topic_partition, replica) in enumerate(list(replicas.items())):
            if number % PARTITIONS_PER_TURN == PARTITIONS_PER_TURN - 1:
                await asyncio.sleep(0)
            if not replica.core.is_leader or replicas.get(topic_partition) is not replica:
                continue
            try:
                replica.step(IsrCheckDue(self._clock.monotonic_ms()))
            except KafkaError as error:
                _log.error("ISR check failed", partition=str(topic_partition), reason=str(error))

    async def propagate_isr_changes(self) -> None:
        """Writes a notification, if one is due."""
        changed = self._propagation.take(self._clock.monotonic_ms())
        if not changed:
            return
        try:
            await publish_isr_changes(self._store, changed)
        except BaseException as error:
            self._propagation.not_published()
            if not isinstance(error, StoreError):
                raise
            _log.warning(
                "ISR changes cannot be published; the next period tries again",
                partitions=len(changed),
                reason=str(error),
            )
            return
        self._propagation.published(self._clock.monotonic_ms())

    def _on_refused(self) -> None:
        self._telemetry.failed_isr_updates += 1

    def _expiration_interval_ms(self) -> int:
        return max(1, self._settings.broker.replica_lag_time_max_ms // 2)

    async def _repeat(self, interval_ms: Callable[[], int], duty: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_ms() / 1000)
            try:
                await duty()
            except Exception as error:  # noqa: BLE001 - a bug must not end the task: the next period tries again
                _log.error("ISR task failed", duty=duty.__name__, exc_info=error)


async def publish_isr_changes(store: MetadataStore, partitions: Sequence[TopicPartition]) -> None:
    """Writes `/isr_change_notification/isr_change_<10 digits>`: the partitions whose ISR this leader changed.

    The numbers come from a counter that the same transaction raises by compare-and-set, so two leaders never
    write the same key. The counter holds the next number.

    Raises StoreUnavailableError. The caller may then write the same partitions again: a repeated notification
    only makes the controller read the same state keys once more.
    """
    for start in range(0, len(partitions), MAX_NOTIFIED_PARTITIONS):
        await _publish(store, tuple(partitions[start : start + MAX_NOTIFIED_PARTITIONS]))


async def _publish(store: MetadataStore, partitions: tuple[TopicPartition, ...]) -> None:
    counter = await store.get(ISR_CHANGE_COUNTER_KEY)
    skipped = 0
    for _ in range(MAX_PUBLISH_ATTEMPTS):
        number = (0 if counter is None else int(counter.value)) + skipped
        entry = IsrChangeEntry(number, partitions)
        revision = 0 if counter is None else counter.mod_revision
        result = await store.txn(
            [Compare.mod_revision(ISR_CHANGE_COUNTER_KEY, revision), Compare.absent(entry.key)],
            [Put(ISR_CHANGE_COUNTER_KEY, b"%d" % (number + 1)), Put(entry.key, entry.encode())],
            [Get(ISR_CHANGE_COUNTER_KEY)],
        )
        if result.succeeded:
            return
        (stored,) = result.reads
        if stored == counter:
            skipped += 1  # the counter was lost or set back; never overwrite a notification
        else:
            counter, skipped = stored, 0
    raise StoreUnavailableError("other brokers kept writing their notifications first")


class _Pending:
    """A proposal whose outcome is unknown."""

    __slots__ = ("is_settled", "key", "proposal", "replica")

    def __init__(self, replica: Replica, proposal: ProposeIsr) -> None:
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

    def propose(self, replica: Replica, proposal: ProposeIsr) -> None:
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
