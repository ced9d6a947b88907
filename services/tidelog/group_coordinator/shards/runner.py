"""The coordinator's runtime: claims, sessions and shards put together.

Everything happens on one event loop. What a session brings in one turn is decided in one go; then each shard
that has something sends one append. Nothing here waits for anything but the metadata store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

import structlog

from tidelog.group_coordinator.shard_core import (
    AllocateProducerId,
    ClusterImage,
    EndTransaction,
    ShardCore,
)
from tidelog.group_coordinator.shards.broker_sessions import BrokerSession, BrokerSessions
from tidelog.group_coordinator.shards.claims import Claims
from tidelog.group_coordinator.shards.cluster_view import BROKERS_AND_TOPICS, ClusterView
from tidelog.group_coordinator.shards.counts import RuntimeCounts
from tidelog.group_coordinator.shards.markers import MarkerSender
from tidelog.group_coordinator.shards.offset_questions import OffsetQuestions
from tidelog.group_coordinator.shards.producer_ids import ProducerIds
from tidelog.group_coordinator.shards.request_tracing import RequestTracing
from tidelog.group_coordinator.shards.shard import Cancellable, Shard, ShardState
from tidelog.group_coordinator.shards.store_follower import StoreFollower
from tidelog.metadata.entries import parse_partition_state_key, topic_key
from tidelog.metadata.store import Listing, MetadataStore, StoreError, WatchBatch
from tidelog.model.coordinator_shards import ShardId, ShardKind
from tidelog.model.errors import ErrorCode
from tidelog.model.instants import MonotonicMs, WallMs
from tidelog.model.topics import TopicPartition
from tidelog.rpc.coordinator_session import (
    AnswerRequest,
    ForwardedToShard,
    Item,
    MarkersWritten,
    OffsetsTold,
    ProducerIdsTold,
    ServedShard,
    ServeShards,
    SessionConnector,
    SessionLine,
    ShardAttached,
    ShardCommitted,
    ShardLost,
    ShardRecords,
)
from tidelog.timing.clock import Clock
from tidelog.timing.timer import Timer
from tidelog.wire.api_keys import ApiKey

_FIRST_VERSION_OF_BROKERS: Final = 4
FIRST_RETRY_MS: Final = 20
MAX_RETRY_MS: Final = 1_000
IMAGE_DELAY_MS: Final = 20
"""Of changes of topics the cores are told the first at once, those that follow it so closely together."""
DRAIN_TIMEOUT_MS: Final = 1_000
STORE_TIMEOUT_MS: Final = 500
"""At a stop: what etcd hasn't taken by then ends with the lease."""

MakeCore = Callable[[ShardId, int], ShardCore]

_log = structlog.get_logger(__name__)


class CoordinatorRuntime:
    """`start`, then `lease_taken` with each lease of the coordinator's session; `stop` hands over."""

    def __init__(
        self,
        store: MetadataStore,
        connector: SessionConnector,
        coordinator_id: int,
        make_cores: Mapping[ShardKind, MakeCore],
        *,
        clock: Clock,
        timer: Timer,
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self.view = ClusterView()
        self.shards: dict[ShardId, Shard] = {}
        self.counts = RuntimeCounts()
        self.tracing: RequestTracing | None = None
        """For requests that their broker traces; None where tracing is off."""
        self._store = store
        self._coordinator_id = coordinator_id
        self._make_cores = make_cores
        self._clock = clock
        self._timer = timer
        self._call_soon = call_soon
        self._follower = StoreFollower(
            store, BROKERS_AND_TOPICS, on_listing=self._cluster_listed, on_batch=self._cluster_changed
        )
        self.claims = Claims(
            store,
            coordinator_id,
            shard_count=self.view.shard_count,
            on_claimed=self._claimed,
            on_lost=self._claim_lost,
            on_surplus=self._surplus,
        )
        self.sessions = BrokerSessions(connector, coordinator_id, self)
        self.markers = MarkerSender(self)
        self.producer_ids = ProducerIds(self)
        self.offset_questions = OffsetQuestions(self)
        self._by_attachment: dict[int, Shard] = {}
        self._attachments = 0
        self._retries: dict[ShardId, Cancellable] = {}
        self._pending: list[Shard] = []
        self._has_pending_markers = False
        self._has_serving_changed = False
        self._is_flush_due = False
        self._image_due: Cancellable | None = None
        self._is_stopping = False
        self._drained = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._takes: dict[type, Callable[[BrokerSession, Any], None]] = {
            ForwardedToShard: self._forwarded,
            ShardCommitted: self._committed,
            ShardAttached: self._attached,
            ShardRecords: self._records,
            ShardLost: self._lost_at_broker,
            MarkersWritten: lambda _, item: self.markers.written(item),
            ProducerIdsTold: lambda _, item: self.producer_ids.told(item),
            OffsetsTold: lambda _, item: self.offset_questions.told(item),
        }

    # -- life

    async def start(self) -> None:
        """Raises StoreUnavailableError."""
        await self._follower.start()
        await self.claims.start()

    async def lease_taken(self, lease: int) -> None:
        await self.claims.lease_taken(lease)

    async def stop(self) -> None:
        """Hand everything over: no new requests, what is decided is let out, shards are free. Bounded."""
        self._is_stopping = True
        try:
            async with asyncio.timeout(STORE_TIMEOUT_MS / 1000):
                await self.claims.leave()
        except (TimeoutError, StoreError) as error:
            _log.warning("leaving without the metadata store", reason=str(error))
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
            _log.warning("shards are left to their lease", reason=str(error))
        await self.claims.stop()
        await self._follower.stop()
        self.sessions.close()
        for task in list(self._tasks):
            task.cancel()

    async def _until_drained(self, shards: Sequence[Shard]) -> None:
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_MS / 1000):
                while any(shard.state is not ShardState.CLOSED for shard in shards):
                    self._drained.clear()
                    await self._drained.wait()
        except TimeoutError:
            _log.warning("shards are given up before all they decided was replicated")

    # -- the metadata store

    def _cluster_listed(self, listing: Listing) -> None:
        self.view.replace((item.key, item.value, item.create_revision) for item in listing.items)
        self._after_change()
        for shard in list(self.shards.values()):
            self._attend(shard)

    def _cluster_changed(self, batch: WatchBatch) -> None:
        is_general = False
        led: list[ShardId] = []
        for event in batch.events:
            self.view.take(event.key, event.value, event.create_revision)
            partition = parse_partition_state_key(event.key)
            if partition is None:
                is_general = True
            elif partition.topic.startswith("__"):
                led += [
                    ShardId(kind, partition.partition) for kind in ShardKind if kind.topic == partition.topic
                ]
        if is_general:
            self._after_change()
        for shard_id in led:
            shard = self.shards.get(shard_id)
            if shard is not None:
                self._attend(shard)

    def _after_change(self) -> None:
        if not self._is_stopping:
            self.sessions.brokers_changed(self.view.brokers.values())
            self.claims.shards_changed()
            if self._image_due is None:
                self._tell_image()
                self._image_due = self.call_after(self._tell_image_again, IMAGE_DELAY_MS)

    def _tell_image_again(self) -> None:
        self._image_due = None
        self._tell_image()

    def _tell_image(self) -> None:
        image = self.view.image()
        for shard in list(self.shards.values()):
            shard.image_changed(image)

    def is_topic_gone(self, topic: str, told: Callable[[bool | None], None]) -> None:
        """The view may be late: the store itself is asked."""
        if topic in self.view.topics:
            told(False)
        else:
            self._spawn(self._ask_topic(topic, told))

    async def _ask_topic(self, topic: str, told: Callable[[bool | None], None]) -> None:
        try:
            is_gone = await self._store.get(topic_key(topic)) is None
        except StoreError:
            told(None)
        else:
            told(is_gone)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- claims

    def _claimed(self, shard_id: ShardId, shard_epoch: int) -> None:
        known = self.shards.pop(shard_id, None)
        if known is not None:
            self._forget(known)
        shard = self.shards[shard_id] = Shard(
            shard_id, shard_epoch, self._coordinator_id, self._make_cores[shard_id.kind], self
        )
        self._attend(shard)

    def _claim_lost(self, shard_id: ShardId) -> None:
        shard = self.shards.pop(shard_id, None)
        if shard is not None:
            self._forget(shard)

    def _surplus(self, shard_id: ShardId) -> None:
        """Another coordinator is to have it; it is let go when what it decided is replicated."""
        shard = self.shards.get(shard_id)
        if shard is not None and shard.state is not ShardState.DRAINING:
            shard.release()
            self._serving_changed()

    def _forget(self, shard: Shard) -> None:
        shard.close()
        self._cancel_retry(shard.shard_id)
        self._serving_changed()

    # -- shards: where they are attached

    def _attend(self, shard: Shard) -> None:
        """See that it is attached where its partition is led."""
        if self._is_stopping or shard.state in (ShardState.DRAINING, ShardState.CLOSED):
            return
        leader = self.view.leader(shard.shard_id.topic_partition)
        if leader is None:
            return
        session = self.sessions.get(leader.broker_id)
        if shard.state is not ShardState.WAITING:
            is_there = session is not None and session.line is shard.line
            if is_there and (shard.leader_epoch < 0 or leader.leader_epoch <= shard.leader_epoch):
                return
            shard.lose("its partition is led elsewhere")
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
            self.markers.forget(core)

    def lost(self, shard: Shard, *, was_attached: bool) -> None:
        self.counts.lost[shard.shard_id.kind] += was_attached
        self._serving_changed()
        self._cancel_retry(shard.shard_id)
        delay_ms = min(FIRST_RETRY_MS << min(shard.attempts, 10), MAX_RETRY_MS)

        def again() -> None:
            self._retries.pop(shard.shard_id, None)
            if self.shards.get(shard.shard_id) is shard:
                self._attend(shard)

        self._retries[shard.shard_id] = self.call_after(again, delay_ms)

    def deposed(self, shard: Shard, newer_epoch: int) -> None:
        self.claims.outbid(shard.shard_id, newer_epoch)
        self._given_up(shard)

    def drained(self, shard: Shard) -> None:
        self._drained.set()
        if not self._is_stopping:
            self._given_up(shard)

    def _given_up(self, shard: Shard) -> None:
        self._serving_changed()
        self._spawn(self._release(shard.shard_id))

    async def _release(self, shard_id: ShardId) -> None:
        try:
            await self.claims.release([shard_id])
        except StoreError as error:
            # Its key says it is still here: the next change of shares comes by again.
            _log.warning("a shard can't be released yet", shard=str(shard_id), reason=str(error))

    # -- sessions

    def session_began(self, session: BrokerSession) -> None:
        served = self._served()
        if served.shards:
            session.line.send(served)
        for shard in list(self.shards.values()):
            if shard.state is ShardState.WAITING:
                self._attend(shard)

    def session_ended(self, session: BrokerSession) -> None:
        for shard in list(self.shards.values()):
            if shard.line is session.line:
                shard.lose("the session with the broker ended", told=True)
        broker_id = session.broker.broker_id
        self.markers.session_ended(broker_id)
        self.producer_ids.session_ended(broker_id)
        self.offset_questions.session_ended(broker_id)

    def items_received(self, session: BrokerSession, items: Sequence[Item]) -> None:
        takes = self._takes
        self._is_flush_due = True  # whatever is decided meanwhile leaves at the end of this
        for item in items:
            take = takes.get(type(item))
            if take is not None:
                try:
                    take(session, item)
                except Exception:  # noqa: BLE001 - a bug of one; the others' items have to be taken
                    _log.exception("an item of a session failed", item=type(item).__name__)
        self._flush()

    def _forwarded(self, session: BrokerSession, item: ForwardedToShard) -> None:
        shard = self.shards.get(item.shard)
        # A client's request from where the partition was led before may be older than what others have been
        # told since; only brokers' own questions come from anywhere.
        if shard is None or (session.line is not shard.line and not _is_of_a_broker(item)):
            session.line.send(AnswerRequest(item.request_id, None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        elif item.traceparent and self.tracing is not None:
            self.tracing.traced(item, lambda: shard.request(item, session.line))
        else:
            shard.request(item, session.line)

    def _committed(self, session: BrokerSession, item: ShardCommitted) -> None:
        shard = self._by_attachment.get(item.attachment)
        if shard is not None:
            shard.committed(item.high_watermark)

    def _attached(self, session: BrokerSession, item: ShardAttached) -> None:
        shard = self._by_attachment.get(item.attachment)
        if shard is not None:
            shard.attached(item)

    def _records(self, session: BrokerSession, item: ShardRecords) -> None:
        shard = self._by_attachment.get(item.attachment)
        if shard is not None:
            shard.records_read(item)

    def _lost_at_broker(self, session: BrokerSession, item: ShardLost) -> None:
        shard = self._by_attachment.get(item.attachment)
        if shard is not None:
            shard.lose(f"{item.error.name} {item.message}".rstrip(), told=True)

    # -- what shards want

    def end_transaction(self, shard: Shard, effect: EndTransaction) -> None:
        core = shard.core
        if core is None:
            return

        def done() -> None:
            self.counts.ended[effect.is_commit] += 1
            shard.effect_done(core, effect, None)

        self.markers.begin(effect, core, done)

    def allocate_producer_id(self, shard: Shard, effect: AllocateProducerId) -> None:
        core = shard.core
        if core is not None:
            self.producer_ids.take(lambda producer_id: shard.effect_done(core, effect, producer_id))

    def now_ms(self) -> WallMs:
        return self._clock.wall_ms()

    def monotonic_ms(self) -> MonotonicMs:
        return self._timer.monotonic_ms()

    def image(self) -> ClusterImage:
        return self.view.image()

    def call_after(self, callback: Callable[[], None], delay_ms: int) -> Cancellable:
        return self._timer.add(callback, MonotonicMs(self._timer.monotonic_ms() + delay_ms + 1))

    def line_to_leader(self, partition: TopicPartition) -> tuple[int, SessionLine] | None:
        leader = self.view.leader(partition)
        session = None if leader is None else self.sessions.get(leader.broker_id)
        return None if session is None else (session.broker.broker_id, session.line)

    def any_line(self) -> tuple[int, SessionLine] | None:
        session = self.sessions.any()
        return None if session is None else (session.broker.broker_id, session.line)

    # -- the end of a turn

    def has_pending(self, shard: Shard) -> None:
        self._pending.append(shard)
        self._flush_soon()

    def has_pending_markers(self) -> None:
        self._has_pending_markers = True
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
            self.markers.flush()
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


def _is_of_a_broker(item: ForwardedToShard) -> bool:
    """It asks whether a partition is part of a transaction, or has it take part."""
    return item.api_key == ApiKey.ADD_PARTITIONS_TO_TXN and item.api_version >= _FIRST_VERSION_OF_BROKERS
