"""Transactional clients that receive each other's records, so that a cycle among transactions would show."""

from __future__ import annotations

import random
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from brokerlab.clients import connection
from chaoslab.history import TransactionRead
from chaoslab.transactions import TransactionalWriter
from clusterlab.history import read_of

MOST_READ = 20
READ_S = 0.2


class Mixer(TransactionalWriter):
    """In each transaction, it receives committed records of the topic before it writes to the same topic. It
    chooses its partitions itself and commits no offsets, like Jepsen's clients with assign.
    """

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, name: str, pause_s: float, chance: random.Random
    ) -> None:
        super().__init__(bootstrap, topic, partitions, name, pause_s, chance)
        self.reads: list[TransactionRead] = []
        self._reader = Consumer(
            {
                **connection(bootstrap),
                "group.id": f"{name}-reader",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 50,
                "reconnect.backoff.max.ms": 500,
                "socket.timeout.ms": 8_000,
                "log_level": 0,
            }
        )
        self._reader.assign(
            [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions)]
        )

    def run(self) -> None:
        super().run()
        self._reader.close()

    def _write(self, producer: Producer, transaction: str, places: dict[int, int]) -> None:
        for message in self._reader.consume(MOST_READ, READ_S):
            partition, offset = message.partition(), message.offset()
            if message.error() is not None or partition is None or offset is None:
                continue
            read = read_of(partition, offset, message.key(), message.value())  # type: ignore[arg-type]
            self.reads.append(
                TransactionRead(
                    *(transaction, self.name, self._topic, partition, offset),
                    *(read.key, read.number, time.monotonic()),
                )
            )
        super()._write(producer, transaction, places)
