"""The checks of share groups in chaos runs: a sound history passes, and each planted anomaly is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chaoslab.checker import KINDS, judge
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
from chaoslab.share_checks import BUFFERED_S, DELIVERY_LIMIT, SHARE_KINDS, SHARE_REDELIVERY, SHARE_UNFINISHED
from chaoslab.share_members import REJECTED_EACH, RELEASED_EACH, answer_to
from tidelog.pipeline.checker.verdict import GARBAGE_READ, INCONSISTENT_OFFSETS, LOST_WRITE

LOG, GROUP = "log", "share"


def delivery(number: int, answer: str = ACCEPTED, at_s: float = 10.0, *, count: int = 1) -> Delivery:
    return Delivery(
        "share.1", GROUP, LOG, 0, number, "k", number, True, count, at_s, answer, ACKNOWLEDGED, at_s + 1
    )


def sound() -> History:
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


PLANTED = [
    (redeliver_accepted, SHARE_REDELIVERY),
    (redeliver_rejected, SHARE_REDELIVERY),
    (forget_a_record, SHARE_UNFINISHED),
    (forget_a_released_record, SHARE_UNFINISHED),
    (deliver_another_record, INCONSISTENT_OFFSETS),
    (deliver_what_is_gone, LOST_WRITE),
    (deliver_another_value, GARBAGE_READ),
]


def test_a_sound_history_passes() -> None:
    found = judge(sound())
    assert found.is_sound, str(found)
    assert found.counts["deliveries"] == 6


@pytest.mark.parametrize(("plant", "kind"), PLANTED)
def test_a_planted_anomaly_is_named(plant: Callable[[History], None], kind: str) -> None:
    history = sound()
    plant(history)
    assert judge(history).kinds == {kind: 1}, str(judge(history))


def test_every_kind_of_share_anomaly_is_planted_and_known() -> None:
    assert set(SHARE_KINDS) <= {kind for _, kind in PLANTED}
    assert set(SHARE_KINDS) <= set(KINDS)


def test_what_a_slow_member_had_before_it_was_accepted_is_no_anomaly() -> None:
    """Its lock ended while it waited for the answer to an acknowledgement."""
    history = sound()
    history.deliveries.append(delivery(1, at_s=10.0 + BUFFERED_S))
    assert judge(history).is_sound


def test_an_acceptance_without_an_answer_may_be_followed_by_another_delivery() -> None:
    history = sound()
    history.deliveries.append(delivery(4, at_s=500.0, count=2))
    assert judge(history).is_sound


def test_a_record_at_the_limit_of_deliveries_is_given_up() -> None:
    history = sound()
    forget_a_released_record(history)
    history.deliveries.append(delivery(2, RELEASED, at_s=60.0, count=DELIVERY_LIMIT))
    assert judge(history).is_sound


def test_a_history_file_keeps_deliveries(tmp_path: Path) -> None:
    sound().save(tmp_path / "h.gz")
    assert History.load(tmp_path / "h.gz") == sound()


def test_members_accept_release_and_reject() -> None:
    assert {answer_to(number, 1) for number in range(60)} == {ACCEPTED, RELEASED, REJECTED}
    assert {answer_to(number, 2) for number in range(60)} == {ACCEPTED, REJECTED}
    assert answer_to(1, 1) == answer_to(1 + REJECTED_EACH, 9) == REJECTED
    assert answer_to(RELEASED_EACH, 1) == RELEASED
