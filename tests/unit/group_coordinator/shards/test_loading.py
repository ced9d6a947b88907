"""The runtime loads many shards at once, tells them of new topics, and processes many requests, without
holding the event loop for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.group_coordinator.groups.group_core import GroupCore
from tidelog.group_coordinator.groups.offset_commits import (
    CommittedOffset,
    GroupPartition,
    offset_record,
)
from tidelog.group_coordinator.shard_core import ClusterImage, ReplayedRecord
from tidelog.group_coordinator.shards.runner import CoordinatorRuntime, Loop, Parts
from tidelog.group_coordinator.shards.shard import Shard, ShardState
from tidelog.group_coordinator.shards.shard_log import BatchWriter
from tidelog.kernel import slices
from tidelog.kernel.instants import MonotonicMs, WallMs
from tidelog.kernel.slices import SLICE_MS, STEPS_BETWEEN_READINGS
from tidelog.kernel.steps import Steps
from tidelog.metadata.store import Event, WatchBatch
from tidelog.model.acl import ANONYMOUS
from tidelog.model.coordinator_shards import ShardId, ShardKind
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import assign_offset_and_epoch, iterate_headers
from tidelog.rpc.coordinator_session import (
    AnswerRequest,
    AttachShard,
    ForwardedToShard,
    Item,
    ShardAttached,
    ShardLost,
    ShardRecords,
)
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.wire.api_keys import ApiKey

BROKER = 1
SHARDS = 3
RECORDS = 3_000
"""The records of each shard."""
MOST_OF_A_TURN = 2_500
MOST_SHARDS_OF_A_TURN = 15
NOW_MS = WallMs(1_000)


class Line:
    unsent_bytes = 0

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, item: Item) -> None:
        self.sent.append(item)

    def close(self) -> None: ...


class Sessions:
    """One session with one broker."""

    def __init__(self) -> None:
        self.session: Any = SimpleNamespace(
            line=Line(), broker=SimpleNamespace(broker_id=BROKER), is_over=False
        )

        self.changes = 0

    def brokers_changed(self, brokers: object) -> None:
        self.changes += 1

    def get(self, broker_id: int) -> Any:
        return self.session

    def __iter__(self) -> Any:
        return iter([self.session])


class Loads:
    """A runtime whose SHARDS shards are attached and load. It counts the records that reach their cores."""

    def __init__(self) -> None:
        self.replayed = 0
        self.record_ms = 0
        """The time that each record takes."""
        self.image_ms = 0
        """The time that the images of shards have taken."""
        self.image = ClusterImage(1, {}, {})
        self.soon: list[Callable[[], None]] = []
        self.sessions = Sessions()
        self.line: Line = self.sessions.session.line
        calls: Any = SimpleNamespace(markers=SimpleNamespace(forget=lambda core: None))
        clock: Any = SimpleNamespace(
            wall_ms=lambda: NOW_MS,
            monotonic_ms=lambda: MonotonicMs(self.replayed * self.record_ms + self.image_ms),
        )
        view: Any = SimpleNamespace(
            leader=lambda partition: SimpleNamespace(broker_id=BROKER, leader_epoch=0),
            brokers={},
            image=lambda: self.image,
            shard_count=lambda kind: self.shard_count,
        )
        self.shard_count, self.claim_rounds = 50, 0
        claims: Any = SimpleNamespace(shards_changed=self._claim)
        sessions: Any = self.sessions
        timer: Any = SimpleNamespace(
            monotonic_ms=lambda: MonotonicMs(0),
            add_after=lambda callback, delay_ms: SimpleNamespace(cancel=lambda: None),
        )
        self.runtime = CoordinatorRuntime(
            7,
            {ShardKind.GROUP: self._new_core},
            Parts(view, claims, sessions, calls),
            Loop(clock, timer, self.soon.append),
        )
        for number in range(SHARDS):
            self.runtime.claimed(ShardId(ShardKind.GROUP, number), 1)
        self.attachments = [item.attachment for item in self.line.sent if isinstance(item, AttachShard)]
        assert len(self.attachments) == SHARDS
        self.receive(*(ShardAttached(at, 0, 0, RECORDS, RECORDS) for at in self.attachments))

    def _new_core(self, shard: ShardId, epoch: int) -> GroupCore:
        core = GroupCore(BrokerSettings.parse({}), lambda: "id")
        replay = core.replay

        def counted(record: ReplayedRecord, offset: int) -> None:
            self.replayed += 1
            replay(record, offset)

        core.replay = counted  # type: ignore[method-assign]
        return core

    def _claim(self) -> None:
        self.claim_rounds += 1

    def receive(self, *items: Item) -> int:
        """Returns the records that were replayed at once."""
        before = self.replayed
        self.runtime.items_received(self.sessions.session, items)
        return self.replayed - before

    def turn(self) -> int:
        """Returns the records that were replayed in the next turn of the loop."""
        before = self.replayed
        due, self.soon[:] = list(self.soon), []
        for callback in due:
            callback()
        return self.replayed - before

    def states(self) -> list[ShardState]:
        return [shard.state for shard in self.runtime.shards.values()]


def log() -> bytes:
    writer = BatchWriter()
    writer.add(
        [
            offset_record(GroupPartition("g", "t", number), CommittedOffset(number, -1, "", NOW_MS))
            for number in range(RECORDS)
        ],
        None,
        NOW_MS,
    )
    batches = bytearray(b"".join(batches for _, batches in writer.take()))
    offset = 0
    for position, header in iterate_headers(bytes(batches)):
        assign_offset_and_epoch(batches, position, offset, 0)
        offset += header.last_offset_delta + 1
    return bytes(batches)


def test_shards_that_load_at_once_are_replayed_in_many_turns() -> None:
    loads, records = Loads(), log()
    replayed = [loads.receive(*(ShardRecords(at, 0, RECORDS, RECORDS, records) for at in loads.attachments))]
    while loads.soon:
        replayed.append(loads.turn())
    assert sum(replayed) == SHARDS * RECORDS
    assert max(replayed) <= MOST_OF_A_TURN
    assert loads.states() == [ShardState.CLAIMING] * SHARDS
    for shard in loads.runtime.shards.values():
        assert isinstance(shard.core, GroupCore)
        assert {key.partition for key, _ in shard.core.offsets.committed_offsets()} == set(range(RECORDS))


def test_a_turn_replays_fewer_records_that_take_long() -> None:
    loads, records = Loads(), log()
    loads.record_ms = 5
    replayed = [loads.receive(*(ShardRecords(at, 0, RECORDS, RECORDS, records) for at in loads.attachments))]
    while loads.soon:
        replayed.append(loads.turn())
    assert sum(replayed) == SHARDS * RECORDS
    assert max(replayed) <= STEPS_BETWEEN_READINGS


def test_a_shard_that_is_lost_while_it_loads_is_not_replayed_further() -> None:
    """Nor do records of the ended attachment reach the core of the next one."""
    loads, records = Loads(), log()
    first, _, third = loads.attachments
    loads.receive(*(ShardRecords(at, 0, RECORDS, RECORDS, records) for at in loads.attachments))
    loads.turn()
    loads.receive(
        ShardLost(first, ErrorCode.NOT_LEADER_OR_FOLLOWER, ""),
        ShardLost(third, ErrorCode.NOT_LEADER_OR_FOLLOWER, ""),
    )
    shards = list(loads.runtime.shards.values())
    for at in (0, 2):  # `third` had not begun to replay its records
        loads.runtime.session_began(loads.sessions.session)
        assert shards[at].log.attachment not in (first, third)
        loads.receive(ShardAttached(shards[at].log.attachment, 1, 0, RECORDS, RECORDS))
    while loads.soon:
        loads.turn()
    assert loads.states() == [ShardState.LOADING, ShardState.CLAIMING, ShardState.LOADING]
    assert loads.replayed <= 2 * RECORDS
    for at in (0, 2):
        core = shards[at].core
        assert isinstance(core, GroupCore)
        assert not list(core.offsets.committed_offsets())


def test_shards_learn_of_new_topics_in_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    loads, shards = Loads(), 50
    for number in range(SHARDS, shards):
        loads.runtime.claimed(ShardId(ShardKind.GROUP, number), 1)
    told: list[tuple[Shard, int]] = []
    monkeypatch.setattr(Shard, "image_changed", lambda shard, image: told.append((shard, image.version)))
    loads.image = ClusterImage(2, {}, {})
    loads.runtime.cluster_listed()
    counts = [len(told)]
    loads.image = ClusterImage(3, {}, {})
    loads.runtime.shards.pop(ShardId(ShardKind.GROUP, shards - 1))
    while loads.soon:
        loads.turn()
        counts.append(len(told))
    assert max(after - before for before, after in pairwise([0, *counts])) <= MOST_SHARDS_OF_A_TURN
    assert {shard.shard_id.partition for shard, _ in told} >= set(range(shards - 1))
    assert told[-1][1] == 3, "later shards receive the newest image"


def test_claims_and_sessions_follow_only_what_concerns_them() -> None:
    loads = Loads()

    def changed(key: str) -> tuple[int, int]:
        """Returns how often the sessions and the claims were looked at since the start."""
        event = Event(key, b"", 1)
        loads.runtime.cluster_changed(WatchBatch(1, (event,)))
        return loads.sessions.changes, loads.claim_rounds

    loads.runtime.cluster_listed()
    assert (loads.sessions.changes, loads.claim_rounds) == (1, 1)
    assert changed("/brokers/topics/new") == (1, 1)
    assert changed("/brokers/ids/1") == (2, 1)
    loads.shard_count += 1
    assert changed("/brokers/topics/__consumer_offsets") == (2, 2)


def test_a_turn_tells_fewer_shards_that_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = Loads()
    for number in range(SHARDS, 20):
        loads.runtime.claimed(ShardId(ShardKind.GROUP, number), 1)

    def image_changed(shard: Shard, image: ClusterImage) -> None:
        loads.image_ms += 4

    monkeypatch.setattr(Shard, "image_changed", image_changed)
    loads.runtime.cluster_listed()
    took_ms = [loads.image_ms]
    while loads.soon:
        loads.turn()
        took_ms.append(loads.image_ms)
    assert took_ms[-1] == 20 * 4
    assert max(after - before for before, after in pairwise([0, *took_ms])) <= SLICE_MS + 4


def test_a_large_answer_is_made_in_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_MS", 0)
    taken: list[int] = []

    def steps() -> Steps[None]:
        for number in range(1_000):
            taken.append(number)
            yield

    async def run() -> list[int]:
        loads, seen = Loads(), [0]
        loads.runtime.work_on(steps())
        while len(taken) < 1_000:
            seen.append(len(taken))
            await asyncio.sleep(0)
        return seen

    seen = asyncio.run(run())
    assert max(after - before for before, after in pairwise(seen)) <= STEPS_BETWEEN_READINGS


class SlowShard:
    """Takes the place of a shard: it notes the requests, each of which takes the time of a record."""

    state = ShardState.LOADING

    def __init__(self, loads: Loads, line: Line) -> None:
        self._loads = loads
        self.log = SimpleNamespace(line=line)
        self.requests: list[int] = []
        self.flushes: list[int] = []
        """The number of requests at each end of a turn."""

    def request(self, item: ForwardedToShard, line: Line) -> None:
        self._loads.replayed += 1
        self.requests.append(item.request_id)
        if item.request_id == FAILING:
            raise ValueError("a bug")
        self._loads.runtime.has_pending(self)  # type: ignore[arg-type]

    def flush(self) -> None:
        if not self.flushes or self.flushes[-1] != len(self.requests):
            self.flushes.append(len(self.requests))


FAILING = 7


def slow_shard(loads: Loads) -> SlowShard:
    shard = SlowShard(loads, loads.line)
    loads.runtime.shards[ShardId(ShardKind.GROUP, 0)] = shard  # type: ignore[assignment]
    loads.record_ms = 1
    return shard


def requests(
    first: int, after: int, principal: str = "User:u", host: str = "10.0.0.1"
) -> list[ForwardedToShard]:
    shard = ShardId(ShardKind.GROUP, 0)
    return [
        ForwardedToShard(number, shard, ApiKey.HEARTBEAT, 4, b"", principal, None, host)
        for number in range(first, after)
    ]


def test_requests_that_take_long_are_processed_in_many_turns_and_in_order() -> None:
    loads = Loads()
    shard = slow_shard(loads)
    taken = [loads.receive(*requests(0, 10))]
    taken.append(loads.receive(*requests(10, 12)))
    while loads.soon:
        taken.append(loads.turn())
    assert shard.requests == list(range(12))
    assert max(taken) <= 3
    assert taken[1] == 0, "later items wait for the earlier ones"
    assert shard.flushes == [3, 6, 9, 12], "each turn sends what it has decided"
    assert loads.receive(*requests(12, 13)) == 1


def test_clients_take_turns_however_many_requests_one_of_them_has() -> None:
    loads = Loads()
    shard = slow_shard(loads)
    loads.receive(*requests(0, 100, "User:mallory"))
    loads.receive(*requests(200, 202, "User:alice"))
    loads.receive(*requests(300, 301, ANONYMOUS, "10.0.0.7"), *requests(400, 402, ANONYMOUS, "10.0.0.8"))
    loads.receive(*requests(500, 503, ANONYMOUS, ""))  # of a broker
    while loads.soon:
        loads.turn()
    assert shard.requests[:3] == [0, 1, 2], "these were begun before the others arrived"
    assert shard.requests[3:12] == [500, 3, 501, 200, 502, 300, 400, 4, 201]
    assert shard.requests[12:14] == [401, 5]
    of_mallory = [number for number in shard.requests if number < 100]
    assert of_mallory == list(range(100)), "the requests of one client keep their order"


def test_what_brokers_tell_does_not_wait_for_requests() -> None:
    """The attachment of shard 1 ends. What was asked through it is refused, as its broker has done."""
    loads = Loads()
    shard = slow_shard(loads)
    lost = ShardId(ShardKind.GROUP, 1)
    (asked,) = requests(900, 901)
    loads.receive(*requests(0, 10), asked._replace(shard=lost))
    loads.receive(ShardLost(loads.attachments[1], ErrorCode.NOT_LEADER_OR_FOLLOWER))
    other = SlowShard(loads, loads.line)
    loads.runtime.shards[lost] = other  # type: ignore[assignment]
    loads.turn()
    assert len(shard.requests) < 10
    while loads.soon:
        loads.turn()
    assert shard.requests == list(range(10)) and not other.requests
    assert AnswerRequest(900, None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) in loads.line.sent


def test_requests_that_take_no_time_are_processed_at_once() -> None:
    loads = Loads()
    shard = slow_shard(loads)
    loads.record_ms = 0
    assert loads.receive(*requests(0, 500)) == 500
    assert shard.requests == list(range(500))


def test_waiting_requests_of_a_session_that_ended_are_dropped() -> None:
    loads = Loads()
    shard = slow_shard(loads)
    loads.receive(*requests(0, 10))
    loads.sessions.session.is_over = True
    while loads.soon:
        loads.turn()
    assert shard.requests == [0, 1, 2]
