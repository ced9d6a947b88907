"""Housekeeping continues after failures."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from brokerlab.in_memory_broker import InMemoryBroker
from tidelog.broker.hosting.replica import Replica
from tidelog.broker.log.directory_files import LogStorageError
from tidelog.broker.partition.roles import FetchState
from tidelog.broker.share.dead_letter_copies import DeadLetterTakeover
from tidelog.kernel import slices
from tidelog.kernel.steps import Steps
from tidelog.metadata.entries import GroupConfigEntry
from tidelog.model.coordinator_shards import ShardKind
from tidelog.model.topics import TopicPartition
from tidelog.rpc.broker_commands import SecurityUpdate
from tidelog.settings.group_settings import DEAD_LETTER_TOPIC, GroupSettings, GroupSettingsView


def test_a_failure_of_one_partition_does_not_affect_the_others(
    lab: InMemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.add_topic("t", partitions=3)
    done: list[int] = []

    def retention(self: Replica, now_ms: int) -> int:
        if self.topic_partition.partition == 1:
            raise LogStorageError("Input/output error")
        done.append(self.topic_partition.partition)
        return 0

    monkeypatch.setattr(Replica, "delete_old_segments", retention)
    with capture_logs() as logs:
        lab.runner.run(lab.broker.housekeeping.apply_retention())
    assert sorted(done) == [0, 2]
    assert [(entry["event"], entry["partition"]) for entry in logs] == [("housekeeping failed", "t-1")]


def test_housekeeping_skips_a_log_that_is_being_truncated(lab: InMemoryBroker) -> None:
    lab.add_topic("t")
    replica = lab.broker.hosted.leader_replica("t", 0)
    lab.append("t", producer_id=7, producer_epoch=0, base_sequence=0)
    housekeeping = lab.broker.housekeeping
    lab.clock.advance(replica.core.producers.expiration_ms)
    replica.core.fetch_state = FetchState.TRUNCATING
    lab.runner.run(housekeeping.expire_producers())
    assert len(replica.core.producers) == 1
    replica.core.fetch_state = FetchState.FETCHING
    lab.runner.run(housekeeping.expire_producers())
    assert not len(replica.core.producers)


def test_a_producer_expires_after_the_time_of_the_setting(tmp_path: Path) -> None:
    lab = InMemoryBroker(tmp_path, {"producer.id.expiration.ms": "1000"})
    try:
        lab.add_topic("t")
        producers = lab.broker.hosted.leader_replica("t", 0).core.producers
        lab.append("t", producer_id=7, producer_epoch=0, base_sequence=0)
        lab.clock.advance(999)
        lab.runner.run(lab.broker.housekeeping.expire_producers())
        assert len(producers) == 1
        lab.clock.advance(1)
        lab.runner.run(lab.broker.housekeeping.expire_producers())
        assert len(producers) == 0
    finally:
        lab.close()


def test_a_changed_producer_id_expiration_applies_to_open_partitions(lab: InMemoryBroker) -> None:
    lab.add_topic("t")
    producers = lab.broker.hosted.leader_replica("t", 0).core.producers
    lab.append("t", producer_id=7, producer_epoch=0, base_sequence=0)
    lab.update_metadata(broker_configs={"": {"producer.id.expiration.ms": "1000"}})
    lab.clock.advance(1000)
    lab.runner.run(lab.broker.housekeeping.expire_producers())
    assert len(producers) == 0


def test_housekeeping_skips_a_partition_that_is_closed_meanwhile(
    lab: InMemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log is closed, so no file may be rolled or opened."""
    lab.add_topic("t", partitions=2)
    done: list[TopicPartition] = []

    def retention(self: Replica, now_ms: int) -> int:
        done.append(self.topic_partition)
        return 0

    monkeypatch.setattr(Replica, "delete_old_segments", retention)
    first, second = lab.broker.hosted.replicas

    async def both() -> None:
        await asyncio.gather(
            lab.broker.housekeeping.apply_retention(),
            lab.broker.hosting.close(second, delete=True),
        )

    lab.runner.run(both())
    assert done == [first]


@pytest.mark.parametrize("failure", [LogStorageError("full"), OSError(28, "full"), KeyError("a bug")])
def test_a_task_that_fails_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    settings = {"log.flush.scheduler.interval.ms": "1", "log.cleaner.enable": "false"}
    lab = InMemoryBroker(tmp_path, settings)
    housekeeping = lab.broker.housekeeping
    turns: list[int] = []

    async def duty() -> None:
        turns.append(1)
        raise failure

    async def watch(**_: Any) -> None:
        monkeypatch.setattr(housekeeping, "flush", duty)
        housekeeping.start()
        while len(turns) < 3:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.001)
        await housekeeping.stop()

    try:
        lab.runner.run(asyncio.wait_for(watch(), 10))
    finally:
        lab.close()


def test_a_search_for_dead_letters_reads_only_the_settings_of_groups_that_have_them(
    lab: InMemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [GroupConfigEntry(f"g{number}", {"share.session.timeout.ms": "50000"}) for number in range(100)]
    entries.append(GroupConfigEntry("dead", {DEAD_LETTER_TOPIC: "dlq.t"}))
    entries.append(GroupConfigEntry("empty", {DEAD_LETTER_TOPIC: ""}))
    lab.update_metadata(security=SecurityUpdate(1, tuple(entries)))
    read: list[str] = []
    scanned: list[frozenset[str]] = []
    sliced: list[object] = []
    for_group, finish = GroupSettingsView.for_group, slices.finish

    def counted_for_group(self: GroupSettingsView, group_id: str) -> GroupSettings:
        read.append(group_id)
        return for_group(self, group_id)

    def counted_finish(steps: Steps[Any], seconds: slices.Seconds) -> Coroutine[object, None, Any]:
        sliced.append(steps)
        return finish(steps, seconds)

    async def scan(self: DeadLetterTakeover, groups: frozenset[str], replicas: object) -> None:
        scanned.append(groups)

    monkeypatch.setattr(GroupSettingsView, "for_group", counted_for_group)
    monkeypatch.setattr(DeadLetterTakeover, "scan", scan)
    monkeypatch.setattr(slices, "SLICE_MS", 0)
    monkeypatch.setattr(slices, "finish", counted_finish)
    lab.runner.run(lab.broker.continue_dead_letters())
    assert (read, scanned, sliced) == ([], [], []), "there is no share group yet"
    lab.add_topic(ShardKind.SHARE.topic)
    read.clear()
    sliced.clear()
    lab.runner.run(lab.broker.continue_dead_letters())
    assert read == ["dead", "empty"]
    assert scanned == [frozenset({"dead"})]
    assert len(sliced) == 1
