"""Share partitions in virtual time: fixed seeds, fresh seeds, and bugs that the seeds must find."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from sim.planted import share_confirmed_before_stored, share_records_forgotten
from sim.share_group import Coordinator, ViolationError, simulate
from tidelog.broker.share import partition_core
from tidelog.broker.share.deliveries import DeadLetters
from tidelog.broker.share.partition_core import SharePartitionCore
from tidelog.broker.share.record_ranges import DeliveryState
from tidelog.broker.share.share_partition import SharePartition

FIXED_SEEDS = range(1, 31)
FRESH_SEEDS = 10


def test_fixed_seeds() -> None:
    for seed in FIXED_SEEDS:
        assert simulate(seed).deliveries, f"seed {seed} delivers nothing"


def test_fresh_seeds() -> None:
    first = int.from_bytes(os.urandom(4))
    for seed in range(first, first + FRESH_SEEDS):
        print(f"seed {seed}")
        simulate(seed)


def test_an_early_confirmation_is_found() -> None:
    with (
        share_confirmed_before_stored(),
        pytest.raises(ViolationError, match=r"was accepted|is a dead letter"),
    ):
        for seed in FIXED_SEEDS:
            simulate(seed)


def test_a_lost_record_is_found() -> None:
    with share_records_forgotten(), pytest.raises(ViolationError, match=r"is lost|is no dead letter"):
        for seed in FIXED_SEEDS:
            simulate(seed)


def test_a_wait_that_the_next_leader_forgets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharePartition, "_stored_time", lambda self, at_ms: 0)
    with pytest.raises(ViolationError, match="before its time"):
        for seed in range(1, 200):
            simulate(seed)


def test_a_copy_before_the_state_is_stored_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def waiting(self: SharePartitionCore) -> Iterator[DeadLetters]:
        for found in self.ranges:
            if found.coming_state is DeliveryState.ARCHIVING:
                yield DeadLetters(found.first, found.last, found.delivery_count, found.is_rejected)

    monkeypatch.setattr(SharePartitionCore, "dead_letters", waiting)
    with pytest.raises(ViolationError, match="is a dead letter of epoch"):
        for seed in range(1, 200):
            simulate(seed)


def test_records_that_are_archived_without_a_copy_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_core, "ARCHIVING", DeliveryState.ARCHIVED)
    with pytest.raises(ViolationError, match="is no dead letter"):
        for seed in FIXED_SEEDS:
            simulate(seed)


def test_a_coordinator_that_answers_before_it_replicates_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Coordinator, "answered", lambda self: None)
    with pytest.raises(ViolationError):
        for seed in range(1, 200):
            simulate(seed)
