"""One term of the active controller. It takes requests and the store's changes one by one, writes the
decisions of the core, and sends commands to the brokers.

One task decides, writes and applies an item before it takes the next one, and queues the commands in the same
order. The response to a request waits for the brokers' answers in a task of its own, so a slow broker does
not delay other requests. While the store is unavailable, the term waits; it ends when its key is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

import structlog

from tidelog.controller.core.commands import Command, commands_for, steady_full_commands
from tidelog.controller.core.decision import (
    Chance,
    Context,
    ControllerDecision,
    DecisionSteps,
    Write,
    rules_from,
)
from tidelog.controller.core.elections import balance_leaders, is_cluster_returning, settle_partitions
from tidelog.controller.core.reassignments import advance_reassignments
from tidelog.controller.core.state import ChangeSet, ClusterState
from tidelog.controller.core.topics import finish_half_done, forget_isr_changes
from tidelog.controller.metrics import ControllerCounts, Overview, overview_of
from tidelog.controller.office import DeposedError, NotWrittenError, Office, RecordWriter
from tidelog.controller.pushes import BrokerPushes, Delivered
from tidelog.kernel.clock import Clock
from tidelog.kernel.slices import TaskSet, run_in_slices
from tidelog.kernel.steps import Steps
from tidelog.metadata.entries import (
    ALL_KEYS_PREFIX,
    CONTROLLER_KEY,
    PartitionStateEntry,
    decode_entry,
)
from tidelog.metadata.store import MetadataStore, StoreError, StoreUnavailableError, WatchBatch
from tidelog.model.brokers import BrokerRegistration
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import NO_LEADER
from tidelog.model.topics import TopicPartition
from tidelog.rpc.broker_commands import BrokerChannels, CommandResult, LeaderAndIsr
from tidelog.settings.broker_settings import BrokerSettings

MAX_QUEUED_ITEMS: Final = 10_000
# How often a request is decided again because a leader changed a partition's state in between.
MAX_CONFLICTS: Final = 20
# The longest time that a request waits to be written. After that, its response waits at most as long
# for the brokers; the change is durable then.
MAX_PROPAGATION_WAIT_MS: Final = 30_000
# Completed reassignments are collected for this time, because each of them is a command to every broker.
ADVANCE_DELAY_MS: Final = 100
# While a broker's queue is longer than this, completed reassignments are still collected, at most for
# this many delays.
BUSY_QUEUE_LENGTH: Final = 4
MAX_ADVANCE_DELAYS: Final = 20
# The longest wait for the brokers of a cluster that restarts, and the interval of the checks.
GATHER_MS: Final = 2_000
_GATHER_STEP_MS: Final = 50

ReplyT = TypeVar("ReplyT")
Decide = Callable[[ClusterState, Context], ControllerDecision[ReplyT] | DecisionSteps[ReplyT]]

_log = structlog.get_logger(__name__)


class _Request(NamedTuple):
    decide: Decide[object]
    wait_ms: int
    answered: asyncio.Future[object]
    overdue: asyncio.TimerHandle
    not_waited_for: int | None


class _BalanceDue(NamedTuple):
    """The check whether preferred leaders lead is due."""


class _AdvanceDue(NamedTuple):
    """The check for completed reassignments is due."""


class _ReplicasJudged(NamedTuple):
    """A registered broker failed to open or write some replicas, or serves replicas that had failed."""

    broker: BrokerRegistration
    failed: frozenset[TopicPartition]
    served: frozenset[TopicPartition]


_Item = _Request | WatchBatch | _BalanceDue | _AdvanceDue | _ReplicasJudged


class ControllerSurroundings(NamedTuple):
    """The things that all terms of a controller use, and the counts that outlive them."""

    store: MetadataStore
    channels: BrokerChannels
    settings: BrokerSettings
    clock: Clock
    chance: Chance
    counts: ControllerCounts


class Term:
    """One term. Call `begin`, then `serve`, which runs until it raises; `submit` may be called meanwhile."""

    def __init__(self, around: ControllerSurroundings, office: Office) -> None:
        store, channels, settings, clock, chance, counts = around
        self.state = ClusterState()
        self._store = store
        self._settings = settings
        self._office = office
        self._clock = clock
        self._chance = chance
        self._counts = counts
        self._inbox: asyncio.Queue[_Item] = asyncio.Queue(MAX_QUEUED_ITEMS)
        self._deposed: asyncio.Future[DeposedError] = asyncio.get_running_loop().create_future()
        self._pushes = BrokerPushes(
            channels,
            on_stale=partial(self._note_end, "a broker knows a newer controller"),
            on_taken=self._report_replicas,
            everything_for=self._everything_for,
        )
        self._writer = RecordWriter(
            store,
            office,
            self.state,
            is_over=self._deposed.done,
            on_written=self._count_election,
            seconds=self._seconds,
        )
        self._rules = rules_from(settings, {})
        self._put_back: _Item | None = None
        self._advance: asyncio.TimerHandle | None = None
        self._advance_delays = 0
        self._revision = 0
        self._background: list[asyncio.Task[None]] = []
        self._answers: TaskSet[None] = TaskSet()
        self._in_work: _Request | None = None
        self._written_before_it = 0
        self._is_over = False

    @property
    def controller_epoch(self) -> int:
        return self._office.controller_epoch

    def overview(self) -> Overview:
        """Returns the cluster's numbers. Any thread may call it."""
        queued_commands = self._pushes.queue_lengths()
        return overview_of(self.state, self._inbox.qsize(), queued_commands, self.controller_epoch)

    async def begin(self) -> None:
        """Reads the store, completes topics that are half created or deleted, elects leaders where necessary,
        and sends the full state to all brokers.

        Raises DeposedError, StoreUnavailableError.
        """
        listing = await self._store.list_prefix(ALL_KEYS_PREFIX)
        items = ((i.key, i.value, i.create_revision, i.mod_revision) for i in listing.items)
        await self._in_slices(self.state.load(items))
        self._revision = listing.revision
        self._begin_duty(self._watch(), "controller-watch")
        self._rules = rules_from(self._settings, self.state.broker_configs)
        changes = ChangeSet(registered=set(self.state.brokers))
        await self._until_written(finish_half_done, changes)
        await self._settle_and_push(changes)
        self._begin_duty(self._look_at_balance(), "leader-balance")

    async def serve(self) -> None:
        """Processes requests and changes. Raises DeposedError as soon as the term is over."""
        work = asyncio.create_task(self._work(), name="controller-term")
        try:
            # Any, because the two futures have results of different types.
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
        """Returns the decision's reply once the decision is written and the brokers have answered the
        commands, or `wait_ms` have passed. Answers of the broker `not_waited_for` do not count.

        Raises the errors of `decide`; KafkaError(NOT_CONTROLLER) if the term ends first;
        KafkaError(REQUEST_TIMED_OUT) if the decision was not written within `wait_ms` or its outcome is
        unknown.
        """
        if self._is_over or self._inbox.full():
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "The controller cannot accept requests at the moment.")
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[object] = loop.create_future()
        overdue = loop.call_later(wait_ms / 1000, _time_out, answered)
        self._inbox.put_nowait(_Request(decide, wait_ms, answered, overdue, not_waited_for))
        try:
            return cast("ReplyT", await answered)  # the queue holds requests with replies of all types
        finally:
            overdue.cancel()

    def depose(self, reason: str) -> None:
        """Ends the term: nothing more is decided or sent."""
        self._note_end(reason)
        self._pushes.close()

    def _note_end(self, reason: str) -> None:
        """Ends the term. The first reason counts."""
        if not self._deposed.done():
            self._deposed.set_result(DeposedError(reason))

    def end(self) -> None:
        """Stops all tasks and fails the open requests: with REQUEST_TIMED_OUT if part of the change may be
        written, otherwise with NOT_CONTROLLER.
        """
        self._is_over = True
        for task in self._background:
            task.cancel()
        if self._advance is not None:
            self._advance.cancel()
        self._pushes.close()
        if self._in_work is not None and self._writer.maybe_written > self._written_before_it:
            # With NOT_CONTROLLER, the client would repeat the request at the next controller.
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

    async def _work(self) -> None:
        while True:
            item = await self._next()
            if isinstance(item, _Request):
                await self._take_up_request(item)
                await asyncio.sleep(0)  # requests that write nothing would hold the event loop together
                continue
            changes = ChangeSet()
            if isinstance(item, _BalanceDue):
                moved = await self._until_written(balance_leaders, changes)
                if moved:
                    _log.info("preferred leaders elected", partition_count=moved)
            elif isinstance(item, _AdvanceDue):
                self._advance = None
                await self._until_written(advance_reassignments, changes)
            elif isinstance(item, _ReplicasJudged):
                broker = item.broker
                self.state.note_replicas(
                    broker.broker_id, broker.broker_epoch, item.failed, item.served, changes
                )
            else:
                await self._in_slices(_watched(self.state, item, changes))
            await self._settle_and_push(changes)

    async def _next(self) -> _Request | _BalanceDue | _AdvanceDue | _ReplicasJudged | list[WatchBatch]:
        """Returns the next item. Changes that are already queued are taken together, so that ten brokers that
        fail at the same time cause one round of elections.
        """
        item = self._put_back if self._put_back is not None else await self._inbox.get()
        self._put_back = None
        return [item, *self._queued_batches()] if isinstance(item, WatchBatch) else item

    def _queued_batches(self) -> list[WatchBatch]:
        """Returns the queued changes up to the next item of another kind."""
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
            return  # the caller's timeout has passed
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
            self._answers.start(_answer_when_delivered(request, reply, waited_for))
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
        if changes.registered or changes.unregistered:
            self._pushes.keep_to(self.state.brokers)
        epoch = self._office.controller_epoch
        commands = await self._in_slices(commands_for(self.state, changes, self._settings.node_id, epoch))
        return self._pushes.send(self.state.brokers, commands)

    async def _settle(self, changes: ChangeSet) -> None:
        if changes.registered:
            await self._gather(changes)
        started_ms, elections = self._clock.monotonic_ms(), self._counts.leader_elections
        while True:
            registered = self._registered()
            await self._until_written(settle_partitions, changes)
            # The values read meanwhile may show that a broker registered again. It must not receive a command
            # to lead in an epoch of its earlier registration.
            if registered == self._registered():
                break
        if changes.registered or changes.unregistered:
            _log.info(
                "broker registrations changed",
                registered=sorted(changes.registered),
                unregistered=sorted(changes.unregistered),
                leader_elections=self._counts.leader_elections - elections,
                took_ms=self._clock.monotonic_ms() - started_ms,
            )

    def _registered(self) -> dict[int, int]:
        return {broker_id: broker.broker_epoch for broker_id, broker in self.state.brokers.items()}

    async def _gather(self, changes: ChangeSet) -> None:
        """Waits until all brokers of a restarting cluster have registered, at most for GATHER_MS."""
        for _ in range(GATHER_MS // _GATHER_STEP_MS):
            if not is_cluster_returning(self.state):
                return
            await asyncio.sleep(_GATHER_STEP_MS / 1000)
            await self._in_slices(_watched(self.state, self._queued_batches(), changes))

    async def _decide_and_write(
        self, decide: Decide[ReplyT], changes: ChangeSet, answered: asyncio.Future[object]
    ) -> ReplyT:
        def on_unknown(error: StoreUnavailableError) -> None:
            _fail(answered, KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error)))

        for _ in range(MAX_CONFLICTS):
            decision = await self._decided(decide)
            try:
                if await self._writer.write(decision.records, changes, on_unknown):
                    return decision.reply
            except StoreUnavailableError as error:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error
            except NotWrittenError as error:
                if self._writer.maybe_written > self._written_before_it:
                    raise  # an earlier attempt has written a part, which the next term completes
                _log.exception("unexpected error in a write")
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"The controller failed: {error}") from error
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "Partition states change too quickly to be written.")

    async def _until_written(self, decide: Decide[ReplyT], changes: ChangeSet) -> ReplyT:
        """Writes a decision of the controller itself. Each refusal brings current values, so the decision is
        written eventually.
        """
        while True:
            decision = await self._made(decide)
            if await self._writer.write(decision.records, changes):
                return decision.reply

    def _context(self) -> Context:
        return Context(self._office.controller_epoch, self._chance, self._rules, self._clock.wall_ms())

    async def _decided(self, decide: Decide[ReplyT]) -> ControllerDecision[ReplyT]:
        """Makes a client's decision. An unexpected error fails only this request, because nothing has been
        changed yet.
        """
        try:
            return await self._made(decide)
        except KafkaError:
            raise
        except Exception as error:
            _log.exception("unexpected error in a decision")
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"The controller failed: {error!r}") from error

    async def _made(self, decide: Decide[ReplyT]) -> ControllerDecision[ReplyT]:
        decision = decide(self.state, self._context())
        return decision if isinstance(decision, ControllerDecision) else await self._in_slices(decision)

    async def _in_slices(self, steps: Steps[ReplyT]) -> ReplyT:
        """Does long work without holding the event loop. Only the task that calls this changes the state, so
        the state stays the same between two slices. The clock is the simulator's in a simulation.
        """
        return await run_in_slices(steps, self._seconds)

    def _seconds(self) -> float:
        return self._clock.monotonic_ms() / 1000

    def _begin_duty(self, duty: Coroutine[object, None, None], name: str) -> None:
        """Starts a background task. If it ends, the term is over: a controller without it would stay active
        and not do its work.
        """

        def on_done(task: asyncio.Task[None]) -> None:
            if not task.cancelled():
                error = task.exception()
                if error is not None:
                    _log.error("background task of the controller failed", task=name, exc_info=error)
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
                        return self.depose("the key /controller is gone")
                await self._inbox.put(batch)
        except StoreError as error:
            # The history is compacted or the store is closed. The next term reads everything again.
            self.depose(f"the watch of the metadata store ended: {error}")
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

    def _everything_for(self, broker_id: int) -> Awaitable[list[Command]]:
        """Makes the full commands for a broker. The state may change meanwhile."""
        node_id, epoch = self._settings.node_id, self.controller_epoch
        return run_in_slices(steady_full_commands(self.state, broker_id, node_id, epoch), self._seconds)

    def _report_replicas(
        self, broker: BrokerRegistration, command: LeaderAndIsr, result: CommandResult
    ) -> None:
        """Queues the replicas that failed or work again, according to a broker's result of a command."""
        failed = frozenset(
            partition
            for partition, code in result.partition_errors.items()
            if code is ErrorCode.KAFKA_STORAGE_ERROR
        )
        known = self.state.failed_replicas.get(broker.broker_id, frozenset())
        served = known and frozenset(
            TopicPartition(partition.topic, partition.partition)
            for partition in command.partitions
            # A state without a leader does not show whether the disk works.
            if partition.leader != NO_LEADER
        ).difference(result.partition_errors).intersection(known)
        if (served or failed - known) and not self._inbox.full():
            self._inbox.put_nowait(_ReplicasJudged(broker, failed, served))

    def _count_election(self, record: Write) -> None:
        """Counts the election that a record contains, before the record is applied to the state."""
        entry = record.entry
        if not isinstance(entry, PartitionStateEntry) or entry.leader == NO_LEADER:
            return
        before = self.state.partitions.get(entry.topic, {}).get(entry.partition)
        if before is not None and before.leader_epoch != entry.leader_epoch:
            self._counts.leader_elections += 1
            if entry.leader not in before.isr and entry.leader not in before.elr:
                self._counts.unclean_leader_elections += 1


def _watched(state: ClusterState, batches: Sequence[WatchBatch], changes: ChangeSet) -> Steps[None]:
    """Applies changes that the watch delivered. Most of them are the controller's own and already known."""
    for batch in batches:
        for event in batch.events:
            yield
            if event.value is None:
                state.apply_removal(event.key, event.mod_revision, changes)
                continue
            if state.revision_of(event.key) >= event.mod_revision:
                continue
            entry = decode_entry(event.key, event.value)
            if entry is not None:
                state.apply(entry, event.create_revision, event.mod_revision, changes)
    if batches:
        state.forget_gone(batches[-1].revision)


def _fail(answered: asyncio.Future[object], error: KafkaError) -> None:
    if not answered.done():
        answered.set_exception(error)


def _time_out(answered: asyncio.Future[object]) -> None:
    _fail(answered, KafkaError(ErrorCode.REQUEST_TIMED_OUT, "The change could not be written in time."))


async def _answer_when_delivered(
    request: _Request, reply: object, delivered: list[asyncio.Future[None]]
) -> None:
    await asyncio.wait(delivered, timeout=request.wait_ms / 1000)
    if not request.answered.done():
        request.answered.set_result(reply)
