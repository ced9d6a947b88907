"""The checks of share groups in chaos runs: a sound history passes, and each planted anomaly is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chaoslab.checker import KINDS, judge
from chaoslab.history import ACCEPTED, REJECTED, RELEASED, History
from chaoslab.planted_shares import PLANTED_SHARES, delivery, forget_a_released_record, sound_shares
from chaoslab.share_checks import BUFFERED_S, DELIVERY_LIMIT, SHARE_KINDS
from chaoslab.share_members import REJECTED_EACH, RELEASED_EACH, answer_to


def test_a_sound_history_passes() -> None:
    found = judge(sound_shares())
    assert found.is_sound, str(found)
    assert found.counts["deliveries"] == 6


@pytest.mark.parametrize(("plant", "kind"), PLANTED_SHARES)
def test_a_planted_anomaly_is_named(plant: Callable[[History], None], kind: str) -> None:
    history = sound_shares()
    plant(history)
    assert judge(history).kinds == {kind: 1}, str(judge(history))


def test_every_kind_of_share_anomaly_is_planted_and_known() -> None:
    assert set(SHARE_KINDS) <= {kind for _, kind in PLANTED_SHARES}
    assert set(SHARE_KINDS) <= set(KINDS)


def test_what_a_slow_member_had_before_it_was_accepted_is_no_anomaly() -> None:
    """Its lock ended while it waited for the answer to an acknowledgement."""
    history = sound_shares()
    history.deliveries.append(delivery(1, at_s=10.0 + BUFFERED_S))
    assert judge(history).is_sound


def test_an_acceptance_without_an_answer_may_be_followed_by_another_delivery() -> None:
    history = sound_shares()
    history.deliveries.append(delivery(4, at_s=500.0, count=2))
    assert judge(history).is_sound


def test_a_record_at_the_limit_of_deliveries_is_given_up() -> None:
    history = sound_shares()
    forget_a_released_record(history)
    history.deliveries.append(delivery(2, RELEASED, at_s=60.0, count=DELIVERY_LIMIT))
    assert judge(history).is_sound


def test_a_history_file_keeps_deliveries(tmp_path: Path) -> None:
    sound_shares().save(tmp_path / "h.gz")
    assert History.load(tmp_path / "h.gz") == sound_shares()


def test_members_accept_release_and_reject() -> None:
    assert {answer_to(number, 1) for number in range(60)} == {ACCEPTED, RELEASED, REJECTED}
    assert {answer_to(number, 2) for number in range(60)} == {ACCEPTED, REJECTED}
    assert answer_to(1, 1) == answer_to(1 + REJECTED_EACH, 9) == REJECTED
    assert answer_to(RELEASED_EACH, 1) == RELEASED
