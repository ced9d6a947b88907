"""Runs copiers as processes, and injects faults into them and their cluster."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition

from brokerlab.kafka_jars import JavaTools
from clusterlab.tidelog_cluster import TidelogCluster

PROGRAM = Path(__file__).with_name("copier.py")
TESTS = Path(__file__).parents[1]
PAUSES_S = (0.3, 1.5)
FREEZES = 0.25
FROZEN_S = 8.0
"""A time that is longer than the sessions of brokers, coordinators and members."""


class Copiers:
    """Processes in one group, each with its own transactional id.

    A process that ends is started again, unless its work is complete.
    """

    def __init__(self, bootstrap: str, source: str, target: str, directory: Path, count: int) -> None:
        self.bootstrap, self.source, self.target = bootstrap, source, target
        self.group = f"copy-{source}"
        self.count = count
        self.restarts = 0
        self._directory = directory
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._commands: list[list[str]] = []
        self._onlooker: Consumer | None = None

    def start(self, transaction_messages: int, pause_s: float) -> None:
        """Starts copiers with librdkafka, which share the partitions."""
        self._run(
            [
                *(sys.executable, str(PROGRAM), self.bootstrap, self.source, self.target, self.group),
                *(f"{self.group}-{number}", str(transaction_messages), str(pause_s)),
            ]
            for number in range(self.count)
        )

    def start_java(self, java: JavaTools, transaction_messages: int) -> None:
        """Starts Kafka's own copiers, one for each partition, which sometimes abort a transaction."""
        self._run(
            java.command(
                "TransactionalMessageCopier",
                *("--broker-list", self.bootstrap, "--input-topic", self.source),
                *("--input-partition", str(number), "--output-topic", self.target),
                *("--consumer-group", self.group, "--transactional-id", f"{self.group}-{number}"),
                *("--transaction-size", str(transaction_messages), "--transaction-timeout", "10000"),
                "--enable-random-aborts",
            )
            for number in range(self.count)
        )

    def _run(self, commands: Iterable[list[str]]) -> None:
        self._commands = list(commands)
        for number in range(self.count):
            self._start(number)

    def _start(self, number: int) -> None:
        # pytest's own import path is not inherited, and the copier imports from the labs.
        paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        with (self._directory / f"copier-{number}.log").open("ab") as log:
            self._processes[number] = subprocess.Popen(
                self._commands[number], stdout=log, stderr=subprocess.STDOUT, env=environment
            )

    def kill(self, number: int) -> None:
        process = self._processes[number]
        process.kill()
        process.wait()

    def signal(self, number: int, which: signal.Signals) -> None:
        self._processes[number].send_signal(which)

    def tend(self) -> None:
        for number, process in list(self._processes.items()):
            if process.poll() not in (None, 0):
                self.restarts += 1
                self._start(number)

    def stop(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def logs(self) -> str:
        parts = []
        for number in range(self.count):
            path = self._directory / f"copier-{number}.log"
            if path.exists():
                parts.append(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}")
        return "\n".join(parts)

    def copied(self, partitions: int) -> int:
        """Returns the number of source messages that the group has committed.

        The method uses a consumer, because librdkafka's admin client crashes if the coordinator goes away.
        """
        if self._onlooker is None:
            self._onlooker = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.group})
        asked = [TopicPartition(self.source, partition) for partition in range(partitions)]
        try:
            return sum(max(position.offset, 0) for position in self._onlooker.committed(asked, 5))
        except KafkaException:
            return 0


class CopyFaults:
    """Faults of one process at a time, including copiers but not etcd.

    A process is killed and restarted, or frozen until other processes take over its work.
    """

    def __init__(self, cluster: TidelogCluster, copiers: Copiers, chance: random.Random) -> None:
        self.done: list[str] = []
        self._cluster = cluster
        self._copiers = copiers
        self._chance = chance
        self._names = sorted(name for name in cluster.pids() if not name.startswith("etcd"))
        self._kinds = sorted({name.split("-")[0] for name in self._names} | {"copier"})

    def strike(self) -> None:
        kind = self._chance.choice(self._kinds)
        freezes = self._chance.random() < FREEZES
        if kind == "copier":
            number = self._chance.randrange(self._copiers.count)
            self.done.append(f"{'freeze' if freezes else 'kill'} copier-{number}")
            if freezes:
                self._copiers.signal(number, signal.SIGSTOP)
                time.sleep(FROZEN_S)
                self._copiers.signal(number, signal.SIGCONT)
            else:
                self._copiers.kill(number)
                time.sleep(self._chance.uniform(*PAUSES_S))
            return
        name = self._chance.choice([name for name in self._names if name.startswith(kind)])
        self.done.append(f"{'freeze' if freezes else 'kill'} {name}")
        if freezes:
            self._cluster.signal(name, signal.SIGSTOP)
            time.sleep(FROZEN_S)
            self._cluster.signal(name, signal.SIGCONT)
        else:
            self._cluster.kill(name)
            time.sleep(self._chance.uniform(*PAUSES_S))
            self._cluster.start(name)


def read_all(bootstrap: str, topic: str, partitions: int, isolation: str) -> dict[int, list[bytes]]:
    """Returns all messages by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"reads-{topic}",
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found: dict[int, list[bytes]] = {partition: [] for partition in range(partitions)}
    ended: set[int] = set()
    deadline_s = time.monotonic() + 60
    while len(ended) < partitions:
        assert time.monotonic() < deadline_s, f"{topic} can't be read to its end"
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error() is not None:
            ended.add(message.partition())
        else:
            found[message.partition()].append(message.value())
    consumer.close()
    return found
