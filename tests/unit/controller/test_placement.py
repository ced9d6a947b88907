"""Placement of replicas: even, and on as many racks as possible."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.controller.core.decision import Chance
from tidelog.controller.core.topics import place_replicas
from tidelog.model.brokers import BrokerRegistration
from tidelog.model.errors import ErrorCode, KafkaError

Assignments = tuple[tuple[int, ...], ...]


def _brokers(racks: list[str | None]) -> list[BrokerRegistration]:
    return [BrokerRegistration(number, 1, (), rack) for number, rack in enumerate(racks)]


def _spread(counts: Counter[int], brokers: int) -> int:
    found = [counts[broker] for broker in range(brokers)]
    return max(found) - min(found)


def _is_even(placed: Assignments, brokers: int) -> None:
    assert all(len(set(replicas)) == len(replicas) for replicas in placed)
    assert _spread(Counter(replicas[0] for replicas in placed), brokers) <= 1
    assert _spread(Counter(broker for replicas in placed for broker in replicas), brokers) <= 1


@settings(max_examples=300)
@given(st.integers(1, 9), st.data())
def test_counts_of_leaders_and_replicas_differ_by_at_most_one(broker_count: int, data: st.DataObject) -> None:
    factor = data.draw(st.integers(1, broker_count))
    brokers = _brokers([None] * broker_count)
    first, more = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    chance = Chance(random.Random(data.draw(st.integers())).getrandbits)
    placed = place_replicas(brokers, first, factor, chance)
    _is_even(placed, broker_count)
    added = place_replicas(brokers, more, factor, chance, existing=placed)
    together = placed + added
    assert _spread(Counter(broker for replicas in together for broker in replicas), broker_count) <= 1
    assert _spread(Counter(replicas[0] for replicas in together), broker_count) <= 2


@settings(max_examples=300)
@given(st.integers(1, 5), st.integers(1, 4), st.data())
def test_each_partition_is_on_as_many_racks_as_possible(
    rack_count: int, brokers_in_rack: int, data: st.DataObject
) -> None:
    racks: list[str | None] = [f"r{n % rack_count}" for n in range(rack_count * brokers_in_rack)]
    racks = data.draw(st.permutations(racks))
    factor = data.draw(st.integers(1, len(racks)))
    chance = Chance(random.Random(data.draw(st.integers())).getrandbits)
    placed = place_replicas(_brokers(racks), data.draw(st.integers(1, 40)), factor, chance)
    _is_even(placed, len(racks))
    for replicas in placed:
        counts = Counter(racks[broker] for broker in replicas)
        assert len(counts) == min(factor, rack_count)
        assert max(counts.values()) - min(counts[rack] for rack in set(racks)) <= 1


@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=9), st.data())
def test_racks_of_different_sizes(racks: list[str | None], data: st.DataObject) -> None:
    factor = data.draw(st.integers(1, len(racks)))
    chance = Chance(random.Random(data.draw(st.integers())).getrandbits)
    placed = place_replicas(_brokers(racks), data.draw(st.integers(1, 30)), factor, chance)
    assert _spread(Counter(replicas[0] for replicas in placed), len(racks)) <= 1
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert len({racks[broker] for broker in replicas}) == min(factor, len(set(racks)))


def test_racks_do_not_count_if_a_broker_has_none() -> None:
    placed = place_replicas(_brokers(["a", "a", None]), 9, 2, Chance(random.Random(1).getrandbits))
    _is_even(placed, 3)


@pytest.mark.parametrize(("brokers", "factor"), [(3, 3), (4, 3), (5, 2), (6, 3), (9, 3)])
def test_first_followers_are_spread_evenly(brokers: int, factor: int) -> None:
    """When a broker fails, the other brokers take over about equally many of its partitions."""
    placed = place_replicas(
        _brokers([None] * brokers), brokers * 20, factor, Chance(random.Random(1).getrandbits)
    )
    for leader in range(brokers):
        heirs = Counter(replicas[1] for replicas in placed if replicas[0] == leader)
        assert max(heirs.values()) <= 2 * 20 / (brokers - 1)


def test_too_few_brokers() -> None:
    with pytest.raises(KafkaError) as raised:
        place_replicas(_brokers([None]), 1, 2, Chance(random.Random(1).getrandbits))
    assert raised.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
