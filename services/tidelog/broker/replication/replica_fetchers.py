"""The fetchers of this broker, one per leader and shard (`num.replica.fetchers`).

This module moves partitions between fetchers as roles and the number of fetchers change, and runs the work
on logs that needs a thread.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import TYPE_CHECKING

import structlog

from tidelog.broker.hosting.replica import Replica
from tidelog.broker.log.directory_files import LogStorageError
from tidelog.broker.net.socket_io import BufferPool
from tidelog.broker.partition.events import AskEpochEnd, RestartLogAt, TruncateTo
from tidelog.broker.partition.roles import FetchState
from tidelog.broker.replication.followed_partition import (
    FetcherKey,
    FollowedPartition,
    FollowerContext,
)
from tidelog.broker.replication.leader_fetcher import LeaderFetcher
from tidelog.broker.replication.throttle import UNLIMITED, ReplicationThrottle
from tidelog.kernel.instants import MonotonicMs
from tidelog.kernel.slices import TaskSet
from tidelog.model.brokers import Endpoint
from tidelog.model.errors import KafkaError
from tidelog.model.topics import TopicPartition

if TYPE_CHECKING:
    from tidelog.broker.log.log_directory import LogDirectory
    from tidelog.metrics.telemetry import TopicTraffic
    from tidelog.model.topics import TopicPartition
    from tidelog.settings.broker_settings import BrokerSettings

_log = structlog.get_logger(__name__)


class ReplicaFetchers:
    """Learns of each role by `role_changed`, and of each replica that is closed by `forget`."""

    def __init__(
        self,
        context: FollowerContext,
        recovery_points: RecoveryPointCheckpoint,
        traffic: TopicTraffic,
    ) -> None:
        self._context = context
        self._recovery_points = recovery_points
        self._traffic = traffic
        self.buffer_pool = BufferPool()
        self.throttle = ReplicationThrottle(now_ms=MonotonicMs(0))
        self._fetchers: dict[FetcherKey, LeaderFetcher] = {}
        self._followed: dict[TopicPartition, FollowedPartition] = {}
        self._work: set[tuple[TopicPartition, asyncio.Task[None]]] = set()
        self._closing: TaskSet[None] = TaskSet()
        self._flushing: set[Replica] = set()
        self._is_stopped = False
        self._fetchers_per_leader = context.settings.broker.num_replica_fetchers
        context.settings.observe(self._settings_changed)

    def _settings_changed(self, settings: BrokerSettings) -> None:
        """Distributes the partitions again if `num.replica.fetchers` has changed. A partition whose log is
        being compared with the leader's moves afterwards.
        """
        if settings.num_replica_fetchers != self._fetchers_per_leader:
            self._fetchers_per_leader = settings.num_replica_fetchers
            for followed in tuple(self._followed.values()):
                self._move_if_fetched(followed)

    def _move_if_fetched(self, followed: FollowedPartition) -> bool:
        """Moves a partition that is fetched to its new fetcher, if that is another one."""
        replica = followed.replica
        is_there = self._key_of(replica) == followed.fetcher_key
        if is_there or replica.core.fetch_state is not FetchState.FETCHING:
            return False
        self._leave(followed)
        self._follow(replica)
        return True

    def role_changed(self, replica: Replica) -> None:
        """Starts, continues or stops following after a LeaderAndIsr. Does nothing if the role is the same."""
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
            self._follow(replica)

    def _follow(self, replica: Replica) -> None:
        fetcher_key, fetcher = self._fetcher_of(replica)
        max_bytes = self._context.settings.broker.replica_fetch_max_bytes
        followed = FollowedPartition(replica, fetcher_key, max_bytes)
        self._followed[replica.topic_partition] = followed
        fetcher.followed_count += 1
        fetcher.resume(followed)

    async def forget(self, topic_partition: TopicPartition) -> None:
        """Stops following a replica that is about to be closed. On return, no thread uses its log."""
        known = self._followed.get(topic_partition)
        if known is not None:
            self._leave(known)
        work = [task for worked_on, task in self._work if worked_on == topic_partition]
        if work:
            await asyncio.wait(work)

    def is_followed(self, replica: Replica) -> bool:
        followed = self._followed.get(replica.topic_partition)
        return followed is not None and followed.replica is replica

    def resume(self, replica: Replica) -> None:
        followed = self._followed.get(replica.topic_partition)
        if followed is not None and followed.replica is replica and not self._move_if_fetched(followed):
            self._resume(followed)

    def _resume(self, followed: FollowedPartition) -> None:
        fetcher = self._fetchers.get(followed.fetcher_key)
        if fetcher is not None:
            fetcher.resume(followed)

    def brokers_changed(self) -> None:
        """Has the fetchers connect again to leaders whose address or broker epoch changed."""
        for fetcher in self._fetchers.values():
            fetcher.brokers_changed()

    async def stop(self) -> None:
        """Stops fetching. Returns when no log is being truncated."""
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
        fetcher, topic_partition = self._fetchers[followed.fetcher_key], followed.replica.topic_partition
        fetcher.leave(followed)
        fetcher.followed_count -= 1
        fetcher.questions.forget(topic_partition, followed.leader_epoch)
        del self._followed[topic_partition]
        if fetcher.is_idle:
            del self._fetchers[followed.fetcher_key]
            self._closing.start(fetcher.stop())

    def _fetcher_of(self, replica: Replica) -> tuple[FetcherKey, LeaderFetcher]:
        """Returns the fetcher for the replica's current leader, a new one if necessary."""
        key = self._key_of(replica)
        fetcher = self._fetchers.get(key)
        if fetcher is None:
            fetcher = self._fetchers[key] = LeaderFetcher(self, self._context, replica.core.leader)
        return key, fetcher

    def _key_of(self, replica: Replica) -> FetcherKey:
        topic, partition = replica.topic_partition
        shard = (zlib.crc32(topic.encode()) + partition) % self._fetchers_per_leader
        return FetcherKey(replica.core.leader, shard)

    def endpoint_of(self, leader_id: int) -> Endpoint | None:
        registration = self._context.metadata.brokers.get(leader_id)
        if registration is None:
            return None
        names = self._context.settings.broker.listener_plan().replication_listener_names
        return next(filter(None, map(registration.endpoint, names)), None)

    def ask_epoch_end(self, replica: Replica, question: AskEpochEnd) -> None:
        """Asks the leader until it answers or another broker leads."""
        if not self._is_stopped:
            _, fetcher = self._fetcher_of(replica)
            fetcher.questions.ask_epoch_end(replica, question)

    def cut_log(self, replica: Replica, cut: TruncateTo | RestartLogAt, leader_epoch: int) -> None:
        """Starts to truncate the log in a thread."""
        self._start(replica, self._cut_log(replica, cut, leader_epoch))

    async def _cut_log(self, replica: Replica, cut: TruncateTo | RestartLogAt, leader_epoch: int) -> None:
        _log.info(
            "log is truncated because the leader's differs",
            partition=str(replica.topic_partition),
            offset=cut.offset,
            log_end_offset=replica.core.log_end_offset,
            whole=type(cut) is RestartLogAt,
        )
        while self.is_followed(replica) and replica.core.leader_epoch == leader_epoch:
            try:
                now_ms = self._context.clock.wall_ms()
                await replica.cut_log(cut, leader_epoch, now_ms, self._recovery_points.log_was_cut)
            except KafkaError as error:
                _log.error(
                    "log cannot be truncated", partition=str(replica.topic_partition), reason=str(error)
                )
                await asyncio.sleep(self._context.settings.broker.replica_fetch_backoff_ms / 1000)
            else:
                break
        self.resume(replica)

    def flush_epochs(self, followed: FollowedPartition) -> None:
        """Flushes the leader-epoch checkpoint before records of a new leader epoch are appended. They are
        fetched again afterwards.
        """
        self._start(followed.replica, self._flushed(followed, followed.replica.flush_leader_epochs))

    def flush_before_fetch(self, followed: FollowedPartition) -> None:
        """Flushes the log before the leader learns what it has (`flush.messages`)."""
        replica, now_ms = followed.replica, self._context.clock.wall_ms()
        if not followed.is_flushing:
            followed.is_flushing = True
            self._start(replica, self._flushed(followed, partial(replica.flush, now_ms)))

    async def _flushed(self, followed: FollowedPartition, flush: Callable[[], Awaitable[None]]) -> None:
        """Flushes, and fetches again after a success."""
        while not followed.is_stopped:
            try:
                await flush()
            except KafkaError as error:
                _note_failed_flush(followed.replica, error)
                pause_ms = followed.backoff_ms(self._context.settings.broker.replica_fetch_backoff_ms)
                await asyncio.sleep(pause_ms / 1000)
            else:
                break
        followed.is_flushing = False
        self._resume(followed)

    def flush_log(self, replica: Replica) -> None:
        """Starts to flush the log of a leader, unless that is under way. Its high watermark waits for it."""
        core = replica.core
        if core.is_leader and core.is_flush_due and replica not in self._flushing and not self._is_stopped:
            self._flushing.add(replica)
            self._start(replica, self._flush_log(replica))

    async def _flush_log(self, replica: Replica) -> None:
        """Flushes the records that the log has now. After a failure, tries again after a pause."""
        context = self._context
        try:
            await replica.flush(context.clock.wall_ms())
        except KafkaError as error:
            _note_failed_flush(replica, error)
            pause_ms = context.settings.broker.replica_fetch_backoff_ms
            context.timer.add_after(partial(self._flush_ended, replica), pause_ms)
        except BaseException:
            self._flushing.discard(replica)  # otherwise the log would never be flushed again
            raise
        else:
            self._flush_ended(replica)

    def _flush_ended(self, replica: Replica) -> None:
        self._flushing.discard(replica)
        self.flush_log(replica)  # flushes the records that were appended meanwhile

    def _start(self, replica: Replica, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        entry = replica.topic_partition, task
        self._work.add(entry)
        task.add_done_callback(lambda _: self._ended(entry))

    def _ended(self, entry: tuple[TopicPartition, asyncio.Task[None]]) -> None:
        self._work.discard(entry)
        topic_partition, task = entry
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("replication failed", partition=str(topic_partition), exc_info=error)

    def received(self, followed: FollowedPartition, size_bytes: int) -> None:
        """Counts batches that were appended. Throttled replicas may have to wait afterwards."""
        self._traffic.replication_bytes_in += size_bytes
        throttle = self.throttle
        rate = self._context.settings.broker.follower_replication_throttled_rate
        if rate == UNLIMITED and not throttle.is_limited:
            return
        now_ms = self._context.timer.monotonic_ms()
        throttle.set_rate(rate, now_ms)
        if throttle.is_limited and followed.is_throttled:
            throttle.spend(size_bytes, now_ms)
            if throttle.is_exceeded(now_ms):
                self._hold_back_throttled(now_ms)

    def _hold_back_throttled(self, now_ms: MonotonicMs) -> None:
        """Pauses the throttled partitions that lag. As in Kafka, a partition without lag is not paused, so
        that it stays in the ISR.
        """
        deadline_ms = MonotonicMs(now_ms + self.throttle.wait_ms(now_ms))
        for followed in list(self._followed.values()):
            if followed.is_fetched and followed.lag > 0 and followed.is_throttled:
                self._fetchers[followed.fetcher_key].leave(followed)
                self._context.timer.add(partial(self._resume_throttled, followed), deadline_ms)

    def _resume_throttled(self, followed: FollowedPartition) -> None:
        timer = self._context.timer
        now_ms = timer.monotonic_ms()
        self.throttle.set_rate(self._context.settings.broker.follower_replication_throttled_rate, now_ms)
        wait_ms = self.throttle.wait_ms(now_ms) if followed.is_throttled else 0
        if not wait_ms:
            self._resume(followed)
        elif not followed.is_stopped:
            timer.add(partial(self._resume_throttled, followed), MonotonicMs(now_ms + wait_ms))

    def lags(self) -> Iterator[tuple[TopicPartition, int, int]]:
        """Yields each partition, its leader, and the records that it lacks up to the leader's high watermark.
        Skips partitions that have received no response yet. Any thread may call it.
        """
        for followed in list(self._followed.values()):
            if followed.lag >= 0:
                yield followed.replica.topic_partition, followed.leader_id, followed.lag

    @property
    def failed_count(self) -> int:
        """The number of partitions that fail again and again. Any thread may read it."""
        return sum(followed.is_failing for followed in list(self._followed.values()))


def _note_failed_flush(replica: Replica, error: KafkaError) -> None:
    _log.error("partition cannot be flushed", partition=str(replica.topic_partition), reason=str(error))


class RecoveryPointCheckpoint:
    """Writes the checkpoint for logs that were cut. Logs that are cut during a write share the next one."""

    def __init__(self, log_directory: LogDirectory) -> None:
        self._log_directory = log_directory
        self._one_write_at_a_time = asyncio.Lock()

    async def log_was_cut(self, topic_partition: TopicPartition) -> None:
        """Returns when the recovery point on disk is not above that of the log.

        A failure is only logged: the periodic checkpoint repeats the write, and a disk that refuses writes
        should not stop the partition twice.
        """
        async with self._one_write_at_a_time:
            if self._log_directory.is_recovery_point_lowered(topic_partition):
                try:
                    await asyncio.to_thread(self._log_directory.checkpoint_recovery_points)
                except LogStorageError as error:
                    _log.error(
                        "recovery point cannot be lowered", partition=str(topic_partition), reason=str(error)
                    )
