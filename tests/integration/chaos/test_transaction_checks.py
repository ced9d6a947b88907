"""The checks of transactions: small histories that each check must flag or must not flag, and random ones."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from chaoslab import transaction_checks as checks
from chaoslab.checker import KINDS, judge
from chaoslab.history import (
    ABORTED,
    ACKNOWLEDGED,
    COMMITTED,
    NO_PLACE,
    UNKNOWN,
    History,
    Poll,
    Send,
    Transaction,
    TransactionRead,
)
from chaoslab.list_model import ACTIONS, PARTITIONS, PROCESSES, Step, history_of
from chaoslab.planted import PLANTED
from chaoslab.planted_in_model import FAULTS, PERMITTED, Plant
from chaoslab.share_checks import SHARE_KINDS
from chaoslab.transaction_checks import components, shortest_cycle

Record = tuple[str, str, int, int]
"""The process, the transaction ("" without one), the partition and the offset of a record."""
PAIRWISE_S = 10.0


def told(
    records: list[Record],
    reads: list[tuple[str, int, int]] = [],  # noqa: B006 - it is not changed
    outcomes: dict[str, str] = {},  # noqa: B006
) -> History:
    """Returns a history with these records in the order sent, and reads (transaction, partition, offset). The
    outcome of a transaction is COMMITTED if it is not named. Record n is number n of its process.
    """
    history = History()
    names = dict.fromkeys(name for _, name, *_ in records if name) | dict.fromkeys(name for name, *_ in reads)
    history.transactions = [Transaction(name, outcomes.get(name, COMMITTED), 0, 99) for name in names]
    at: dict[tuple[int, int], Send] = {}
    for number, (process, transaction, partition, offset) in enumerate(records):
        sent = (process, "t", partition, process, number, ACKNOWLEDGED, offset, number, number + 0.5)
        history.sends.append(Send(*sent, transaction))
        at[partition, offset] = history.sends[-1]
        if outcomes.get(transaction) != ABORTED:
            history.final.append(
                Poll("final", "final", 0, "t", partition, offset, process, number, True, 99.0)
            )
    for transaction, partition, offset in reads:
        sent_there = at[partition, offset]
        read = (transaction, transaction[0], "t", partition, offset, sent_there.key, sent_there.number, 99.0)
        history.reads.append(TransactionRead(*read))
    history.final.sort(key=lambda poll: (poll.partition, poll.offset))
    return history


def found_in(history: History) -> list[str]:
    return [anomaly.kind for anomaly in checks.faults(history)]


THREE: list[Record] = [("p", "", 0, 0), ("p", "", 0, 1), ("p", "", 0, 2)]


@pytest.mark.parametrize(
    ("history", "kind"),
    [
        (told(THREE, [("a1", 0, 0), ("a1", 0, 2)]), checks.INT_POLL_SKIP),
        (told(THREE, [("a1", 0, 1), ("a1", 0, 0)]), checks.INT_NONMONOTONIC_POLL),
        (told(THREE, [("a1", 0, 1), ("a1", 0, 1)]), checks.INT_NONMONOTONIC_POLL),
        (told([("a", "a1", 0, 1), ("a", "a1", 0, 0)]), checks.INT_NONMONOTONIC_SEND),
        (told([("a", "a1", 0, 0)], [("a1", 0, 0)]), checks.PRECOMMITTED_READ),
        (told([("a", "a1", 0, 0)], [("b1", 0, 0)], {"a1": ABORTED}), checks.G1A),
        (
            told([("a", "a1", 0, 0), ("a", "a2", 0, 1), ("a", "a2", 1, 0), ("a", "a1", 1, 1)]),
            checks.G0,
        ),
        (
            told([("a", "a1", 0, 0), ("b", "b1", 1, 0)], [("b1", 0, 0), ("a1", 1, 0)]),
            checks.G1C,
        ),
        (
            told(
                [("a", "a1", 0, 0), ("b", "b1", 1, 0), ("c", "c1", 2, 0)],
                [("b1", 0, 0), ("c1", 1, 0), ("a1", 2, 0)],
            ),
            checks.G1C,
        ),
        (
            # a2 came after a1, but a record of a1 follows it, and a1 received what a2 wrote.
            told([("a", "a1", 0, 1), ("a", "a2", 0, 0), ("a", "a2", 1, 0)], [("a2", 0, 1)]),
            checks.G1C,
        ),
    ],
)
def test_a_small_history_shows_the_anomaly(history: History, kind: str) -> None:
    assert found_in(history) == [kind]


def test_a_record_that_is_shown_before_the_transaction_is_complete() -> None:
    history = told([("a", "a1", 0, 0), ("a", "a1", 1, 0)])
    shown = Poll("group.1", "group", 1, "t", 0, 0, "a", 0, True, 0.7)
    history.polls = [shown]
    assert found_in(history) == [checks.G1B]
    # It was shown after the last record was sent, or the time is unknown.
    for at_s in (1.2, 0.0):
        history.polls = [shown._replace(at_s=at_s)]
        assert found_in(history) == []


@pytest.mark.parametrize(
    "history",
    [
        # Offset 1 is a control record or a record of an aborted transaction, which no reader receives.
        told([THREE[0], THREE[2]], [("a1", 0, 0), ("a1", 0, 2)]),
        told([THREE[0], ("b", "b1", 0, 1), THREE[2]], [("a1", 0, 0), ("a1", 0, 2)], {"b1": ABORTED}),
        # The next transaction reads again what the aborted one read.
        told(THREE, [("a1", 0, 0), ("a1", 0, 1), ("a2", 0, 0), ("a2", 0, 1)], {"a1": ABORTED}),
        # Partitions are independent of each other.
        told([("p", "", 0, 5), ("p", "", 1, 2)], [("a1", 0, 5), ("a1", 1, 2)]),
        told([("a", "a1", 0, 5), ("a", "a1", 1, 2)]),
        # A later transaction received the records of an earlier one, in part or completely.
        told([("a", "a1", 0, 0), ("a", "a1", 0, 1)], [("b1", 0, 0)]),
        told([("a", "a1", 0, 0), ("a", "a2", 0, 1)], [("a2", 0, 0)]),
        # What an aborted transaction received or wrote is no dependency.
        told([("a", "a1", 0, 0)], [("b1", 0, 0)], {"a1": ABORTED, "b1": ABORTED}),
        told([("a", "a1", 0, 0), ("b", "b1", 1, 0)], [("b1", 0, 0)], {"b1": ABORTED}),
        # Nothing of the transaction of unknown outcome is visible.
        told([("a", "a1", 0, 0)], [("b1", 0, 0)], {"b1": UNKNOWN}),
        # Two processes may write in any order.
        told([("a", "a1", 0, 0), ("b", "b1", 0, 1), ("b", "b1", 1, 0), ("a", "a1", 1, 1)]),
        told([("a", "a1", 0, 0), ("b", "b1", 0, 1), ("a", "a1", 0, 2)]),
    ],
)
def test_a_near_miss_is_no_anomaly(history: History) -> None:
    assert found_in(history) == []


def test_a_record_that_was_sent_again_after_an_abort_has_one_writer() -> None:
    history = told([("a", "a1", 0, 0)], [("b1", 0, 0)], {"a1": ABORTED})
    again = history.sends[0]._replace(transaction="a2", offset=NO_PLACE)
    history.sends.append(again)
    history.transactions.append(Transaction("a2", COMMITTED, 2, 3))
    history.final = [Poll("final", "final", 0, "t", 0, 0, "a", 0, True, 99.0)]
    assert found_in(history) == []


@pytest.mark.parametrize(
    ("history", "kinds"),
    [
        (told([("a", "a1", 0, 0), ("b", "", 0, 1), ("a", "a1", 0, 2)]), [checks.INT_SEND_SKIP]),
        (
            told([("a", "a1", 0, 0), ("b", "b1", 0, 1), ("b", "b1", 1, 0), ("a", "a1", 1, 1)]),
            [checks.G0],
        ),
        (
            told([("a", "a1", 0, 0), ("b", "b1", 0, 1), ("b", "b1", 1, 0)], [("a1", 1, 0)]),
            [checks.G1C],
        ),
        (told([("a", "a1", 0, 0), ("a", "a1", 0, 2)]), []),
        (told([("a", "a1", 0, 0), ("a", "a1", 1, 2), ("b", "", 0, 1)]), []),
    ],
)
def test_interleaving_is_named_and_permitted(history: History, kinds: list[str]) -> None:
    assert [anomaly.kind for anomaly in checks.permitted(history)] == kinds
    assert found_in(history) == []


def test_the_report_names_the_shortest_cycle() -> None:
    records = [(name, f"{name}1", partition, 0) for partition, name in enumerate("abcd")]
    reads = [("b1", 0, 0), ("c1", 1, 0), ("d1", 2, 0), ("a1", 3, 0), ("a1", 2, 0)]
    (anomaly,) = checks.faults(told(records, reads))
    path = anomaly.detail.split(" ")
    assert {path[0], *path[3::3]} == {"a1", "b1", "c1"}, anomaly.detail
    assert "c1 -wr t-2@0-> a1" in anomaly.detail


# -- random histories

steps = st.lists(
    st.builds(Step, st.sampled_from(ACTIONS), st.integers(0, PROCESSES - 1), st.integers(0, PARTITIONS - 1)),
    min_size=10,
    max_size=60,
)
many_examples = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))


@many_examples
@given(steps)
def test_a_history_of_the_list_model_has_no_anomaly(taken: list[Step]) -> None:
    found = judge(history_of(taken))
    assert found.is_sound, str(found)


@pytest.mark.parametrize(("plant", "kind"), FAULTS.items())
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps, st.randoms(use_true_random=False))
def test_one_planted_fault_is_named(
    plant: Plant, kind: str, taken: list[Step], chance: random.Random
) -> None:
    history = history_of(taken)
    assume(plant(history, chance))
    assert kind in judge(history).kinds, str(judge(history))


@pytest.mark.parametrize(("plant", "kind"), PERMITTED.items())
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps, st.randoms(use_true_random=False))
def test_planted_interleaving_is_permitted(
    plant: Plant, kind: str, taken: list[Step], chance: random.Random
) -> None:
    history = history_of(taken)
    assume(plant(history, chance))
    assert kind in {anomaly.kind for anomaly in checks.permitted(history)}
    assert judge(history).is_sound


def test_every_kind_is_planted() -> None:
    """The kinds of share groups are planted in test_share_checks.py."""
    planted = {*FAULTS.values(), *PERMITTED.values(), *(kind for _, kind in PLANTED)}
    assert planted == set(KINDS) - set(SHARE_KINDS)


# -- the search for cycles

graphs = st.dictionaries(
    st.sampled_from("abcdefg"), st.lists(st.sampled_from("abcdefg"), max_size=4, unique=True), max_size=7
)


def reaches(graph: dict[str, list[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for successor in graph.get(waiting.pop(), ()):
            if successor not in seen:
                seen.add(successor)
                waiting.append(successor)
    return seen


@given(graphs)
def test_components_are_the_nodes_that_reach_each_other(graph: dict[str, list[str]]) -> None:
    reach = {node: reaches(graph, node) for node in "abcdefg"}
    expected = {
        frozenset({node, *(other for other in reach[node] if node in reach[other])}) for node in "abcdefg"
    }
    found = [frozenset(component) for component in components(graph)]
    assert len(found) == len(set(found))
    assert set(found) == {component for component in expected if len(component) > 1}


@given(graphs)
def test_a_cycle_follows_the_edges(graph: dict[str, list[str]]) -> None:
    for component in components(graph):
        cycle = shortest_cycle(graph, component)
        assert len(cycle) == len(set(cycle)) <= len(component)
        for node, successor in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            assert successor in graph[node]


def test_a_long_history_takes_linear_time() -> None:
    """A path of 200,000 transactions must not take as long as their pairs would."""
    count = 200_000
    graph = {str(node): [str(node + 1)] for node in range(count)}
    graph[str(count)] = [str(count - 1)]
    began_s = time.monotonic()
    assert [sorted(component) for component in components(graph)] == [[str(count - 1), str(count)]]
    assert time.monotonic() - began_s < PAIRWISE_S
