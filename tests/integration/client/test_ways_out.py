"""The fate of 1,000 accepted records when a program leaves its producer, however it does so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from brokerlab import ways_out
from brokerlab.ways_out import COUNT
from tidelog.testing import Cluster

pytestmark = pytest.mark.integration

CLOSED_WITH_A_REST = f"the producer was closed before {COUNT} of its records were acknowledged"
UNCLOSED = "ResourceWarning: the producer was not closed, and {} of its records are not acknowledged"
PICKLED = (
    "pickle: TypeError: the client belongs to process",
    "pickle: TypeError: a delivery belongs to the process of its producer",
    "pickle: RecordTooLargeError: the record is too large",
)
OF_THE_PARENT = "child: ClosedError: the {} belongs to process"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


FAST = [
    ("cancelled", COUNT, ()),
    ("interrupted_thread", COUNT, ()),
    ("forked_thread", COUNT + 1, (OF_THE_PARENT.format("client"), OF_THE_PARENT.format("producer"))),
]
SLOW = [
    ("cancelled_by_sibling", COUNT, ()),
    ("cancelled_twice", 0, (CLOSED_WITH_A_REST,)),
    ("cancelled_without_answers", 0, (CLOSED_WITH_A_REST,)),
    ("interrupted", COUNT, ()),
    ("failed", COUNT, ()),
    ("open_at_the_end", COUNT, (UNCLOSED.format(0),)),
    ("collected", COUNT, (UNCLOSED.format(0),)),
    ("transaction_cancelled", 0, ()),
    ("pickled", COUNT + 1, PICKLED),
    ("pickled_thread", COUNT + 1, PICKLED),
    ("forked", COUNT + 1, (OF_THE_PARENT.format("producer"),)),
    (
        "loop_closed",
        0,
        (UNCLOSED.format(COUNT), f"and {COUNT} of its records are not acknowledged: they may"),
    ),
    ("interrupted_without_runner", 0, (UNCLOSED.format(COUNT),)),
    ("interrupted_thread_twice", 0, (CLOSED_WITH_A_REST,)),
    ("failed_thread", COUNT, ()),
    ("open_thread_at_exit", COUNT, (UNCLOSED.format(COUNT), "they are sent within 10 s")),
    ("open_thread_at_exit_without_answers", 0, (UNCLOSED.format(COUNT), CLOSED_WITH_A_REST)),
    ("collected_thread", COUNT, (UNCLOSED.format(COUNT), "they are sent within 10 s")),
    ("thread_transaction_open_at_exit", 0, ("their transaction is aborted within 10 s",)),
]


@pytest.mark.parametrize(
    ("name", "stored", "said"), [*FAST, *(pytest.param(*row, marks=pytest.mark.slow) for row in SLOW)]
)
def test_what_becomes_of_the_records(cluster: Cluster, name: str, stored: int, said: tuple[str, ...]) -> None:
    outcome = ways_out.take(name, cluster)
    assert (outcome.stored, ways_out.HANGS in outcome.said) == (stored, False), outcome.said
    for text in said:
        assert text in outcome.said
    if "child:" in outcome.said:
        assert "child: no error" not in outcome.said
    elif not said:
        assert "ResourceWarning: the producer" not in outcome.said and "log:" not in outcome.said


def test_each_way_is_tested() -> None:
    ways = {way.__name__ for way in (*ways_out.ON_ASYNCIO, *ways_out.OTHERS)}
    assert ways == {name for name, *_ in (*FAST, *SLOW)}
