"""A group of our consumers loses no record, and commits no record before its application dealt with it.

The coordinator is a model (grouplab.model_group). Planted faults must be found, so the test can fail.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from brokerlab import planted_in_client as planted
from grouplab.model_classic_group import ModelClassicGroup
from grouplab.model_group import GroupFaults, ModelGroup
from tidelog.client.core.consuming import classic_membership, membership
from tidelog.client.core.consuming.assignors import STRATEGIES, Strategy, assign_sticky
from tidelog.client.core.consuming.classic_membership import ClassicMembership
from tidelog.client.core.consuming.consumer import ConsumerCore
from tidelog.client.core.settings import ConsumerSettings
from tidelog.model.errors import ErrorCode

SETTINGS = ConsumerSettings(group_id="g", auto_offset_reset="earliest", auto_commit_interval_ms=100)
SLOW = replace(SETTINGS, max_poll_interval_ms=300)
"""The settings of members that often leave and join again, because their application is slow."""
HEALING_MS = 20_000
FAULTS = st.builds(
    GroupFaults,
    lost=st.sampled_from([0.0, 0.05, 0.2]),
    late=st.sampled_from([0.0, 0.1, 0.3]),
    member_changes=st.sampled_from([0.0, 0.02, 0.1]),
)


def classic(*strategies: str) -> ConsumerSettings:
    """Returns the settings of members of a classic group."""
    return ConsumerSettings(
        group_id="g",
        group_protocol="classic",
        partition_assignment_strategy=strategies,
        heartbeat_interval_ms=300,
        session_timeout_ms=3_000,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=100,
    )


EAGER = classic("range", "cooperative-sticky")
COOPERATIVE = classic("cooperative-sticky")
CLASSIC = [EAGER, COOPERATIVE, classic("sticky"), classic("roundrobin")]


def run(seed: int, faults: GroupFaults, settings: ConsumerSettings = SETTINGS) -> ModelGroup:
    model = ModelClassicGroup if settings.is_classic else ModelGroup
    group = model(settings, seed, faults)
    for _ in range(group.chance.randint(1, 3)):
        group.start_member()
    for _ in range(25):
        group.produce(group.chance.randrange(len(group.logs)), group.chance.randint(1, 6))
        group.run(group.now_ms + group.chance.choice((0, 10, 100, 500)))
    group.is_healed = True
    group.run(group.now_ms + HEALING_MS)
    for partition, end in enumerate(group.ends):
        missing = [offset for offset in range(end) if (partition, offset) not in group.dealt_with]
        assert not missing, f"nobody got {missing} of partition {partition}"
        assert group.committed.get(partition, 0) == end, f"partition {partition} is not committed"
    return group


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), FAULTS)
def test_no_record_is_lost_or_committed_too_early(seed: int, faults: GroupFaults) -> None:
    run(seed, faults)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32), FAULTS)
@example(21327, GroupFaults(late=0.1, member_changes=0.1))  # an old heartbeat arrives after the next join
@example(100273, GroupFaults(0.2, 0.3, 0.02))  # metadata arrive after a heartbeat that names less
def test_a_late_goodbye_ends_a_later_membership_and_loses_nothing(seed: int, faults: GroupFaults) -> None:
    """A member keeps its id. So a goodbye on a broken connection, which arrives after the next join, removes
    the member again. It finds out with its next heartbeat, as Kafka's consumer does.
    """
    run(seed, faults, SLOW)


def test_a_member_that_does_not_join_again_after_a_late_goodbye_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(membership, "_REJOIN", frozenset({ErrorCode.FENCED_MEMBER_EPOCH}))
    with pytest.raises(AssertionError):
        for seed in range(100):
            run(seed, GroupFaults(late=0.3), SLOW)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32))
def test_without_faults_each_record_comes_once(seed: int) -> None:
    group = run(seed, GroupFaults())
    assert set(group.deliveries.values()) <= {1}


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32), FAULTS, st.sampled_from(CLASSIC))
def test_a_classic_group_loses_nothing(seed: int, faults: GroupFaults, chosen: ConsumerSettings) -> None:
    run(seed, faults, chosen)


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(CLASSIC))
def test_without_faults_a_classic_group_gets_each_record_once(seed: int, chosen: ConsumerSettings) -> None:
    assert set(run(seed, GroupFaults(), chosen).deliveries.values()) <= {1}


@pytest.mark.parametrize(
    "plant",
    [
        planted.commit_before_delivery,
        planted.commit_of_fetched,
        planted.revoked_partitions_kept,
        planted.revocation_not_said,
    ],
)
def test_a_planted_fault_is_found(plant: Callable[[], AbstractContextManager[None]]) -> None:
    with plant(), pytest.raises(AssertionError):
        for seed in range(200):
            run(seed, GroupFaults(lost=0.1, late=0.2, member_changes=0.1))


def test_delivery_during_a_revocation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that delivers records of a partition while it commits them delivers them to two members."""
    monkeypatch.setattr(
        ConsumerCore,
        "_stop_delivery",
        lambda core, places, is_lost: core._revoke(tuple(places), is_lost=is_lost),
    )
    with pytest.raises(AssertionError):
        for seed in (822144, *range(100)):
            assert set(run(seed, GroupFaults()).deliveries.values()) <= {1}


def _kept_at_an_eager_rebalance(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member joins with an eager assignor and goes on to read its partitions."""
    monkeypatch.setattr(classic_membership, "STRATEGIES", dict.fromkeys(STRATEGIES, STRATEGIES["range"]))
    original = ClassicMembership.prepare

    def prepare(membership: ClassicMembership, now_ms: int) -> None:
        membership._is_cooperative = True
        original(membership, now_ms)

    monkeypatch.setattr(ClassicMembership, "prepare", prepare)


def _given_before_it_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader of cooperative members gives a partition to another member that its owner still reads."""
    hasty = Strategy(assign_sticky, is_cooperative=True)
    monkeypatch.setattr(classic_membership, "STRATEGIES", {**STRATEGIES, "cooperative-sticky": hasty})


def _no_second_rebalance(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cooperative member gives partitions up and does not join again, so nobody gets them."""
    original = ClassicMembership.revoked

    def revoked(membership: ClassicMembership, now_ms: int) -> None:
        original(membership, now_ms)
        membership._must_rejoin = False

    monkeypatch.setattr(ClassicMembership, "revoked", revoked)


@pytest.mark.parametrize(
    ("plant", "chosen"),
    [
        (_kept_at_an_eager_rebalance, EAGER),
        (_given_before_it_is_free, COOPERATIVE),
        (_no_second_rebalance, COOPERATIVE),
    ],
)
def test_a_planted_fault_of_a_classic_group_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: Any, chosen: ConsumerSettings
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(200):
            run(seed, GroupFaults(lost=0.1, late=0.2, member_changes=0.1), chosen)


def test_an_early_commit_of_a_classic_group_is_found() -> None:
    with planted.commit_before_delivery(), pytest.raises(AssertionError):
        for seed in range(200):
            run(seed, GroupFaults(lost=0.1, late=0.2, member_changes=0.1), EAGER)
