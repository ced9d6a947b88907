"""The checker finds the anomalies in a history. It is pure: it uses no clock and no network.

`chaoslab.spark_checker` finds the same anomalies of records, readers and share groups in histories of any
size. Their kinds and texts are in `chaoslab.verdict`. `chaoslab.transaction_checks` adds those of
transactions.
"""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from chaoslab import share_checks, transaction_checks
from chaoslab import verdict as words
from chaoslab.history import ABORTED, ACKNOWLEDGED, COMMITTED, NO_PLACE, UNKNOWN, History, Poll, Send
from chaoslab.verdict import (
    ABORTED_READ,
    DUPLICATE,
    GARBAGE_READ,
    INCONSISTENT_OFFSETS,
    LOST_WRITE,
    NONMONOTONIC_POLL,
    NONMONOTONIC_SEND,
    POLL_SKIP,
    STALE_COMMIT,
    TORN_TRANSACTION,
    UNSEEN,
    Anomaly,
    Verdict,
    seconds_and_ms,
)
from chaoslab.verdict import KINDS as RECORD_KINDS

__all__ = [
    "ABORTED_READ",
    "DUPLICATE",
    "GARBAGE_READ",
    "INCONSISTENT_OFFSETS",
    "KINDS",
    "LOST_WRITE",
    "NONMONOTONIC_POLL",
    "NONMONOTONIC_SEND",
    "POLL_SKIP",
    "RECORD_KINDS",
    "STALE_COMMIT",
    "TORN_TRANSACTION",
    "UNSEEN",
    "Anomaly",
    "Verdict",
    "is_promised",
    "judge",
    "judge_records",
    "permitted",
]
permitted = transaction_checks.permitted
KINDS = RECORD_KINDS + transaction_checks.TRANSACTION_KINDS
Log = tuple[str, int]
Name = tuple[str, str, int]
"""Identifies a record: topic, key, number."""


class _Stands:
    """The result of the final reading: the order with which all other entries are compared."""

    def __init__(self, final: Iterable[Poll]) -> None:
        self.places: dict[Log, dict[int, Poll]] = defaultdict(dict)
        self.by_name: dict[Name, list[Poll]] = defaultdict(list)
        for poll in final:
            self.places[poll.topic, poll.partition][poll.offset] = poll
            self.by_name[_name(poll)].append(poll)
        self.offsets = {log: sorted(places) for log, places in self.places.items()}

    def at(self, topic: str, partition: int, offset: int) -> Poll | None:
        return self.places.get((topic, partition), {}).get(offset)

    def first_between(self, topic: str, partition: int, first: int, end: int) -> int | None:
        """Returns the first record at an offset in [first, end)."""
        offsets = self.offsets.get((topic, partition), [])
        index = bisect.bisect_left(offsets, first)
        return offsets[index] if index < len(offsets) and offsets[index] < end else None


def _name(entry: Send | Poll) -> Name:
    return (entry.topic, entry.key, entry.number)


def judge(history: History) -> Verdict:
    """Returns all anomalies of a run. `permitted` returns what Kafka's transactions permit."""
    found = judge_records(history)
    return Verdict((*found.anomalies, *transaction_checks.faults(history)), found.counts)


def judge_records(history: History) -> Verdict:
    """Returns the anomalies that `chaoslab.spark_checker` finds, too."""
    stands = _Stands(history.final)
    anomalies = [
        *_lost_writes(history, stands),
        *_lost_from_copies(history, stands),
        *_duplicates(stands),
        *_inconsistent_offsets(history, stands),
        *_aborted_reads(history),
        *_torn_transactions(history, stands),
        *_nonmonotonic_sends(stands),
        *_passes(history, stands),
        *_unseen(history, stands),
        *_stale_commits(history),
        *_garbage(history),
        *share_checks.faults(history),
    ]
    outcomes = history.outcomes()
    counts = {
        "sends": len(history.sends),
        "acknowledged": sum(1 for send in history.sends if is_promised(send, outcomes)),
        "transactions": len(history.transactions),
        "polls": len(history.polls),
        "commits": len(history.commits),
        "deliveries": len(history.deliveries),
        "final": len(history.final),
    }
    return Verdict(tuple(anomalies), counts)


def is_promised(send: Send, outcomes: Mapping[str, str]) -> bool:
    """Returns True if the producer was told that the record is stored."""
    if send.transaction:
        return outcomes.get(send.transaction) == COMMITTED
    return send.outcome == ACKNOWLEDGED


def _lost_writes(history: History, stands: _Stands) -> Iterator[Anomaly]:
    outcomes = history.outcomes()
    for send in history.sends:
        if is_promised(send, outcomes) and _name(send) not in stands.by_name:
            detail = words.ACKNOWLEDGED_AND_GONE % (send.key, send.number, send.process)
            yield Anomaly(LOST_WRITE, send.topic, send.partition, send.offset, detail)
    for poll in history.polls:
        if poll.is_intact and _name(poll) not in stands.by_name:
            detail = words.SHOWN_AND_GONE % (poll.key, poll.number, poll.reader)
            yield Anomaly(LOST_WRITE, poll.topic, poll.partition, poll.offset, detail)


def _lost_from_copies(history: History, stands: _Stands) -> Iterator[Anomaly]:
    """Finds records that copies lack below the last copied record. Later records are not lost, because the
    copier may be slow.
    """
    ends: dict[Log, int] = {}
    for poll in history.final:
        copy = history.copies.get(poll.topic)
        if copy is not None and (copy, poll.key, poll.number) in stands.by_name:
            log = (poll.topic, poll.partition)
            ends[log] = max(ends.get(log, 0), poll.offset)
    for poll in history.final:
        copy = history.copies.get(poll.topic)
        if copy is None or poll.offset > ends.get((poll.topic, poll.partition), -1):
            continue
        if (copy, poll.key, poll.number) not in stands.by_name:
            detail = words.NOT_IN_ITS_COPY % (poll.key, poll.number, poll.topic, poll.offset)
            yield Anomaly(LOST_WRITE, copy, poll.partition, NO_PLACE, detail)


def _duplicates(stands: _Stands) -> Iterator[Anomaly]:
    for (_, key, number), found in stands.by_name.items():
        for extra in found[1:]:
            detail = words.ALSO_ELSEWHERE % (key, number, found[0].partition, found[0].offset)
            yield Anomaly(DUPLICATE, extra.topic, extra.partition, extra.offset, detail)


def _inconsistent_offsets(history: History, stands: _Stands) -> Iterator[Anomaly]:
    held: dict[tuple[str, int, int], dict[tuple[str, int], str]] = defaultdict(dict)
    for poll in (*history.polls, *history.final):
        at = (poll.topic, poll.partition, poll.offset)
        held[at].setdefault((poll.key, poll.number), words.SHOWN_THERE % (poll.key, poll.number, poll.reader))
    for send in history.sends:
        if send.outcome == ACKNOWLEDGED and send.offset != NO_PLACE:
            at = (send.topic, send.partition, send.offset)
            held[at].setdefault(
                (send.key, send.number), words.ACKNOWLEDGED_THERE % (send.key, send.number, send.process)
            )
            found = stands.by_name.get(_name(send), [])
            if found and all((f.partition, f.offset) != (send.partition, send.offset) for f in found):
                detail = words.ACKNOWLEDGED_ELSEWHERE % (send.key, send.number, found[0].offset)
                yield Anomaly(INCONSISTENT_OFFSETS, *at, detail)
    for at, records in held.items():
        if len(records) > 1:
            yield Anomaly(INCONSISTENT_OFFSETS, *at, ", ".join(records.values()))


def _aborted_reads(history: History) -> Iterator[Anomaly]:
    outcomes = history.outcomes()
    aborted = {
        _name(send): send.transaction
        for send in history.sends
        if send.transaction and outcomes.get(send.transaction) == ABORTED
    }
    for send in history.sends:  # after an abort, a copier sends a record again
        if send.transaction and outcomes.get(send.transaction) != ABORTED:
            aborted.pop(_name(send), None)
    for poll in (*history.polls, *history.final):
        if (transaction := aborted.get(_name(poll))) is not None:
            detail = words.SHOWN_THOUGH_ABORTED % (poll.key, poll.number, transaction, poll.reader)
            yield Anomaly(ABORTED_READ, poll.topic, poll.partition, poll.offset, detail)


def _torn_transactions(history: History, stands: _Stands) -> Iterator[Anomaly]:
    outcomes = history.outcomes()
    tries = Counter(_name(send) for send in history.sends if send.transaction)
    parts: dict[str, list[Send]] = defaultdict(list)
    for send in history.sends:
        # For a record that a copier sent in several transactions, it is unknown which of them is visible.
        if (
            send.transaction
            and outcomes.get(send.transaction, UNKNOWN) == UNKNOWN
            and tries[_name(send)] == 1
        ):
            parts[send.transaction].append(send)
    for transaction, sends in parts.items():
        missing = [send for send in sends if _name(send) not in stands.by_name]
        if missing and len(missing) < len(sends):
            first = missing[0]
            detail = words.PARTLY_VISIBLE % (len(sends) - len(missing), len(sends), transaction)
            yield Anomaly(TORN_TRANSACTION, first.topic, first.partition, first.offset, detail)


def _nonmonotonic_sends(stands: _Stands) -> Iterator[Anomaly]:
    """Finds sends out of order. In the order of offsets, the numbers of a key only grow. A repeated number is
    a duplicate and does not count here.
    """
    for (topic, partition), places in stands.places.items():
        greatest: dict[str, int] = {}
        seen: set[tuple[str, int]] = set()
        for offset in stands.offsets[topic, partition]:
            poll = places[offset]
            if not poll.is_intact or (poll.key, poll.number) in seen:
                continue
            seen.add((poll.key, poll.number))
            before = greatest.get(poll.key, -1)
            if poll.number < before:
                detail = words.STANDS_AFTER % (poll.key, poll.number, before)
                yield Anomaly(NONMONOTONIC_SEND, topic, partition, offset, detail)
            greatest[poll.key] = max(before, poll.number)


def _passes(history: History, stands: _Stands) -> Iterator[Anomaly]:
    """Checks that each reader, within each of its assignments, never moves backwards and skips no record."""
    last: dict[tuple[str, int, str, int], int] = {
        (position.reader, position.assignment, position.topic, position.partition): max(position.offset, 0)
        - 1
        for position in history.positions
    }
    for poll in (*history.polls, *history.final):
        where = (poll.reader, poll.assignment, poll.topic, poll.partition)
        before = last.get(where)
        if before is not None:
            if poll.offset <= before:
                detail = words.HAD_BEEN_AT % (poll.reader, before)
                yield Anomaly(NONMONOTONIC_POLL, poll.topic, poll.partition, poll.offset, detail)
            skipped = stands.first_between(poll.topic, poll.partition, before + 1, poll.offset)
            if skipped is not None:
                detail = words.PASSED_OVER % (poll.reader, before, poll.offset)
                yield Anomaly(POLL_SKIP, poll.topic, poll.partition, skipped, detail)
        last[where] = poll.offset


def _unseen(history: History, stands: _Stands) -> Iterator[Anomaly]:
    shown: dict[str, set[tuple[str, int, int]]] = defaultdict(set)
    for poll in history.polls:
        shown[poll.group].add((poll.topic, poll.partition, poll.offset))
    for group, topics in history.audience.items():
        for (topic, partition), offsets in stands.offsets.items():
            if topic not in topics:
                continue
            for offset in offsets:
                if (topic, partition, offset) not in shown[group]:
                    yield Anomaly(UNSEEN, topic, partition, offset, words.NEVER_SHOWN % group)


def _stale_commits(history: History) -> Iterator[Anomaly]:
    """Finds old positions. Only a partition's owner commits, and never backwards, so a later answer must be
    at least the commit.
    """
    acknowledged: dict[tuple[str, str, int], list[tuple[float, int]]] = defaultdict(list)
    for commit in sorted(history.commits, key=lambda commit: commit.ended_at_s):
        if commit.outcome != ACKNOWLEDGED:
            continue
        before = acknowledged[commit.group, commit.topic, commit.partition]
        greatest = max(commit.offset, before[-1][1] if before else commit.offset)
        before.append((commit.ended_at_s, greatest))
    for position in history.positions:
        commits = acknowledged[position.group, position.topic, position.partition]
        index = bisect.bisect_left(commits, (position.began_at_s, -1)) - 1
        if index >= 0 and position.offset < commits[index][1]:
            at_s, offset = commits[index]
            detail = words.TOLD_AN_OLDER_ONE % (
                position.reader,
                position.offset,
                *seconds_and_ms(position.began_at_s),
                offset,
                *seconds_and_ms(at_s),
            )
            yield Anomaly(STALE_COMMIT, position.topic, position.partition, position.offset, detail)


def _garbage(history: History) -> Iterator[Anomaly]:
    known = {_name(send) for send in history.sends}
    for poll in (*history.polls, *history.final):
        if not poll.is_intact:
            detail = words.ANOTHER_VALUE % (poll.key, poll.reader)
            yield Anomaly(GARBAGE_READ, poll.topic, poll.partition, poll.offset, detail)
        elif _name(poll) not in known:
            detail = words.NEVER_SENT % (poll.key, poll.number, poll.reader)
            yield Anomaly(GARBAGE_READ, poll.topic, poll.partition, poll.offset, detail)
