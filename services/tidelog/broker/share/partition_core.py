"""The core of one share partition at its leader: who has which records, and what must be written.

Pure: the caller passes the time, the limits and the batches of the log. It calls `next_write` after each
change and reports the outcome. At most one write is in progress, so writes reach the share coordinator in
order; everything that is decided meanwhile is in the next one.

An acknowledgement counts only when its write has succeeded. Records that come back without one, by a lock
timeout or because a member left, come back by themselves; their delivery counts are written, too, but
nothing waits for it. If the group has a backoff, records that come back wait first (ADR 0053).

Records that are given up, if the group has a dead letter topic, are ARCHIVING until they are copied there
(KIP-1191). They are copied after this state is stored, and archived after the copy. So a later leader copies
them again, and nobody delivers them again.

The semantics are those of KIP-932, KIP-1206 (record limit) and KIP-1222 (renewal); source: Kafka's
`SharePartition`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from tidelog.broker.share.deliveries import (
    AcknowledgedBatch,
    Acknowledgement,
    AcknowledgeType,
    AcquiredRange,
    AcquireMode,
    DeadLetters,
    DeliveryCounts,
    DeliveryLimits,
    LogBatch,
    StateRange,
    StateWrite,
    Wanted,
)
from tidelog.broker.share.pauses import Breaker, BreakerState
from tidelog.broker.share.record_ranges import NO_DEADLINE, DeliveryState, RecordRange, RecordRanges
from tidelog.broker.share.screening import Screening, Upcoming
from tidelog.kernel.instants import MonotonicMs
from tidelog.model.errors import ErrorCode, KafkaError

MAX_WAITING: Final = 5_000
"""The most records of one share partition that wait. At this number, no new records are acquired or looked
at until some of them are available. They do not count as records in flight.
"""
MAX_ENDED: Final = 1_000
"""The most ranges whose locks or waits end in one call, which takes about 5 ms. The next call ends those of
other ranges. If records are ordered by key, each record whose wait ends counts, because it becomes a range of
its own.
"""
MAX_RANGES: Final = 10_000
"""The most ranges of one share partition. An acknowledgement that would make more of them is refused."""
MAX_RANGES_TO_GROW: Final = MAX_RANGES // 2
"""At this number of ranges, no new records enter the window until old ones end. The rest of MAX_RANGES is for
acknowledgements, which divide ranges.
"""
WAITING, AVAILABLE, ACQUIRED = DeliveryState.WAITING, DeliveryState.AVAILABLE, DeliveryState.ACQUIRED
ACKNOWLEDGED, ARCHIVED = DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED
ARCHIVING = DeliveryState.ARCHIVING


class SharePartitionCore:
    """The deliveries of one share partition under one leader epoch and state epoch.

    `stored` is the state that the share coordinator has. Offsets between its ranges are available.
    """

    __slots__ = (
        "_in_write",
        "_is_write_due",
        "_queued",
        "_screening",
        "_settled_offset",
        "_stored_pause_ms",
        "_unwritten",
        "_wake_at_ms",
        "_writing",
        "breaker",
        "counts",
        "leader_epoch",
        "ranges",
        "state_epoch",
    )

    def __init__(
        self,
        leader_epoch: int,
        state_epoch: int,
        start_offset: int,
        stored: Iterable[StateRange] = (),
        screening: Screening | None = None,
        paused_until_ms: MonotonicMs = NO_DEADLINE,
    ) -> None:
        self.leader_epoch = leader_epoch
        self.state_epoch = state_epoch
        self.ranges = RecordRanges(start_offset)
        self._settled_offset = start_offset
        """No leader delivers the records below again: they have left the log, or the stored state begins
        above them. The ranges may begin higher, because records were given up and that is not stored yet.
        """
        self.counts = DeliveryCounts()
        self.breaker = Breaker(paused_until_ms)
        self._stored_pause_ms = paused_until_ms
        self._screening = screening
        self._queued: list[Acknowledgement] = []
        self._writing: StateWrite | None = None
        self._unwritten: list[tuple[int, int]] = []
        """The spans whose delivery count or state the coordinator does not know. Nothing waits for them."""
        self._in_write: list[tuple[int, int]] = []
        """Such spans that are in the write in progress."""
        self._is_write_due = False
        self._wake_at_ms: MonotonicMs | None = None
        """No lock, wait or pause ends before this time."""
        if paused_until_ms != NO_DEADLINE:
            self._wake_at(paused_until_ms)
        for state in sorted(stored):
            self._load(state)
        if screening is not None:
            for found in self.ranges:
                if found.state is AVAILABLE:
                    self.ranges.set_state(found, WAITING)
        self.ranges.join(self.ranges.start, self.ranges.end)
        self.ranges.drop_final()
        if screening is not None:
            screening.begin(self.ranges.start)
            self.ranges.ended = None if screening.order is None else []

    def _load(self, stored: StateRange) -> None:
        ranges = self.ranges
        first = max(stored.first, ranges.end)
        if stored.last < first:
            return
        if first > ranges.end:
            ranges.append(RecordRange(ranges.end, first - 1))
        state = DeliveryState(stored.state) if stored.state in set(DeliveryState) else AVAILABLE
        if state in (ACQUIRED, WAITING):
            state = AVAILABLE
        loaded = RecordRange(first, stored.last, state, stored.delivery_count)
        ranges.append(loaded)
        if state is AVAILABLE:
            self._make_available(loaded, stored.available_at_ms)

    @property
    def start_offset(self) -> int:
        return self.ranges.start

    @property
    def end_offset(self) -> int:
        """The offset after the last record that was ever acquired."""
        return self.ranges.end

    @property
    def next_fetch_offset(self) -> int:
        """The first offset that may be acquired."""
        return self.ranges.first_available()

    def may_acquire(self, limits: DeliveryLimits) -> bool:
        """Returns whether a fetch may acquire records if the log has them."""
        ranges = self.ranges
        if self._allowed_probes(limits) == 0:
            return False
        return ranges.first_available() < ranges.end or (self._screening is None and self._room(limits) > 0)

    def _allowed_probes(self, limits: DeliveryLimits) -> int | None:
        if self.breaker.state is BreakerState.CLOSED:
            return None
        return self.breaker.allowed_probes(self.acquired_count, limits.breaker)

    @property
    def is_writing(self) -> bool:
        return self._writing is not None

    @property
    def is_idle(self) -> bool:
        """Whether no member has records, and nothing has to be written or copied."""
        return (
            self._writing is None
            and not self._queued
            and not self._is_write_due
            and all(found.state is not ACQUIRED and found.state is not ARCHIVING for found in self.ranges)
        )

    @property
    def acquired_count(self) -> int:
        """The number of records that members have. Any thread may ask for it."""
        return sum(len(found) for found in self.ranges.snapshot() if found.state is ACQUIRED)

    def is_at_limit(self, limits: DeliveryLimits) -> bool:
        """Returns whether no new record may be acquired until others end. Any thread may ask for it."""
        return self._room(limits) <= 0

    def next_deadline_ms(self) -> MonotonicMs | None:
        """Returns when to call `expire`: a time that is not after the end of the next lock or wait. Returns
        None if there is none.
        """
        return self._wake_at_ms

    def acquire(
        self, wanted: Wanted, batches: Iterable[LogBatch], now_ms: MonotonicMs, limits: DeliveryLimits
    ) -> list[AcquiredRange]:
        """Gives a member records of `batches`, which begin with the one of `next_fetch_offset`.

        Takes no more batches than it needs, and stops behind the first ones of which it acquires. Offsets
        without a deliverable record are archived.
        """
        ranges = self.ranges
        deadline_ms = MonotonicMs(now_ms + limits.lock_duration_ms)
        acquired: list[AcquiredRange] = []
        probes = self._allowed_probes(limits)
        if probes is not None:
            most = min(probes, wanted.max_records)
            wanted = wanted._replace(max_records=most, mode=AcquireMode.RECORD_LIMIT)
        left, is_screened = wanted.max_records, self._screening is not None
        cursor = ranges.first_available()
        begin = cursor
        for batch in batches:
            if left <= 0 or (batch.first >= ranges.end and (is_screened or self._room(limits) <= 0)):
                break
            first = max(batch.first, ranges.start)
            begin = min(begin, first)
            self._archive(cursor, first - 1)
            cursor = max(batch.last + 1, cursor)
            if not batch.is_deliverable:
                self._archive(first, batch.last)
                continue
            most = left if wanted.mode is AcquireMode.RECORD_LIMIT else batch.last - first + 1
            taken = self._take(first, batch.last, most, wanted, deadline_ms, limits)
            if not taken and acquired:
                break
            left -= sum(found.last - found.first + 1 for found in taken)
            _add_acquired(acquired, taken, wanted.batch_size)
        if cursor > begin:
            ranges.join(begin, cursor - 1)
        ranges.drop_final()
        self._release_held_back()
        return acquired

    def _room(self, limits: DeliveryLimits) -> int:
        """Returns how many records may enter the window."""
        ranges = self.ranges
        if len(ranges) >= MAX_RANGES_TO_GROW or ranges.waiting_count >= MAX_WAITING:
            return 0
        return limits.records_in_flight - (ranges.unfinished_count - ranges.waiting_count)

    def _archive(self, first: int, last: int) -> None:
        """Archives the offsets that nobody has acquired. The log shows that they have no record, so a later
        leader finds that out by itself.
        """
        ranges = self.ranges
        if first > last:
            return
        for found in ranges.within(first, last):
            if found.state in (AVAILABLE, WAITING):
                ranges.set_state(found, ARCHIVED)
        if last >= ranges.end and self._screening is None:
            ranges.append(RecordRange(ranges.end, last, ARCHIVED))

    def _take(
        self,
        first: int,
        last: int,
        most: int,
        wanted: Wanted,
        deadline_ms: MonotonicMs,
        limits: DeliveryLimits,
    ) -> list[AcquiredRange]:
        ranges, taken = self.ranges, list[AcquiredRange]()
        for found in ranges.within(first, last):
            if found.state is not AVAILABLE:
                continue
            if found.delivery_count >= limits.delivery_count:  # the limit is lower than it was
                self._finish_undelivered(found, limits)
                continue
            if most <= 0:
                break
            if len(found) > most:
                (found,) = ranges.within(found.first, found.first + most - 1)
            self._lock(found, wanted.member, deadline_ms)
            self.counts.redelivered += len(found) if found.delivery_count > 1 else 0
            most -= len(found)
            taken.append(AcquiredRange(found.first, found.last, found.delivery_count))
        room = self._room(limits) if self._screening is None else 0
        if wanted.mode is AcquireMode.RECORD_LIMIT:
            most = min(most, room)
        new_last = min(last, ranges.end + most - 1)
        if most > 0 and new_last >= ranges.end and room > 0:
            added = RecordRange(ranges.end, new_last, ACQUIRED, 1, wanted.member, deadline_ms)
            ranges.append(added)
            self._wake_at(deadline_ms)
            taken.append(AcquiredRange(added.first, added.last, 1))
        return taken

    def _lock(self, found: RecordRange, member: str, deadline_ms: MonotonicMs) -> None:
        self.ranges.set_state(found, ACQUIRED)
        found.member, found.deadline_ms = member, deadline_ms
        found.delivery_count += 1
        self._wake_at(deadline_ms)

    @property
    def wants_facts_from(self) -> int | None:
        """The offset from which the shell should look at records and then call `screen`. None if it need not,
        because the group needs no facts, or because records are available.
        """
        screening = self._screening
        if screening is None or screening.staged or self.ranges.first_available() < self.ranges.end:
            return None
        return max(screening.known_to, self.ranges.start)

    def screen(
        self, upcoming: Iterable[Upcoming], known_to: int, now_ms: MonotonicMs, limits: DeliveryLimits
    ) -> None:
        """Adds records that were looked at: all up to `known_to`. Those that fit enter the window."""
        assert self._screening is not None
        self._screening.stage(upcoming, known_to)
        self.let_in(now_ms, limits)

    def let_in(self, now_ms: MonotonicMs, limits: DeliveryLimits) -> None:
        """Lets staged records into the window if there is room. Without staged records, it does nothing."""
        screening, ranges = self._screening, self.ranges
        if screening is None or (begin := screening.screened_to) == screening.known_to:
            return
        staged = screening.staged
        while staged:
            upcoming = staged[0]
            first = max(upcoming.first, screening.screened_to, ranges.start)
            last = upcoming.last
            if first <= last:
                if first >= ranges.end:
                    room = self._room(limits)
                    if room <= 0:
                        break
                    last = min(last, first + room - 1)
                else:
                    last = min(last, ranges.end - 1)
                self._pass_gap(first)
                if last >= ranges.end:
                    added = RecordRange(first, last)
                    ranges.append(added)
                    self._screen_range(added, upcoming, now_ms)
                else:
                    for found in ranges.within(first, last):
                        self._screen_range(found, upcoming, now_ms)
                screening.screened_to = last + 1
            if last == upcoming.last:
                staged.popleft()
        if not staged:
            self._pass_gap(screening.known_to)
        ranges.join(begin, screening.screened_to)
        ranges.drop_final()
        self._release_held_back()

    def _pass_gap(self, offset: int) -> None:
        """Archives the offsets before `offset` that were not looked at, because they have no record."""
        screening, ranges = self._screening, self.ranges
        assert screening is not None
        if screening.screened_to < min(offset, ranges.end):
            self._archive(screening.screened_to, min(offset, ranges.end) - 1)
        if ranges.end < offset:
            ranges.append(RecordRange(ranges.end, offset - 1, ARCHIVED))
        screening.screened_to = max(screening.screened_to, offset)

    def _screen_range(self, found: RecordRange, upcoming: Upcoming, now_ms: MonotonicMs) -> None:
        if found.state not in (WAITING, AVAILABLE):
            return
        # A record that was delivered before waits for its retry, or no more.
        at_ms = found.available_at_ms if found.delivery_count else upcoming.available_at_ms
        self._make_available(found, at_ms if at_ms > now_ms else NO_DEADLINE)
        screening = self._screening
        assert screening is not None
        if screening.order is not None and upcoming.key is not None:
            screening.order.add(found.first, upcoming.key)
            if found.state is AVAILABLE and not screening.order.is_first(found.first):
                self.ranges.set_state(found, WAITING)

    def _release_held_back(self) -> None:
        """Makes the records available that waited only for an earlier one of their key."""
        ranges = self.ranges
        if not ranges.ended:
            return
        ended, ranges.ended = ranges.ended, []
        screening = self._screening
        assert screening is not None
        assert screening.order is not None
        # A record that ended together with the one before it may have left the window already.
        finish, start = screening.order.finish, ranges.start
        offsets = [offset for span in ended for offset in finish(*span) if offset >= start]
        for offset in offsets:
            found = self._record_at(offset)
            if found.state is WAITING and found.available_at_ms == NO_DEADLINE:
                ranges.set_state(found, AVAILABLE)
        if offsets:
            ranges.join(min(offsets), max(offsets))

    def acknowledge(
        self,
        member: str,
        batches: Sequence[AcknowledgedBatch],
        now_ms: MonotonicMs,
        limits: DeliveryLimits,
    ) -> Acknowledgement | None:
        """Takes a member's acknowledgement, which counts when the write with it has succeeded. Returns None
        if there is nothing to write.

        Raises KafkaError INVALID_RECORD_STATE if the member has not acquired one of the records, and
        INVALID_REQUEST if there would be too many ranges, and changes nothing then. Offsets that have left
        the log, or the stored state of the group, are ignored.
        """
        runs = list(islice((run for batch in batches for run in _runs(batch)), MAX_RANGES + 1))
        if len(self.ranges) + len(runs) > MAX_RANGES:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"the acknowledgement would divide the records into more than {MAX_RANGES} ranges",
            )
        for batch in batches:
            self._check_acquired(member, batch.first, batch.last)
        acknowledgement = Acknowledgement()
        for first, last, kind in runs:
            found_ranges = self.ranges.within(first, last)
            for found in found_ranges:
                if kind == AcknowledgeType.RENEW:
                    found.deadline_ms = MonotonicMs(now_ms + limits.lock_duration_ms)
                else:
                    found.change, found.target = acknowledgement, _target(kind, found, limits)
                    delay_ms = limits.retry.delay_ms(found.delivery_count)
                    if found.target is AVAILABLE and delay_ms:
                        found.target, found.available_at_ms = WAITING, MonotonicMs(now_ms + delay_ms)
                    found.is_rejected = kind == AcknowledgeType.REJECT
            if found_ranges and kind != AcknowledgeType.RENEW:
                acknowledgement.add(found_ranges[0].first, found_ranges[-1].last, kind)
        self.ranges.join_each([(batch.first, batch.last) for batch in batches])
        if not acknowledgement.spans:
            return None
        self._queued.append(acknowledgement)
        self._is_write_due = True
        return acknowledgement

    def _deliveries_ended(
        self, successes: int, failures: int, now_ms: MonotonicMs, limits: DeliveryLimits
    ) -> None:
        if self.breaker.ended(successes, failures, now_ms, limits.breaker):
            self._is_write_due = True
            if self.breaker.state is BreakerState.OPEN:
                self._wake_at(self.breaker.paused_until_ms)

    def _check_acquired(self, member: str, first: int, last: int) -> None:
        if last < self._settled_offset:
            return
        if last >= self.ranges.end:
            raise KafkaError(
                ErrorCode.INVALID_RECORD_STATE, f"offset {last} has not been delivered to the group"
            )
        first = max(first, self._settled_offset)
        if first < self.ranges.start:  # if this is never stored, a later leader delivers the records again
            raise KafkaError(
                ErrorCode.INVALID_RECORD_STATE, f"the lock of record {first} and its deliveries have ended"
            )
        for found in self.ranges.overlapping(first, last):
            if found.state is not ACQUIRED or found.member != member or found.change is not None:
                raise KafkaError(
                    ErrorCode.INVALID_RECORD_STATE,
                    f"the member has no lock of the records {found.first} to {found.last}",
                )

    def release_member(self, member: str, now_ms: MonotonicMs, limits: DeliveryLimits) -> bool:
        """Returns the records of a member whose session ends. Their delivery counts, so a record that ends
        its consumers reaches the limit. Returns whether there were any.
        """
        released = [found for found in self.ranges if found.state is ACQUIRED and found.member == member]
        for found in released:
            if found.change is not None:
                found.deadline_ms = MonotonicMs(0)  # if the write fails, the records come back at once
            else:
                self.counts.abandoned += len(found)
                self._return(found, now_ms, limits)
        if released:
            self._settle(released[0].first, released[-1].last)
        return bool(released)

    def expire(self, now_ms: MonotonicMs, limits: DeliveryLimits) -> bool:
        """Ends the locks, waits and pauses that are over at `now_ms`. Returns whether there were any.

        Records whose locks have ended can be delivered again, or are archived at the limit of deliveries.
        """
        self._wake_at_ms = None
        is_resumed = self.breaker.tick(now_ms, limits.breaker)
        if self.breaker.state is BreakerState.OPEN:
            self._wake_at(self.breaker.paused_until_ms)
        elif is_resumed and self.breaker.state is BreakerState.CLOSED:
            self._is_write_due = True
        expired = self._expired(now_ms)
        last = expired[-1].last if expired else 0
        failures = 0
        for found in expired:
            if found.state is ACQUIRED:
                self.counts.expired += len(found)
                failures += len(found)
                self._return(found, now_ms, limits)
            else:
                self._end_wait(found)
        if expired:
            self._settle(expired[0].first, last)
            self._deliveries_ended(0, failures, now_ms, limits)
            self.let_in(now_ms, limits)
        return bool(expired) or is_resumed

    def _expired(self, now_ms: MonotonicMs) -> list[RecordRange]:
        """Returns the ranges to end now, and notes when the others end."""
        has_order = self._screening is not None and self._screening.order is not None
        expired: list[RecordRange] = []
        left = MAX_ENDED
        for found in self.ranges:
            end_ms = _end_of_state(found)
            if end_ms is None:
                continue
            if end_ms > now_ms or left <= 0:
                self._wake_at(end_ms)
                continue
            expired.append(found)
            left -= len(found) if has_order and found.state is WAITING else 1
        if left < 0:  # the last one has too many records
            found = expired[-1]
            self._wake_at(found.available_at_ms)
            self.ranges.within(found.first, found.last + left)
        return expired

    def _end_wait(self, found: RecordRange) -> None:
        """Makes records available. Those that nobody has looked at wait for that."""
        screening = self._screening
        if screening is None:
            self.ranges.set_state(found, AVAILABLE)
            return
        found.available_at_ms = NO_DEADLINE
        last = min(found.last, screening.screened_to - 1)
        order = screening.order
        if order is None:
            whole = [found] if last == found.last else self.ranges.within(found.first, last)
            for part in whole:
                self.ranges.set_state(part, AVAILABLE)
            return
        for offset in range(found.first, last + 1):
            if order.is_first(offset):
                self.ranges.set_state(self._record_at(offset), AVAILABLE)

    def _record_at(self, offset: int) -> RecordRange:
        """Returns the range of one record."""
        found = self.ranges.overlapping(offset, offset)
        return found[0] if len(found[0]) == 1 else self.ranges.within(offset, offset)[0]

    def _wake_at(self, end_ms: MonotonicMs) -> None:
        if self._wake_at_ms is None or end_ms < self._wake_at_ms:
            self._wake_at_ms = end_ms

    def _make_available(self, found: RecordRange, at_ms: MonotonicMs) -> None:
        """Makes records available, at `at_ms` unless that is NO_DEADLINE."""
        if at_ms == NO_DEADLINE:
            self.ranges.set_state(found, AVAILABLE)
            return
        self.ranges.set_state(found, WAITING)
        found.available_at_ms = at_ms
        self._wake_at(at_ms)

    def log_start_moved(self, log_start_offset: int) -> None:
        """Forgets the records that have left the log. Acknowledgements of them are ignored."""
        self._settled_offset = max(self._settled_offset, log_start_offset)
        self.ranges.drop_below(log_start_offset)
        self.ranges.drop_final()
        self._release_held_back()

    def _return(self, found: RecordRange, now_ms: MonotonicMs, limits: DeliveryLimits) -> None:
        if found.delivery_count >= limits.delivery_count:
            self.ranges.set_state(found, _given_up(limits))
        else:
            delay_ms = limits.retry.delay_ms(found.delivery_count)
            self._make_available(found, MonotonicMs(now_ms + delay_ms) if delay_ms else NO_DEADLINE)
        self._note_unwritten(found.first, found.last)

    def _finish_undelivered(self, found: RecordRange, limits: DeliveryLimits) -> None:
        self.ranges.set_state(found, _given_up(limits))
        self._note_unwritten(found.first, found.last)

    def _note_unwritten(self, first: int, last: int) -> None:
        self._unwritten.append((first, last))
        self._is_write_due = True

    def _settle(self, first: int, last: int) -> None:
        """Joins ranges again after changes from `first` to `last`, and lets go of what has ended."""
        self.ranges.join(first, last)
        self.ranges.drop_final()
        self._release_held_back()

    @property
    def archiving_count(self) -> int:
        """The number of records that wait for their copy to the dead letter topic. Any thread may ask."""
        return sum(len(found) for found in self.ranges.snapshot() if found.state is ARCHIVING)

    def dead_letters(self) -> Iterator[DeadLetters]:
        """Yields the records to copy to the dead letter topic, in order: those whose state is stored. The
        core must not change meanwhile.
        """
        unstored = list(_merged([*self._unwritten, *self._in_write], self.ranges.start))
        at = 0
        for found in self.ranges:
            if found.state is not ARCHIVING:
                continue
            first = found.first
            while at < len(unstored) and unstored[at][0] <= found.last:
                begin, end = unstored[at]
                if first < begin:
                    yield DeadLetters(first, begin - 1, found.delivery_count, found.is_rejected)
                first = max(first, end + 1)
                if first > found.last:
                    break  # the span may go on in the next range
                at += 1
            if first <= found.last:
                yield DeadLetters(first, found.last, found.delivery_count, found.is_rejected)

    def dead_letters_copied(self, first: int, last: int) -> int:
        """Archives records that are in the dead letter topic, or that need not be there. If the next write is
        lost, a later leader copies them again. Returns the number of records that it archived.
        """
        copied = [found for found in self.ranges.within(first, last) if found.state is ARCHIVING]
        for found in copied:
            self.ranges.set_state(found, ARCHIVED)
            self._note_unwritten(found.first, found.last)
        count = sum(map(len, copied))
        self._settle(first, last)  # also where nothing is archived, `within` has divided ranges
        return count

    def next_write(self) -> StateWrite | None:
        """Begins and returns the next write. Returns None if there is nothing to write, or if a write is in
        progress.
        """
        if self._writing is not None or not self._is_write_due:
            return None
        spans = self._unwritten + [span for queued in self._queued for span in queued.spans]
        self._in_write, self._unwritten = list(_merged(self._unwritten, self.ranges.start)), []
        start = next(
            (found.first for found in self.ranges if not found.coming_state.is_final), self.ranges.end
        )
        after = (found for found in self.ranges if found.first >= start)
        complete = sum(len(found) for found in after if found.coming_state.is_final)
        write = StateWrite(
            self.state_epoch,
            self.leader_epoch,
            start,
            complete,
            [state for first, last in _merged(spans, start) for state in self._stored(first, last)],
            self._queued,
            self.breaker.paused_until_ms,
        )
        self._writing, self._queued = write, []
        self._is_write_due = False
        return write

    def _stored(self, first: int, last: int) -> Iterator[StateRange]:
        for found in self.ranges.overlapping(first, last):
            state, count, at_ms = found.coming_state, found.delivery_count, found.available_at_ms
            if state is ACQUIRED:  # an acquisition is not stored; a later leader delivers the records again
                state, count = AVAILABLE, count - 1
            elif state is WAITING:
                state = AVAILABLE
            yield StateRange(max(found.first, first), min(found.last, last), state, count, at_ms)

    def write_succeeded(self, now_ms: MonotonicMs, limits: DeliveryLimits) -> list[Acknowledgement]:
        """Makes the acknowledgements of the write count, also in the circuit breaker. Returns them."""
        write = self._ended()
        self._stored_pause_ms = write.paused_until_ms
        self._settled_offset = max(self._settled_offset, write.start_offset)
        self._in_write = []
        for found in self._changed_by(write):
            if found.target is WAITING:
                self._make_available(found, found.available_at_ms)
            else:
                self.ranges.set_state(found, found.target)
        successes = failures = 0
        for acknowledgement in write.acknowledgements:
            counts = acknowledgement.counts
            self.counts.acknowledged(counts)
            successes += counts.get(AcknowledgeType.ACCEPT, 0)
            failures += counts.get(AcknowledgeType.RELEASE, 0) + counts.get(AcknowledgeType.REJECT, 0)
        self._deliveries_ended(successes, failures, now_ms, limits)
        self._joined(write)
        return write.acknowledgements

    def write_failed(self) -> list[Acknowledgement]:
        """Undoes the acknowledgements of a write that was not stored. Their records stay with their members
        until the locks end. Returns the acknowledgements.
        """
        write = self._ended()
        for found in self._changed_by(write):
            found.change, found.target, found.is_rejected = None, found.state, False
            found.available_at_ms = NO_DEADLINE
            self._wake_at(found.deadline_ms)
        self._unwritten = [*self._in_write, *self._unwritten]
        self._in_write = []
        is_pause_unknown = self.breaker.paused_until_ms != self._stored_pause_ms
        self._is_write_due = bool(self._unwritten or self._queued or is_pause_unknown)
        self._joined(write)
        return write.acknowledgements

    def _ended(self) -> StateWrite:
        write, self._writing = self._writing, None
        assert write is not None, "no write is in progress"
        return write

    def _changed_by(self, write: StateWrite) -> list[RecordRange]:
        return [
            found
            for acknowledgement in write.acknowledgements
            for first, last in acknowledgement.spans
            for found in self.ranges.overlapping(first, last)
            if found.change is acknowledgement
        ]

    def _joined(self, write: StateWrite) -> None:
        for acknowledgement in write.acknowledgements:
            self.ranges.join_each(acknowledgement.spans)
        self.ranges.drop_final()
        self._release_held_back()


def _runs(batch: AcknowledgedBatch) -> Iterator[tuple[int, int, int]]:
    """Yields (first offset, last offset, type) of the adjacent offsets with the same type."""
    types = batch.types
    if len(types) == 1:
        yield batch.first, batch.last, types[0]
        return
    begin = 0
    for at in range(1, len(types) + 1):
        if at == len(types) or types[at] != types[begin]:
            yield batch.first + begin, batch.first + at - 1, types[begin]
            begin = at


def _end_of_state(found: RecordRange) -> MonotonicMs | None:
    """Returns when the lock or the wait of records ends. Returns None if neither ends by itself."""
    if found.state is ACQUIRED and found.change is None:
        return found.deadline_ms
    return found.available_at_ms or None if found.state is WAITING else None


def _target(kind: int, found: RecordRange, limits: DeliveryLimits) -> DeliveryState:
    if kind == AcknowledgeType.ACCEPT:
        return ACKNOWLEDGED
    if kind == AcknowledgeType.RELEASE and found.delivery_count < limits.delivery_count:
        return AVAILABLE
    return ARCHIVED if kind == AcknowledgeType.GAP else _given_up(limits)


def _given_up(limits: DeliveryLimits) -> DeliveryState:
    """Returns the state of records that are not delivered again."""
    return ARCHIVING if limits.has_dead_letters else ARCHIVED


def _add_acquired(acquired: list[AcquiredRange], taken: list[AcquiredRange], batch_size: int) -> None:
    for found in taken:
        last = acquired[-1] if acquired else None
        if (
            last is not None
            and last.last + 1 == found.first
            and last.delivery_count == found.delivery_count
            and last.last - last.first + 1 < batch_size
        ):
            acquired[-1] = last._replace(last=found.last)
        else:
            acquired.append(found)


def _merged(spans: Iterable[tuple[int, int]], start: int) -> Iterator[tuple[int, int]]:
    """Yields the spans from `start` on in order, with overlapping and adjacent ones as one."""
    begin, end = None, start - 1
    for first, last in sorted(spans):
        if last < start:
            continue
        if begin is None:
            begin, end = max(first, start), last
        elif first <= end + 1:
            end = max(end, last)
        else:
            yield begin, end
            begin, end = first, last
    if begin is not None:
        yield begin, end
