"""One term of office: takes requests and the store's changes one by one, writes what the core decides,
tells the brokers.

Order is everything here. One task decides, writes and applies; only then is the next taken up. Commands are
queued for the brokers in that order too. What a request's answer waits for, the brokers' own answers, it
waits for aside, so a slow broker holds up nobody else's request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeVar

import structlog
from tidelog.controller.core.batches import Batch, pack_records
from tidelog.controller.core.changes import ChangeSet
from tidelog.controller.core.commands import commands_for
from tidelog.controller.core.context import Chance, Context
from tidelog.controller.core.elections import settle_partitions
from tidelog.controller.core.records import Decision, Record, Write
from tidelog.controller.core.resume import finish_half_done, forget_isr_changes
from tidelog.controller.core.state import ClusterState
from tidelog.controller.election import Office
from tidelog.controller.pushes import BrokerPushes
from tidelog.controller.setting_rules import rules_from
from tidelog.metadata import keys
from tidelog.metadata.entries import Entry, PartitionStateEntry, decode_entry
from tidelog.metadata.store import KeyValue, MetadataStore, StoreError, StoreUnavailableError, WatchBatch
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.rpc.broker_commands import NO_LEADER, BrokerChannels
from tidelog.runtime.broker_settings import BrokerSettings
from tidelog.runtime.clock import Clock
from tidelog.runtime.telemetry import ControllerCounts

MAX_QUEUED_REQUESTS: Final = 10_000
# How often a decision is made anew because a leader wrote a partition's state in between.
MAX_CONFLICTS: Final = 20
# The longest that an answer waits for brokers; the change is durable by then in any case.
MAX_PROPAGATION_WAIT_MS: Final = 30_000

ReplyT = TypeVar("ReplyT")
Decide = Callable[[ClusterState, Context], Decision[ReplyT]]

_log = structlog.get_logger(__name__)


class DeposedError(StoreError):
    """Another one is the controller, or nobody is."""


class _Request(NamedTuple):
    decide: Decide[Any]
    wait_ms: int
    answered: asyncio.Future[Any]


class Term:
    """`begin`, then `serve` until it raises; `submit` meanwhile."""

    def __init__(
        self,
        store: MetadataStore,
        channels: BrokerChannels,
        settings: BrokerSettings,
        office: Office,
        *,
        controller_id: int,
        clock: Clock,
        chance: Chance,
        counts: ControllerCounts,
    ) -> None:
        self.state = ClusterState()
        self._store = store
        self._settings = settings
        self._office = office
        self._controller_id = controller_id
        self._clock = clock
        self._chance = chance
        self._counts = counts
        self._rules = rules_from(settings, {})
        self._pushes = BrokerPushes(channels, self._on_stale)
        self._inbox: asyncio.Queue[_Request | WatchBatch | DeposedError] = asyncio.Queue(MAX_QUEUED_REQUESTS)
        self._own_revisions: set[int] = set()
        self._revision = 0
        self._answers: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._is_over = False

    @property
    def controller_epoch(self) -> int:
        return self._office.controller_epoch

    async def begin(self) -> None:
        """Read everything, finish what was half done, elect where it is needed, tell all brokers everything.

        Raises DeposedError, StoreUnavailableError.
        """
        listing = await self._store.list_prefix(keys.EVERYTHING)
        self.state.load((i.key, i.value, i.create_revision, i.mod_revision) for i in listing.items)
        self._revision = listing.revision
        self._watching = asyncio.create_task(self._watch(), name="controller-watch")
        self._rules = rules_from(self._settings, self.state.broker_configs)
        changes = ChangeSet(born=set(self.state.brokers))
        await self._decide_and_write(finish_half_done, changes)
        await self._settle_and_push(changes)

    async def serve(self) -> None:
        """Raises DeposedError or StoreUnavailableError when the term is over."""
        while True:
            await self._take_up(await self._inbox.get())

    async def submit(self, decide: Decide[ReplyT], wait_ms: int = MAX_PROPAGATION_WAIT_MS) -> ReplyT:
        """The decision's reply, once written and taken in by the brokers concerned (or `wait_ms` have
        passed).

        Raises what `decide` raises; NOT_CONTROLLER if the term ends first, REQUEST_TIMED_OUT if it isn't
        known whether it was written.
        """
        if self._is_over or self._inbox.full():
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "The controller can't take requests at the moment.")
        answered: asyncio.Future[ReplyT] = asyncio.get_running_loop().create_future()
        self._inbox.put_nowait(_Request(decide, wait_ms, answered))
        return await answered

    async def _take_up(self, item: _Request | WatchBatch | DeposedError) -> None:
        if isinstance(item, DeposedError):
            raise item
        changes = ChangeSet()
        if isinstance(item, WatchBatch):
            self._apply_watched(item, changes)
            await self._settle_and_push(changes)
            return
        try:
            reply = await self._decide_and_write(item.decide, changes)
        except KafkaError as error:
            _fail(item.answered, error)
            await self._settle_and_push(changes)
            return
        except DeposedError:
            _fail(item.answered, KafkaError(ErrorCode.NOT_CONTROLLER, "There is another controller by now."))
            raise
        except StoreUnavailableError as error:
            _fail(item.answered, KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error)))
            raise
        delivered = await self._settle_and_push(changes)
        if delivered:
            answer = asyncio.create_task(_answer_when_delivered(item, reply, delivered))
            self._answers.add(answer)
            answer.add_done_callback(self._answers.discard)
        elif not item.answered.done():
            item.answered.set_result(reply)

    async def _settle_and_push(self, changes: ChangeSet) -> list[asyncio.Future[None]]:
        if changes.born or changes.died:
            await self._decide_and_write(settle_partitions, changes)
        if self.state.isr_changes:
            await self._decide_and_write(_forget_isr_changes, changes)
        if changes.broker_configs:
            self._rules = rules_from(self._settings, self.state.broker_configs)
        if changes.is_empty:
            return []
        if changes.born or changes.died:
            self._pushes.keep_to(self.state.brokers)
        epoch = self._office.controller_epoch
        commands = commands_for(self.state, changes, self._controller_id, epoch)
        return self._pushes.send(self.state.brokers, commands)

    async def _decide_and_write(self, decide: Decide[ReplyT], changes: ChangeSet) -> ReplyT:
        for _ in range(MAX_CONFLICTS):
            context = Context(self._clock.now_ms(), self._office.controller_epoch, self._chance, self._rules)
            decision = _decided(decide, self.state, context)
            if await self._write_all(decision.records, changes):
                return decision.reply
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "Partition states change too quickly to be written.")

    async def _write_all(self, records: Iterable[Record], changes: ChangeSet) -> bool:
        """False: something wasn't as expected; it has been read and applied, so decide again."""
        for batch in pack_records(records, self._office.guard, self.state.brokers):
            result = await self._store.txn(tuple(batch.compares.values()), batch.operations, batch.reads)
            if not result.succeeded:
                self._apply_read(batch, result.reads, changes)
                return False
            self._apply_written(batch.records, result.revision, changes)
        return True

    def _apply_written(self, records: Iterable[Record], revision: int, changes: ChangeSet) -> None:
        self._own_revisions.add(revision)
        for record in records:
            if isinstance(record, Write):
                self._count_election(record.entry)
                # The create_revision matters for brokers' registrations only, which the controller doesn't
                # write.
                self.state.apply(record.entry, revision, revision, changes)
            else:
                self.state.apply_removal(record.key, changes)

    def _count_election(self, entry: Entry) -> None:
        if not isinstance(entry, PartitionStateEntry) or entry.leader == NO_LEADER:
            return
        stored = self.state.partitions.get(entry.topic, {}).get(entry.partition)
        if stored is not None and stored.state.leader_epoch != entry.leader_epoch:
            self._counts.leader_elections += 1
            if entry.leader not in stored.state.isr:
                self._counts.unclean_leader_elections += 1

    def _apply_read(self, batch: Batch, reads: Iterable[KeyValue | None], changes: ChangeSet) -> None:
        for compare, item in zip(batch.compares.values(), reads, strict=True):
            if compare.key == keys.CONTROLLER:
                if item is None or item.create_revision != self._office.create_revision:
                    raise DeposedError("the controller's key is no longer its own")
            elif item is None:
                self.state.apply_removal(compare.key, changes)
            else:
                self._apply_item(item.key, item.value, item.create_revision, item.mod_revision, changes)

    def _apply_watched(self, batch: WatchBatch, changes: ChangeSet) -> None:
        if batch.revision in self._own_revisions:
            self._own_revisions.discard(batch.revision)
            return
        for event in batch.events:
            if event.value is not None:
                self._apply_item(event.key, event.value, event.create_revision, event.mod_revision, changes)
            elif event.key == keys.CONTROLLER:
                raise DeposedError("the controller's key is gone")
            else:
                self.state.apply_removal(event.key, changes)

    def _apply_item(
        self, key: str, value: bytes, create_revision: int, mod_revision: int, changes: ChangeSet
    ) -> None:
        entry = decode_entry(key, value)
        if entry is not None:
            self.state.apply(entry, create_revision, mod_revision, changes)

    async def _watch(self) -> None:
        watch = self._store.watch(keys.EVERYTHING, self._revision + 1)
        try:
            async for batch in watch:
                await self._inbox.put(batch)
        except StoreError as error:
            # Compacted, or the store is closed: the next term lists anew.
            await self._inbox.put(DeposedError(f"the watch broke off: {error}"))
        finally:
            await watch.aclose()

    def _on_stale(self) -> None:
        _log.warning("a broker knows a newer controller", controller_epoch=self._office.controller_epoch)
        if not self._inbox.full():
            self._inbox.put_nowait(DeposedError("a broker knows a newer controller"))

    def end(self) -> None:
        """Nothing more is sent; what was asked and not taken up fails with NOT_CONTROLLER."""
        self._is_over = True
        if self._watching is not None:
            self._watching.cancel()
        self._pushes.close()
        while not self._inbox.empty():
            item = self._inbox.get_nowait()
            if isinstance(item, _Request):
                _fail(item.answered, KafkaError(ErrorCode.NOT_CONTROLLER, "The controller's term is over."))


def _decided(decide: Decide[ReplyT], state: ClusterState, context: Context) -> Decision[ReplyT]:
    """A fault of the core in one request is that request's: nothing was changed, so the term goes on."""
    try:
        return decide(state, context)
    except KafkaError:
        raise
    except Exception as error:
        _log.exception("a decision failed")
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"The controller failed: {error!r}") from error


def _forget_isr_changes(state: ClusterState, context: Context) -> Decision[None]:
    return Decision(tuple(forget_isr_changes(state)), None)


def _fail(answered: asyncio.Future[Any], error: KafkaError) -> None:
    if not answered.done():
        answered.set_exception(error)


async def _answer_when_delivered(
    request: _Request, reply: object, delivered: list[asyncio.Future[None]]
) -> None:
    await asyncio.wait(delivered, timeout=request.wait_ms / 1000)
    if not request.answered.done():
        request.answered.set_result(reply)
