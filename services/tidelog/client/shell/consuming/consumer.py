"""The consumer on asyncio."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

from tidelog.client.address import Address
from tidelog.client.calls import NO_MEMBER_EPOCH
from tidelog.client.core.connection_settings import Properties
from tidelog.client.core.consuming.classic_membership import (
    ClassicRequest,
    GroupHeartbeat,
    GroupHeartbeatAnswered,
    JoinAnswered,
    JoinGroup,
    LeaveGroupRequest,
    SyncAnswered,
    SyncGroup,
)
from tidelog.client.core.consuming.consumed_partition import OffsetToCommit, PositionState
from tidelog.client.core.consuming.consumer import ConsumerCore
from tidelog.client.core.consuming.consumer_batch import ConsumerBatch
from tidelog.client.core.consuming.consumer_events import (
    AssignmentDone,
    CheckPositions,
    CommitConsumed,
    CommittedFound,
    Effect,
    Event,
    FetchAnswered,
    FetchFailed,
    GroupRequestFailed,
    LeaveGroup,
    LookUpCommitted,
    LookupFailed,
    LookUpOffsets,
    MetadataFailed,
    OffsetsFound,
    PartitionsAssigned,
    PositionsChecked,
    RecordsReady,
    RequestMetadata,
    RevocationDone,
    RevokePartitions,
    SendFetch,
    SendGroupRequest,
    TopicReplaced,
    TopicsMissing,
    TruncationFound,
)
from tidelog.client.core.consuming.membership import Heartbeat, HeartbeatAnswered, LeaveHeartbeat, MemberState
from tidelog.client.core.consuming.records import ConsumerRecord, deserialize
from tidelog.client.core.settings import ConsumerSettings, most_records, parse_consumer_settings
from tidelog.client.errors import (
    ClientError,
    ClosedError,
    RequestTimeoutError,
    StaleMemberError,
    UnknownTopicError,
    request_error,
)
from tidelog.client.security import ClientSecurity
from tidelog.client.serializers import Deserializer
from tidelog.client.shell.consuming.callbacks import (
    ConsumerHealth,
    RebalanceCallback,
    RebalanceCallbacks,
    health_of,
)
from tidelog.client.shell.consuming.fetch_requests import (
    FETCH_SINCE,
    LAST_FETCH_BY_NAME,
    fetch_request,
    fetched_partitions,
)
from tidelog.client.shell.consuming.group_calls import (
    PERMANENT_ERRORS,
    GroupCalls,
    Member,
    is_temporary,
    refusal_code,
)
from tidelog.client.shell.network import Network
from tidelog.client.shell.producing.transactions import GroupMetadata
from tidelog.client.shell.tasks import CoreTasks, now_ms
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from tidelog.model.topics import TopicPartition
from tidelog.wire.messages.fetch import FetchResponse

K = TypeVar("K")
V = TypeVar("V")
logger: Final = logging.getLogger("tidelog.client")

POSITION_CHECK_S: Final = 0.01
CLOSE_TIMEOUT_S: Final = 30.0
"""The time in which `close` commits and calls `on_revoked`, as in Kafka's consumer."""
INTERRUPTED_CLOSE_TIMEOUT_S: Final = 5.0
"""The time for the same after an exception or a cancellation, and for the goodbye to the coordinator."""


class Consumer(Generic[K, V]):
    """A consumer of topics. Use it in one event loop, and from one task at a time.

        async with Consumer("127.0.0.1:9092", {"group.id": "billing"}) as consumer:
            consumer.subscribe(["flights"])
            async for record in consumer:
                print(record.value)

    An automatic commit stores the offsets of records that the application has dealt with: it has asked for
    the next record, or the next poll, since it got them. `close` and the end of `async with` commit all
    records that the application got. If an exception or a cancellation ends `async with`, the last record of
    an iteration or the records of the last poll are not committed, because it may have interrupted the
    application while it dealt with them.
    """

    def __init__(
        self,
        bootstrap: str = "",
        settings: Properties | None = None,
        *,
        key_deserializer: Deserializer[K] | None = None,
        value_deserializer: Deserializer[V] | None = None,
        security: ClientSecurity | None = None,
    ) -> None:
        """`bootstrap` is HOST:PORT,... and precedes `bootstrap.servers`. Without deserializers, keys and
        values are bytes. `security` replaces the settings of TLS and SASL. Raises SettingsError,
        BadAddressError, SecurityConfigError.
        """
        properties = settings or {}
        self.settings: ConsumerSettings = parse_consumer_settings(properties)
        self._network = Network.of(bootstrap, properties, self.settings, security)
        self._core = ConsumerCore(self.settings, jitter=random.random)
        self._calls = GroupCalls(self._network, self.settings, self._core.view)
        self._read_key, self._read_value = key_deserializer, value_deserializer
        self._is_closed = False
        """Whether the application has closed the consumer, which may still give up its partitions."""
        self._has_ended = False
        self._tasks = CoreTasks("consumer", self._pump)
        self._ready = asyncio.Event()
        self._callbacks = RebalanceCallbacks()
        self._commit_lock = asyncio.Lock()
        self._record_count = 0
        self._commit_count = 0
        self._calls.member = self._member

    async def __aenter__(self) -> Consumer[K, V]:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
            return
        await self._close(commits=True, timeout_s=INTERRUPTED_CLOSE_TIMEOUT_S)
        self._callbacks.log_error()

    async def start(self) -> None:
        """Connects to a broker. Raises ClientError."""
        self._tasks.start()
        await self._network.start()

    async def close(self, *, commits: bool = True) -> None:
        """Commits all records that the application got, if commits are automatic, calls `on_revoked`, and
        leaves the group. All this takes at most 35 s. With `commits` False, nothing is committed.

        Raises the exception of a rebalance callback, after it has closed the consumer.
        """
        self._callbacks.check_caller()
        if commits and not self._is_closed:
            self._core.finish_delivered()
        await self._close(commits=commits, timeout_s=CLOSE_TIMEOUT_S)
        self._callbacks.raise_error()

    async def _close(self, *, commits: bool, timeout_s: float) -> None:
        if self._is_closed or not self._network.home.is_current:
            return
        self._is_closed = self._calls.is_closing = True
        self._ready.set()
        try:
            await self._within(timeout_s, "give up its partitions", self._give_up(commits=commits))
            self._has_ended = True
            await self._tasks.stop()
            membership = self._core.membership
            if membership is not None and membership.is_active:
                goodbye = self._say_goodbye(membership.goodbye())
                await self._within(INTERRUPTED_CLOSE_TIMEOUT_S, "leave its group", goodbye)
        finally:
            self._has_ended = True
            await self._tasks.stop()
            await self._network.close()

    async def _within(self, timeout_s: float, what: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await work
        except TimeoutError:
            logger.warning("the consumer could not %s in %g s", what, timeout_s)

    async def _give_up(self, *, commits: bool) -> None:
        """Commits what is dealt with, if commits are automatic, and tells the application of the partitions
        that it gives up.
        """
        if commits and self.settings.enable_auto_commit and self.settings.group_id is not None:
            await self._commit_quietly(self._core.commitable())
        places, is_lost = self._core.partitions_to_leave()
        await self._callbacks.given_up(places, is_lost=is_lost)

    # -- topics and partitions

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Joins the group with these topics, or with those whose names match `pattern`.

        With `group.protocol=consumer` the broker matches the pattern (RE2), and `topics` count, too. With
        `classic` the consumer matches the whole name with Python's `re`.

        `on_assigned` is awaited before records of its partitions arrive: seek in it. `on_revoked` is awaited
        before partitions go to another member, also in `unsubscribe` and `close`: commit in it. `on_lost`
        gets partitions that other members may have already. They run while the application waits for records,
        one at a time. The next poll raises the exception of a callback; after it, the consumer goes on.
        Raises ValueError without `group.id`, and for a classic group with a wrong pattern or with topics and
        a pattern.
        """
        if self.settings.group_id is None:
            raise ValueError("subscribe needs the setting group.id; assign needs none")
        if isinstance(topics, str):
            raise ValueError("subscribe needs a list of topics, as in ['flights']")
        names = tuple(topics)
        text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
        if names and text is not None and self.settings.is_classic:
            raise ValueError("a classic group subscribes to topics or to a pattern, not to both")
        self._core.subscribe(names, text, now_ms())
        self._callbacks.replace(on_assigned, on_revoked, on_lost)
        self._pump()

    async def unsubscribe(self) -> None:
        """Commits all records that the application got, if commits are automatic, calls `on_revoked`, and
        leaves the group. Raises the exception of a rebalance callback.
        """
        self._callbacks.check_caller()
        self._core.finish_delivered()
        await self._give_up(commits=True)
        membership = self._core.membership
        if membership is not None and membership.is_active:
            goodbye = membership.goodbye()
            self._core.unsubscribe()
            if goodbye is not None:
                await self._calls.leave(goodbye)
        self._core.unsubscribe()
        self._callbacks.raise_error()

    def assign(self, places: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Reads these partitions without a group's assignment. `seek` sets their positions.

        If commits are automatic, it commits the records that the application got of other partitions.
        """
        wanted = [TopicPartition(*place) for place in places]
        self._core.finish_delivered()
        given_up = self._core.commitable(set(self._core.partitions).difference(wanted))
        if self.settings.enable_auto_commit and self.settings.group_id is not None and given_up:
            self._tasks.spawn(self._commit_quietly(given_up))
        self._core.assign(wanted)
        self._pump()

    def assignment(self) -> list[TopicPartition]:
        return list(self._core.partitions)

    def pause(self, places: Iterable[TopicPartition]) -> None:
        """Delivers no records of these partitions until `resume`."""
        self._core.pause(places)

    def resume(self, places: Iterable[TopicPartition]) -> None:
        self._core.resume(places)
        self._ready.set()
        self._pump()

    def paused(self) -> list[TopicPartition]:
        return [place for place, partition in self._core.partitions.items() if partition.is_paused]

    # -- positions

    def seek(self, place: TopicPartition, offset: int) -> None:
        """Sets the next offset to read. Raises KeyError if the partition is not assigned."""
        if offset < 0:
            raise ValueError(f"{offset} is not an offset")
        self._core.partitions[place].seek(offset)
        self._pump()

    def read_again(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Delivers records again that the application got and did not use, from these offsets on. What it has
        dealt with does not change. Partitions that are not assigned any more are ignored.
        """
        for place, offset in offsets.items():
            if place in self._core.partitions:
                self._core.partitions[place].read_again(offset)
        self._pump()

    def finish_delivered(self) -> None:
        """Counts all records that the application got as dealt with, as the next poll would."""
        self._core.finish_delivered()

    def seek_to_beginning(self, places: Iterable[TopicPartition] | None = None) -> None:
        self._reset(places, EARLIEST_TIMESTAMP)

    def seek_to_end(self, places: Iterable[TopicPartition] | None = None) -> None:
        self._reset(places, LATEST_TIMESTAMP)

    def _reset(self, places: Iterable[TopicPartition] | None, timestamp: int) -> None:
        for place in list(self._core.partitions) if places is None else places:
            self._core.partitions[place].reset(timestamp)
        self._pump()

    async def position(self, place: TopicPartition) -> int:
        """Returns the offset of the next record that the application gets. Raises KeyError, KafkaError."""
        self._network.home.check()
        deadline_ms = now_ms() + self.settings.default_api_timeout_ms
        while True:
            partition = self._core.partitions[place]
            if partition.error is not None:
                raise partition.error
            if partition.state is PositionState.KNOWN:
                return partition.position
            await self._wait(deadline_ms, f"position of {place}")

    async def _wait(self, deadline_ms: int, subject: str) -> None:
        if now_ms() >= deadline_ms:
            raise RequestTimeoutError(f"{subject}: no answer in {self.settings.default_api_timeout_ms} ms")
        self._pump()
        await asyncio.sleep(POSITION_CHECK_S)

    def positions(self) -> dict[TopicPartition, int]:
        """Returns the known positions, for `Producer.send_offsets`.

        Raises StaleMemberError if the consumer left its group because the application polled too rarely. It
        has no positions then, and another member would repeat what a transaction without them contains.
        """
        self._check_pace("positions")
        return {
            place: partition.position
            for place, partition in self._core.partitions.items()
            if partition.state is PositionState.KNOWN
        }

    def group_metadata(self) -> GroupMetadata:
        """Returns the membership, for `Producer.send_offsets`.

        Raises StaleMemberError if the consumer subscribes and is no member at present. A coordinator accepts
        offsets of a transaction that names no member, although another member has the partitions.
        """
        self._check_member("membership")
        member = self._member()
        return GroupMetadata(
            self._calls.group_id, member.member_id, member.epoch, self.settings.group_instance_id
        )

    async def committed(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Returns the committed offset of each partition, None if there is none."""
        found = await self._calls.committed(tuple(places))
        return {place: offset if offset >= 0 else None for place, (offset, _) in found.items()}

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commits the next offset to read of each partition; by default the positions of all partitions.

        The positions include all records that the application got. Raises KafkaError; StaleMemberError if
        the group has given a partition to another member; UnknownTopicError if a topic was deleted since
        the application got its records, also if another topic has its name now.
        """
        if self.settings.group_id is None:
            raise ValueError("commit needs the setting group.id")
        if offsets is None:
            self._core.finish_delivered()
            rows = self._core.commitable()
        else:
            rows = self._core.chosen_to_commit(offsets)
        if rows:
            await self._commit(rows)

    async def beginning_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._calls.offsets(dict.fromkeys(places, EARLIEST_TIMESTAMP))

    async def end_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the offset after the last visible record (the LSO with `read_committed`)."""
        return await self._calls.offsets(dict.fromkeys(places, LATEST_TIMESTAMP))

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """Returns the first offset at or after each time (milliseconds since 1970), None if there is none."""
        found = await self._calls.offsets(timestamps)
        return {place: offset if offset >= 0 else None for place, offset in found.items()}

    def high_watermark(self, place: TopicPartition) -> int | None:
        """Returns the high watermark of the last fetch, None before it."""
        return self._core.partitions[place].high_watermark

    def lag(self) -> dict[TopicPartition, int | None]:
        """Returns the records between position and high watermark, None before the first fetch."""
        return {place: partition.lag for place, partition in self._core.partitions.items()}

    # -- records

    async def poll(
        self, timeout_s: float = 1.0, *, max_records: int | None = None
    ) -> list[ConsumerRecord[K, V]]:
        """Returns up to `max.poll.records` records, and waits up to `timeout_s` for the first.

        `max_records` replaces the setting for this poll. Records of earlier polls count as dealt with. Raises
        KafkaError: an error of a partition, or the reason why the consumer cannot be a member of its group;
        ValueError if `max_records` is less than 1.
        """
        most = most_records(max_records, self.settings.max_poll_records)
        began_ms = now_ms()
        if not self._is_closed and not self._callbacks.is_running and self._core.continue_polls(began_ms):
            records = self._take(most, raises=False)
            if records:
                if self._core.is_drained:
                    self._pump()
                return records
        deadline_ms = began_ms + int(timeout_s * 1000)
        while True:
            self._begin_poll()
            records = self._take(most, raises=True)
            if records:
                self._end_poll()
                return records
            left_s = (deadline_ms - now_ms()) / 1000
            if left_s <= 0:
                self._end_poll()
                return []
            await self._await_records(left_s)

    async def poll_batch(self, timeout_s: float | None = 1.0) -> ConsumerBatch[K, V] | None:
        """Returns the records of one fetch of a partition in one piece, and waits up to `timeout_s` for them.

        `max.poll.records` does not limit them; `max.partition.fetch.bytes` does. Records of earlier polls
        count as dealt with. Returns None if there are no records, or if the consumer was closed meanwhile.
        The errors are those of `poll`.
        """
        deadline_ms = None if timeout_s is None else now_ms() + int(timeout_s * 1000)
        while True:
            self._begin_poll()
            batch = self._core.take_batch()
            if batch is not None:
                self._end_poll()
                self._record_count += len(batch)
                return batch.set_deserializers(self._read_key, self._read_value)
            left_s = None if deadline_ms is None else (deadline_ms - now_ms()) / 1000
            if left_s is not None and left_s <= 0:
                self._end_poll()
                return None
            await self._await_records(left_s)
            if self._is_closed:
                return None

    async def batches(self) -> AsyncIterator[ConsumerBatch[K, V]]:
        """Yields the records in pieces as `poll_batch` returns them, until the consumer is closed.

        async for batch in consumer.batches():
            table = batch.to_arrow()
        """
        while (batch := await self.poll_batch(None)) is not None:
            yield batch
            await asyncio.sleep(0)  # fetches and heartbeats get their turn

    def __aiter__(self) -> Consumer[K, V]:
        return self

    async def __anext__(self) -> ConsumerRecord[K, V]:
        core = self._core
        if not self._is_closed and not self._callbacks.is_running and core.continue_polls(now_ms()):
            record = core.take_decoded()
            if record is not None and self._read_key is None and self._read_value is None:
                self._record_count += 1
                return record
            found = core.take(1) if record is None else [record]
            if found is not None:
                return self._delivered(found)[0]
        await asyncio.sleep(0)  # fetches and heartbeats get their turn; a cancellation here loses no record
        while True:
            self._begin_poll()
            found = core.take(1)
            if found is not None:
                self._end_poll()
                return self._delivered(found)[0]
            await self._await_records(None)
            if self._is_closed:
                raise StopAsyncIteration

    def _take(self, most: int, *, raises: bool) -> list[ConsumerRecord[K, V]]:
        """Returns up to `most` fetched records. With `raises`, it raises KafkaError if the first of them is
        an error.
        """
        records: list[ConsumerRecord[K, V]] = []
        while (left := most - len(records)) and (
            found := self._core.take(left, raises=raises and not records)
        ) is not None:
            records += self._delivered(found)
        return records

    def _begin_poll(self) -> None:
        self._network.home.check()
        self._callbacks.check_caller()
        self._callbacks.raise_error()
        if self._is_closed:
            raise ClosedError("the consumer is closed")
        if self._tasks.loop is None:
            raise ClosedError("the consumer was not started: use `async with`, or await `start`")
        if not self._core.topics and self._core.pattern is None:
            raise ValueError("the consumer has no topics: call subscribe or assign first")
        self._ready.clear()
        self._perform(self._core.begin_poll(now_ms()))
        membership = self._core.membership
        if membership is not None and membership.state is MemberState.FAILED:
            assert membership.error is not None
            raise membership.error

    def _end_poll(self) -> None:
        self._core.end_poll(now_ms())
        self._pump()

    async def _await_records(self, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        except TimeoutError:
            pass
        finally:
            self._core.end_poll(now_ms())

    def _delivered(self, records: list[ConsumerRecord[Any, Any]]) -> list[ConsumerRecord[K, V]]:
        self._record_count += len(records)
        if self._read_key is not None or self._read_value is not None:
            deserialize(records, self._read_key, self._read_value)
        return records

    # -- health

    def health(self, *, lagging_records: int = 10_000) -> ConsumerHealth:
        """Returns whether the consumer has joined, is lagging, or is stuck, and why.

        `lagging` means a lag of more than `lagging_records`.
        """
        return health_of(self._core, now_ms(), lagging_records, is_closed=self._is_closed)

    def reached_addresses(self) -> frozenset[Address]:
        """Returns the addresses at which brokers have answered this consumer."""
        return frozenset(self._network.reached)

    def metrics(self) -> dict[str, float]:
        """Returns totals since the start, and the present lag."""
        return {
            "records-consumed-total": self._record_count,
            "commit-total": self._commit_count,
            "assigned-partitions": len(self._core.partitions),
            "records-lag": sum(partition.lag or 0 for partition in self._core.partitions.values()),
        }

    # -- the core's effects

    def _member(self) -> Member:
        membership = self._core.membership
        if membership is None:
            return Member()
        if not membership.is_active:
            return Member(departures=membership.departures)
        member_id = self._calls.member_id if membership.member_id is None else membership.member_id
        return Member(
            member_id,
            membership.epoch,
            self.settings.is_classic,
            membership.awaits_others,
            membership.departures,
            membership.last_answer_ms,
        )

    def _pump(self) -> None:
        self._network.home.check()
        if not self._has_ended and self._tasks.loop is not None:
            self._perform(self._core.poll(now_ms()))

    def _step(self, event: Event) -> None:
        if not self._has_ended:
            self._perform(self._core.step(event, now_ms()))

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendFetch():
                    self._tasks.spawn(self._fetch(effect))
                case RecordsReady():
                    self._ready.set()
                case RequestMetadata(topics, has_unknown_ids):
                    self._tasks.spawn(self._request_metadata(None if has_unknown_ids else topics))
                case SendGroupRequest(request, finds_coordinator):
                    self._tasks.spawn(self._ask_group(request, finds_coordinator))
                case LookUpCommitted():
                    self._tasks.spawn(self._look_up_committed(effect))
                case LookUpOffsets():
                    self._tasks.spawn(self._look_up_offsets(effect))
                case CheckPositions():
                    self._tasks.spawn(self._check_positions(effect))
                case TruncationFound(place, position, end_offset):
                    logger.warning(
                        "%s has lost records that were read before offset %d; the consumer goes on at %s",
                        place,
                        position,
                        "the reset position" if end_offset is None else end_offset,
                    )
                case TopicReplaced(topic):
                    logger.warning(
                        "topic '%s' was deleted and created again; its records are read from the committed "
                        "offsets of the new topic, or from auto.offset.reset",
                        topic,
                    )
                case TopicsMissing(reasons):
                    for subject, reason in reasons.items():
                        logger.warning("the consumer gets no records of %s: %s", subject, reason)
                case CommitConsumed(offsets):
                    self._tasks.spawn(self._commit_quietly(offsets))
                case RevokePartitions():
                    self._tasks.spawn(self._revoke(effect))
                case PartitionsAssigned(places):
                    self._tasks.spawn(self._assign(places))
                case LeaveGroup(goodbye):
                    self._tasks.spawn(self._leave(goodbye))
        at_ms = now_ms()
        wake_ms = self._core.next_wake_ms(at_ms)
        self._tasks.wake_in(None if wake_ms is None else max(1, wake_ms - at_ms))

    async def _fetch(self, effect: SendFetch) -> None:
        try:
            connection = await self._network.broker(effect.node_id)
            answer: FetchResponse = await connection.call(
                fetch_request(effect, self.settings),
                self._network.timeout_s + self.settings.fetch_max_wait_ms / 1000,
                at_least=FETCH_SINCE,
                at_most=None if effect.session.has_ids else LAST_FETCH_BY_NAME,
            )
        except ClientError as error:
            logger.info("a fetch failed: %s", error)
            self._step(FetchFailed(effect.request_id))
            return
        partitions = fetched_partitions(answer, effect.session, self.settings.isolation)
        self._step(FetchAnswered(effect.request_id, answer.error_code, partitions, answer.session_id))

    async def _request_metadata(self, topics: tuple[str, ...] | None) -> None:
        try:
            received = await self._network.metadata(topics, creates=self.settings.allow_auto_create_topics)
        except ClientError as error:
            logger.info("no metadata: %s", error)
            self._step(MetadataFailed())
            return
        self._step(received._replace(is_complete=topics is None))

    async def _ask_group(self, request: Heartbeat | ClassicRequest, finds_coordinator: bool) -> None:
        if finds_coordinator:
            self._calls.coordinator.forget()
        try:
            answer: Event = await self._calls.ask(request)
        except (KafkaError, ClientError) as error:
            if is_temporary(error):
                logger.info("a request to the group's coordinator failed: %s", error)
                self._step(GroupRequestFailed(request))
                return
            answer = _refused(request, error)
        self._step(answer)

    async def _look_up_committed(self, effect: LookUpCommitted) -> None:
        try:
            found = await self._calls.committed(effect.generations)
        except (KafkaError, ClientError) as error:
            self._lookup_failed(effect, error)
            return
        self._step(CommittedFound(effect, found))

    async def _look_up_offsets(self, effect: LookUpOffsets) -> None:
        try:
            found = await self._calls.offsets(effect.timestamps)
        except (KafkaError, ClientError) as error:
            self._lookup_failed(effect, error)
            return
        self._step(OffsetsFound(effect, found))

    def _lookup_failed(
        self, effect: LookUpCommitted | LookUpOffsets, error: KafkaError | ClientError
    ) -> None:
        logger.warning("the consumer could not look up its positions: %s", error)
        self._step(LookupFailed(effect, _kafka_error(error)))

    async def _check_positions(self, effect: CheckPositions) -> None:
        try:
            ends = await self._calls.epoch_ends(effect.node_id, effect.checks)
        except ClientError as error:
            logger.info("positions could not be checked: %s", error)
            ends = {}
        self._step(PositionsChecked(effect.checks, ends))

    async def _assign(self, places: tuple[TopicPartition, ...]) -> None:
        await self._callbacks.assigned(places)
        self._report_callback_error()
        self._step(AssignmentDone(places))

    async def _revoke(self, effect: RevokePartitions) -> None:
        places, is_lost, step = effect
        if not is_lost and self.settings.enable_auto_commit:
            await self._commit_quietly(self._core.commitable(places))
        await self._callbacks.given_up(places, is_lost=is_lost)
        self._report_callback_error()
        self._step(RevocationDone(step))

    def _report_callback_error(self) -> None:
        """Lets the application's poll raise the exception of a callback."""
        if self._callbacks.error is not None:
            self._core.require_full_poll()
            self._ready.set()

    async def _leave(self, goodbye: LeaveHeartbeat | LeaveGroupRequest | None) -> None:
        logger.warning(
            "the application did not poll for max.poll.interval.ms (%d), so the consumer leaves its group",
            self.settings.max_poll_interval_ms,
        )
        await self._say_goodbye(goodbye)

    async def _say_goodbye(self, goodbye: LeaveHeartbeat | LeaveGroupRequest | None) -> None:
        if goodbye is None:
            return
        try:
            await self._calls.leave(goodbye)
        except (KafkaError, ClientError) as error:
            logger.warning("the consumer could not leave its group: %s", error)

    def _check_pace(self, subject: str) -> None:
        """Raises StaleMemberError if the application polled too rarely and has not been told yet."""
        if self._core.is_removed_for_slowness:
            raise StaleMemberError(
                f"{subject} for group '{self.settings.group_id}': the consumer left the group, because the "
                "application did not poll for max.poll.interval.ms"
            )

    def _check_member(self, subject: str) -> None:
        """Raises StaleMemberError if the consumer subscribes and has no id or epoch in its group."""
        self._check_pace(subject)
        membership = self._core.membership
        if membership is None or membership.state is MemberState.OUTSIDE:
            return
        if self._member().epoch == NO_MEMBER_EPOCH:
            raise StaleMemberError(
                f"{subject} for group '{self.settings.group_id}': the consumer is no member of the group at "
                "present"
            )

    async def _commit(self, offsets: Mapping[TopicPartition, OffsetToCommit]) -> None:
        self._check_member("commit")
        member = self._member()
        async with self._commit_lock:  # a later commit must not overtake an earlier one
            await self._calls.commit(offsets, member)
        self._commit_count += 1
        if self._member().departures == member.departures:  # else another member may have committed since
            self._core.committed(offsets)

    async def _commit_quietly(self, offsets: Mapping[TopicPartition, OffsetToCommit]) -> None:
        if not offsets:
            return
        try:
            await self._commit(offsets)
        except UnknownTopicError as error:
            logger.info("%s", error)  # nobody needs an offset of a deleted topic
        except (KafkaError, ClientError) as error:
            logger.warning("an automatic commit failed: %s", error)


def _refused(request: Heartbeat | ClassicRequest, error: KafkaError | ClientError) -> Event:
    """Returns the answer to a request that no repetition gets through."""
    code = refusal_code(error)
    match request:
        case Heartbeat():
            return HeartbeatAnswered(request, code, str(error), 0, 0, None)
        case JoinGroup():
            return JoinAnswered(request, code, "", -1, "", "", (), message=str(error))
        case SyncGroup():
            return SyncAnswered(request, code, b"", str(error))
        case GroupHeartbeat():
            return GroupHeartbeatAnswered(request, code, str(error))


def _kafka_error(error: KafkaError | ClientError) -> KafkaError:
    if isinstance(error, KafkaError):
        return error
    code = (
        ErrorCode.UNSUPPORTED_VERSION if isinstance(error, PERMANENT_ERRORS) else ErrorCode.NETWORK_EXCEPTION
    )
    return request_error(code, "offsets", str(error))
