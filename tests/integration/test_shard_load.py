"""A shard with a million offset commits of 10,000 keys: after cleaning, a new owner loads it
within seconds.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from brokerlab.log_cleaning import clean_log, cleaning_job
from brokerlab.logs import append, open_log
from tidelog.broker.log.log_config import LogConfig
from tidelog.group_coordinator.groups.group_core import GroupCore
from tidelog.group_coordinator.groups.offset_commits import (
    CommittedOffset,
    GroupPartition,
    offset_record,
)
from tidelog.group_coordinator.shards.shard_log import Replay
from tidelog.model.coordinator_shards import ShardId, ShardKind
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.settings.broker_settings import BrokerSettings

pytestmark = pytest.mark.slow

COMMITS = 1_000_000
GROUPS, PARTITIONS = 1_000, 10
A_BATCH = 50
READ_BYTES = 1 << 20
LOAD_LIMIT_S = 2.0
NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=104_857_600, cleanup_policy=frozenset({"compact"}))


def test_a_cleaned_shard_loads_fast(tmp_path: Path) -> None:
    log = open_log(tmp_path / "__consumer_offsets-0", CONFIG)
    positions = [
        GroupPartition(f"group-{group}", "topic", partition)
        for group in range(GROUPS)
        for partition in range(PARTITIONS)
    ]
    keys = [offset_record(position, CommittedOffset(0, -1, "", NOW_MS)).key for position in positions]
    for first in range(0, COMMITS, A_BATCH):
        value = offset_record(positions[0], CommittedOffset(first, -1, "", NOW_MS)).value
        records = [Record(n, NOW_MS, keys[n % len(keys)], value) for n in range(first, first + A_BATCH)]
        append(log, bytes(build_batch(records, leader_epoch=0)), NOW_MS)
    log.roll(NOW_MS)
    done = clean_log(log, cleaning_job(log, NOW_MS, dedupe_buffer_bytes=1 << 27))
    assert (done.records_read, done.records_kept) == (COMMITS, len(keys))

    core = GroupCore(BrokerSettings(), lambda: "member")
    replay = Replay(ShardId(ShardKind.GROUP, 0), core)
    began, offset = time.perf_counter(), 0
    while (stretch := log.read(offset, READ_BYTES, log.log_end_offset)) is not None:
        for _ in replay.read(stretch.read(), offset):
            pass
        offset = stretch.next_offset
        stretch.release()
    elapsed_s = time.perf_counter() - began
    assert replay.record_count == len(keys)
    assert elapsed_s < LOAD_LIMIT_S
    print(f"{COMMITS} commits over {len(keys)} keys: loaded in {elapsed_s:.2f} s after cleaning")
    log.close()
