"""A replay that skips replaced records gives the same state as a replay of every record."""

from __future__ import annotations

import random
from itertools import chain
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from tidelog.group_coordinator.groups.group_core import GroupCore
from tidelog.group_coordinator.groups.offset_commits import (
    CommittedOffset,
    GroupPartition,
    offset_record,
)
from tidelog.group_coordinator.shard_core import CoordinatorRecord, EndMarker, Producer, ReplayedRecord
from tidelog.group_coordinator.shards import shard_log
from tidelog.group_coordinator.shards.shard_log import (
    BatchWriter,
    Replay,
    ShardClaim,
    claim_record,
)
from tidelog.group_coordinator.share_log import (
    SharePartitionState,
    ShareUpdate,
    StateBatch,
    snapshot_record,
    update_record,
)
from tidelog.group_coordinator.share_state_core import ShareStateCore
from tidelog.kernel.instants import WallMs
from tidelog.model.coordinator_shards import ShardId, ShardKind
from tidelog.model.topics import SharePartitionKey
from tidelog.records.batch import assign_offset_and_epoch, iterate_headers
from tidelog.settings.broker_settings import BrokerSettings

SHARD = ShardId(ShardKind.GROUP, 0)
NOW_MS = WallMs(1_000)


def new_core() -> GroupCore:
    return GroupCore(BrokerSettings.parse({}), lambda: "id")


def numbered(run: bytes) -> bytes:
    batches, offset = bytearray(run), 0
    for position, header in iterate_headers(run):
        assign_offset_and_epoch(batches, position, offset, 0)
        offset += header.last_offset_delta + 1
    return bytes(batches)


def run(replay: Replay, batches: bytes, from_offset: int) -> int:
    """Returns the number of steps."""
    return sum(1 for _ in chain(replay.read(batches, from_offset), replay.finish()))


def taken(writer: BatchWriter) -> bytes:
    return b"".join(batches for _, batches in writer.take())


@pytest.mark.parametrize("seed", range(60))
def test_replaying_in_pieces_equals_replaying_every_record(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(shard_log, "MAX_COLLECTED_KEYS", chance.randint(0, 6))
    plain, writer, offset = new_core(), BatchWriter(), 0
    open_producers: set[int] = set()
    for number in range(120):
        event = chance.random()
        if event < 0.15 and open_producers:
            producer = Producer(open_producers.pop(), 0)
            is_commit = chance.random() < 0.5
            writer.add_marker(EndMarker(producer, is_commit, 1), NOW_MS)
            plain.replay_marker(producer, is_commit)
            offset += 1
            continue
        position = GroupPartition(f"g{chance.randint(0, 2)}", "t", chance.randint(0, 1))
        committed = CommittedOffset(number, -1, "", NOW_MS) if event < 0.9 else None
        transaction = None
        if event < 0.5 and event > 0.35:
            transaction = Producer(chance.randint(1, 2), 0)
            open_producers.add(transaction.producer_id)
        record = offset_record(position, committed)
        writer.add([record], transaction, NOW_MS)
        plain.replay(ReplayedRecord(*record, NOW_MS, transaction), offset)
        offset += 1
    core = new_core()
    replay = Replay(SHARD, core)
    run(replay, numbered(taken(writer)), 0)
    assert dict(core.offsets.committed_offsets()) == dict(plain.offsets.committed_offsets())
    for producer_id in open_producers:
        for one in (core, plain):
            one.replay_marker(Producer(producer_id, 0), True)
    assert dict(core.offsets.committed_offsets()) == dict(plain.offsets.committed_offsets())


def test_the_highest_claim_counts_and_unknown_records_are_skipped() -> None:
    writer = BatchWriter()
    for epoch in (3, 5, 4):
        writer.add([claim_record(ShardClaim(epoch, 9))], None, NOW_MS)
    writer.add([CoordinatorRecord(b"\x7f\x00what", b"?")], None, NOW_MS)
    replay = Replay(SHARD, new_core())
    run(replay, numbered(taken(writer)), 0)
    assert replay.newest_claim == ShardClaim(5, 9)
    assert replay.skipped_count == 1


def test_a_load_logs_once_how_many_records_it_skips() -> None:
    """The snapshot before these updates was trimmed."""
    core = ShareStateCore(BrokerSettings.parse({}))
    key = SharePartitionKey("g", UUID(int=1), 0)
    update = update_record(key, ShareUpdate(0, -1, -1, 0, (StateBatch(1, 1, 2, 1),)))
    writer = BatchWriter()
    for _ in range(100):
        writer.add([update], None, NOW_MS)
    replay = Replay(ShardId(ShardKind.SHARE, 0), core)
    with capture_logs() as logged:
        run(replay, numbered(taken(writer)), 0)
    assert [(line["event"], line["records"], line["first_offset"]) for line in logged] == [
        ("records of a shard are skipped", 100, 0)
    ]


def test_records_before_the_position_are_skipped() -> None:
    writer = BatchWriter()
    position = GroupPartition("g", "t", 0)
    writer.add([offset_record(position, CommittedOffset(n, -1, "", NOW_MS)) for n in range(4)], None, NOW_MS)
    replay = Replay(SHARD, new_core())
    run(replay, numbered(taken(writer)), 3)
    assert replay.record_count == 1


def test_every_update_of_a_share_partition_is_replayed() -> None:
    core = ShareStateCore(BrokerSettings.parse({}))
    key = SharePartitionKey("g", UUID(int=1), 0)
    state = SharePartitionState(0, 0, 0, 0, -1, NOW_MS, NOW_MS)
    acquired = [StateBatch(offset, offset, 2, 1) for offset in (1, 3, 5)]
    writer = BatchWriter()
    writer.add([snapshot_record(key, state)], None, NOW_MS)
    for batch in acquired:
        writer.add([update_record(key, ShareUpdate(0, -1, -1, 0, (batch,)))], None, NOW_MS)
    replay = Replay(ShardId(ShardKind.SHARE, 0), core)
    run(replay, numbered(taken(writer)), 0)
    assert list(core.states[key].batches) == acquired
