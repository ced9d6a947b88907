"""Share partitions that look at their records in virtual time: delivery times, order per key and retries."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tidelog.broker.share.deliveries import (
    AcknowledgedBatch,
    AcknowledgeType,
    AcquireMode,
    DeliveryLimits,
    LogBatch,
    StateRange,
    StateWrite,
    Wanted,
)
from tidelog.broker.share.partition_core import MAX_ENDED, SharePartitionCore
from tidelog.broker.share.pauses import NO_BACKOFF
from tidelog.broker.share.record_ranges import DeliveryState
from tidelog.broker.share.screening import KeyOrder, Screening, Upcoming
from tidelog.kernel.instants import Backoff, MonotonicMs

LOCK_MS = 100
MEMBERS = ("a", "b")
ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT


@dataclass
class Known:
    """A record of the log and what became of it."""

    key: int | None
    deliver_at_ms: int
    count: int = 0
    not_before_ms: int = 0
    member: str = ""
    deadline_ms: int = 0
    pending: AcknowledgeType | None = None
    is_done: bool = False


class ScreenedMachine(RuleBasedStateMachine):
    """Random appends, looks, fetches, acknowledgements, timeouts, failed writes and new leaders."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000
        self.log: list[LogBatch] = []
        self.records: dict[int, Known] = {}
        self.log_end = 0
        self.log_start = 0
        self.stored_start = 0
        self.stored: dict[int, tuple[int, int, int]] = {}
        self.accepted: dict[int, list[int]] = {}
        self.limits = DeliveryLimits(LOCK_MS, 3, 12)
        self.has_order = False

    @initialize(
        backoff=st.sampled_from((NO_BACKOFF, Backoff(40, 100, 3))),
        has_order=st.booleans(),
        in_flight=st.sampled_from((2, 12)),
    )
    def choose(self, backoff: Backoff, has_order: bool, in_flight: int) -> None:
        self.limits = DeliveryLimits(LOCK_MS, 3, in_flight, backoff)
        self.has_order = has_order
        self.begin()

    def begin(self) -> None:
        ranges = [
            StateRange(at, at, state, count, MonotonicMs(at_ms if at_ms > self.now else 0))
            for at, (state, count, at_ms) in sorted(self.stored.items())
        ]
        screening = Screening(KeyOrder() if self.has_order else None)
        self.core = SharePartitionCore(0, 0, self.stored_start, ranges, screening)
        self.core.log_start_moved(self.log_start)
        self.write: StateWrite | None = None
        for at, known in self.records.items():
            state, count, at_ms = self.stored.get(at, (0, 0, 0))
            known.member, known.pending, known.count = "", None, count
            known.is_done = at < max(self.stored_start, self.log_start) or DeliveryState(state).is_final
            known.not_before_ms = at_ms if count else known.deliver_at_ms

    @rule(
        gap=st.sampled_from((0, 0, 1, 3)),
        made=st.lists(
            st.tuples(st.sampled_from((1, 1, 2, None)), st.sampled_from((0, 30, 0, 150))), max_size=5
        ),
    )
    def append(self, gap: int, made: list[tuple[int | None, int]]) -> None:
        """Appends records, or a control batch if there are none."""
        first = self.log_end + gap
        last = first + max(len(made), 1) - 1
        self.log.append(LogBatch(first, last, bool(made)))
        for at, (key, delay_ms) in enumerate(made, first):
            at_ms = self.now + delay_ms if delay_ms else 0
            self.records[at] = Known(key if self.has_order else None, at_ms, not_before_ms=at_ms)
        self.log_end = last + 1

    @rule(most=st.integers(1, 6))
    def look(self, most: int) -> None:
        core, now_ms = self.core, MonotonicMs(self.now)
        core.let_in(now_ms, self.limits)
        offset = core.wants_facts_from
        if offset is None or offset >= self.log_end:
            return
        seen = [at for at in sorted(self.records) if at >= max(offset, self.log_start)][: most + 1]
        known_to = seen[most] if len(seen) > most else self.log_end
        upcoming = [
            Upcoming(at, at, MonotonicMs(self.records[at].deliver_at_ms), self.records[at].key)
            for at in seen[:most]
        ]
        core.screen(upcoming, known_to, now_ms, self.limits)

    @rule(
        member=st.sampled_from(MEMBERS),
        most=st.integers(1, 8),
        mode=st.sampled_from(AcquireMode),
        looks=st.booleans(),
    )
    def fetch(self, member: str, most: int, mode: AcquireMode, looks: bool) -> None:
        if looks:
            self.look(4)
        self.take(member, most, mode)

    def take(self, member: str, most: int, mode: AcquireMode) -> list[int]:
        begin = self.core.next_fetch_offset
        batches = [batch for batch in self.log if batch.last >= begin]
        is_available = self.core.may_acquire(self.limits)
        taken = self.core.acquire(Wanted(member, most, 3, mode), batches, MonotonicMs(self.now), self.limits)
        offsets = [at for found in taken for at in range(found.first, found.last + 1)]
        for at in offsets:
            known = self.records[at]
            assert not known.is_done
            assert not known.member, f"offset {at} is delivered twice at a time"
            assert known.not_before_ms <= self.now, f"offset {at} is delivered before its time"
            known.member, known.deadline_ms, known.count = member, self.now + LOCK_MS, known.count + 1
            earlier = [
                other
                for other, found in self.records.items()
                if self.log_start <= other < at and found.key == known.key and not found.is_done
            ]
            assert known.key is None or not earlier, f"offset {at} overtakes {earlier}"
        if is_available and begin in self.records:
            assert offsets, "an available record is delivered"
        return offsets

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        held = [at for at, known in self.records.items() if known.member and known.pending is None]
        if held:
            at = data.draw(st.sampled_from(held))
            self.answer(at, data.draw(st.sampled_from((ACCEPT, ACCEPT, RELEASE, REJECT))))

    def answer(self, at: int, kind: AcknowledgeType) -> None:
        known = self.records[at]
        batch = AcknowledgedBatch(at, at, [kind])
        self.core.acknowledge(known.member, [batch], MonotonicMs(self.now), self.limits)
        if at >= self.core.start_offset:
            known.pending = kind
            if kind is RELEASE:
                known.not_before_ms = self.now + self.limits.retry.delay_ms(known.count)

    def come_back(self, known: Known) -> None:
        known.member = ""
        known.is_done |= known.count >= self.limits.delivery_count
        known.not_before_ms = self.now + self.limits.retry.delay_ms(known.count)

    @rule(passed_ms=st.integers(1, 120))
    def pass_time(self, passed_ms: int) -> None:
        self.now += passed_ms
        for known in self.records.values():
            if known.member and known.pending is None and known.deadline_ms <= self.now:
                self.come_back(known)
        self.core.expire(MonotonicMs(self.now), self.limits)

    @rule(member=st.sampled_from(MEMBERS))
    def leave(self, member: str) -> None:
        for known in self.records.values():
            if known.member == member:
                if known.pending is None:
                    self.come_back(known)
                else:
                    known.deadline_ms = 0
        self.core.release_member(member, MonotonicMs(self.now), self.limits)

    @precondition(lambda self: self.write is None)
    @rule()
    def begin_write(self) -> None:
        self.write = self.core.next_write()
        if self.write is not None:
            spans = [span for found in self.write.acknowledgements for span in found.spans]
            self.in_write = {at for first, last in spans for at in range(first, last + 1)}

    def store(self) -> None:
        assert self.write is not None
        self.stored_start = self.write.start_offset
        for first, last, state, count, at_ms in self.write.ranges:
            self.stored |= dict.fromkeys(range(first, last + 1), (int(state), count, at_ms))

    @precondition(lambda self: self.write is not None)
    @rule()
    def write_succeeds(self) -> None:
        self.store()
        self.write = None
        for at in sorted(self.in_write):
            known = self.records[at]
            kind, known.pending = known.pending, None
            known.member = ""
            known.is_done |= kind is not RELEASE or known.count >= self.limits.delivery_count
            if kind is ACCEPT and known.key is not None:
                order = self.accepted.setdefault(known.key, [])
                assert not order or order[-1] < at, "the records of a key are accepted in order"
                order.append(at)
        self.core.write_succeeded(MonotonicMs(self.now), self.limits)

    @precondition(lambda self: self.write is not None)
    @rule()
    def write_fails(self) -> None:
        self.write = None
        self.core.write_failed()
        for at in self.in_write:
            self.records[at].pending = None
        self.pass_time(0)

    @rule(is_stored=st.booleans())
    def another_leader(self, is_stored: bool) -> None:
        if self.write is not None and is_stored:
            self.store()
        self.begin()

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        if self.log_end:
            self.log_start = max(
                self.log_start, data.draw(st.integers(0, min(self.log_start + 2, self.log_end)))
            )
            self.core.log_start_moved(self.log_start)
            for at, known in self.records.items():
                known.is_done = known.is_done or at < self.log_start

    @rule(data=st.data())
    def remove_batch(self, data: st.DataObject) -> None:
        """Makes the records of a batch undeliverable, perhaps after the core has looked at them."""
        free = [
            at
            for at, batch in enumerate(self.log)
            if batch.is_deliverable
            and not any(self.records[offset].member for offset in range(batch.first, batch.last + 1))
        ]
        if free:
            at = data.draw(st.sampled_from(free))
            batch = self.log[at] = self.log[at]._replace(is_deliverable=False)
            for offset in range(batch.first, batch.last + 1):
                del self.records[offset]

    @invariant()
    def the_counts_are_right(self) -> None:
        ranges = list(self.core.ranges)
        waiting = sum(len(found) for found in ranges if found.state is DeliveryState.WAITING)
        assert self.core.ranges.waiting_count == waiting
        assert sum(map(len, ranges)) == self.core.end_offset - self.core.start_offset

    def teardown(self) -> None:
        """Delivers and accepts everything that is left."""
        if not hasattr(self, "core"):
            return
        for _ in range(3 * len(self.records) + 5):
            if self.write is not None:
                self.write_succeeds()
            self.pass_time(500)
            self.look(6)
            for at in self.take("a", 5, AcquireMode.BATCH_OPTIMIZED):
                self.answer(at, ACCEPT)
            self.begin_write()
        lost = [at for at, known in self.records.items() if not known.is_done]
        assert not lost, f"{lost} are not delivered"


TestScreenedSharePartition = ScreenedMachine.TestCase
TestScreenedSharePartition.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_the_records_of_a_key_are_delivered_one_at_a_time() -> None:
    core = SharePartitionCore(0, 0, 0, screening=Screening(KeyOrder()))
    limits = DeliveryLimits(LOCK_MS, 3, 100)
    now = MonotonicMs(1)
    keys = (7, 7, 8, None, 7)
    core.screen([Upcoming(at, at, key=key) for at, key in enumerate(keys)], 5, now, limits)

    def fetch() -> list[tuple[int, int]]:
        found = core.acquire(Wanted("a", 100, 100), [LogBatch(0, 4)], now, limits)
        return [(taken.first, taken.last) for taken in found]

    def answer(at: int, kind: AcknowledgeType) -> None:
        core.acknowledge("a", [AcknowledgedBatch(at, at, [kind])], now, limits)
        assert not fetch(), "an acknowledgement counts when it is stored"
        assert core.next_write() is not None
        core.write_succeeded(now, limits)

    assert fetch() == [(0, 0), (2, 3)]
    answer(0, RELEASE)
    assert fetch() == [(0, 0)], "a released record holds back the others of its key"
    answer(0, REJECT)
    assert fetch() == [(1, 1)]
    answer(1, ACCEPT)
    assert fetch() == [(4, 4)]


def test_a_record_whose_time_has_come_still_waits_for_its_key() -> None:
    core = SharePartitionCore(0, 0, 0, screening=Screening(KeyOrder()))
    limits = DeliveryLimits(LOCK_MS, 3, 100)
    core.screen([Upcoming(0, 0, key=7), Upcoming(1, 1, MonotonicMs(50), key=7)], 2, MonotonicMs(1), limits)
    core.expire(MonotonicMs(50), limits)
    wanted = Wanted("a", 100, 100)
    found = core.acquire(wanted, [LogBatch(0, 1)], MonotonicMs(50), limits)
    assert [(taken.first, taken.last) for taken in found] == [(0, 0)]


def test_a_new_leader_looks_at_its_window_before_it_delivers() -> None:
    stored = [StateRange(1, 1, DeliveryState.ACKNOWLEDGED, 1), StateRange(2, 2, DeliveryState.AVAILABLE, 1)]
    core = SharePartitionCore(0, 0, 0, stored, Screening())
    limits = DeliveryLimits(LOCK_MS, 3, 100)
    assert not core.may_acquire(limits)
    assert core.wants_facts_from == 0
    core.screen([Upcoming(0, 0, MonotonicMs(50)), Upcoming(1, 2)], 3, MonotonicMs(1), limits)
    assert core.next_fetch_offset == 2
    core.expire(MonotonicMs(50), limits)
    assert core.next_fetch_offset == 0


def test_records_of_a_key_that_the_log_no_longer_has_do_not_hold_back_later_ones() -> None:
    """The first two records of the key leave the window together."""
    core = SharePartitionCore(0, 0, 0, screening=Screening(KeyOrder()))
    limits, now = DeliveryLimits(LOCK_MS, 3, 100), MonotonicMs(1)
    core.screen([Upcoming(at, at, key=7) for at in (0, 1, 3)], 4, now, limits)
    log = [LogBatch(0, 1, is_deliverable=False), LogBatch(2, 2, is_deliverable=False), LogBatch(3, 3)]
    taken = [core.acquire(Wanted("a", 10, 10), log, now, limits) for _ in range(2)]
    assert [(found.first, found.last) for fetch in taken for found in fetch] == [(3, 3)]


def test_a_key_that_is_held_up_leaves_room_for_acknowledgements() -> None:
    """Every second record has the key whose first record a slow member keeps. The other ones are accepted one
    by one, so the ranges are as many as the records.
    """
    core = SharePartitionCore(0, 0, 0, screening=Screening(KeyOrder()))
    limits, now = DeliveryLimits(LOCK_MS, 3, 2_000), MonotonicMs(1)
    wanted, log = Wanted("a", 500, 500, AcquireMode.RECORD_LIMIT), [LogBatch(0, 10**6)]
    while True:
        core.let_in(now, limits)
        while not core.is_at_limit(limits) and (offset := core.wants_facts_from) is not None:
            known_to = offset + 1_000
            keys = (Upcoming(at, at, key=at + 100 if at % 2 else 7) for at in range(offset, known_to))
            core.screen(keys, known_to, now, limits)
        taken = core.acquire(wanted, log, now, limits)
        if not taken:
            break
        for found in taken:
            for at in range(max(found.first, 1), found.last + 1):
                core.acknowledge("a", [AcknowledgedBatch(at, at, [ACCEPT])], now, limits)
        assert core.next_write() is not None
        core.write_succeeded(now, limits)
    assert core.is_at_limit(limits)
    core.acknowledge("a", [AcknowledgedBatch(0, 0, [ACCEPT])], now, limits)


def test_the_waits_of_many_records_with_keys_end_in_parts() -> None:
    core = SharePartitionCore(0, 0, 0, screening=Screening(KeyOrder()))
    limits, count = DeliveryLimits(LOCK_MS, 3, 5_000), MAX_ENDED + 500
    core.screen(
        [Upcoming(at, at, MonotonicMs(50), key=at) for at in range(count)], count, MonotonicMs(1), limits
    )
    assert core.expire(MonotonicMs(60), limits)
    assert core.ranges.waiting_count == 500
    assert core.next_deadline_ms() == 50
    assert core.expire(MonotonicMs(80), limits)
    assert core.ranges.waiting_count == 0
    assert len(core.ranges) == 1
    assert core.next_deadline_ms() is None
