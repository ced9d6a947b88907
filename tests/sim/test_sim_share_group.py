"""Share partitions in virtual time: fixed seeds, fresh seeds, and bugs that the seeds must find."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from sim.share_group import Coordinator, ViolationError, simulate
from tidelog.broker.share.deliveries import StateWrite
from tidelog.broker.share.partition_core import SharePartitionCore
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


async def _confirms_before_it_is_stored(self: SharePartition, write: StateWrite) -> bool:
    return True


def _forgets_unfinished_records(core: Callable[..., Any]) -> Callable[..., Any]:
    def next_write(self: SharePartitionCore) -> StateWrite | None:
        write: StateWrite | None = core(self)
        return None if write is None else write._replace(start_offset=self.end_offset)

    return next_write


def test_an_early_confirmation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharePartition, "_stored", _confirms_before_it_is_stored)
    with pytest.raises(ViolationError, match="was accepted"):
        for seed in FIXED_SEEDS:
            simulate(seed)


def test_a_lost_record_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        SharePartitionCore, "next_write", _forgets_unfinished_records(SharePartitionCore.next_write)
    )
    with pytest.raises(ViolationError, match="is lost"):
        for seed in FIXED_SEEDS:
            simulate(seed)


def test_a_wait_that_the_next_leader_forgets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharePartition, "_stored_time", lambda self, at_ms: 0)
    with pytest.raises(ViolationError, match="before its time"):
        for seed in range(1, 200):
            simulate(seed)


def test_a_coordinator_that_answers_before_it_replicates_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Coordinator, "answered", lambda self: None)
    with pytest.raises(ViolationError):
        for seed in range(1, 200):
            simulate(seed)
