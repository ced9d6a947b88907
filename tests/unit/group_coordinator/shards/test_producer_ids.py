"""Blocks of producer ids are requested in time, and each id is assigned once."""

from __future__ import annotations

from tidelog.group_coordinator.shards.broker_calls import ASK_AGAIN_MS, MAX_WAIT_MS, ProducerIds
from tidelog.kernel.timer import VirtualTimer
from tidelog.rpc.coordinator_session import AskProducerIds, Item, ProducerIdsTold


class Broker:
    """The only broker, with the session to it."""

    def __init__(self) -> None:
        self.is_there = True
        self.asked: list[int] = []
        self.timer = VirtualTimer()
        self.ids = ProducerIds(self._any_line, self.timer)
        self.taken: list[int | None] = []

    def take(self, count: int = 1) -> None:
        for _ in range(count):
            self.ids.take(self.taken.append)

    def answer(self, first: int, count: int) -> None:
        self.ids.received(ProducerIdsTold(self.asked[-1], first, count))

    def _any_line(self) -> tuple[int, Broker] | None:
        return (7, self) if self.is_there else None

    def send(self, item: Item) -> None:
        assert isinstance(item, AskProducerIds)
        self.asked.append(item.call_id)

    def close(self) -> None:
        raise AssertionError("the test closes no session")


def test_waiting_requests_get_ids_of_the_next_block() -> None:
    broker = Broker()
    broker.take(3)
    assert broker.taken == []
    assert len(broker.asked) == 1
    broker.answer(1000, 1000)
    assert broker.taken == [1000, 1001, 1002]


def test_the_next_block_is_requested_before_the_last_id_is_used() -> None:
    broker = Broker()
    broker.take()
    broker.answer(0, 1000)
    broker.take(950)
    assert len(broker.asked) == 2
    broker.answer(5000, 1000)
    broker.take(100)
    assert broker.taken == [*range(1000), *range(5000, 5051)]


def test_blocks_smaller_than_the_number_of_waiting_requests() -> None:
    broker = Broker()
    broker.take(5)
    broker.answer(10, 2)
    broker.answer(20, 2)
    broker.answer(30, 2)
    assert broker.taken == [10, 11, 20, 21, 30]


def test_the_end_of_a_session_repeats_the_request() -> None:
    broker = Broker()
    broker.take()
    broker.ids.session_ended(7)
    broker.timer.advance(ASK_AGAIN_MS)
    assert len(broker.asked) == 2
    broker.ids.received(ProducerIdsTold(broker.asked[0], 77, 10))
    assert broker.taken == [], "the answer to the first call is ignored"
    broker.answer(0, 10)
    assert broker.taken == [0]


def test_no_request_waits_forever() -> None:
    broker = Broker()
    broker.is_there = False
    broker.take(2)
    broker.timer.advance(MAX_WAIT_MS)
    assert broker.taken == [None, None]


def test_a_controller_without_ids_is_asked_again() -> None:
    broker = Broker()
    broker.take()
    broker.answer(0, 0)
    broker.timer.advance(ASK_AGAIN_MS)
    broker.answer(40, 10)
    assert broker.taken == [40]
