"""The waiting of connections above `max.connection.creation.rate`, in virtual time."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.net.listener import ConnectionRate, WaitingConnections

Connection = tuple[str, int]


class Door:
    """Connections that arrive, wait and end in virtual time. `served` are the times at which they start."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.now = 1000.0
        self.waiting: WaitingConnections[Connection] = WaitingConnections()
        self.served: dict[Connection, float] = {}
        self.arrived: dict[Connection, float] = {}

    def arrive(self, connection: Connection) -> None:
        self.arrived[connection] = self.now
        if self.waiting.admit(connection, connection[0], self.rate, self.now):
            self.served[connection] = self.now

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while (pause := self.waiting.next_turn_s(self.rate, self.now)) is not None:
            if self.now + pause > end:
                break
            self.now += pause + 1e-9  # as timers, which are a little late
            for connection in self.waiting.take_due(self.rate, self.now):
                self.served[connection] = self.now
        self.now = max(self.now, end)


def test_connections_of_one_second_are_served_at_once() -> None:
    rate = ConnectionRate()
    delays = []
    for _ in range(11):
        delays.append(rate.delay_s(10, now=100.0))
        rate.count(10, now=100.0)
    assert delays == pytest.approx([0] * 10 + [0.1])
    assert rate.delay_s(10, now=100.2) == 0


def test_another_address_does_not_wait_for_an_attackers() -> None:
    door = Door(rate=1)
    for number in range(10_000):
        door.arrive(("attacker", number))
        if number >= 2_000:  # which max.connections.per.ip allows at once
            door.waiting.forget(("attacker", number), "attacker")
    door.arrive(("client", 0))
    door.arrive(("client", 1))
    door.advance(5)
    assert door.served["client", 0] <= 1002.1
    assert door.served["client", 1] <= 1004.1


def test_connections_that_end_while_they_wait_leave_nothing_behind() -> None:
    door = Door(rate=1)
    door.arrive(("client", 0))
    for number in range(1_000):
        door.arrive(("attacker", number))
    for number in range(1_000):
        door.waiting.forget(("attacker", number), "attacker")
        door.waiting.forget(("attacker", number), "attacker")
    assert door.waiting.next_turn_s(1, door.now) is None
    door.now += 1.1
    door.arrive(("client", 1))
    assert door.served["client", 1] == door.now


ARRIVE, END, ADVANCE = "arrive", "end", "advance"
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just(ARRIVE), st.sampled_from("abc"), st.integers(1, 30)),
        st.tuples(st.just(END), st.sampled_from("abc"), st.integers(0, 100)),
        st.tuples(st.just(ADVANCE), st.just(""), st.integers(0, 3_000)),
    ),
    max_size=40,
)


@given(st.sampled_from([1.0, 3.0, 100.0]), STEPS)
def test_the_rate_the_order_of_an_address_and_the_turns(
    rate: float, steps: list[tuple[str, str, int]]
) -> None:
    door = Door(rate)
    count: dict[str, int] = defaultdict(int)
    ended = set()
    for step, host, number in steps:
        if step == ARRIVE:
            for _ in range(number):
                door.arrive((host, count[host]))
                count[host] += 1
        elif step == END:
            if number < count[host] and (host, number) not in door.served:
                ended.add((host, number))
                door.waiting.forget((host, number), host)
        else:
            door.advance(number / 1000)
    door.advance(10_000)
    assert set(door.served) == set(door.arrived) - ended
    times = sorted(door.served.values())
    for first, time in enumerate(times):
        within = sum(time <= other <= time + 1 for other in times[first:])
        assert within <= 2 * rate + 1, "more than a burst and the rate of one second"
    for host in count:
        own = [door.served[host, number] for number in range(count[host]) if (host, number) in door.served]
        assert own == sorted(own)
        for number in range(count[host]):
            if (host, number) in door.served:
                ahead = sum(  # connections of the same address that were waiting when this one arrived
                    door.served.get((host, other), 0) > door.arrived[host, number] for other in range(number)
                )
                waited = door.served[host, number] - door.arrived[host, number]
                assert waited <= 3 * (ahead + 1) / rate + 1e-3, "each address has a turn in three"
