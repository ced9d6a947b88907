"""The broker's cleaner and its worker: the choice of logs, swaps under readers, and deaths and removals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from structlog.testing import capture_logs

from brokerlab.in_memory_broker import InMemoryBroker
from brokerlab.logs import read_all
from tidelog.broker.hosting.replica import Replica
from tidelog.broker.log.cleaning.segment_swap import SegmentSwap
from tidelog.broker.log.directory_files import read_offsets
from tidelog.log_format.directory import CLEANER_OFFSET_CHECKPOINT
from tidelog.model.topics import TopicPartition
from tidelog.records.builder import build_batch
from tidelog.records.record import Record, iterate_records

COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.01",
    "file.delete.delay.ms": "0",
}
T0 = TopicPartition("t", 0)
LIMIT_S = 60.0


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[InMemoryBroker]:
    broker = InMemoryBroker(tmp_path / "data", {"log.cleaner.backoff.ms": "10"})
    yield broker
    broker.close()


def write(
    lab: InMemoryBroker, count: int, *, topic: str = "t", keys: int = 100, rolls: bool = True
) -> Replica:
    """Writes `count` batches of one record each, whose value contains the offset."""
    replica = lab.broker.hosted.leader_replica(topic, 0)
    now_ms = lab.clock.wall_ms()
    for _ in range(count):
        offset = replica.log.log_end_offset
        record = Record(0, now_ms, b"key-%d" % (offset % keys), b"%d" % offset + bytes(200))
        replica.append(memoryview(build_batch([record])), -1, 9, now_ms)
    if rolls:
        replica.storage.roll(replica.log.log_end_offset, now_ms, replica.core.producers.snapshot())
    return replica


def newest_offsets(replica: Replica) -> dict[bytes | None, int]:
    return {record.key: record.offset for batch in read_all(replica.log) for record in iterate_records(batch)}


async def until_checkpointed(lab: InMemoryBroker, offset: int) -> None:
    """Waits until the cleaner has written its checkpoint, which it does after it has swapped the segments."""
    began = time.monotonic()
    while read_offsets(lab.broker.log_directory.path / CLEANER_OFFSET_CHECKPOINT) != {T0: offset}:
        assert time.monotonic() - began < LIMIT_S, f"no checkpoint of offset {offset}"
        await asyncio.sleep(0.01)


async def until_clean(replica: Replica, offset: int) -> None:
    began = time.monotonic()
    while replica.storage.clean_offset < offset:
        assert time.monotonic() - began < LIMIT_S, f"clean up to {replica.storage.clean_offset}, not {offset}"
        await asyncio.sleep(0.01)


def worker_pids() -> list[int]:
    return [child.pid for child in psutil.Process().children() if _is_worker(child)]


def _is_worker(child: psutil.Process) -> bool:
    try:
        return any("cleaning.worker" in part for part in child.cmdline())
    except psutil.ZombieProcess:  # it has ended, and belongs to another test of this process
        return False


async def stopped_worker() -> int:
    """Waits for the next worker, and stops it with SIGSTOP."""
    began = time.monotonic()
    while not (pids := worker_pids()):
        assert time.monotonic() - began < LIMIT_S
        await asyncio.sleep(0)
    os.kill(pids[0], signal.SIGSTOP)
    return pids[0]


def test_a_dirty_log_is_cleaned_while_it_is_read_and_written(lab: InMemoryBroker) -> None:
    lab.add_topic("t", configs=COMPACTED)
    replica = write(lab, 10_000)
    end_offset = replica.log.log_end_offset
    expected = newest_offsets(replica)
    sending = replica.read(0, 1 << 20, 0, at_least_one_batch=True)
    assert sending is not None
    before = sending.read()

    async def run() -> None:
        lab.broker.log_cleaner.start()
        await until_clean(replica, end_offset)
        await until_checkpointed(lab, end_offset)
        await lab.broker.log_cleaner.stop()

    lab.runner.run(run())
    assert sending.read() == before, "a range that is being sent does not change"
    sending.release()
    assert newest_offsets(replica) == expected
    assert sum(len(list(iterate_records(batch))) for batch in read_all(replica.log)) == 100
    assert replica.log.log_end_offset == end_offset
    assert replica.log.size_bytes == sum(segment.size_bytes for segment in replica.log.segments)
    lookup = replica.log.offset_for_timestamp(lab.clock.wall_ms())
    assert lookup is not None
    assert lookup.offset == min(expected.values())
    replica.storage.remove_deleted_files(lab.clock.wall_ms())
    names = {path.suffix for path in Path(replica.log.directory.path).iterdir()}
    assert not names & {".deleted", ".cleaned", ".swap"}
    assert not worker_pids()
    write(lab, 1, rolls=False)
    assert len(read_all(replica.log)) == 101


def test_the_clean_offset_survives_a_restart(lab: InMemoryBroker) -> None:
    lab.add_topic("t", configs=COMPACTED)
    replica = write(lab, 1_000)
    expected = newest_offsets(replica)

    async def run() -> None:
        lab.broker.log_cleaner.start()
        await until_clean(replica, 1_000)

    lab.runner.run(run())
    lab.reopen()
    lab.add_topic("t", configs=COMPACTED)
    replica = lab.broker.hosted.leader_replica("t", 0)
    assert replica.storage.clean_offset == 1_000
    assert newest_offsets(replica) == expected


def test_topics_that_are_not_compacted_are_not_cleaned(lab: InMemoryBroker) -> None:
    lab.add_topic("plain", configs={"segment.bytes": "1048576"})
    lab.add_topic("t", configs=COMPACTED)
    plain = write(lab, 1_000, topic="plain")
    replica = write(lab, 1_000)

    async def run() -> None:
        lab.broker.log_cleaner.start()
        await until_clean(replica, 1_000)

    lab.runner.run(run())
    assert len(read_all(plain.log)) == 1_000


def test_a_partition_can_be_deleted_while_it_is_cleaned(lab: InMemoryBroker) -> None:
    """The worker is stopped by SIGSTOP, so the job is certainly not finished."""
    lab.add_topic("t", configs=COMPACTED)
    write(lab, 1_000)

    async def run() -> None:
        lab.broker.log_cleaner.start()
        pid = await stopped_worker()
        await asyncio.wait_for(lab.broker.hosting.close(T0, delete=True), LIMIT_S)
        assert not psutil.pid_exists(pid)
        await lab.broker.log_cleaner.stop()

    lab.runner.run(run())


def test_a_worker_that_dies_is_replaced(lab: InMemoryBroker) -> None:
    lab.add_topic("t", configs=COMPACTED)
    replica = write(lab, 1_000)

    async def run() -> None:
        lab.broker.log_cleaner.start()
        os.kill(await stopped_worker(), signal.SIGKILL)
        await until_clean(replica, 1_000)

    with capture_logs() as logs:
        lab.runner.run(run())
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == ["compaction failed"]


def test_a_damaged_log_is_left_alone_and_the_others_are_cleaned(lab: InMemoryBroker) -> None:
    lab.add_topic("bad", configs=COMPACTED)
    lab.add_topic("t", configs=COMPACTED)
    bad, replica = write(lab, 3_000, topic="bad"), write(lab, 1_000)
    fd = bad.log.segments[0].open_file()
    os.pwrite(fd, b"\xff" * 100, bad.log.segments[0].size_bytes // 2)

    async def run() -> None:
        lab.broker.log_cleaner.start()
        await until_clean(replica, 1_000)
        write(lab, 1_000)
        await until_clean(replica, 2_000)

    with capture_logs() as logs:
        lab.runner.run(run())
    failures = [entry for entry in logs if entry["event"] == "compaction failed"]
    assert [entry["partition"] for entry in failures] == ["bad-0"]
    assert bad.storage.clean_offset == -1


def test_the_event_loop_runs_while_the_worker_is_stopped(lab: InMemoryBroker) -> None:
    lab.add_topic("t", configs=COMPACTED)
    replica = write(lab, 1_000)

    async def run() -> None:
        lab.broker.log_cleaner.start()
        pid = await stopped_worker()
        for _ in range(20):
            await asyncio.sleep(0)
            write(lab, 10, rolls=False)
        os.kill(pid, signal.SIGCONT)
        await until_clean(replica, 1_000)

    lab.runner.run(run())
    assert replica.log.log_end_offset == 1_200
    assert max(newest_offsets(replica).values()) == 1_199


def test_the_worker_ends_with_its_broker(tmp_path: Path) -> None:
    """This holds even if the broker is killed during a job."""
    parent = (
        "import subprocess, sys, time\n"
        "worker = subprocess.Popen([sys.executable, '-m', 'tidelog.broker.log.cleaning.worker'],"
        " stdin=subprocess.PIPE, start_new_session=True)\n"
        "print(worker.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as broker:
        assert broker.stdout is not None
        worker = psutil.Process(json.loads(broker.stdout.readline()))
        broker.kill()
        with suppress(psutil.NoSuchProcess):
            worker.wait(LIMIT_S)


def test_cleaning_is_called_off_after_a_truncation(lab: InMemoryBroker) -> None:
    lab.add_topic("t", configs=COMPACTED)
    replica = write(lab, 1_000)

    async def run() -> None:
        lab.broker.log_cleaner.start()
        pid = await stopped_worker()
        replica.storage.truncate_to(500, replica.core.leader_epochs.copy(), lab.clock.wall_ms())
        os.kill(pid, signal.SIGCONT)
        began = time.monotonic()
        while worker_pids() == [pid]:
            assert time.monotonic() - began < LIMIT_S
            await asyncio.sleep(0.01)
        await lab.broker.log_cleaner.stop()

    lab.runner.run(run())
    assert len(read_all(replica.log)) == 500


@pytest.mark.parametrize("end", ["stop", "close"])
def test_a_swap_that_has_begun_is_finished(
    lab: InMemoryBroker, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.add_topic("t", configs=COMPACTED)
    replica = write(lab, 1_000)
    may_rename = threading.Event()
    finish = SegmentSwap.finish

    def slow_disk(self: SegmentSwap) -> None:
        assert may_rename.wait(LIMIT_S)
        finish(self)

    monkeypatch.setattr(SegmentSwap, "finish", slow_disk)

    async def run() -> None:
        cleaner = lab.broker.log_cleaner
        cleaner.start()
        began = time.monotonic()
        while not replica.storage.is_swapping:
            assert time.monotonic() - began < LIMIT_S
            await asyncio.sleep(0.01)
        assert replica.delete_old_segments(lab.clock.wall_ms()) == 0
        assert len(read_all(replica.log)) == 100, "readers already use the new segment"
        leaving = cleaner.stop() if end == "stop" else lab.broker.hosting.close(T0, delete=False)
        ending = asyncio.ensure_future(leaving)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not ending.done()
        may_rename.set()
        await asyncio.wait_for(ending, LIMIT_S)
        await cleaner.stop()

    lab.runner.run(run())
    assert not replica.storage.is_swapping
    names = sorted(path.name for path in Path(replica.log.directory.path).glob("*.log*"))
    assert [name for name in names if name.endswith((".swap", ".cleaned"))] == []
    assert names[0] == "00000000000000000000.log"


def test_compact_and_delete_together(lab: InMemoryBroker) -> None:
    """Segments older than retention.ms are removed whatever their keys; the rest is compacted."""
    lab.add_topic("t", configs=COMPACTED | {"cleanup.policy": "compact,delete", "retention.ms": "1000"})
    replica = write(lab, 1_000)
    lab.clock.advance(1_001)
    write(lab, 1_000, keys=50)
    assert replica.delete_old_segments(lab.clock.wall_ms()) == 1
    assert replica.log.log_start_offset == 1_000

    async def run() -> None:
        lab.broker.log_cleaner.start()
        await until_clean(replica, 2_000)

    lab.runner.run(run())
    assert sorted(newest_offsets(replica).values()) == list(range(1_950, 2_000))
    assert len(read_all(replica.log)) == 50


def test_retention_by_time_does_not_apply_to_compacted_logs(lab: InMemoryBroker) -> None:
    lab.add_topic("t", configs=COMPACTED | {"retention.ms": "1000"})
    replica = write(lab, 100)
    lab.clock.advance(100_000)
    assert replica.delete_old_segments(lab.clock.wall_ms()) == 0
