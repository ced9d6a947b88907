"""A share group of our consumers deals with each record, and accepts only what an application accepted.

The brokers are a model (grouplab.model_share_group). Planted faults must be found, so the test can fail.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from brokerlab import planted_in_client as planted
from grouplab.model_share_group import (
    GAP_EACH,
    LOCK_MS,
    PARTITIONS,
    SHORT_LOCK_MS,
    ModelShareGroup,
    ShareFaults,
)
from tidelog.client.core.consuming.consumer_events import AcknowledgedBatch, AcknowledgeType, batches_of
from tidelog.client.core.settings import ShareConsumerSettings

IMPLICIT = ShareConsumerSettings(group_id="g")
EXPLICIT = ShareConsumerSettings(group_id="g", share_acknowledgement_mode="explicit")
FAULTS = st.builds(
    ShareFaults,
    lost=st.sampled_from([0.0, 0.05, 0.2]),
    late=st.sampled_from([0.0, 0.1, 0.3]),
    crashes=st.sampled_from([0.0, 0.02, 0.1]),
    lock_ms=st.sampled_from([LOCK_MS, SHORT_LOCK_MS]),
)


def run(seed: int, faults: ShareFaults, chosen: ShareConsumerSettings) -> ModelShareGroup:
    group = ModelShareGroup(chosen, seed, faults)
    for _ in range(group.chance.randint(1, 3)):
        group.start_member()
    for _ in range(15):
        group.produce(group.chance.randrange(PARTITIONS), group.chance.randint(1, 8))
        group.run(group.now_ms + group.chance.choice((0, 10, 100, 500)))
    group.is_healed = True
    group.run(group.now_ms + 10_000)
    left = [key for key, outcome in group.outcomes().items() if outcome is None]
    assert not left, f"nobody dealt with {left}"
    return group


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), FAULTS, st.sampled_from([IMPLICIT, EXPLICIT]))
def test_each_record_is_dealt_with(seed: int, faults: ShareFaults, chosen: ShareConsumerSettings) -> None:
    run(seed, faults, chosen)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32))
@example(15)
@example(335)
@example(356)
@example(378)
@example(440)
def test_without_faults_each_record_comes_once_and_no_acknowledgement_fails(seed: int) -> None:
    group = run(seed, ShareFaults(), IMPLICIT)
    assert group.failed == 0
    assert set(group.seen.values()) == {1}
    assert {key for key in group.outcomes() if key[1] % GAP_EACH or not key[1]} == set(group.seen)


@given(st.dictionaries(st.integers(0, 60), st.sampled_from(list(AcknowledgeType)), min_size=1))
def test_batches_have_all_offsets_in_order(types: dict[int, int]) -> None:
    said: dict[int, int] = {}
    end = -2
    for first, last, kinds in batches_of(types):
        assert end + 1 < first <= last, "adjacent offsets are one batch"
        end = last
        said.update(
            zip(range(first, last + 1), kinds * (last - first + 1 if len(kinds) == 1 else 1), strict=True)
        )
    assert said == types


def test_equal_types_are_written_once() -> None:
    assert list(batches_of({4: 1, 3: 1, 8: 2, 9: 1})) == [
        AcknowledgedBatch(3, 4, (1,)),
        AcknowledgedBatch(8, 9, (2, 1)),
    ]


@pytest.mark.parametrize(
    "plant", [planted.accept_at_delivery, planted.gaps_forgotten, planted.share_session_survives]
)
def test_a_planted_fault_of_a_share_consumer_is_found(
    plant: Callable[[], AbstractContextManager[None]],
) -> None:
    with plant(), pytest.raises(AssertionError):
        for seed in range(50):
            run(seed, ShareFaults(lost=0.2, late=0.1, lock_ms=SHORT_LOCK_MS), IMPLICIT)
