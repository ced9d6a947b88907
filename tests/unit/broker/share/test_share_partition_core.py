"""The core of a share partition, compared with a model that keeps each record by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tidelog.broker.share.deliveries import (
    AcknowledgedBatch,
    AcquireMode,
    DeadLetters,
    DeliveryLimits,
    LogBatch,
    StateRange,
    StateWrite,
    Wanted,
)
from tidelog.broker.share.partition_core import MAX_RANGES, SharePartitionCore
from tidelog.broker.share.pauses import NO_BACKOFF
from tidelog.broker.share.record_ranges import DeliveryState, RecordRanges
from tidelog.kernel.instants import Backoff, MonotonicMs
from tidelog.model.errors import ErrorCode, KafkaError

LOCK_MS = 100
LIMITS = DeliveryLimits(LOCK_MS, delivery_count=3, records_in_flight=12)
NOW = MonotonicMs(1_000)
MEMBERS = ("a", "b", "c")
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)


def acquire(
    core: SharePartitionCore,
    member: str,
    batches: list[LogBatch],
    max_records: int = 100,
    mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED,
    now_ms: int = NOW,
    limits: DeliveryLimits = LIMITS,
) -> list[tuple[int, int, int]]:
    wanted = Wanted(member, max_records, 1_000, mode)
    found = core.acquire(wanted, batches, MonotonicMs(now_ms), limits)
    return [(taken.first, taken.last, taken.delivery_count) for taken in found]


def acknowledge(core: SharePartitionCore, member: str, *batches: tuple[int, int, list[int]]) -> object:
    wanted = [AcknowledgedBatch(*batch) for batch in batches]
    return core.acknowledge(member, wanted, NOW, LIMITS)


def write(core: SharePartitionCore) -> StateWrite:
    found = core.next_write()
    assert found is not None
    core.write_succeeded(NOW, LIMITS)
    return found


def test_acknowledged_batches_are_one_range_and_move_the_start() -> None:
    core = SharePartitionCore(5, 2, 0)
    assert acquire(core, "a", [LogBatch(0, 4), LogBatch(5, 9)]) == [(0, 9, 1)]
    assert len(core.ranges) == 1
    acknowledge(core, "a", (0, 9, [ACCEPT]))
    assert core.start_offset == 0, "the acknowledgement counts only when it is stored"
    assert write(core)[:5] == (2, 5, 10, 0, [])
    assert core.start_offset == core.end_offset == 10


def test_a_range_splits_only_where_acknowledgements_differ() -> None:
    core = SharePartitionCore(0, 0, 0)
    acquire(core, "a", [LogBatch(0, 9)])
    acknowledge(core, "a", (2, 5, [ACCEPT, ACCEPT, REJECT, RELEASE]))
    stored = write(core).ranges
    assert stored == [StateRange(2, 3, 2, 1), StateRange(4, 4, 4, 1), StateRange(5, 5, 0, 1)]
    assert acquire(core, "b", [LogBatch(0, 9)]) == [(5, 5, 2)]


def test_a_failed_write_is_undone() -> None:
    core = SharePartitionCore(0, 0, 0)
    acquire(core, "a", [LogBatch(0, 3)])
    acknowledge(core, "a", (0, 3, [ACCEPT]))
    with pytest.raises(KafkaError) as refused:
        acknowledge(core, "a", (0, 0, [ACCEPT]))
    assert refused.value.code == ErrorCode.INVALID_RECORD_STATE
    core.next_write()
    core.expire(MonotonicMs(NOW + LOCK_MS), LIMITS)
    assert core.next_fetch_offset == 4, "a record whose acknowledgement is being written stays locked"
    core.write_failed()
    assert core.next_write() is None
    core.expire(MonotonicMs(NOW + LOCK_MS), LIMITS)
    assert acquire(core, "b", [LogBatch(0, 3)]) == [(0, 3, 2)]


def test_an_invalid_acknowledgement_changes_nothing() -> None:
    core = SharePartitionCore(0, 0, 0)
    acquire(core, "a", [LogBatch(0, 3)])
    for member, last in (("a", 4), ("b", 3)):
        with pytest.raises(KafkaError):
            acknowledge(core, member, (0, 0, [ACCEPT]), (1, last, [ACCEPT]))
    assert core.next_write() is None
    assert acknowledge(core, "a", (0, 3, [ACCEPT])) is not None


def test_a_late_acceptance_of_a_record_that_was_given_up_is_refused() -> None:
    """Until the end of its deliveries is stored, a later leader may deliver it again."""
    core = SharePartitionCore(0, 0, 0)
    for delivery in range(LIMITS.delivery_count):
        now_ms = NOW + delivery * LOCK_MS
        assert acquire(core, "a", [LogBatch(0, 3)], now_ms=now_ms) == [(0, 3, delivery + 1)]
        core.expire(MonotonicMs(now_ms + LOCK_MS), LIMITS)
    assert core.start_offset == 4
    with pytest.raises(KafkaError) as refused:
        acknowledge(core, "a", (0, 3, [ACCEPT]))
    assert refused.value.code == ErrorCode.INVALID_RECORD_STATE
    assert write(core).start_offset == 4
    assert acknowledge(core, "a", (0, 3, [ACCEPT])) is None


def test_a_renewal_extends_the_lock_and_writes_nothing() -> None:
    core = SharePartitionCore(0, 0, 0)
    acquire(core, "a", [LogBatch(0, 3)], now_ms=NOW - 50)
    assert acknowledge(core, "a", (0, 1, [RENEW])) is None
    assert core.next_write() is None
    core.expire(MonotonicMs(NOW + 50), LIMITS)
    assert acquire(core, "b", [LogBatch(0, 3)]) == [(2, 3, 2)]


def test_the_record_limit_is_never_exceeded() -> None:
    core = SharePartitionCore(0, 0, 0)
    assert acquire(core, "a", [LogBatch(0, 9)], 4, AcquireMode.RECORD_LIMIT) == [(0, 3, 1)]
    assert core.next_fetch_offset == 4
    assert acquire(core, "b", [LogBatch(0, 9), LogBatch(10, 19)], 100, AcquireMode.RECORD_LIMIT) == [
        (4, 11, 1)
    ], "12 records in flight"
    assert not core.may_acquire(LIMITS)


def test_gaps_and_control_batches_are_archived() -> None:
    core = SharePartitionCore(0, 0, 0)
    batches = [LogBatch(3, 4), LogBatch(5, 5, is_deliverable=False), LogBatch(8, 8)]
    assert acquire(core, "a", batches) == [(3, 4, 1), (8, 8, 1)]
    assert core.start_offset == 3
    acknowledge(core, "a", (3, 4, [ACCEPT]))
    assert write(core).start_offset == 8


def test_the_delivery_to_a_member_that_left_counts() -> None:
    core = SharePartitionCore(0, 0, 0)
    acquire(core, "a", [LogBatch(0, 3)])
    core.release_member("a", NOW, LIMITS)
    assert acquire(core, "b", [LogBatch(0, 3)]) == [(0, 3, 2)]


BACKOFF = LIMITS._replace(retry=Backoff(10, 15))


def test_a_record_that_comes_back_waits_before_it_is_delivered_again() -> None:
    core = SharePartitionCore(0, 0, 0)
    acquire(core, "a", [LogBatch(0, 3)], limits=BACKOFF)
    core.acknowledge("a", [AcknowledgedBatch(0, 1, [RELEASE])], NOW, BACKOFF)
    assert write(core).ranges == [StateRange(0, 1, DeliveryState.AVAILABLE, 1, MonotonicMs(NOW + 10))]
    assert core.next_deadline_ms() == NOW + 10, "the wait ends before the lock of the other records"
    core.expire(MonotonicMs(NOW + 9), BACKOFF)
    assert core.next_fetch_offset == 4
    core.expire(MonotonicMs(NOW + 10), BACKOFF)
    assert acquire(core, "a", [LogBatch(0, 3)], now_ms=NOW + 10) == [(0, 1, 2)]
    core.release_member("a", MonotonicMs(NOW + 20), BACKOFF)
    assert write(core).ranges == [
        StateRange(0, 1, DeliveryState.AVAILABLE, 2, MonotonicMs(NOW + 35)),
        StateRange(2, 3, DeliveryState.AVAILABLE, 1, MonotonicMs(NOW + 30)),
    ], "the bound is 15 ms"


def test_a_wait_survives_a_new_leader() -> None:
    waiting = StateRange(0, 3, DeliveryState.AVAILABLE, 1, MonotonicMs(NOW + 10))
    core = SharePartitionCore(1, 0, 0, [waiting])
    assert acquire(core, "a", [LogBatch(0, 3), LogBatch(4, 5)]) == [(4, 5, 1)]
    assert core.next_deadline_ms() == NOW + 10
    assert core.expire(MonotonicMs(NOW + 10), BACKOFF)
    assert acquire(core, "a", [LogBatch(0, 3)], now_ms=NOW + 10) == [(0, 3, 2)]


@dataclass
class Known:
    """One record in the model."""

    state: DeliveryState = DeliveryState.AVAILABLE
    count: int = 0
    member: str = ""
    deadline_ms: int = 0
    target: DeliveryState | None = None
    available_at_ms: int = 0

    def come_back(self, now_ms: int, limits: DeliveryLimits) -> DeliveryState:
        """Begins the wait of a record that was not accepted. Returns its state."""
        delay_ms = limits.retry.delay_ms(self.count)
        self.available_at_ms = now_ms + delay_ms if delay_ms else 0
        return DeliveryState.WAITING if delay_ms else DeliveryState.AVAILABLE


@dataclass
class Stored:
    """The share coordinator: what it stores of each record."""

    start: int = 0
    records: dict[int, tuple[int, int, int]] = field(default_factory=dict)

    def apply(self, write: StateWrite) -> None:
        self.start = write.start_offset
        for first, last, state, count, at_ms in write.ranges:
            for offset in range(first, last + 1):
                self.records[offset] = (state, count, at_ms)
        self.records = {at: found for at, found in self.records.items() if at >= self.start}

    def ranges(self) -> list[StateRange]:
        return [
            StateRange(at, at, state, count, MonotonicMs(at_ms))
            for at, (state, count, at_ms) in sorted(self.records.items())
        ]


class SharePartitionMachine(RuleBasedStateMachine):
    """Random fetches, acknowledgements, timeouts, failed writes and new leaders."""

    limits = LIMITS
    given_up = DeliveryState.ARCHIVED

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000
        self.log: list[LogBatch] = []
        self.log_end = 0
        self.log_start = 0
        self.stored = Stored()
        self.accepted: set[int] = set()
        """The records whose acceptance was confirmed."""
        self.finished: set[int] = set()
        """The records that may be archived: rejected, or delivered up to the limit."""
        self.deliveries: dict[int, int] = {}
        self.offered: set[int] = set()
        """The records that a member has accepted, whether that was stored or not."""
        self.gaps: set[int] = set()
        """The offsets that a member has called gaps."""
        self.copied: set[int] = set()
        """The records in the dead letter topic."""
        self.begin()

    @initialize(backoff=st.sampled_from((NO_BACKOFF, Backoff(1, 1, 1), Backoff(40, 100, 3))))
    def choose(self, backoff: Backoff) -> None:
        self.limits = type(self).limits._replace(retry=backoff)

    def begin(self) -> None:
        self.core = SharePartitionCore(0, 0, self.stored.start, self.stored.ranges())
        self.model: dict[int, Known] = {}
        for at, (state, count, at_ms) in self.stored.records.items():
            self.model[at] = Known(DeliveryState(state), count)
            if at_ms:
                self.model[at].state, self.model[at].available_at_ms = DeliveryState.WAITING, at_ms
        self.wake()
        self.write: StateWrite | None = None

    def known(self, offset: int) -> Known:
        return self.model.setdefault(offset, Known())

    @property
    def deliverable(self) -> list[int]:
        return [
            at
            for batch in self.log
            if batch.is_deliverable
            for at in range(batch.first, batch.last + 1)
            if at >= max(self.core.start_offset, self.log_start)
        ]

    @rule(
        gap=st.sampled_from((0, 0, 0, 1, 3)),
        size=st.integers(1, 5),
        ok=st.sampled_from((True, True, True, False)),
    )
    def append(self, gap: int, size: int, ok: bool) -> None:
        first = self.log_end + gap
        self.log.append(LogBatch(first, first + size - 1, ok))
        self.log_end = first + size

    @rule(member=st.sampled_from(MEMBERS), most=st.integers(1, 8), mode=st.sampled_from(AcquireMode))
    def fetch(self, member: str, most: int, mode: AcquireMode) -> None:
        begin = self.core.next_fetch_offset
        batches = [batch for batch in self.log if batch.last >= begin]
        wanted = Wanted(member, most, 3, mode)
        may = self.core.may_acquire(self.limits)
        available = [at for at in self.deliverable if self.known(at).state is DeliveryState.AVAILABLE]
        # A full window takes no new records.
        end = self.core.end_offset if self.core.is_at_limit(self.limits) else self.log_end
        due = [at for at in available if at < end]
        acquired = self.core.acquire(wanted, batches, MonotonicMs(self.now), self.limits)
        taken = [
            (at, found.delivery_count) for found in acquired for at in range(found.first, found.last + 1)
        ]
        for at, count in taken:
            known = self.known(at)
            assert at not in self.accepted | self.copied
            assert known.state is DeliveryState.AVAILABLE
            assert known.available_at_ms <= self.now, "a record is not delivered before its time"
            assert at in available
            known.count += 1
            assert count == known.count <= self.limits.delivery_count
            known.state, known.member = DeliveryState.ACQUIRED, member
            known.deadline_ms = self.now + LOCK_MS
        if mode is AcquireMode.RECORD_LIMIT:
            assert len(taken) <= most
        if due and may:
            assert taken, "an available record is delivered"
            assert taken[0][0] == due[0]
        if taken and mode is AcquireMode.BATCH_OPTIMIZED:
            held = {batch for batch in self.log for at, _ in taken if batch.first <= at <= batch.last}
            whole = {at for at in due for batch in held if batch.first <= at <= batch.last}
            assert whole <= {at for at, _ in taken}

    @rule(member=st.sampled_from(MEMBERS), data=st.data())
    def acknowledge(self, member: str, data: st.DataObject) -> None:
        held = [
            at
            for at, known in sorted(self.model.items())
            if known.state is DeliveryState.ACQUIRED and known.member == member and known.target is None
        ]
        if not held:
            return
        begin = data.draw(st.integers(0, len(held) - 1))
        chosen = held[begin : begin + data.draw(st.integers(1, 6))]
        types = [data.draw(st.sampled_from((GAP, ACCEPT, ACCEPT, RELEASE, REJECT, RENEW))) for _ in chosen]
        batches: list[AcknowledgedBatch] = []
        for at, kind in zip(chosen, types, strict=True):
            if batches and batches[-1].last + 1 == at:
                batches[-1] = AcknowledgedBatch(batches[-1].first, at, [*batches[-1].types, kind])
            else:
                batches.append(AcknowledgedBatch(at, at, [kind]))
        self.core.acknowledge(member, batches, MonotonicMs(self.now), self.limits)
        for at, kind in zip(chosen, types, strict=True):
            known = self.known(at)
            if kind == RENEW:
                known.deadline_ms = self.now + LOCK_MS
            elif kind == ACCEPT:
                known.target = DeliveryState.ACKNOWLEDGED
                self.offered.add(at)
            elif kind == RELEASE and known.count < self.limits.delivery_count:
                known.target = known.come_back(self.now, self.limits)
            else:
                known.target = DeliveryState.ARCHIVED if kind == GAP else self.given_up
                (self.gaps if kind == GAP else self.finished).add(at)

    @rule(member=st.sampled_from(MEMBERS), data=st.data())
    def acknowledge_what_others_have(self, member: str, data: st.DataObject) -> None:
        others = [
            at
            for at, known in sorted(self.model.items())
            if at >= max(self.stored.start, self.log_start)
            and (known.state is not DeliveryState.ACQUIRED or known.member != member or known.target)
        ]
        if others:
            at = data.draw(st.sampled_from(others))
            with pytest.raises(KafkaError):
                self.core.acknowledge(
                    member, [AcknowledgedBatch(at, at, [ACCEPT])], MonotonicMs(self.now), self.limits
                )

    def give_back(self, which: Callable[[Known], bool]) -> None:
        for at, known in self.model.items():
            if known.state is DeliveryState.ACQUIRED and known.target is None and which(known):
                if known.count >= self.limits.delivery_count:
                    known.state = self.given_up
                    self.finished.add(at)
                else:
                    known.state = known.come_back(self.now, self.limits)

    def wake(self) -> None:
        """Ends the waits whose time has come."""
        self.core.expire(MonotonicMs(self.now), self.limits)
        for known in self.model.values():
            if known.state is DeliveryState.WAITING and known.available_at_ms <= self.now:
                known.state = DeliveryState.AVAILABLE

    @rule(passed_ms=st.integers(1, 120))
    def pass_time(self, passed_ms: int) -> None:
        self.now += passed_ms
        due_ms = self.core.next_deadline_ms()
        ends = [
            known.available_at_ms if known.state is DeliveryState.WAITING else known.deadline_ms
            for at, known in self.model.items()
            if at >= self.core.start_offset
            and known.state in (DeliveryState.WAITING, DeliveryState.ACQUIRED)
            and known.target is None
        ]
        assert not ends or (due_ms is not None and due_ms <= min(ends)), "the timer is not too late"
        self.wake()
        self.give_back(lambda known: known.deadline_ms <= self.now)

    @rule(member=st.sampled_from(MEMBERS))
    def leave(self, member: str) -> None:
        self.core.release_member(member, MonotonicMs(self.now), self.limits)
        self.give_back(lambda known: known.member == member)
        for known in self.model.values():
            if known.state is DeliveryState.ACQUIRED and known.member == member:
                known.deadline_ms = 0

    @precondition(lambda self: self.write is None)
    @rule()
    def begin_write(self) -> None:
        self.write = self.core.next_write()
        if self.write is not None:
            spans = [span for found in self.write.acknowledgements for span in found.spans]
            self.in_write = {at for first, last in spans for at in range(first, last + 1)}

    @precondition(lambda self: self.write is not None)
    @rule()
    def write_succeeds(self) -> None:
        assert self.write is not None
        self.stored.apply(self.write)
        self.core.write_succeeded(MonotonicMs(self.now), self.limits)
        for at in self.in_write:
            known = self.known(at)
            if known.target is not None:
                if known.target is DeliveryState.ACKNOWLEDGED:
                    self.accepted.add(at)
                known.state, known.target = known.target, None
        self.write = None

    @precondition(lambda self: self.write is not None)
    @rule()
    def write_fails(self) -> None:
        self.core.write_failed()
        for at in self.in_write:
            known = self.known(at)
            if known.target is not None:
                known.target, known.available_at_ms = None, 0
        self.write = None

    @rule(is_stored=st.booleans())
    def another_leader(self, is_stored: bool) -> None:
        if self.write is not None and is_stored:
            self.stored.apply(self.write)
        self.begin()
        self.core.log_start_moved(self.log_start)

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        if self.log_end:
            self.log_start = max(self.log_start, data.draw(st.integers(0, self.log_end)))
            self.core.log_start_moved(self.log_start)

    @invariant()
    def the_ranges_are_those_of_the_model(self) -> None:
        ranges = list(self.core.ranges)
        at = self.core.start_offset
        for found in ranges:
            assert found.first == at
            assert found.last >= found.first
            at = found.last + 1
        assert at == self.core.end_offset
        deliverable = set(self.deliverable)
        for found in ranges:
            for offset in range(found.first, found.last + 1):
                if offset in deliverable:
                    known = self.known(offset)
                    assert (found.state, found.delivery_count) == (known.state, known.count)
                    assert found.coming_state == (known.target or known.state) or known.target == 0
        assert self.core.ranges.final_count == sum(len(found) for found in ranges if found.state.is_final)
        assert not ranges or not ranges[0].state.is_final
        available = [found.first for found in ranges if found.state is DeliveryState.AVAILABLE]
        assert self.core.next_fetch_offset == min(available, default=self.core.end_offset)
        for left, right in pairwise(ranges):
            assert not left.is_like(right) or left.change is not None, "equal neighbours are one range"

    def make_room(self) -> None:
        """Ends what keeps records in flight besides members."""

    def teardown(self) -> None:
        """Delivers and accepts everything that is left, and finds each record accepted or archived."""
        self.another_leader(is_stored=True)
        self.core.log_start_moved(self.log_start)
        for _ in range(len(self.log) * self.limits.delivery_count + 1):
            self.pass_time(1_000)
            self.fetch("a", 5, AcquireMode.BATCH_OPTIMIZED)
            held = [at for at, known in self.model.items() if known.state is DeliveryState.ACQUIRED]
            for at in sorted(held):
                self.core.acknowledge(
                    "a", [AcknowledgedBatch(at, at, [ACCEPT])], MonotonicMs(self.now), self.limits
                )
                self.known(at).target = DeliveryState.ACKNOWLEDGED
            self.begin_write()
            if self.write is not None:
                self.write_succeeds()
            self.make_room()
        for batch in self.log:
            for at in range(batch.first, batch.last + 1):
                if batch.is_deliverable and at >= self.log_start:
                    stored = self.stored.records.get(at, (0, 0, 0))[0]
                    was_stored = at < self.stored.start or stored == DeliveryState.ACKNOWLEDGED
                    assert at in self.accepted | self.finished | self.gaps or was_stored, (
                        f"offset {at} is lost"
                    )


class DeadLetterMachine(SharePartitionMachine):
    """A group with a dead letter topic: records that are given up are copied before they are archived, and
    nobody gets them after the copy.
    """

    limits = LIMITS._replace(delivery_count=2, has_dead_letters=True)
    given_up = DeliveryState.ARCHIVING

    def copy(self, found: DeadLetters) -> None:
        for at in range(found.first, found.last + 1):
            stored = self.stored.records[at]
            assert stored[:2] == (DeliveryState.ARCHIVING, found.delivery_count), "the state is stored first"
            self.copied.add(at)

    @rule(data=st.data(), is_known=st.booleans())
    def copy_dead_letters(self, data: st.DataObject, is_known: bool) -> None:
        """Copies some dead letters. If the result is not known, they are copied again later."""
        waiting = list(self.core.dead_letters())
        if not waiting:
            return
        found = data.draw(st.sampled_from(waiting))
        last = data.draw(st.integers(found.first, found.last))
        self.copy(found._replace(last=last))
        if is_known:
            self.archive_copied(found.first, last)

    def make_room(self) -> None:
        for found in list(self.core.dead_letters()):
            self.copy(found)
            self.archive_copied(found.first, found.last)

    def archive_copied(self, first: int, last: int) -> None:
        self.core.dead_letters_copied(first, last)
        for at in range(first, last + 1):
            self.known(at).state = DeliveryState.ARCHIVED

    @invariant()
    def what_is_archived_was_copied(self) -> None:
        done = self.copied | self.gaps
        for at in self.deliverable:
            stored = self.stored.records.get(at, (0, 0))[0]
            assert stored != DeliveryState.ARCHIVED or at in done, f"offset {at} is not a dead letter"

    @invariant()
    def dead_letters_keep_the_partition(self) -> None:
        assert not (self.core.is_idle and self.core.archiving_count)

    def teardown(self) -> None:
        """Copies what is left, and finds each record accepted, a gap, or in the dead letter topic."""
        super().teardown()
        self.make_room()
        assert self.core.archiving_count == 0, "every dead letter can be copied"
        self.begin_write()
        if self.write is not None:
            self.write_succeeds()
        for batch in self.log:
            for at in range(batch.first, batch.last + 1):
                if batch.is_deliverable and at >= self.log_start and at not in self.accepted | self.gaps:
                    assert at in self.copied | self.offered, f"offset {at} is lost"


TestSharePartition = SharePartitionMachine.TestCase
TestSharePartition.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


TestDeadLetters = DeadLetterMachine.TestCase
TestDeadLetters.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)

WITH_DEAD_LETTERS = DeadLetterMachine.limits


def test_a_rejected_record_is_archived_after_its_copy() -> None:
    core = SharePartitionCore(0, 0, 0)
    acquire(core, "a", [LogBatch(0, 3)], limits=WITH_DEAD_LETTERS)
    batches = [AcknowledgedBatch(0, 3, [ACCEPT, REJECT, GAP, ACCEPT])]
    core.acknowledge("a", batches, NOW, WITH_DEAD_LETTERS)
    assert list(core.dead_letters()) == [], "the state is stored before the copy"
    assert write(core).ranges == [
        StateRange(1, 1, DeliveryState.ARCHIVING, 1),
        StateRange(2, 2, 4, 1),
        StateRange(3, 3, 2, 1),
    ]
    assert list(core.dead_letters()) == [DeadLetters(1, 1, 1, is_rejected=True)]
    assert not core.is_idle
    core.dead_letters_copied(1, 1)
    assert write(core).start_offset == core.start_offset == 4
    assert core.is_idle


def test_a_record_that_was_delivered_too_often_is_copied_when_its_state_is_stored() -> None:
    core = SharePartitionCore(0, 0, 0, [StateRange(0, 3, DeliveryState.AVAILABLE, 1)])
    assert acquire(core, "a", [LogBatch(0, 3)], limits=WITH_DEAD_LETTERS) == [(0, 3, 2)]
    core.expire(MonotonicMs(NOW + LOCK_MS), WITH_DEAD_LETTERS)
    assert core.archiving_count == 4
    assert list(core.dead_letters()) == []
    core.next_write()
    assert list(core.dead_letters()) == [], "it is not known yet whether the write is stored"
    core.write_failed()
    assert list(core.dead_letters()) == []
    write(core)
    assert list(core.dead_letters()) == [DeadLetters(0, 3, 2, is_rejected=False)]


def test_the_next_leader_copies_again_and_delivers_nothing() -> None:
    core = SharePartitionCore(1, 0, 4, [StateRange(4, 6, DeliveryState.ARCHIVING, 3)])
    assert core.next_fetch_offset == 7
    assert list(core.dead_letters()) == [DeadLetters(4, 6, 3, is_rejected=False)]


def test_records_on_their_way_to_the_dead_letter_topic_are_in_flight() -> None:
    limits = WITH_DEAD_LETTERS
    core = SharePartitionCore(0, 0, 0, [StateRange(0, 11, DeliveryState.ARCHIVING, 1)])
    assert not core.may_acquire(limits)
    core.dead_letters_copied(0, 5)
    assert acquire(core, "a", [LogBatch(0, 13)], limits=limits) == [(12, 13, 1)]


def test_records_that_are_archived_already_are_not_divided() -> None:
    limits = WITH_DEAD_LETTERS
    core = SharePartitionCore(0, 0, 0)
    acquire(core, "a", [LogBatch(0, 9)], limits=limits)
    core.acknowledge("a", [AcknowledgedBatch(1, 9, [REJECT])], NOW, limits)
    write(core)
    assert core.dead_letters_copied(1, 9) == 9
    assert core.dead_letters_copied(4, 5) == 0
    assert len(core.ranges) == 2


@pytest.mark.parametrize("is_one_batch", [False, True])
def test_an_acknowledgement_of_many_ranges_searches_few_times_for_each(
    monkeypatch: pytest.MonkeyPatch, is_one_batch: bool
) -> None:
    """An acknowledgement is all or nothing, so it is taken in one turn of the event loop."""
    count, searches = 1_000, 0
    core = SharePartitionCore(1, 0, 0)
    acquire(core, "a", [LogBatch(0, count - 1)])
    index = RecordRanges._index

    def counted(ranges: RecordRanges, offset: int) -> int:
        nonlocal searches
        searches += 1
        return index(ranges, offset)

    monkeypatch.setattr(RecordRanges, "_index", counted)
    kinds = [ACCEPT if at % 2 else RELEASE for at in range(count)]
    if is_one_batch:
        acknowledge(core, "a", (0, count - 1, kinds))
    else:
        acknowledge(core, "a", *((at, at, [kind]) for at, kind in enumerate(kinds)))
    assert len(core.ranges) == count
    assert searches < count * (2.1 if is_one_batch else 4.1)


def test_an_acknowledgement_with_too_many_ranges_is_refused() -> None:
    """A batch is acquired as a whole, whatever its number of records."""
    count = MAX_RANGES + 2
    core = SharePartitionCore(1, 0, 0)
    assert acquire(core, "a", [LogBatch(0, count - 1)]) == [(0, count - 1, 1)]
    with pytest.raises(KafkaError) as refused:
        acknowledge(core, "a", (0, count - 1, [RELEASE, ACCEPT] * (count // 2)))
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert len(core.ranges) == 1
    assert acknowledge(core, "a", (0, count - 1, [ACCEPT])) is not None
