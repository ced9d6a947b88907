"""Random histories of one transactional id, and planted faults that these histories must find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any  # Any: the planted faults pass arguments on

import pytest

from grouplab.transaction_world import World
from tidelog.group_coordinator.shard_core import ShardDecision
from tidelog.group_coordinator.transactions import decisions, transaction_core
from tidelog.group_coordinator.transactions.transaction import TransactionMetadata
from tidelog.group_coordinator.transactions.transaction_core import TransactionCore

SEEDS = 25
STEPS = 2_500


def run(seed: int, version: int, world_class: type[World] = World) -> World:
    world = world_class(seed, version=version)
    for _ in range(STEPS):
        world.step()
    world.settle()
    return world


@pytest.mark.parametrize("version", [0, 2])
def test_the_invariants_hold(version: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        try:
            counts.update(run(seed, version).counts)
        except AssertionError as problem:
            raise AssertionError(f"seed {seed}, transaction version {version}: {problem}") from problem
    assert counts["committed"] > 10 * SEEDS
    assert counts["aborted"] > 5 * SEEDS
    assert counts["crashes"] > 10 * SEEDS
    assert counts["fenced"] > 2 * SEEDS


def finds(version: int, world_class: type[World] = World) -> bool:
    for seed in range(8 * SEEDS):
        try:
            run(seed, version, world_class)
        except AssertionError:
            return True
    return False


def test_finds_an_end_applied_to_the_next_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    decide: Callable[..., Any] = decisions.decide_end

    def epoch_unchecked(current: TransactionMetadata | None, message: Any, *rest: Any) -> Any:
        if current is not None:
            message = replace(message, producer_epoch=current.producer_epoch)
        return decide(current, message, *rest)

    monkeypatch.setattr(transaction_core, "decide_end", epoch_unchecked)
    assert finds(2)


def test_finds_an_epoch_given_to_two_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: Callable[..., Any] = decisions._claimed

    def epoch_kept(current: TransactionMetadata, message: Any, *rest: Any) -> Any:
        return taken(current._replace(producer_epoch=max(current.producer_epoch - 1, 0)), message, *rest)

    monkeypatch.setattr(decisions, "_claimed", epoch_kept)
    assert finds(2)


def test_finds_markers_sent_before_the_decision_is_replicated() -> None:
    class Hasty(World):
        def carry_out(self, decision: ShardDecision) -> None:
            effects, decision.effects = decision.effects, []
            super().carry_out(decision)
            held, self.held = self.held, []
            super().carry_out(ShardDecision(effects=effects))
            hasty, self.held = self.held, held
            for _, release in hasty:
                release()

    assert finds(2, Hasty)


def test_finds_replies_sent_before_replication() -> None:
    class Hasty(World):
        def carry_out(self, decision: ShardDecision) -> None:
            replies, decision.replies = decision.replies, []
            super().carry_out(decision)
            for call, message, _ in replies:
                self.answer(call, message)  # type: ignore[arg-type]

    assert finds(2, Hasty)


def test_finds_a_decided_transaction_that_is_dropped_with_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionCore, "activate", lambda *_: ShardDecision())
    assert finds(2)
