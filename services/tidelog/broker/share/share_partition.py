"""One share partition at its leader: the shell around its core.

It reads the state from the share coordinator, writes what the core decides, and lets locks end. Everything
runs on the event loop. A write whose outcome is unknown is repeated until it is known, so that no late copy
of it can undo a later one; its records stay locked meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor
from enum import Enum
from typing import Final, NamedTuple

import structlog

from tidelog.broker.coordination.share_state import (
    FENCING,
    RETRIABLE,
    UNINITIALIZED_OFFSET,
    ShareStateClient,
    read_request,
    refusal,
    write_request,
)
from tidelog.broker.hosting.replica import Replica
from tidelog.broker.share import log_reader
from tidelog.broker.share.deliveries import (
    AcknowledgedBatch,
    Acknowledgement,
    AcknowledgeResult,
    DeliveryCounts,
    DeliveryLimits,
    StateRange,
    StateWrite,
)
from tidelog.broker.share.partition_core import SharePartitionCore
from tidelog.broker.share.pauses import BreakerRules, BreakerState
from tidelog.broker.share.record_ranges import NO_DEADLINE
from tidelog.broker.share.screening import FoundFacts, KeyOrder, Screening, Upcoming, WantedFacts
from tidelog.kernel.clock import Clock
from tidelog.kernel.instants import Backoff, MonotonicMs
from tidelog.kernel.machine import StateTable
from tidelog.kernel.timer import Callback, Timer, TimerEntry
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import READ_COMMITTED, READ_UNCOMMITTED
from tidelog.model.topics import SharePartitionKey
from tidelog.records.batch import CorruptBatchError
from tidelog.settings.group_settings import BY_DURATION, BY_KEY, GroupSettings, GroupSettingsView, duration_ms
from tidelog.wire.messages.read_share_group_state import PartitionResult

MIN_PAUSE_MS: Final = 20
"""The shortest time between two ends of locks or waits, so that many different times cause little work."""
BACKOFF: Final = Backoff(100, 2_000)
"""The pauses between two attempts to reach the share coordinator, or to look at records."""

_log = structlog.get_logger(__name__)


class Screens(NamedTuple):
    """The facts that a group needs before it delivers records."""

    times: bool
    keys: bool


NO_SCREENS: Final = Screens(False, False)


class ShareParts(NamedTuple):
    """The parts of the broker that share partitions use. `is_current` returns whether a replica still leads
    in a leader epoch, and `spawn` runs a coroutine in the background.
    """

    state: ShareStateClient
    settings: GroupSettingsView
    clock: Clock
    timer: Timer
    record_walks: Executor
    is_current: Callable[[Replica, int], bool]
    spawn: Callable[[Coroutine[object, None, None]], None]
    changed: Callable[[SharePartitionKey], None]
    """Called when records may be available again, or an acknowledgement has ended."""
    copy_dead_letters: Callable[[SharePartition], None]
    """Called when there may be records to copy to the dead letter topic of the group."""


class SharePartitionState(Enum):
    """The state of one share partition. A partition in a final state is forgotten; the next fetch begins with
    a new one.
    """

    INITIALIZING = "initializing"
    """The state is being read from the share coordinator, and a new start offset is being written."""
    ACTIVE = "active"
    """Records are delivered and acknowledged."""
    FAILED = "failed"
    """The share coordinator refused to give the state."""
    FENCED = "fenced"
    """Another leader has the partition, or the group's offsets were changed, or this broker lost its role."""


STATES: Final = StateTable(
    "a share partition",
    {
        SharePartitionState.INITIALIZING: {
            SharePartitionState.ACTIVE,
            SharePartitionState.FAILED,
            SharePartitionState.FENCED,
        },
        SharePartitionState.ACTIVE: {SharePartitionState.FENCED},
        SharePartitionState.FAILED: set(),
        SharePartitionState.FENCED: set(),
    },
)


class SharePartition:
    """A share partition of a replica that leads in `leader_epoch`. `on_over` is called once, when the state
    is final.
    """

    __slots__ = (
        "_core",
        "_counts",
        "_found",
        "_is_looking",
        "_is_paused",
        "_look_failures",
        "_on_over",
        "_parts",
        "_rests_until_ms",
        "_results",
        "_screens",
        "_state",
        "_timer_entry",
        "failure",
        "key",
        "leader_epoch",
        "look_failure",
        "members",
        "replica",
    )

    def __init__(
        self,
        key: SharePartitionKey,
        replica: Replica,
        parts: ShareParts,
        on_over: Callable[[SharePartition], None],
    ) -> None:
        self.key = key
        self.replica = replica
        self.leader_epoch = replica.core.leader_epoch
        self.members: set[str] = set()
        """The members whose sessions have fetched the partition."""
        self.failure: KafkaError | None = None
        """The reason why the state could not be read."""
        self.look_failure: KafkaError | None = None
        """The reason why the next records could not be looked at, None after a success."""
        self._parts = parts
        self._on_over = on_over
        self._state = SharePartitionState.INITIALIZING
        self._core: SharePartitionCore | None = None
        self._counts = DeliveryCounts()
        self._screens = NO_SCREENS
        """The facts that the core needs before it delivers records."""
        self._found = FoundFacts([], 0)
        """The facts that were found and that the core has not got yet, without those before them."""
        self._is_looking = False
        self._look_failures = 0
        self._is_paused = False
        self._rests_until_ms = 0
        self._results: dict[Acknowledgement, AcknowledgeResult] = {}
        self._timer_entry: TimerEntry[Callback] | None = None

    def start(self) -> None:
        """Begins to read the state."""
        self._parts.spawn(self._guarded(self._load()))

    @property
    def core(self) -> SharePartitionCore | None:
        """The core, None unless the partition is active."""
        return self._core if self._state is SharePartitionState.ACTIVE else None

    @property
    def is_current(self) -> bool:
        """Whether this broker still leads the partition in the same epoch."""
        return self._parts.is_current(self.replica, self.leader_epoch)

    @property
    def is_over(self) -> bool:
        return STATES.is_final(self._state)

    def has_records(self) -> bool:
        """Returns whether a fetch can get records, or can skip what is no record. If not, the partition
        begins to look at further records where the group needs that.
        """
        core = self.core
        if core is None:
            return False
        self.look_ahead()
        return log_reader.has_records(self.replica, core, self.isolation_level, self.limits)

    @property
    def is_outdated(self) -> bool:
        """Whether the group's settings ask for a core of another kind. It then begins with the stored state.
        A write in progress ends first.
        """
        core = self.core
        return core is not None and not core.is_writing and self._screens != self._wanted_screens

    @property
    def _wanted_screens(self) -> Screens:
        settings = self.settings
        return Screens(settings.tidelog_share_deliver_at_enable, settings.tidelog_share_order == BY_KEY)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is lost if the partition is forgotten."""
        core = self._core
        return not self.members and not self._results and core is not None and core.is_idle

    @property
    def range_count(self) -> int:
        """The number of ranges that a look at all records visits."""
        return 0 if self._core is None else len(self._core.ranges)

    def may_end_fetches(self) -> bool:
        """Returns whether a waiting fetch may have to be answered: with records, or with an error."""
        is_over = self.core is None or not self.is_current
        return is_over or self.has_records() or self.look_failure is not None

    @property
    def counts(self) -> DeliveryCounts:
        """The outcomes of the deliveries, also after the end."""
        return self._counts

    @property
    def group_id(self) -> str:
        return self.key.group_id

    @property
    def settings(self) -> GroupSettings:
        return self._parts.settings.for_group(self.key.group_id)

    @property
    def limits(self) -> DeliveryLimits:
        settings = self.settings
        return DeliveryLimits(
            settings.share_record_lock_duration_ms,
            settings.share_delivery_count_limit,
            settings.share_partition_max_record_locks,
            Backoff(
                settings.tidelog_share_retry_backoff_ms,
                settings.tidelog_share_retry_backoff_max_ms,
                settings.tidelog_share_retry_backoff_multiplier,
            ),
            BreakerRules(
                settings.tidelog_share_breaker_failure_percentage,
                settings.tidelog_share_breaker_min_deliveries,
                settings.tidelog_share_breaker_window_ms,
                settings.tidelog_share_breaker_pause_ms,
                settings.tidelog_share_breaker_probe_records,
            ),
            has_dead_letters=bool(settings.errors_deadletterqueue_topic_name),
        )

    @property
    def isolation_level(self) -> int:
        is_committed = self.settings.share_isolation_level == "read_committed"
        return READ_COMMITTED if is_committed else READ_UNCOMMITTED

    def acknowledge(self, member: str, batches: Sequence[AcknowledgedBatch]) -> AcknowledgeResult:
        """Starts to acknowledge records. The result is known later."""
        core = self.core
        if core is None:
            return AcknowledgeResult(
                ErrorCode.INVALID_RECORD_STATE, "this leader has delivered no record to the member yet"
            )
        try:
            acknowledgement = core.acknowledge(member, batches, self._now_ms(), self.limits)
        except KafkaError as error:
            return AcknowledgeResult(error.code, error.client_message)
        if acknowledgement is None:
            return AcknowledgeResult(ErrorCode.NONE)
        result = self._results[acknowledgement] = AcknowledgeResult()
        self.core_changed()
        return result

    def leave(self, member: str) -> None:
        """Returns the records of a member whose session ends."""
        self.members.discard(member)
        core = self.core
        if core is not None and core.release_member(member, self._now_ms(), self.limits):
            self.core_changed()
            self._parts.changed(self.key)

    def core_changed(self) -> None:
        """Writes what the core has to write, and waits for the next lock to end."""
        core = self.core
        if core is None:
            return
        write = core.next_write()
        if write is not None:
            self._parts.spawn(self._guarded(self._write(write)))
        self._report_pause(core)
        self._await_deadline()

    def dead_letters_changed(self) -> None:
        """Writes what the core has to write after records were archived. Others may be acquired now."""
        self.core_changed()
        self._parts.changed(self.key)

    def _report_pause(self, core: SharePartitionCore) -> None:
        """Logs that the circuit breaker has opened or closed. Probes are a part of the pause."""
        is_paused = core.breaker.state is not BreakerState.CLOSED
        if is_paused == self._is_paused:
            return
        self._is_paused = is_paused
        if is_paused:
            _log.warning("too many deliveries failed; the share partition pauses", key=self.key)
        else:
            _log.info("the share partition delivers records again", key=self.key)

    def end(self, error: KafkaError) -> None:
        """Forgets the deliveries, because the partition has another leader or its state was changed."""
        if self.is_over:
            return
        self._state = STATES.enter(self._state, SharePartitionState.FENCED)
        self._finish(error)

    def _now_ms(self) -> MonotonicMs:
        return self._parts.timer.monotonic_ms()

    def _await_deadline(self) -> None:
        deadline_ms = None if self._core is None else self._core.next_deadline_ms()
        if deadline_ms is None:
            return
        entry = self._timer_entry
        due_ms = MonotonicMs(max(deadline_ms, self._now_ms() + 1, self._rests_until_ms))
        if entry is None or due_ms < entry.deadline_ms:
            if entry is not None:
                entry.cancel()
            self._timer_entry = self._parts.timer.add(lambda: self._locks_end(due_ms), due_ms)

    def _locks_end(self, due_ms: MonotonicMs) -> None:
        self._timer_entry = None
        core = self.core
        if core is None:
            return
        # The clock may be rounded down to just below the time of the timer.
        has_expired = core.expire(max(due_ms, self._now_ms()), self.limits)
        if has_expired:
            self._rests_until_ms = self._now_ms() + MIN_PAUSE_MS
        self.core_changed()
        if has_expired:
            self._parts.changed(self.key)

    def look_ahead(self) -> None:
        """Begins to look at the next records, if the group needs that and no record is available."""
        core = self.core
        if core is None or self._screens == NO_SCREENS or self._is_looking:
            return
        core.let_in(self._now_ms(), self.limits)
        self._await_deadline()  # records that came in may have to wait
        offset = core.wants_facts_from
        if offset is None or offset >= self.replica.core.read_limit(self.isolation_level):
            return
        self._is_looking = True
        self._parts.spawn(self._guarded(self._look(core, offset)))

    async def _look(self, core: SharePartitionCore, offset: int) -> None:
        try:
            if not self._found.records or self._found.records[0].first < offset:
                self._found = await log_reader.look(
                    self.replica, offset, self.isolation_level, self._wanted_facts, self._parts.record_walks
                )
        except (KafkaError, OSError, CorruptBatchError) as error:
            await self._look_failed(error)
            return
        finally:
            self._is_looking = False
        self.look_failure, self._look_failures = None, 0
        if self.core is not core:
            return
        core.log_start_moved(self.replica.core.log_start_offset)
        found, self._found = self._found.split()
        upcoming = (
            Upcoming(first, last, self._read_time(deliver_at_ms, self._longest_wait_ms), key)
            for first, last, deliver_at_ms, key in found.records
        )
        core.screen(upcoming, found.next_offset, self._now_ms(), self.limits)
        self.core_changed()
        self._parts.changed(self.key)

    async def _look_failed(self, error: Exception) -> None:
        """Answers the fetches that wait, and pauses. A later fetch begins the next look."""
        if self.look_failure is None:
            _log.error("a share partition's records cannot be read", key=self.key, reason=str(error))
        self.look_failure = KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR, "The broker cannot read the next records. Its log has the reason."
        )
        self._parts.changed(self.key)
        self._look_failures = await _pause(self._look_failures)

    @property
    def _wanted_facts(self) -> WantedFacts:
        times, keys = self._screens
        return WantedFacts(self._longest_wait_ms if times else None, keys)

    @property
    def _longest_wait_ms(self) -> int:
        return self.settings.tidelog_share_deliver_at_max_ms

    async def _guarded(self, work: Coroutine[object, None, None]) -> None:
        """Does `work`. If it raises, the partition is over, and the next fetch reads the state again."""
        try:
            await work
        except Exception as error:  # noqa: BLE001 - a bug: only this share partition is hurt
            _log.error("the work for a share partition failed", key=self.key, exc_info=error)
            self.end(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))

    async def _load(self) -> None:
        """Reads the state, and stores the start offset of a new one before a record is delivered from it.
        Otherwise a later leader would choose another one.
        """
        try:
            found = await self._read()
            if found is None:
                return
            start_offset = found.start_offset
            if start_offset == UNINITIALIZED_OFFSET:
                start_offset = await self._first_offset()
                write = StateWrite(found.state_epoch, self.leader_epoch, start_offset, 0, [], [])
                if not await self._stored(write):
                    return
        except KafkaError as error:
            if not self.is_over:
                self._state = STATES.enter(self._state, SharePartitionState.FAILED)
                self.failure = error
                self._finish(error)
            return
        ranges = (
            StateRange(
                batch.first_offset,
                batch.last_offset,
                batch.delivery_state,
                batch.delivery_count,
                self._read_time(batch.available_at, self.limits.retry.most_ms),
            )
            for batch in found.state_batches
        )
        self._screens = self._wanted_screens
        order = KeyOrder() if self._screens.keys else None
        screening = Screening(order) if any(self._screens) else None
        paused_until_ms = NO_DEADLINE
        if found.paused_until:  # a pause that is over is followed by probes
            longest_ms = self.limits.breaker.pause_ms
            paused_until_ms = self._read_time(found.paused_until, longest_ms) or self._now_ms()
        core = SharePartitionCore(
            self.leader_epoch, found.state_epoch, start_offset, ranges, screening, paused_until_ms
        )
        core.log_start_moved(self.replica.core.log_start_offset)
        self._core, self._counts = core, core.counts
        self._state = STATES.enter(self._state, SharePartitionState.ACTIVE)
        self._await_deadline()
        self._parts.changed(self.key)
        self._parts.copy_dead_letters(self)
        if self.is_idle:  # the last member left while the state was read
            self.end(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "no member uses the share partition"))

    async def _read(self) -> PartitionResult | None:
        """Returns the stored state, None if the partition is over meanwhile. Raises KafkaError."""
        request = read_request(self.key, self.leader_epoch)
        failures = 0
        while self.continues():
            response = await self._parts.state.read(request)
            result = response.results[0].partitions[0]
            error = ErrorCode(result.error_code)
            if not self.continues():
                break
            if error is ErrorCode.NONE:
                return result
            if error not in RETRIABLE:
                raise refusal(error, result.error_message)
            failures = await _pause(failures)
        return None

    async def _write(self, write: StateWrite) -> None:
        """Carries out a write of the core."""
        core = self._core
        if core is None:  # the partition has ended before this task began
            return
        try:
            if not await self._stored(write):
                return
        except KafkaError as error:
            _log.warning("a share partition's state was not stored", key=self.key, reason=str(error))
            self._answer(core.write_failed(), error.code, error.client_message)
            core.expire(self._now_ms(), self.limits)
            self._parts.changed(self.key)
            await _pause(0)
        else:
            ended = core.write_succeeded(self._now_ms(), self.limits)
            self._answer(ended, ErrorCode.NONE, None)
        if self.is_over:
            return
        self.core_changed()
        self._parts.changed(self.key)
        self._parts.copy_dead_letters(self)
        if self.is_idle:
            self.end(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "no member uses the share partition"))

    async def _stored(self, write: StateWrite) -> bool:
        """Returns True when the write is stored, and False if the partition is over meanwhile. Raises
        KafkaError if it was not stored.
        """
        request = write_request(self.key, write, self._stored_time)
        failures = 0
        while self.continues():
            response = await self._parts.state.write(request)
            result = response.results[0].partitions[0]
            error = ErrorCode(result.error_code)
            if self.is_over:
                return False
            if error is ErrorCode.NONE:
                return True
            if error in FENCING:
                self.end(refusal(error, result.error_message))
                return False
            if error not in RETRIABLE:
                raise refusal(error, result.error_message)
            failures = await _pause(failures)
        return False

    def _stored_time(self, at_ms: MonotonicMs) -> int:
        """Returns the time of day of a monotonic time, which has no meaning for another leader. Returns 0
        for NO_DEADLINE.
        """
        return 0 if at_ms == NO_DEADLINE else at_ms - self._now_ms() + self._parts.clock.wall_ms()

    def _read_time(self, stored_ms: int, longest_ms: int) -> MonotonicMs:
        """Returns the monotonic time of a time of day, NO_DEADLINE if it has passed. The rest of a wait is
        never longer than `longest_ms`, whatever the clocks of two machines show.
        """
        left_ms = min(stored_ms - self._parts.clock.wall_ms(), longest_ms)
        return NO_DEADLINE if stored_ms == 0 or left_ms <= 0 else MonotonicMs(self._now_ms() + left_ms)

    def continues(self) -> bool:
        """Returns whether the partition is still of use. Ends it if this broker no longer leads it."""
        if not self.is_over and not self.is_current:
            self.end(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        return not self.is_over

    async def _first_offset(self) -> int:
        """Returns the offset at which a new share partition begins (`share.auto.offset.reset`)."""
        core, reset = self.replica.core, self.settings.share_auto_offset_reset
        if reset == "earliest":
            return core.log_start_offset
        if reset.startswith(BY_DURATION):
            past_ms = duration_ms(reset.removeprefix(BY_DURATION))
            timestamp = self._parts.clock.wall_ms() - (past_ms or 0)
            loop = asyncio.get_running_loop()
            find = self.replica.log.offset_for_timestamp
            found = await loop.run_in_executor(self._parts.record_walks, find, timestamp)
            if found is not None and found.offset < core.high_watermark:
                return max(found.offset, core.log_start_offset)
        failures = 0
        while not core.is_high_watermark_known and self.continues():
            failures = await _pause(failures)
        return core.high_watermark

    def _answer(self, ended: list[Acknowledgement], error: ErrorCode, message: str | None) -> None:
        for acknowledgement in ended:
            result = self._results.pop(acknowledgement, None)
            if result is not None:
                result.error, result.message = error, message

    def _finish(self, error: KafkaError) -> None:
        if self._timer_entry is not None:
            self._timer_entry.cancel()
            self._timer_entry = None
        self._answer(list(self._results), error.code, error.client_message)
        self._on_over(self)
        self._core = None
        self._parts.changed(self.key)


async def _pause(failures: int) -> int:
    """Waits after another failure. Returns the number of failures."""
    await asyncio.sleep(BACKOFF.delay_ms(failures + 1) / 1000)
    return failures + 1
