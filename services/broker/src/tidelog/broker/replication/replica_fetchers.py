"""Everything that this broker follows: one fetcher a leader (and of `num.replica.fetchers`), partitions moved
between them as roles change, and the work on logs that takes a thread.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
from tidelog.broker.frames import BufferPool
from tidelog.broker.partition.events import AskEpochEnd, RestartLogAt, TruncateTo
from tidelog.broker.replication.followed_partition import FollowedPartition
from tidelog.broker.replication.leader_fetcher import LeaderFetcher
from tidelog.broker.replication.throttle import UNLIMITED, ReplicationThrottle
from tidelog.model.brokers import Endpoint
from tidelog.model.errors import KafkaError
from tidelog.model.topics import TopicPartition

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.replica import Replica

_log = structlog.get_logger(__name__)


class ReplicaFetchers:
    """Told of every role by `role_changed`, of every replica that is closed by `forget`."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.buffer_pool = BufferPool()
        self.throttle = ReplicationThrottle(now_ms=0)
        self._fetchers: dict[tuple[int, int], LeaderFetcher] = {}
        self._followed: dict[TopicPartition, FollowedPartition] = {}
        self._work: set[tuple[TopicPartition, asyncio.Task[None]]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._is_stopped = False

    # -- what is followed

    def role_changed(self, replica: Replica) -> None:
        """After each LeaderAndIsr: begin, go on or cease to follow. Does nothing where nothing changed."""
        topic_partition, core = replica.topic_partition, replica.core
        known = self._followed.get(topic_partition)
        if known is not None:
            if (
                known.replica is replica
                and known.leader_epoch == core.leader_epoch
                and known.leader_id == core.leader
            ):
                return
            self._leave(known)
        if core.is_follower and not self._is_stopped:
            fetcher = self._fetcher_of(replica)
            followed = FollowedPartition(replica, fetcher, self.broker.settings.replica_fetch_max_bytes)
            self._followed[topic_partition] = followed
            fetcher.followed_count += 1
            fetcher.resume(followed)

    async def forget(self, topic_partition: TopicPartition) -> None:
        """Its replica is about to be closed; on return no thread is at its log."""
        known = self._followed.get(topic_partition)
        if known is not None:
            self._leave(known)
        work = [task for of, task in self._work if of == topic_partition]
        if work:
            await asyncio.wait(work)

    def is_followed(self, replica: Replica) -> bool:
        followed = self._followed.get(replica.topic_partition)
        return followed is not None and followed.replica is replica

    def resume(self, replica: Replica) -> None:
        """Something is done that kept it from being fetched."""
        followed = self._followed.get(replica.topic_partition)
        if followed is not None and followed.replica is replica:
            followed.fetcher.resume(followed)

    def brokers_changed(self) -> None:
        """Who could not be reached may have an address now, who was reached may be another."""
        for fetcher in self._fetchers.values():
            fetcher.brokers_changed()

    async def stop(self) -> None:
        """Fetch nothing more; waits for logs that are being cut."""
        self._is_stopped = True
        for followed in list(self._followed.values()):
            self._leave(followed)
        await asyncio.gather(*(fetcher.stop() for fetcher in self._fetchers.values()))
        self._fetchers.clear()
        under_way = self._closing | {task for _, task in self._work}
        if under_way:
            await asyncio.wait(under_way)

    def _leave(self, followed: FollowedPartition) -> None:
        followed.is_stopped = True
        fetcher, topic_partition = followed.fetcher, followed.replica.topic_partition
        fetcher.leave(followed)
        fetcher.followed_count -= 1
        fetcher.questions.forget(topic_partition, followed.leader_epoch)
        del self._followed[topic_partition]
        if fetcher.is_idle:
            self._fetchers = {key: kept for key, kept in self._fetchers.items() if kept is not fetcher}
            closing = asyncio.create_task(fetcher.stop())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _fetcher_of(self, replica: Replica) -> LeaderFetcher:
        topic, partition = replica.topic_partition
        shard = (zlib.crc32(topic.encode()) + partition) % self.broker.settings.num_replica_fetchers
        key = replica.core.leader, shard
        fetcher = self._fetchers.get(key)
        if fetcher is None:
            fetcher = self._fetchers[key] = LeaderFetcher(self, replica.core.leader)
        return fetcher

    def endpoint_of(self, leader_id: int) -> Endpoint | None:
        """Where brokers talk to that one, None if it is not known (yet)."""
        registration = self.broker.metadata.brokers.get(leader_id)
        if registration is None:
            return None
        return registration.endpoint(self.broker.settings.listener_plan().inter_broker_listener_name)

    # -- effects of the partition core

    def ask_epoch_end(self, replica: Replica, question: AskEpochEnd) -> None:
        if not self._is_stopped:
            self._fetcher_of(replica).questions.ask_epoch_end(replica, question)

    def cut_log(self, replica: Replica, cut: TruncateTo | RestartLogAt, leader_epoch: int) -> None:
        self._start(replica, self._cut_log(replica, cut, leader_epoch))

    async def _cut_log(self, replica: Replica, cut: TruncateTo | RestartLogAt, leader_epoch: int) -> None:
        _log.info(
            "log is cut as the leader's differs",
            partition=str(replica.topic_partition),
            offset=cut.offset,
            log_end_offset=replica.core.log_end_offset,
            whole=type(cut) is RestartLogAt,
        )
        while self.is_followed(replica) and replica.core.leader_epoch == leader_epoch:
            try:
                await replica.cut_log(cut, leader_epoch, self.broker.clock.now_ms())
            except KafkaError as error:
                _log.error("log can't be cut", partition=str(replica.topic_partition), reason=str(error))
                await asyncio.sleep(self.broker.settings.replica_fetch_backoff_ms / 1000)
            else:
                break
        self.resume(replica)

    def flush_epochs(self, followed: FollowedPartition) -> None:
        """A leader epoch begins with what was received: it is fetched again once the epoch is on disk."""
        self._start(followed.replica, self._flushed(followed, followed.replica.flush_leader_epochs))

    def flush_log(self, followed: FollowedPartition) -> None:
        """What was appended is to be on disk before the leader hears of it."""
        log, now_ms = followed.replica.log, self.broker.clock.now_ms()
        self._start(
            followed.replica,
            self._flushed(followed, lambda: asyncio.to_thread(log.flush, None, now_ms=now_ms)),
        )

    async def _flushed(self, followed: FollowedPartition, flush: Callable[[], Awaitable[None]]) -> None:
        """Fetch on only once the disk has it."""
        while not followed.is_stopped:
            try:
                await flush()
            except KafkaError as error:
                partition, reason = str(followed.replica.topic_partition), str(error)
                _log.error("followed partition can't be flushed", partition=partition, reason=reason)
                pause_ms = followed.backoff_ms(self.broker.settings.replica_fetch_backoff_ms)
                await asyncio.sleep(pause_ms / 1000)
            else:
                followed.fetcher.resume(followed)
                return

    def _start(self, replica: Replica, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        entry = replica.topic_partition, task
        self._work.add(entry)
        task.add_done_callback(lambda _: self._ended(entry))

    def _ended(self, entry: tuple[TopicPartition, asyncio.Task[None]]) -> None:
        self._work.discard(entry)
        topic_partition, task = entry
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("replication failed", partition=str(topic_partition), exc_info=error)

    # -- what is counted

    def received(self, followed: FollowedPartition, size_bytes: int) -> None:
        """Batches were appended; throttled replicas may have to wait."""
        self.broker.telemetry.broker_traffic.replication_bytes_in += size_bytes
        throttle, rate = self.throttle, self.broker.settings.follower_replication_throttled_rate
        if rate == UNLIMITED and not throttle.is_limited:
            return
        now_ms = self.broker.timer.now_ms()
        throttle.set_rate(rate, now_ms)
        if throttle.is_limited and followed.is_throttled:
            throttle.spend(size_bytes, now_ms)
            if throttle.is_exceeded(now_ms):
                self._hold_back_throttled(now_ms)

    def _hold_back_throttled(self, now_ms: int) -> None:
        """Those that are behind; one that is level stays, to remain in the ISR (as in Kafka)."""
        timer, deadline_ms = self.broker.timer, now_ms + self.throttle.wait_ms(now_ms)
        for followed in list(self._followed.values()):
            if followed.is_fetched and followed.lag > 0 and followed.is_throttled:
                followed.fetcher.leave(followed)
                timer.add(partial(self._resume_throttled, followed), deadline_ms)

    def _resume_throttled(self, followed: FollowedPartition) -> None:
        timer = self.broker.timer
        now_ms = timer.now_ms()
        self.throttle.set_rate(self.broker.settings.follower_replication_throttled_rate, now_ms)
        wait_ms = self.throttle.wait_ms(now_ms) if followed.is_throttled else 0
        if not wait_ms:
            followed.fetcher.resume(followed)
        elif not followed.is_stopped:
            timer.add(partial(self._resume_throttled, followed), now_ms + wait_ms)

    def lags(self) -> Iterator[tuple[TopicPartition, int, int]]:
        """(partition, leader, records behind its high watermark) of each that was answered since it is
        followed. Any thread.
        """
        for followed in list(self._followed.values()):
            if followed.lag >= 0:
                yield followed.replica.topic_partition, followed.leader_id, followed.lag

    @property
    def failed_count(self) -> int:
        """Partitions that fail again and again. Any thread."""
        return sum(followed.is_failing for followed in list(self._followed.values()))
