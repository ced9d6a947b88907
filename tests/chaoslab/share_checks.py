"""The anomalies of share groups in a history. It is pure: it uses no clock and no network.

Kafka promises that a record whose acknowledgement is stored never comes again, and that a record that nobody
accepted or rejected comes again until it reaches the limit of deliveries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from chaoslab import verdict as words
from chaoslab.history import ACKNOWLEDGED, BUFFERED_S, DELIVERY_LIMIT, RELEASED, Delivery, History, Poll
from chaoslab.verdict import (
    GARBAGE_READ,
    INCONSISTENT_OFFSETS,
    LOST_WRITE,
    SHARE_KINDS,
    SHARE_REDELIVERY,
    SHARE_UNFINISHED,
    Anomaly,
)

__all__ = ["BUFFERED_S", "DELIVERY_LIMIT", "SHARE_KINDS", "SHARE_REDELIVERY", "SHARE_UNFINISHED", "faults"]
Place = tuple[str, str, int, int]
"""The group, the topic, the partition and the offset."""


def faults(history: History) -> list[Anomaly]:
    """Returns the anomalies that a cluster must never cause."""
    by_place: dict[Place, list[Delivery]] = defaultdict(list)
    for found in history.deliveries:
        by_place[found.group, found.topic, found.partition, found.offset].append(found)
    return [
        *_redeliveries(by_place),
        *_unfinished(history, by_place),
        *_other_records(history),
    ]


def _redeliveries(by_place: dict[Place, list[Delivery]]) -> Iterator[Anomaly]:
    """Finds records that were delivered although an earlier acceptance or rejection was stored."""
    for (group, topic, partition, offset), deliveries in by_place.items():
        stored = [found for found in deliveries if found.outcome == ACKNOWLEDGED and found.answer != RELEASED]
        if not stored:
            continue
        first = min(stored, key=lambda found: found.settled_at_s)
        for found in deliveries:
            if found.delivered_at_s > first.settled_at_s + BUFFERED_S:
                detail = words.GOT_WHAT_WAS_DONE % (found.member, first.member, group, first.answer)
                yield Anomaly(SHARE_REDELIVERY, topic, partition, offset, detail)


def _unfinished(history: History, by_place: dict[Place, list[Delivery]]) -> Iterator[Anomaly]:
    """Finds records that no member accepted or rejected, and that the group did not give up. An
    acknowledgement without an answer may be stored.
    """
    for group, topics in history.shared.items():
        for poll in history.final:
            if poll.topic not in topics:
                continue
            deliveries = by_place.get((group, poll.topic, poll.partition, poll.offset), [])
            if any(
                found.answer != RELEASED or found.delivery_count >= DELIVERY_LIMIT for found in deliveries
            ):
                continue
            detail = words.NEVER_FINISHED % (group, len(deliveries))
            yield Anomaly(SHARE_UNFINISHED, poll.topic, poll.partition, poll.offset, detail)


def _other_records(history: History) -> Iterator[Anomaly]:
    """Finds deliveries of records that are not in the log, or not at this offset."""
    places: dict[tuple[str, int, int], Poll] = {
        (poll.topic, poll.partition, poll.offset): poll for poll in history.final
    }
    for found in history.deliveries:
        at = (found.topic, found.partition, found.offset)
        stands = places.get(at)
        if not found.is_intact:
            yield Anomaly(GARBAGE_READ, *at, words.ANOTHER_VALUE % (found.key, found.member))
        elif stands is None:
            detail = words.SHOWN_AND_GONE % (found.key, found.number, found.member)
            yield Anomaly(LOST_WRITE, *at, detail)
        elif (stands.key, stands.number) != (found.key, found.number):
            detail = words.SHOWN_THERE % (found.key, found.number, found.member)
            yield Anomaly(INCONSISTENT_OFFSETS, *at, detail)
