"""One term of office: takes requests and the store's changes one by one, writes what the core decides,
tells the brokers.

Order is everything here. One task decides, writes and applies; only then is the next taken up. Commands are
queued for the brokers in that order too. What a request's answer waits for, the brokers' own answers, it
waits for aside, so a slow broker holds up nobody else's request. While the store is away the term goes on
waiting; it ends when its key is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, TypeVar

import structlog

from tidelog.controller.core.commands import commands_for, full_commands
from tidelog.controller.core.decision import Chance, Context, Decision, Write
from tidelog.controller.core.elections import balance_leaders, is_cluster_returning, settle_partitions
from tidelog.controller.core.reassignments import advance_reassignments
from tidelog.controller.core.state import ChangeSet, ClusterState, take_census
from tidelog.controller.core.topics import finish_half_done, forget_isr_changes
from tidelog.controller.election import Office
from tidelog.controller.environment import rules_from
from tidelog.controller.metrics import BrokerInfo, ControllerCounts, Overview
from tidelog.controller.pushes import BrokerPushes, Delivered
from tidelog.controller.record_writer import DeposedError, RecordWriter
from tidelog.metadata.entries import ALL_KEYS_PREFIX, CONTROLLER_KEY, PartitionStateEntry, decode_entry
from tidelog.metadata.store import MetadataStore, StoreError, StoreUnavailableError, WatchBatch
from tidelog.model.brokers import BrokerRegistration
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.rpc.broker_commands import NO_LEADER, BrokerChannels, CommandResult, LeaderAndIsr
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.timing.clock import Clock

MAX_QUEUED_REQUESTS: Final = 10_000
# How often a request is decided anew because a leader wrote a partition's state in between.
MAX_CONFLICTS: Final = 20
# The longest that a request waits to be written, and then its answer for brokers; the change is durable by
# then in any case.
MAX_PROPAGATION_WAIT_MS: Final = 30_000
# How long a cluster of which every broker was away is given to come back together, and how often it is
# counted.
# How long ends of reassignments are collected: each of them is a command to every broker.
ADVANCE_DELAY_MS: Final = 100
# While brokers have more than this many commands before them, they are collected on, up to this long.
BUSY_QUEUE_LENGTH: Final = 4
MAX_ADVANCE_DELAYS: Final = 20
GATHER_MS: Final = 2_000
_GATHER_STEP_MS: Final = 50

ReplyT = TypeVar("ReplyT")
Decide = Callable[[ClusterState, Context], Decision[ReplyT]]

_log = structlog.get_logger(__name__)


class _Request(NamedTuple):
    decide: Decide[Any]
    wait_ms: int
    answered: asyncio.Future[Any]
    overdue: asyncio.TimerHandle
    not_waited_for: int | None


class _BalanceDue(NamedTuple):
    """It is time to look whether preferred leaders lead."""


class _AdvanceDue(NamedTuple):
    """It is time to look which reassignments have reached their targets."""


class _ReplicasJudged(NamedTuple):
    """A life of a broker can't serve some replicas, or serves those it could not."""

    broker: BrokerRegistration
    failed: frozenset[TopicPartition]
    served: frozenset[TopicPartition]


_Item = _Request | WatchBatch | _BalanceDue | _AdvanceDue | _ReplicasJudged


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
        self._pushes = BrokerPushes(
            channels,
            on_stale=self._on_stale,
            on_taken=self._on_taken,
            everything_for=self._everything_for,
        )
        self._writer = RecordWriter(
            store,
            office,
            self.state,
            is_over=self._is_deposed,
            on_written=self._count_election,
        )
        self._inbox: asyncio.Queue[_Item] = asyncio.Queue(MAX_QUEUED_REQUESTS)
        self._put_back: _Item | None = None
        self._advance: asyncio.TimerHandle | None = None
        self._advance_delays = 0
        self._revision = 0
        self._deposed: asyncio.Future[DeposedError] = asyncio.get_running_loop().create_future()
        self._background: list[asyncio.Task[None]] = []
        self._answers: set[asyncio.Task[None]] = set()
        self._in_work: _Request | None = None
        self._written_before_it = 0
        self._is_over = False

    @property
    def controller_epoch(self) -> int:
        return self._office.controller_epoch

    def overview(self) -> Overview:
        """From any thread: it looks at copies."""
        census, brokers = take_census(self.state), dict(self.state.brokers)
        return Overview(
            [
                BrokerInfo(broker_id, _first_address(broker), broker.rack or "")
                for broker_id, broker in sorted(brokers.items())
            ],
            census.partition_counts,
            census.offline_partition_count,
            census.preferred_replica_imbalance_count,
            census.reassigning_partition_count,
            {broker_id: len(failed) for broker_id, failed in dict(self.state.failed_replicas).items()},
            self._inbox.qsize(),
            self._pushes.queue_lengths(),
            self.controller_epoch,
        )

    async def begin(self) -> None:
        """Read everything, finish what was half done, elect where it is needed, tell all brokers everything.

        Raises DeposedError, StoreUnavailableError.
        """
        listing = await self._store.list_prefix(ALL_KEYS_PREFIX)
        self.state.load((i.key, i.value, i.create_revision, i.mod_revision) for i in listing.items)
        self._revision = listing.revision
        self._begin_duty(self._watch(), "controller-watch")
        self._rules = rules_from(self._settings, self.state.broker_configs)
        changes = ChangeSet(born=set(self.state.brokers))
        await self._until_written(finish_half_done, changes)
        await self._settle_and_push(changes)
        self._begin_duty(self._look_at_balance(), "leader-balance")

    async def serve(self) -> None:
        """Raises DeposedError, at once, when the term is over."""
        work = asyncio.create_task(self._work(), name="controller-term")
        try:
            ends: list[asyncio.Future[Any]] = [work, self._deposed]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()
            await asyncio.wait([work])
        if self._deposed.done():
            raise self._deposed.result()
        work.result()

    async def submit(
        self,
        decide: Decide[ReplyT],
        wait_ms: int = MAX_PROPAGATION_WAIT_MS,
        *,
        not_waited_for: int | None = None,
    ) -> ReplyT:
        """The decision's reply, once written and taken in by the brokers concerned (or `wait_ms` have
        passed; `not_waited_for` is a broker whose answers aren't waited for).

        Raises what `decide` raises; NOT_CONTROLLER if the term ends first, REQUEST_TIMED_OUT if it couldn't
        be written in `wait_ms` or it isn't known whether it was.
        """
        if self._is_over or self._inbox.full():
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "The controller can't take requests at the moment.")
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[ReplyT] = loop.create_future()
        overdue = loop.call_later(wait_ms / 1000, _time_out, answered)
        self._inbox.put_nowait(_Request(decide, wait_ms, answered, overdue, not_waited_for))
        try:
            return await answered
        finally:
            overdue.cancel()

    def _is_deposed(self) -> bool:
        return self._deposed.done()

    def depose(self, reason: str) -> None:
        """The office is lost; nothing more is decided or sent."""
        if not self._deposed.done():
            self._deposed.set_result(DeposedError(reason))
            self._pushes.close()

    def end(self) -> None:
        """Nothing more is sent; what was asked and not answered fails: with REQUEST_TIMED_OUT if part of it
        may be written, else with NOT_CONTROLLER.
        """
        self._is_over = True
        for task in self._background:
            task.cancel()
        if self._advance is not None:
            self._advance.cancel()
        self._pushes.close()
        if self._in_work is not None and self._writer.maybe_written > self._written_before_it:
            # Not to be asked of the next controller as if nothing had happened.
            _fail(
                self._in_work.answered,
                KafkaError(ErrorCode.REQUEST_TIMED_OUT, "The controller's term ended during the change."),
            )
        unanswered = [self._in_work, self._put_back]
        while not self._inbox.empty():
            unanswered.append(self._inbox.get_nowait())
        for item in unanswered:
            if isinstance(item, _Request):
                _fail(item.answered, KafkaError(ErrorCode.NOT_CONTROLLER, "The controller's term is over."))

    # What is taken up, one after the other

    async def _work(self) -> None:
        while True:
            item = await self._next()
            if isinstance(item, _Request):
                await self._take_up_request(item)
                continue
            changes = ChangeSet()
            if isinstance(item, _BalanceDue):
                moved = await self._until_written(balance_leaders, changes)
                if moved:
                    _log.info("leadership goes back to preferred leaders", partition_count=moved)
            elif isinstance(item, _AdvanceDue):
                self._advance = None
                await self._until_written(advance_reassignments, changes)
            elif isinstance(item, _ReplicasJudged):
                broker = item.broker
                self.state.note_replicas(
                    broker.broker_id, broker.broker_epoch, item.failed, item.served, changes
                )
            else:
                for batch in item:
                    self._apply_watched(batch, changes)
            await self._settle_and_push(changes)

    async def _next(self) -> _Request | _BalanceDue | _AdvanceDue | _ReplicasJudged | list[WatchBatch]:
        """Changes that are there already are taken up together: ten brokers that die are settled at once."""
        item = self._put_back if self._put_back is not None else await self._inbox.get()
        self._put_back = None
        return [item, *self._queued_batches()] if isinstance(item, WatchBatch) else item

    def _queued_batches(self) -> list[WatchBatch]:
        """Changes that come next, up to the next request."""
        batches: list[WatchBatch] = []
        while self._put_back is None and not self._inbox.empty():
            item = self._inbox.get_nowait()
            if isinstance(item, WatchBatch):
                batches.append(item)
            else:
                self._put_back = item
        return batches

    async def _take_up_request(self, request: _Request) -> None:
        if request.answered.done():
            return  # whoever asked has given up
        self._in_work, self._written_before_it = request, self._writer.maybe_written
        changes = ChangeSet()
        try:
            reply = await self._decide_and_write(request.decide, changes, request.answered)
        except KafkaError as error:
            _fail(request.answered, error)
            await self._settle_and_push(changes)
            self._in_work = None
            return
        request.overdue.cancel()
        delivered = await self._settle_and_push(changes)
        self._in_work = None
        waited_for = [done for broker_id, done in delivered if broker_id != request.not_waited_for]
        if waited_for:
            answer = asyncio.create_task(_answer_when_delivered(request, reply, waited_for))
            self._answers.add(answer)
            answer.add_done_callback(self._answers.discard)
        elif not request.answered.done():
            request.answered.set_result(reply)

    async def _settle_and_push(self, changes: ChangeSet) -> list[Delivered]:
        if changes.broker_configs:
            self._rules = rules_from(self._settings, self.state.broker_configs)
        if changes.calls_for_elections:
            await self._settle(changes)
        if self.state.reassigning and self._advance is None and changes.calls_for_a_look_at_moves:
            self._advance_soon()
        if self.state.isr_changes:
            await self._until_written(forget_isr_changes, changes)
        if changes.is_empty:
            return []
        if changes.born or changes.died:
            self._pushes.keep_to(self.state.brokers)
        epoch = self._office.controller_epoch
        commands = commands_for(self.state, changes, self._controller_id, epoch)
        return self._pushes.send(self.state.brokers, commands)

    async def _settle(self, changes: ChangeSet) -> None:
        if changes.born:
            await self._gather(changes)
        started_ms, elections = self._clock.monotonic_ms(), self._counts.leader_elections
        while True:
            registered = self._registered()
            await self._until_written(settle_partitions, changes)
            # What was read meanwhile, of a transaction of unknown outcome or one refused, may show that a
            # broker was born again: it must not be told to lead in an epoch of its earlier life.
            if registered == self._registered():
                break
        if changes.born or changes.died:
            _log.info(
                "brokers came or went",
                born=sorted(changes.born),
                died=sorted(changes.died),
                leader_elections=self._counts.leader_elections - elections,
                took_ms=self._clock.monotonic_ms() - started_ms,
            )

    def _registered(self) -> dict[int, int]:
        return {broker_id: broker.broker_epoch for broker_id, broker in self.state.brokers.items()}

    async def _gather(self, changes: ChangeSet) -> None:
        """Until the cluster is complete again, or the time is up."""
        for _ in range(GATHER_MS // _GATHER_STEP_MS):
            if not is_cluster_returning(self.state):
                return
            await asyncio.sleep(_GATHER_STEP_MS / 1000)
            for batch in self._queued_batches():
                self._apply_watched(batch, changes)

    # Deciding and writing

    async def _decide_and_write(
        self, decide: Decide[ReplyT], changes: ChangeSet, answered: asyncio.Future[Any]
    ) -> ReplyT:
        def on_unknown(error: StoreUnavailableError) -> None:
            _fail(answered, KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error)))

        for _ in range(MAX_CONFLICTS):
            decision = _decided(decide, self.state, self._context())
            try:
                if await self._writer.write(decision.records, changes, on_unknown):
                    return decision.reply
            except StoreUnavailableError as error:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "Partition states change too quickly to be written.")

    async def _until_written(self, decide: Decide[ReplyT], changes: ChangeSet) -> ReplyT:
        """The controller's own decisions: each refusal brings news, so sooner or later it is written."""
        while True:
            decision = decide(self.state, self._context())
            if await self._writer.write(decision.records, changes):
                return decision.reply

    def _context(self) -> Context:
        return Context(self._office.controller_epoch, self._chance, self._rules)

    def _count_election(self, record: Write) -> None:
        entry = record.entry
        if not isinstance(entry, PartitionStateEntry) or entry.leader == NO_LEADER:
            return
        stored = self.state.partitions.get(entry.topic, {}).get(entry.partition)
        if stored is not None and stored.state.leader_epoch != entry.leader_epoch:
            before = stored.state
            self._counts.leader_elections += 1
            if entry.leader not in before.isr and entry.leader not in before.elr:
                self._counts.unclean_leader_elections += 1

    def _apply_watched(self, batch: WatchBatch, changes: ChangeSet) -> None:
        for event in batch.events:
            if event.value is None:
                self.state.apply_removal(event.key, event.mod_revision, changes)
                continue
            entry = decode_entry(event.key, event.value)
            if entry is not None:
                self.state.apply(entry, event.create_revision, event.mod_revision, changes)
        self.state.forget_gone(batch.revision)

    def _everything_for(self, broker_id: int) -> list[Any]:
        return full_commands(self.state, broker_id, self._controller_id, self._office.controller_epoch)

    # What goes on beside

    def _begin_duty(self, duty: Coroutine[Any, Any, None], name: str) -> None:
        """A term that can't do one of its duties is over: it would hold the office, deaf or idle."""

        def on_done(task: asyncio.Task[None]) -> None:
            if not task.cancelled():
                error = task.exception()
                if error is not None:
                    _log.error("a duty of the controller has failed", duty=name, exc_info=error)
                self.depose(f"{name} has ended")

        task = asyncio.create_task(duty, name=name)
        task.add_done_callback(on_done)
        self._background.append(task)

    async def _watch(self) -> None:
        watch = self._store.watch(ALL_KEYS_PREFIX, self._revision + 1)
        try:
            async for batch in watch:
                for event in batch.events:
                    if event.key == CONTROLLER_KEY and event.create_revision != self._office.create_revision:
                        return self.depose("the controller's key is gone")
                await self._inbox.put(batch)
        except StoreError as error:
            # Compacted, or the store is closed: the next term lists anew.
            self.depose(f"the watch broke off: {error}")
        finally:
            await watch.aclose()

    def _advance_soon(self) -> None:
        loop = asyncio.get_running_loop()
        self._advance = loop.call_later(ADVANCE_DELAY_MS / 1000, self._advance_is_due)

    def _advance_is_due(self) -> None:
        self._advance_delays += 1
        is_busy = self._pushes.longest_queue > BUSY_QUEUE_LENGTH and self._advance_delays < MAX_ADVANCE_DELAYS
        if is_busy or self._inbox.full():
            self._advance_soon()
        else:
            self._advance_delays = 0
            self._inbox.put_nowait(_AdvanceDue())

    async def _look_at_balance(self) -> None:
        while True:
            await asyncio.sleep(self._settings.leader_imbalance_check_interval_seconds)
            await self._inbox.put(_BalanceDue())

    def _on_taken(self, broker: BrokerRegistration, command: LeaderAndIsr, result: CommandResult) -> None:
        failed = frozenset(
            partition
            for partition, code in result.partition_errors.items()
            if code is ErrorCode.KAFKA_STORAGE_ERROR
        )
        known = self.state.failed_replicas.get(broker.broker_id, frozenset())
        served = known and frozenset(
            TopicPartition(state.topic, state.partition)
            for state in command.partitions
            # Without a leader there was nothing to do that could have failed.
            if state.leader != NO_LEADER
        ).difference(result.partition_errors).intersection(known)
        if (served or failed - known) and not self._inbox.full():
            self._inbox.put_nowait(_ReplicasJudged(broker, failed, served))

    def _on_stale(self) -> None:
        _log.warning("a broker knows a newer controller", controller_epoch=self._office.controller_epoch)
        self.depose("a broker knows a newer controller")


def _decided(decide: Decide[ReplyT], state: ClusterState, context: Context) -> Decision[ReplyT]:
    """A fault of the core in one request is that request's: nothing was changed, so the term goes on."""
    try:
        return decide(state, context)
    except KafkaError:
        raise
    except Exception as error:
        _log.exception("a decision failed")
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"The controller failed: {error!r}") from error


def _first_address(broker: BrokerRegistration) -> str:
    return f"{broker.endpoints[0].host}:{broker.endpoints[0].port}" if broker.endpoints else ""


def _fail(answered: asyncio.Future[Any], error: KafkaError) -> None:
    if not answered.done():
        answered.set_exception(error)


def _time_out(answered: asyncio.Future[Any]) -> None:
    _fail(answered, KafkaError(ErrorCode.REQUEST_TIMED_OUT, "The change could not be written in time."))


async def _answer_when_delivered(
    request: _Request, reply: object, delivered: list[asyncio.Future[None]]
) -> None:
    await asyncio.wait(delivered, timeout=request.wait_ms / 1000)
    if not request.answered.done():
        request.answered.set_result(reply)
