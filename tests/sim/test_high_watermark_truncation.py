"""The two failures that truncation to the high watermark causes (KIP-101): loss and divergence. They happen
with epoch truncation switched off, and do not with it on.

Two real replicas, A and B, have logs that survive them. The tests decide, step by step, which replica leads,
fetches or dies.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine
from typing import Any

import pytest

from sim.disk import SimDisk, SimLogDirectory
from tidelog.broker.hosting.hosting_state import STATES, HostingState
from tidelog.broker.hosting.replica import Replica
from tidelog.broker.log.log_config import LogConfig
from tidelog.broker.partition.core import PartitionCore
from tidelog.broker.partition.events import EpochEndReceived, FollowerFetched
from tidelog.kernel.machine import Machine
from tidelog.metrics.telemetry import TopicTraffic
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import iterate_headers
from tidelog.records.builder import build_batch
from tidelog.records.record import Record, iterate_records
from tidelog.rpc.broker_commands import PartitionState
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.topic_settings import TopicSettings

TOPIC = TopicPartition("events", 0)
TOPIC_ID = uuid.UUID(int=1)
A, B = 1, 2
NOW_MS = 0
MAX_BYTES = 10_000


async def _nothing_to_write(_: TopicPartition) -> None: ...


class Environment:
    """Keeps the replica's requests, which the tests carry out."""

    def __init__(self) -> None:
        self.questions: list[Any] = []
        self.cuts: list[Any] = []

    def ask_epoch_end(self, replica: Replica, question: Any) -> None:
        self.questions.append(question)

    def cut_log(self, replica: Replica, cut: Any, leader_epoch: int) -> None:
        self.cuts.append((cut, leader_epoch))

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class Broker:
    """One replica on a disk. `start` starts it again after its death."""

    def __init__(self, broker_id: int, *, truncates_by_epoch: bool) -> None:
        self.broker_id = broker_id
        self._truncates_by_epoch = truncates_by_epoch
        self._disk = SimDisk()
        self.start()

    def start(self) -> None:
        self._directory = SimLogDirectory(self._disk, self.broker_id, lambda *_: None)
        log, producers, leader_epochs = self._directory.open_partition(
            TOPIC, TOPIC_ID, LogConfig(), now_ms=NOW_MS
        )
        core = PartitionCore(
            self.broker_id,
            producers,
            leader_epochs,
            log_start_offset=log.log.log_start_offset,
            log_end_offset=log.log.log_end_offset,
            high_watermark=self._directory.high_watermarks.get(TOPIC, 0),
            truncates_by_epoch=self._truncates_by_epoch,
        )
        self.environment: Any = Environment()
        settings = TopicSettings.resolve(BrokerSettings.parse({}), {})
        log_of_replica: Any = log
        self.replica = Replica(
            TOPIC,
            TOPIC_ID,
            core,
            log_of_replica,
            settings,
            TopicTraffic(),
            Machine(STATES, HostingState.OPENING, lambda: 0),
            self.environment,
            self.environment,
            self.environment,
        )
        self.log = log

    def checkpoint(self) -> None:
        """Writes the high watermark to disk, as the broker does every few seconds."""
        self._directory.checkpoint_high_watermarks({TOPIC: self.replica.core.high_watermark})

    def lose_tail(self, kept: int) -> None:
        """Simulates that the machine crashed before more than `kept` batches were on its disk."""
        self._disk.partitions[TOPIC].cut(kept)

    async def become(self, leader: Broker, leader_epoch: int) -> None:
        isr = (A, B) if leader is not self or leader_epoch == 0 else (leader.broker_id,)
        state = PartitionState(
            *TOPIC[:1], TOPIC_ID, 0, leader.broker_id, leader_epoch, isr, (A, B), 1, leader_epoch
        )
        await self.replica.lead_or_follow(state, NOW_MS)
        await self._carry_out(leader)

    async def _carry_out(self, leader: Broker) -> None:
        environment = self.environment
        while environment.questions or environment.cuts:
            for question in environment.questions[:]:
                environment.questions.remove(question)
                end = leader.replica.core.epoch_end(question.epoch)
                self.replica.step(EpochEndReceived(question.leader_epoch, question.epoch, *end))
            for cut, leader_epoch in environment.cuts[:]:
                environment.cuts.remove((cut, leader_epoch))
                await self.replica.cut_log(cut, leader_epoch, NOW_MS, _nothing_to_write)

    def produce(self, value: bytes) -> None:
        batch = memoryview(build_batch([Record(0, -1, None, value, [])]))
        self.replica.append(batch, 1, 9, NOW_MS)

    def fetch_from(self, leader: Broker) -> None:
        """Sends one Fetch, which tells the leader this log's end and returns the following batches."""
        core, leading = self.replica.core, leader.replica.core
        offset = core.log_end_offset
        leader.replica.step(FollowerFetched(self.broker_id, 1, offset, 0, NOW_MS))
        found = leader.replica.read_for_follower(offset, MAX_BYTES, at_least_one_batch=True)
        records = b"" if found is None else found.read()
        headers = [header for _, header in iterate_headers(records)]
        arguments = (headers, leading.leader_epoch, leading.high_watermark, 0, NOW_MS)
        if not self.replica.append_received(memoryview(records), *arguments):
            self.log.persist_leader_epochs(syncs=True)
            assert self.replica.append_received(memoryview(records), *arguments)

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for _, data in self.log.stored.batches for record in iterate_records(data)]


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


async def _two_messages_of_which_the_follower_thinks_one_is_committed(a: Broker, b: Broker) -> None:
    """B leads. Both replicas have m1 and m2. B's high watermark is 2, but A knows only 1."""
    await b.become(b, 0)
    await a.become(b, 0)
    b.produce(b"m1")
    a.fetch_from(b)
    a.fetch_from(b)
    b.produce(b"m2")
    a.fetch_from(b)
    b.replica.step(FollowerFetched(A, 1, 2, 0, NOW_MS))  # whose answer is lost
    assert (a.replica.core.high_watermark, b.replica.core.high_watermark) == (1, 2)
    assert a.values == b.values == [b"m1", b"m2"]
    a.checkpoint()
    b.checkpoint()


@pytest.mark.parametrize("truncates_by_epoch", [False, True])
def test_a_follower_that_restarts_before_it_knows_the_high_watermark_loses_acknowledged_records(
    truncates_by_epoch: bool,
) -> None:
    async def scenario() -> None:
        a = Broker(A, truncates_by_epoch=truncates_by_epoch)
        b = Broker(B, truncates_by_epoch=truncates_by_epoch)
        await _two_messages_of_which_the_follower_thinks_one_is_committed(a, b)

        a.start()  # A restarts, and B dies before A fetches again
        await a.become(b, 0)
        await a.become(a, 1)

        assert a.values == ([b"m1", b"m2"] if truncates_by_epoch else [b"m1"])

    run(scenario())


@pytest.mark.parametrize("truncates_by_epoch", [False, True])
def test_logs_diverge_when_both_die_and_the_shorter_one_leads_first(truncates_by_epoch: bool) -> None:
    async def scenario() -> None:
        a = Broker(A, truncates_by_epoch=truncates_by_epoch)
        b = Broker(B, truncates_by_epoch=truncates_by_epoch)
        await _two_messages_of_which_the_follower_thinks_one_is_committed(a, b)

        a.lose_tail(1)  # both machines crash; B's disk had m2
        a.start()
        await a.become(a, 1)
        a.produce(b"m3")
        b.start()
        await b.become(a, 1)
        b.fetch_from(a)

        assert a.values == [b"m1", b"m3"]
        assert b.values == ([b"m1", b"m3"] if truncates_by_epoch else [b"m1", b"m2"])

    run(scenario())
