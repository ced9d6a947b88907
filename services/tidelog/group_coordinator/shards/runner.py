"""The coordinator's runtime: the shards that it owns, and what reaches them.

Everything runs on one event loop. The items that sessions deliver are processed together, as many as begin
within TURN_MS; then each shard with decisions sends one append. Only the metadata store is ever waited for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import structlog

from tidelog.group_coordinator.metrics import CoordinatorCounts
from tidelog.group_coordinator.shard_core import (
    AllocateProducerId,
    AskEndOffsets,
    AskShareStates,
    ClusterImage,
    EndTransaction,
    ShardCore,
)
from tidelog.group_coordinator.shards.broker_calls import BrokerCalls
from tidelog.group_coordinator.shards.claims import Claims
from tidelog.group_coordinator.shards.sessions import (
    BrokerSession,
    BrokerSessions,
    RequestTracing,
    WaitingItems,
    is_of_a_broker,
    refuse,
)
from tidelog.group_coordinator.shards.shard import Cancellable, Shard, ShardState
from tidelog.group_coordinator.shards.store_copies import ClusterView
from tidelog.kernel.clock import Clock
from tidelog.kernel.instants import Backoff, MonotonicMs, WallMs
from tidelog.kernel.slices import SLICE_MS, STEPS_BETWEEN_READINGS, TaskSet, in_slices
from tidelog.kernel.steps import Steps
from tidelog.kernel.timer import LoopTimer
from tidelog.metadata.entries import BROKER_PREFIX, parse_partition_state_key
from tidelog.metadata.store import StoreError, WatchBatch
from tidelog.model.coordinator_shards import ShardId, ShardKind
from tidelog.rpc.coordinator_session import (
    ForwardedToShard,
    Item,
    ServedShard,
    ServeShards,
    ShardAttached,
    ShardCommitted,
    ShardLost,
    ShardRecords,
)

ATTACH_BACKOFF: Final = Backoff(20, 1_000)
IMAGE_DELAY_MS: Final = 20
"""After a change of topics, further changes within this time reach the cores together."""
TURN_MS: Final = 3
"""The time for which items of sessions are processed in one turn of the event loop. It is shorter than a
slice: a commit takes several turns, and while one client has thousands of calls, others meet such a turn in
each of them.
"""
SHARDS_OF_A_TURN: Final = 10
"""The most shards that learn of a change of topics in one turn of the event loop. A turn ends after SLICE_MS
in any case.
"""
RECORDS_OF_A_TURN: Final = 2_000
"""The most records of loading shards that are read or replayed in one turn of the event loop. A turn ends
after SLICE_MS in any case, because a record of a large group takes long.
"""
DRAIN_TIMEOUT_MS: Final = 1_000
RELEASE_RETRY_MS: Final = 500
"""The pause after an attempt to release a claim that etcd did not answer."""
STORE_TIMEOUT_MS: Final = 500
"""The time that a stop waits for etcd. The lease ends the claims that etcd has not deleted by then."""

CallSoon = Callable[[Callable[[], None]], object]
MakeCore = Callable[[ShardId, int], ShardCore]
"""Makes the core of a shard, given its number and its shard epoch."""
_OfAnAttachment: TypeAlias = ShardCommitted | ShardRecords | ShardAttached | ShardLost
"""The items that a broker sends to a shard that is attached at it."""

_log = structlog.get_logger(__name__)


class Loop(NamedTuple):
    """The times of one event loop, and its next turn."""

    clock: Clock
    timer: LoopTimer
    call_soon: CallSoon


class Parts(NamedTuple):
    """The other parts of a coordinator, which the runtime connects with the shards."""

    view: ClusterView
    claims: Claims
    sessions: BrokerSessions
    calls: BrokerCalls


class _LoadQueue:
    """The replays of shards that load, of which the first is under way. After a failure of a broker, many
    shards load at once.
    """

    def __init__(self, loop: Loop) -> None:
        self._clock, _, self._call_soon = loop
        self._replays: deque[Iterator[None]] = deque()

    def add(self, replay: Iterator[None]) -> None:
        if not self._replays:
            self._call_soon(self._go_on)
        self._replays.append(replay)

    def _go_on(self) -> None:
        """Replays as many records as the event loop may be held for."""
        until_ms = self._clock.monotonic_ms() + SLICE_MS
        for count in range(RECORDS_OF_A_TURN):
            if count % STEPS_BETWEEN_READINGS == 0 and self._clock.monotonic_ms() > until_ms:
                break
            try:
                is_done = next(self._replays[0], True)
            except Exception:  # noqa: BLE001 - a bug; the other shards must still be loaded
                _log.exception("loading a shard failed")
                is_done = True
            if is_done:
                self._replays.popleft()
                if not self._replays:
                    return
        self._call_soon(self._go_on)


class _ImageQueue:
    """The shards that do not have the newest image of the cluster yet."""

    def __init__(self, runtime: CoordinatorRuntime, loop: Loop) -> None:
        self._runtime = runtime
        self._clock, _, self._call_soon = loop
        self._due: Cancellable | None = None
        self._outdated: deque[Shard] = deque()

    def changed(self) -> None:
        """Sends the image now, and further changes together after IMAGE_DELAY_MS."""
        if self._due is None:
            self.send()
            self._due = self._runtime.call_after(self._send_again, IMAGE_DELAY_MS)

    def _send_again(self) -> None:
        self._due = None
        self.send()

    def send(self) -> None:
        is_under_way = bool(self._outdated)
        self._outdated = deque(self._runtime.shards.values())
        if not is_under_way:
            self._go_on()

    def _go_on(self) -> None:
        """Gives the image to some shards. Each of them looks through all topics and its offsets.

        A shard whose own topic is not in the view gets none. The store was emptied, or its contents are not
        all there yet: that topics are missing does not mean that they were deleted with their offsets.
        """
        until_ms, view = self._clock.monotonic_ms() + SLICE_MS, self._runtime.view
        try:
            image = view.image()
            for _ in range(min(SHARDS_OF_A_TURN, len(self._outdated))):
                shard = self._outdated.popleft()
                if view.shard_count(shard.shard_id.kind):
                    shard.image_changed(image)
                if self._clock.monotonic_ms() > until_ms:
                    break
        finally:
            if self._outdated:
                self._call_soon(self._go_on)


class CoordinatorRuntime:
    """The owned shards, and the routing of items and effects between them and the other parts.

    `server.py` constructs the parts. Call `start`, then `lease_taken` with each lease of the coordinator's
    registration. `stop` hands the shards over.
    """

    def __init__(
        self,
        coordinator_id: int,
        make_cores: Mapping[ShardKind, MakeCore],
        parts: Parts,
        loop: Loop,
        tracing: RequestTracing | None = None,
    ) -> None:
        self.shards: dict[ShardId, Shard] = {}
        self.counts = CoordinatorCounts()
        self.view, self.claims, self.sessions, self.calls = parts
        self._tracing = tracing
        self._coordinator_id = coordinator_id
        self._make_cores = make_cores
        self._clock, self._timer, self._call_soon = loop
        self.images = _ImageQueue(self, loop)
        self._shard_counts: list[int] = []
        self._by_attachment: dict[int, Shard] = {}
        self._attachments = 0
        self._retries: dict[ShardId, Cancellable] = {}
        self._loads = _LoadQueue(loop)
        self._items: WaitingItems = WaitingItems()
        self._pending: list[Shard] = []
        self._has_pending_markers = False
        self._has_serving_changed = False
        self._is_flush_due = False
        self._is_stopping = False
        self._drained = asyncio.Event()
        self._releases: TaskSet[None] = TaskSet()
        self._works: TaskSet[None] = TaskSet()
        """The large answers that are being made."""

    async def start(self) -> None:
        """Raises StoreUnavailableError."""
        self.sessions.start(self)
        await self.view.start(self)
        await self.claims.start(self)

    async def lease_taken(self, lease: int) -> None:
        await self.claims.lease_taken(lease)

    async def stop(self) -> None:
        """Drains all shards and releases their claims.

        Takes no new requests, waits until decisions are replicated, and ends after a bounded time.
        """
        self._is_stopping = True
        try:
            async with asyncio.timeout(STORE_TIMEOUT_MS / 1000):
                await self.claims.leave()
        except (TimeoutError, StoreError) as error:
            _log.warning("the stop continues without the metadata store", reason=str(error))
        shards = list(self.shards.values())
        for shard in shards:
            shard.release()
        self._serving_changed()
        self._flush()
        await self._until_drained(shards)
        for shard in shards:
            shard.close()
        try:
            async with asyncio.timeout(STORE_TIMEOUT_MS / 1000):
                await self.claims.release([shard.shard_id for shard in shards])
        except (TimeoutError, StoreError) as error:
            _log.warning("claims of shards remain until their lease ends", reason=str(error))
        await self.claims.stop()
        await self.view.stop()
        self.sessions.close()
        self._releases.cancel()
        self._works.cancel()

    async def _until_drained(self, shards: Sequence[Shard]) -> None:
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_MS / 1000):
                while any(shard.state is not ShardState.CLOSED for shard in shards):
                    self._drained.clear()
                    await self._drained.wait()
        except TimeoutError:
            _log.warning("shards are closed before all their decisions are replicated")

    def cluster_listed(self) -> None:
        self._brokers_changed()
        self._topics_changed()
        for shard in list(self.shards.values()):
            self._attend(shard)

    def cluster_changed(self, batch: WatchBatch) -> None:
        are_brokers = are_topics = False
        led: list[ShardId] = []
        for event in batch.events:
            partition = parse_partition_state_key(event.key)
            if partition is None:
                is_broker = event.key.startswith(BROKER_PREFIX)
                are_brokers, are_topics = are_brokers or is_broker, are_topics or not is_broker
            elif partition.topic.startswith("__"):
                led += [
                    ShardId(kind, partition.partition) for kind in ShardKind if kind.topic == partition.topic
                ]
        if are_brokers:
            self._brokers_changed()
        if are_brokers or are_topics:
            self._topics_changed()
        for shard_id in led:
            shard = self.shards.get(shard_id)
            if shard is not None:
                self._attend(shard)

    def _brokers_changed(self) -> None:
        if not self._is_stopping:
            self.sessions.brokers_changed(self.view.brokers.values())

    def _topics_changed(self) -> None:
        """Compares the numbers of shards, and shows the topics to the cores, with the racks of brokers."""
        if self._is_stopping:
            return
        counts = [self.view.shard_count(kind) for kind in ShardKind]
        if counts != self._shard_counts:
            self._shard_counts = counts
            self.claims.shards_changed()
        self.images.changed()

    def claimed(self, shard_id: ShardId, shard_epoch: int) -> None:
        known = self.shards.pop(shard_id, None)
        if known is not None:
            self._forget(known)
        shard = self.shards[shard_id] = Shard(
            shard_id, shard_epoch, self._coordinator_id, self._make_cores[shard_id.kind], self
        )
        self._attend(shard)

    def claim_lost(self, shard_id: ShardId) -> None:
        shard = self.shards.pop(shard_id, None)
        if shard is not None:
            self._forget(shard)

    def surplus(self, shard_id: ShardId) -> None:
        """Drains the shard for another coordinator."""
        shard = self.shards.get(shard_id)
        if shard is not None and shard.state is not ShardState.DRAINING:
            shard.release()
            self._serving_changed()

    def _forget(self, shard: Shard) -> None:
        shard.close()
        self._cancel_retry(shard.shard_id)
        self._serving_changed()

    def _attend(self, shard: Shard) -> None:
        """Attaches the shard at its partition's leader, unless it is attached there."""
        if self._is_stopping or shard.state in (ShardState.DRAINING, ShardState.CLOSED):
            return
        leader = self.view.leader(shard.shard_id.topic_partition)
        if leader is None:
            return
        session = self.sessions.get(leader.broker_id)
        if shard.state is not ShardState.WAITING:
            is_there = session is not None and session.line is shard.log.line
            if is_there and (shard.log.leader_epoch < 0 or leader.leader_epoch <= shard.log.leader_epoch):
                return
            shard.lose("another broker leads its partition")
        self._cancel_retry(shard.shard_id)
        if session is not None:
            self._attachments += 1
            self._by_attachment[self._attachments] = shard
            shard.attach(session.line, self._attachments)

    def _cancel_retry(self, shard_id: ShardId) -> None:
        retry = self._retries.pop(shard_id, None)
        if retry is not None:
            retry.cancel()

    def started_serving(self, shard: Shard, load_ms: int) -> None:
        self.counts.loaded(shard.shard_id.kind, load_ms)
        self._serving_changed()

    def detached(self, attachment: int, core: ShardCore | None) -> None:
        self._by_attachment.pop(attachment, None)
        if core is not None:
            self.calls.markers.forget(core)

    def lost(self, shard: Shard, *, was_attached: bool) -> None:
        self.counts.lost[shard.shard_id.kind] += was_attached
        self._serving_changed()
        self._cancel_retry(shard.shard_id)
        delay_ms = ATTACH_BACKOFF.delay_ms(shard.attempts + 1)

        def retry() -> None:
            self._retries.pop(shard.shard_id, None)
            if self.shards.get(shard.shard_id) is shard:
                self._attend(shard)

        self._retries[shard.shard_id] = self.call_after(retry, delay_ms)

    def deposed(self, shard: Shard, newer_epoch: int) -> None:
        self.claims.outbid(shard.shard_id, newer_epoch)
        self._given_up(shard)

    def drained(self, shard: Shard) -> None:
        self._drained.set()
        if not self._is_stopping:
            self._given_up(shard)

    def _given_up(self, shard: Shard) -> None:
        self._serving_changed()
        self._releases.start(self._release(shard))

    async def _release(self, shard: Shard) -> None:
        """Releases the claim of a closed shard, again and again while the store does not answer.

        Otherwise the key would still name this coordinator, which no longer serves the shard. The attempts
        end when this coordinator has lost the claim or has claimed the shard again.
        """
        is_released = False
        while not is_released and self.shards.get(shard.shard_id) is shard:
            try:
                await self.claims.release([shard.shard_id])
                is_released = True
            except StoreError as error:
                _log.warning(
                    "the release of a shard failed and will be repeated",
                    shard=str(shard.shard_id),
                    reason=str(error),
                )
                await asyncio.sleep(RELEASE_RETRY_MS / 1000)

    def session_began(self, session: BrokerSession) -> None:
        served = self._served()
        if served.shards:
            session.line.send(served)
        for shard in list(self.shards.values()):
            if shard.state is ShardState.WAITING:
                self._attend(shard)

    def session_ended(self, session: BrokerSession) -> None:
        for shard in list(self.shards.values()):
            if shard.log.line is session.line:
                shard.lose("the session with the broker ended", broker_knows=True)
        self.calls.session_ended(session.broker.broker_id)

    def items_received(self, session: BrokerSession, items: Sequence[Item]) -> None:
        """Processes items, or lets them wait for earlier ones. A burst of requests takes many turns."""
        is_under_way = bool(self._items)
        for item in items:
            if isinstance(item, ForwardedToShard):
                self._items.add_call(session, item)
            elif isinstance(item, ShardAttached | ShardLost):
                shard = self._by_attachment.get(item.attachment)
                self._items.add_told(session, item, None if shard is None else shard.shard_id)
            else:
                self._items.add_told(session, item)
        if not is_under_way:
            self._process_items()

    def _process_items(self) -> None:
        """Processes items of all sessions, as many as begin within TURN_MS."""
        self._is_flush_due = True  # the call below sends everything that is decided before it
        until_ms = self._clock.monotonic_ms() + TURN_MS
        while self._items:
            session, item, arrival = self._items.take()
            if session.is_over:
                continue
            try:
                if isinstance(item, ForwardedToShard) and self._items.is_outdated(item, arrival):
                    refuse(session, item)
                else:
                    self._process(session, item)
            except Exception:  # noqa: BLE001 - a bug; the other items must still be processed
                _log.exception("processing an item of a session failed", item=type(item).__name__)
            if self._clock.monotonic_ms() >= until_ms:
                break
        if self._items:
            self._call_soon(self._process_items)
        self._flush()

    def _process(self, session: BrokerSession, item: Item) -> None:
        if isinstance(item, ForwardedToShard):
            self._forwarded(session, item)
        elif isinstance(item, _OfAnAttachment):
            shard = self._by_attachment.get(item.attachment)
            if shard is not None:
                self._told(shard, item)
        else:
            self.calls.received(item)

    def _forwarded(self, session: BrokerSession, item: ForwardedToShard) -> None:
        shard = self.shards.get(item.shard)
        # A client's request that comes through a former leader may be older than answers sent since then.
        # Questions of brokers may come from any broker.
        if shard is None or (session.line is not shard.log.line and not is_of_a_broker(item)):
            refuse(session, item)
        elif item.traceparent and self._tracing is not None:
            self._tracing.traced(item, lambda: shard.request(item, session.line))
        else:
            shard.request(item, session.line)

    def _told(self, shard: Shard, item: _OfAnAttachment) -> None:
        if isinstance(item, ShardCommitted):
            shard.committed(item.high_watermark)
        elif isinstance(item, ShardRecords):
            self._loads.add(shard.records_read(item))
        elif isinstance(item, ShardAttached):
            shard.attached(item)
        else:
            shard.lose(f"{item.error.name} {item.message}".rstrip(), broker_knows=True)

    def begin_effect(
        self, shard: Shard, effect: EndTransaction | AllocateProducerId | AskShareStates | AskEndOffsets
    ) -> None:
        core = shard.core
        if core is None:
            return
        if not isinstance(effect, EndTransaction):
            self.calls.ask(effect, lambda outcome: shard.effect_done(core, effect, outcome))
            return

        def done() -> None:
            self.counts.ended[effect.is_commit] += 1
            shard.effect_done(core, effect, None)

        self.calls.markers.begin(effect, core, done)
        self._has_pending_markers = True
        self._flush_soon()

    def now_ms(self) -> WallMs:
        return self._clock.wall_ms()

    def monotonic_ms(self) -> MonotonicMs:
        return self._timer.monotonic_ms()

    def image(self) -> ClusterImage:
        return self.view.image()

    def call_after(self, callback: Callable[[], None], delay_ms: int) -> Cancellable:
        return self._timer.add_after(callback, delay_ms)

    def work_on(self, steps: Steps[None]) -> None:
        rest = in_slices(steps)
        if isinstance(rest, Coroutine):
            self._works.start(rest)

    def has_pending(self, shard: Shard) -> None:
        self._pending.append(shard)
        self._flush_soon()

    def _serving_changed(self) -> None:
        self._has_serving_changed = True
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self._call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        pending, self._pending = self._pending, []
        for shard in pending:
            shard.flush()
        if self._has_pending_markers:
            self._has_pending_markers = False
            self.calls.markers.flush()
        if self._has_serving_changed:
            self._has_serving_changed = False
            served = self._served()
            for session in self.sessions:
                session.line.send(served)

    def _served(self) -> ServeShards:
        return ServeShards(
            tuple(
                ServedShard(shard.shard_id, shard.shard_epoch)
                for shard in self.shards.values()
                if shard.state is ShardState.SERVING
            )
        )
