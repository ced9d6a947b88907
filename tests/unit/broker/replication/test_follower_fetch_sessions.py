"""Sessions that only look at dirty partitions miss nothing, with followers that lose responses, are idle,
forget partitions and open new sessions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brokerlab.in_memory_broker import InMemoryBroker
from brokerlab.leader_lab import Follower, LeaderLab, parts
from tidelog.records.batch import iterate_headers
from tidelog.wire.messages.fetch import FetchResponse

PARTITIONS = 4
FOLLOWERS = (2, 3)


class PlayedFollower:
    """A follower that fetches in a session and receives or loses the responses."""

    def __init__(self, lab: LeaderLab, replica_id: int) -> None:
        self.lab = lab
        self.connection: Follower = lab.follower(replica_id)
        self.ends = dict.fromkeys(range(PARTITIONS), 0)
        self.high_watermarks = dict.fromkeys(range(PARTITIONS), 0)
        self.fetched: set[int] = set(range(PARTITIONS))
        self.restart()

    def restart(self) -> None:
        self.session_id = self.epoch = 0
        self.changed = set(self.fetched)
        self.forgotten: set[int] = set()
        self.answers: list[FetchResponse] = []

    def fetch(self, **fields: Any) -> None:
        if self.connection.answers or self.lab.broker.follower_fetch_sessions.parked_count == len(FOLLOWERS):
            self.take_in()
        answer = self.connection.fetch(
            {index: self.ends[index] for index in sorted(self.changed)},
            forgotten=sorted(self.forgotten),
            session_id=self.session_id,
            session_epoch=self.epoch,
            **fields,
        )
        self.changed, self.forgotten = set(), set()
        self.epoch += 1
        self.answers += self.connection.answers
        self.connection.answers.clear()
        if answer is not None:
            self.answers.append(answer)

    def take_in(self) -> None:
        for answer in (*self.answers, *self.connection.answers):
            for index, part in parts(answer).items():
                for _, header in iterate_headers(part.records or b""):
                    if header.base_offset == self.ends[index]:
                        self.ends[index] = header.last_offset + 1
                        self.changed.add(index)
                high_watermark = min(part.high_watermark, self.ends[index])
                self.high_watermarks[index] = max(self.high_watermarks[index], high_watermark)
            self.session_id = answer.session_id
        self.answers.clear()
        self.connection.answers.clear()
        self.changed &= self.fetched

    def lose(self) -> None:
        """Simulates a broken connection: the follower does not know which responses were sent."""
        self.connection.close()
        self.connection = self.lab.follower(self.connection.replica_id)
        self.restart()


STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(0, PARTITIONS - 1)),
    st.tuples(st.sampled_from(["fetch", "take in", "lose"]), st.integers(0, 1)),
    st.tuples(st.just("time"), st.integers(1, 900)),
    st.tuples(st.sampled_from(["forget", "resume"]), st.integers(0, 2 * PARTITIONS - 1)),
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=40), max_bytes=st.sampled_from([1, 200, 1 << 20]))
def test_nothing_is_missed(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], max_bytes: int
) -> None:
    broker = InMemoryBroker(Path(tmp_path_factory.mktemp("sessions")) / "data")
    try:
        LeaderLab(broker).run(lambda lab: _play(lab, steps, max_bytes))
    finally:
        broker.close()


async def _play(lab: LeaderLab, steps: list[tuple[str, int]], max_bytes: int) -> None:
    await lab.lead(partitions=PARTITIONS)
    followers = [PlayedFollower(lab, replica_id) for replica_id in FOLLOWERS]
    for follower in followers:
        follower.fetch(max_wait_ms=0, max_bytes=max_bytes)
        follower.take_in()
    for step, number in steps:
        if step == "append":
            lab.append(partition=number)
        elif step == "time":
            lab.clock.advance(number)
            lab.broker.timer.advance(lab.broker.timer.monotonic_ms() + number)
        elif step in ("forget", "resume"):
            _change(followers[number // PARTITIONS], step, number % PARTITIONS)
        else:
            _act(followers[number], step, max_bytes)
        await asyncio.sleep(0)
        _check_invariant(lab)
    await _let_all_catch_up(lab, followers, max_bytes)


def _act(follower: PlayedFollower, step: str, max_bytes: int) -> None:
    if step == "lose":
        follower.lose()
        follower.fetch(max_wait_ms=0, max_bytes=max_bytes)
    follower.take_in()
    if step == "fetch":
        follower.fetch(max_wait_ms=500, max_bytes=max_bytes)


def _change(follower: PlayedFollower, step: str, index: int) -> None:
    if step == "forget" and index in follower.fetched:
        follower.fetched.discard(index)
        follower.changed.discard(index)
        follower.forgotten.add(index)
    elif step == "resume":
        follower.fetched.add(index)
        follower.forgotten.discard(index)
        follower.changed.add(index)


def _check_invariant(lab: LeaderLab) -> None:
    """For a partition that is not dirty, the follower is at the log end and has received all offsets."""
    for session in lab.broker.follower_fetch_sessions:
        for position in session.partitions.values():
            if position not in session.dirty:
                core = lab.replica(position.index).core
                assert position.fetch_offset == core.log_end_offset
                assert position.sent_high_watermark == core.high_watermark
                assert position.sent_log_start_offset == core.log_start_offset


async def _let_all_catch_up(lab: LeaderLab, followers: list[PlayedFollower], max_bytes: int) -> None:
    for follower in followers:
        for index in range(PARTITIONS):
            _change(follower, "resume", index)
    for _ in range(200):
        for follower in followers:
            follower.take_in()
            follower.fetch(max_wait_ms=0, max_bytes=max_bytes)
    for follower in followers:
        follower.take_in()
        for index in range(PARTITIONS):
            core = lab.replica(index).core
            assert follower.ends[index] == core.log_end_offset == core.high_watermark
            assert follower.high_watermarks[index] == core.high_watermark


def test_idle_fetches_look_at_nothing(make_lab: Callable[[], LeaderLab]) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead(partitions=PARTITIONS)
        follower = PlayedFollower(lab, 2)
        follower.fetch(max_wait_ms=0)
        follower.take_in()
        (session,) = lab.broker.follower_fetch_sessions
        for _ in range(3):
            follower.fetch()
            assert not session.dirty
            lab.broker.timer.advance(lab.broker.timer.monotonic_ms() + 500)
            follower.take_in()

    make_lab().run(scenario)


@pytest.fixture
def make_lab(tmp_path: Path) -> Any:
    made: list[InMemoryBroker] = []

    def make() -> LeaderLab:
        made.append(InMemoryBroker(tmp_path / "data"))
        return LeaderLab(made[-1])

    yield make
    for broker in made:
        broker.close()
