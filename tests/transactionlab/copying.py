"""Copiers as processes, and faults for them and for the cluster that they use."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from clusterlab.tidelog_cluster import TidelogCluster
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

PROGRAM = Path(__file__).with_name("copier.py")
PAUSES_S = (0.3, 1.5)


class Copiers:
    """`count` copiers in one group, each with a transactional id of its own; who ends is started again."""

    def __init__(self, bootstrap: str, source: str, target: str, directory: Path, count: int) -> None:
        self.bootstrap, self.source, self.target = bootstrap, source, target
        self.group = f"copy-{source}"
        self.restarts = 0
        self._directory = directory
        self._transaction_messages = 0
        self._pause_s = 0.0
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * count

    def start(self, transaction_messages: int, pause_s: float) -> None:
        self._transaction_messages, self._pause_s = transaction_messages, pause_s
        for number in range(len(self._processes)):
            self._start(number)

    def _start(self, number: int) -> None:
        with (self._directory / f"copier-{number}.log").open("ab") as log:
            self._processes[number] = subprocess.Popen(
                [
                    *(sys.executable, str(PROGRAM), self.bootstrap, self.source, self.target, self.group),
                    *(f"{self.group}-{number}", str(self._transaction_messages), str(self._pause_s)),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill(self, number: int) -> None:
        process = self._processes[number]
        if process is not None:
            process.kill()
            process.wait()

    def tend(self) -> None:
        for number, process in enumerate(self._processes):
            if process is not None and process.poll() is not None:
                self.restarts += 1
                self._start(number)

    def stop(self) -> None:
        for process in self._processes:
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._processes:
            if process is not None:
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def logs(self) -> str:
        parts = []
        for number in range(len(self._processes)):
            path = self._directory / f"copier-{number}.log"
            if path.exists():
                parts.append(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}")
        return "\n".join(parts)

    def copied(self, admin: AdminClient, partitions: int) -> int:
        """How many messages of the source the group is done with."""
        asked = ConsumerGroupTopicPartitions(
            self.group, [TopicPartition(self.source, partition) for partition in range(partitions)]
        )
        try:
            answered = admin.list_consumer_group_offsets([asked], request_timeout=5)[self.group].result(6)
        except KafkaException:
            return 0
        return sum(max(position.offset, 0) for position in answered.topic_partitions)


class CopyFaults:
    """One process at a time is killed, and comes back after a while; copiers are killed in between."""

    def __init__(self, cluster: TidelogCluster, copiers: Copiers, chance: random.Random) -> None:
        self.done: list[str] = []
        self._cluster = cluster
        self._copiers = copiers
        self._chance = chance
        self._names = sorted(name for name in cluster.pids() if not name.startswith("etcd"))
        self._kinds = sorted({name.split("-")[0] for name in self._names} | {"copier"})

    def strike(self) -> None:
        kind = self._chance.choice(self._kinds)
        if kind == "copier":
            self._copiers.kill(self._chance.randrange(2))
            self.done.append("copier")
            time.sleep(self._chance.uniform(*PAUSES_S))
            return
        name = self._chance.choice([name for name in self._names if name.startswith(kind)])
        self.done.append(name)
        self._cluster.kill(name)
        time.sleep(self._chance.uniform(*PAUSES_S))
        self._cluster.start(name)


def read_all(bootstrap: str, topic: str, partitions: int, isolation: str) -> dict[int, list[bytes]]:
    """Everything, by partition."""
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
