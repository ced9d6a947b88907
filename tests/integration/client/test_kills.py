"""A broker is killed repeatedly under our own producers and consumers, while members of a group come and go.

No acknowledged record is lost or stored twice, records keep their order, and the group gets each record.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from brokerlab.broker_process import BrokerProcess, BrokerStartError
from brokerlab.clients import create_topic
from tidelog.aio import Consumer, Producer, TopicPartition
from tidelog.client import Producer as ThreadProducer
from tidelog.client.errors import ClientError
from tidelog.client.shell.producing.delivery import Delivery
from tidelog.model.errors import KafkaError

pytestmark = pytest.mark.integration
FEW_KILLS = 1
KILLS = int(os.environ.get("KILLS", "30"))
PARTITIONS = 4
PAUSE_S = 0.002
LEAST_UP_S, MOST_UP_S = 0.3, 1.2
DEADLINE_S = 90.0
PRODUCER_SETTINGS = {"delivery.timeout.ms": 180_000, "retry.backoff.ms": 20, "retry.backoff.max.ms": 200}


class Ledger:
    """The values that were sent to each partition, and the acknowledged ones."""

    def __init__(self) -> None:
        self.sent: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.failures: list[str] = []

    def next_value(self, number: int) -> tuple[int, bytes]:
        partition = number % PARTITIONS
        value = b"%d-%d" % (partition, len(self.sent[partition]))
        self.sent[partition].append(value)
        return partition, value

    def watcher(self, value: bytes) -> Callable[[Delivery], None]:
        return lambda delivery: self._done(delivery, value)

    def _done(self, delivery: Delivery, value: bytes) -> None:
        error = delivery.error()
        if error is not None:
            self.failures.append(f"{value!r}: {error}")
            return
        metadata = delivery.metadata()
        self.acknowledged[metadata.partition, metadata.offset] = value


def restart(broker: BrokerProcess) -> None:
    """Starts the broker, a second time if a busy machine takes too long."""
    try:
        broker.start()
    except BrokerStartError:
        broker.kill()
        broker.start()


def kill_often(broker: BrokerProcess, kills: int, ledger: Ledger) -> None:
    """Kills and starts the broker, each time after records were acknowledged."""
    chance = random.Random(19)
    for _ in range(kills):
        time.sleep(chance.uniform(LEAST_UP_S, MOST_UP_S))
        broker.kill()
        restart(broker)
        acknowledged, deadline = len(ledger.acknowledged), time.monotonic() + DEADLINE_S
        while len(ledger.acknowledged) == acknowledged:
            if time.monotonic() > deadline:
                ledger.failures.append("no acknowledgement since a restart")
                return
            time.sleep(0.01)


async def read_all(bootstrap: str) -> dict[int, list[bytes]]:
    stored: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    places = [TopicPartition("t", partition) for partition in range(PARTITIONS)]
    async with Consumer[bytes, bytes](bootstrap, {"auto.offset.reset": "earliest"}) as consumer:
        consumer.assign(places)
        ends = await consumer.end_offsets(places)
        while sum(map(len, stored.values())) < sum(ends.values()):
            for record in await consumer.poll(5):
                stored[record.partition].append(record.value)
    return stored


def check(ledger: Ledger, stored: dict[int, list[bytes]]) -> None:
    assert ledger.failures == []
    assert len(ledger.acknowledged) == sum(map(len, ledger.sent))
    for partition, values in enumerate(ledger.sent):
        assert stored[partition] == values, f"partition {partition} lost, repeated or reordered records"
    for (partition, offset), value in ledger.acknowledged.items():
        assert stored[partition][offset] == value


async def run_group(bootstrap: str, seen: set[bytes], is_over: asyncio.Event) -> int:
    """Two members read; one of them leaves and comes back every few seconds. Returns the rebalances."""
    settings = {"group.id": "g", "auto.offset.reset": "earliest", "auto.commit.interval.ms": 200}
    revocations = 0

    def revoked(places: list[TopicPartition]) -> None:
        nonlocal revocations
        revocations += 1

    async def member(lives_s: float | None) -> None:
        until = None if lives_s is None else time.monotonic() + lives_s
        async with Consumer[bytes, bytes](bootstrap, settings) as consumer:
            consumer.subscribe(["t"], on_revoked=revoked)
            while not is_over.is_set() and (until is None or time.monotonic() < until):
                seen.update(record.value for record in await consumer.poll(0.2))

    async def coming_and_going() -> None:
        while not is_over.is_set():
            try:
                await member(3.0)
            except (ClientError, KafkaError):
                await asyncio.sleep(0.1)  # the broker is down while the member starts

    await asyncio.gather(member(None), coming_and_going())
    return revocations


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kills", "shell"),
    [
        pytest.param(FEW_KILLS, "asyncio", id="few-asyncio"),
        pytest.param(KILLS, "asyncio", id="many-asyncio", marks=pytest.mark.slow),
        pytest.param(KILLS, "threads", id="many-threads", marks=pytest.mark.slow),
    ],
)
def test_kills_and_rebalances(own_broker: BrokerProcess, kills: int, shell: str) -> None:
    bootstrap = own_broker.bootstrap
    create_topic(bootstrap, "t", PARTITIONS)
    ledger, seen = Ledger(), set[bytes]()

    async def produce_in_loop(killer: threading.Thread) -> None:
        async with Producer[bytes, bytes](bootstrap, PRODUCER_SETTINGS) as producer:
            number = 0
            while killer.is_alive():
                partition, value = ledger.next_value(number)
                await producer.send(
                    "t",
                    value,
                    partition=partition,
                    on_delivery=ledger.watcher(value),
                )
                number += 1
                await asyncio.sleep(PAUSE_S)

    def produce_in_threads(killer: threading.Thread) -> None:
        with ThreadProducer[bytes, bytes](bootstrap, PRODUCER_SETTINGS) as producer:
            number = 0
            while killer.is_alive():
                partition, value = ledger.next_value(number)
                producer.send(
                    "t",
                    value,
                    partition=partition,
                    on_delivery=ledger.watcher(value),
                )
                number += 1
                time.sleep(PAUSE_S)

    async def run() -> None:
        killer = threading.Thread(target=kill_often, args=(own_broker, kills, ledger))
        is_over = asyncio.Event()
        group: asyncio.Task[Any] = asyncio.create_task(run_group(bootstrap, seen, is_over))
        killer.start()
        try:
            if shell == "asyncio":
                await produce_in_loop(killer)
            else:
                await asyncio.to_thread(produce_in_threads, killer)
            deadline = time.monotonic() + DEADLINE_S
            everything = {value for values in ledger.sent for value in values}
            while seen != everything:
                assert time.monotonic() < deadline, f"the group did not get {len(everything - seen)} records"
                assert not group.done(), group.exception()
                await asyncio.sleep(0.1)
        finally:
            await asyncio.to_thread(killer.join)
            is_over.set()
            await group
        check(ledger, await read_all(bootstrap))

    asyncio.run(run())
