"""A sound history of a share group, and the anomalies that are planted in it."""

from __future__ import annotations

from typing import Final

from chaoslab.history import (
    ACCEPTED,
    ACKNOWLEDGED,
    REJECTED,
    RELEASED,
    UNKNOWN,
    Delivery,
    History,
    Poll,
    Send,
)
from chaoslab.share_checks import BUFFERED_S, SHARE_REDELIVERY, SHARE_UNFINISHED
from chaoslab.verdict import GARBAGE_READ, INCONSISTENT_OFFSETS, LOST_WRITE

LOG, GROUP = "log", "share"


def delivery(number: int, answer: str = ACCEPTED, at_s: float = 10.0, *, count: int = 1) -> Delivery:
    return Delivery(
        "share.1", GROUP, LOG, 0, number, "k", number, True, count, at_s, answer, ACKNOWLEDGED, at_s + 1
    )


def sound_shares() -> History:
    """Returns a log of five records: two accepted, one released and then accepted by another member, one
    rejected, and one whose acceptance got no answer.
    """
    history = History(shared={GROUP: [LOG]})
    history.sends = [Send("p", LOG, 0, "k", n, ACKNOWLEDGED, n, n, n + 0.5) for n in range(5)]
    history.final = [Poll("final", "final", 1, LOG, 0, n, "k", n, True, 100.0) for n in range(5)]
    history.deliveries = [
        delivery(0),
        delivery(1),
        delivery(2, RELEASED),
        delivery(2, at_s=20.0, count=2)._replace(member="share.2"),
        delivery(3, REJECTED),
        delivery(4)._replace(outcome=UNKNOWN),
    ]
    return history


def redeliver_accepted(history: History) -> None:
    history.deliveries.append(delivery(1, at_s=12.0 + BUFFERED_S))


def redeliver_rejected(history: History) -> None:
    history.deliveries.append(delivery(3, RELEASED, at_s=12.0 + BUFFERED_S))


def forget_a_record(history: History) -> None:
    history.deliveries = [found for found in history.deliveries if found.offset != 4]


def forget_a_released_record(history: History) -> None:
    history.deliveries = [found for found in history.deliveries if found.delivery_count == 1]


def deliver_another_record(history: History) -> None:
    history.deliveries[0] = history.deliveries[0]._replace(number=1)


def deliver_what_is_gone(history: History) -> None:
    history.deliveries.append(delivery(7))


def deliver_another_value(history: History) -> None:
    history.deliveries[0] = history.deliveries[0]._replace(is_intact=False)


PLANTED_SHARES: Final = (
    (redeliver_accepted, SHARE_REDELIVERY),
    (redeliver_rejected, SHARE_REDELIVERY),
    (forget_a_record, SHARE_UNFINISHED),
    (forget_a_released_record, SHARE_UNFINISHED),
    (deliver_another_record, INCONSISTENT_OFFSETS),
    (deliver_what_is_gone, LOST_WRITE),
    (deliver_another_value, GARBAGE_READ),
)
