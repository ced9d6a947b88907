#!/usr/bin/env python3
"""Shows at-most-once, at-least-once and exactly-once, with the numbers of lost and duplicated records.

A worker copies the numbered records of one topic to another and is killed (SIGKILL, in the middle of a batch)
again and again. The next worker continues at the group's committed offsets. The time of the commit decides:

    at-most-once    before a batch is passed on: records that were not passed on yet are lost
    at-least-once   after it: records that were already passed on come twice
    exactly-once    in one transaction with it: neither

    make run &    tests/demo/delivery.py [--bootstrap HOST:PORT]

The exit code is 0 only if each mode keeps its promise, and the first two also show the effect that they do
not exclude.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from typing import Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

AT_MOST_ONCE: Final = "at-most-once"
AT_LEAST_ONCE: Final = "at-least-once"
EXACTLY_ONCE: Final = "exactly-once"
MODES: Final = (AT_MOST_ONCE, AT_LEAST_ONCE, EXACTLY_ONCE)
PARTITIONS: Final = 3
BATCH: Final = 100
TIMEOUT_S: Final = 60.0
PRODUCER_SETTINGS: Final[dict[str, dict[str, object]]] = {
    AT_MOST_ONCE: {"acks": 0, "retries": 0},
    AT_LEAST_ONCE: {"acks": "all"},
    EXACTLY_ONCE: {"transactional.id": "to be set"},
}


class Outcome(NamedTuple):
    mode: str
    records: int
    kills: int
    lost: int
    duplicated: int
    aborted: int
    """Records that dead workers' transactions left in the log, which read_committed readers skip."""

    @property
    def is_as_promised(self) -> bool:
        return {
            AT_MOST_ONCE: self.lost > 0 and self.duplicated == 0,
            AT_LEAST_ONCE: self.lost == 0 and self.duplicated > 0,
            EXACTLY_ONCE: self.lost == 0 and self.duplicated == 0 and self.aborted > 0,
        }[self.mode]


# -- the worker


class Worker:
    """Copies until it reaches the end of every partition, or until it kills itself."""

    def __init__(
        self, bootstrap: str, mode: str, name: str, source: str, target: str, die_after: int
    ) -> None:
        self.mode = mode
        self.target = target
        self.die_after = die_after
        self.copied = 0
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": name,
                "group.instance.id": "worker",  # the next worker takes its place at once, without a rebalance
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        settings = {"bootstrap.servers": bootstrap, "log_level": 0, **PRODUCER_SETTINGS[mode]}
        if mode == EXACTLY_ONCE:
            settings["transactional.id"] = name
        self.producer = Producer(settings)
        if mode == EXACTLY_ONCE:
            self.producer.init_transactions(TIMEOUT_S)  # ends the transaction that a dead worker left open
        self.consumer.subscribe([source])

    def run(self) -> None:
        at_end: set[int] = set()
        while len(at_end) < PARTITIONS:
            batch = []
            for message in self.consumer.consume(BATCH, timeout=0.5):
                error = message.error()
                if error is None:
                    batch.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    at_end.add(message.partition())
                else:
                    raise KafkaException(error)
            if batch:
                self.copy(batch)
        self.consumer.close()

    def copy(self, batch: list[Message]) -> None:
        if self.mode == AT_MOST_ONCE:
            self.consumer.commit(offsets=next_offsets(batch), asynchronous=False)
            self.pass_on(batch)
        elif self.mode == AT_LEAST_ONCE:
            self.pass_on(batch)
            self.consumer.commit(offsets=next_offsets(batch), asynchronous=False)
        else:
            self.producer.begin_transaction()
            self.pass_on(batch)
            self.producer.send_offsets_to_transaction(
                next_offsets(batch), self.consumer.consumer_group_metadata(), TIMEOUT_S
            )
            self.producer.commit_transaction(TIMEOUT_S)

    def pass_on(self, batch: list[Message]) -> None:
        for number, message in enumerate(batch, start=1):
            self.producer.produce(self.target, message.value(), partition=message.partition())
            self.copied += 1
            if self.die_after and self.copied >= self.die_after and number < len(batch):
                self.producer.flush(TIMEOUT_S)
                os.kill(os.getpid(), signal.SIGKILL)
        self.producer.flush(TIMEOUT_S)


def next_offsets(batch: list[Message]) -> list[TopicPartition]:
    newest = {(message.topic(), message.partition()): message.offset() + 1 for message in batch}
    return [TopicPartition(topic, partition, offset) for (topic, partition), offset in newest.items()]


# -- the process that kills workers


def show(bootstrap: str, mode: str, records: int, kills: int) -> Outcome:
    name = f"{mode}-{uuid.uuid4().hex[:8]}"
    source, target = f"{name}-in", f"{name}-out"
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for made in admin.create_topics([NewTopic(topic, PARTITIONS) for topic in (source, target)]).values():
        made.result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(records):
        producer.produce(source, b"%d" % number, partition=number % PARTITIONS)
    if producer.flush(TIMEOUT_S):
        raise RuntimeError(f"{bootstrap} did not take {records} records in {TIMEOUT_S} s")
    arguments = ["--bootstrap", bootstrap, "--worker", mode, name, source, target]
    killed = 0
    while True:
        die_after = records // (kills + 1) - BATCH // 2 if killed < kills else 0
        worker = subprocess.run([sys.executable, __file__, *arguments, str(die_after)], check=False)
        if worker.returncode != -signal.SIGKILL:
            break
        killed += 1
    if worker.returncode:
        raise RuntimeError(f"a worker ended with {worker.returncode}")
    arrived = Counter(read_all(bootstrap, target))
    lost = sum(b"%d" % number not in arrived for number in range(records))
    aborted = len(read_all(bootstrap, target, isolation="read_uncommitted")) - arrived.total()
    return Outcome(mode, records, killed, lost, arrived.total() - len(arrived), aborted)


def read_all(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    values, ends = [], 0
    while ends < PARTITIONS:
        message = consumer.poll(TIMEOUT_S)
        if message is None:
            raise RuntimeError(f"{topic} was not read in {TIMEOUT_S} s")
        error = message.error()
        if error is None:
            values.append(message.value())
        elif error.code() == KafkaError._PARTITION_EOF:
            ends += 1
        else:
            raise KafkaException(error)
    consumer.close()
    return values


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--records", type=int, default=2_000)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--mode", choices=MODES, action="append")
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        mode, name, source, target, die_after = options.worker
        Worker(options.bootstrap, mode, name, source, target, int(die_after)).run()
        return 0
    table = Table("mode", "records", "killed", "lost", "duplicated", "aborted", "as promised")
    outcomes = [
        show(options.bootstrap, mode, options.records, options.kills) for mode in options.mode or MODES
    ]
    for outcome in outcomes:
        table.add_row(*(str(value) for value in outcome), "yes" if outcome.is_as_promised else "NO")
    Console().print(table)
    return 0 if all(outcome.is_as_promised and outcome.kills for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
