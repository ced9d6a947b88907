"""Transactional clients of a chaos run: a writer that sometimes aborts, an exact copier, and mixers, which
receive each other's records so that a cycle among transactions would show.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, Producer, TopicPartition

from brokerlab.clients import connection
from chaoslab.history import (
    ABORTED,
    ACKNOWLEDGED,
    COMMITTED,
    NO_PLACE,
    UNKNOWN,
    Send,
    Transaction,
    TransactionRead,
)
from clusterlab.history import read_of, value_of
from grouplab.copier import Copier

CALL_S = 10.0
AGAIN_S = 0.2
GIVE_UP_S = 45.0
WRITER_SETTINGS: dict[str, Any] = {
    "transaction.timeout.ms": 10_000,
    "linger.ms": 2,
    "reconnect.backoff.max.ms": 500,
    "socket.timeout.ms": 8_000,
    "log_level": 0,
}
MOST_READ = 20
READ_S = 0.2


class _Stopped(Exception):  # noqa: N818 - not an error
    """The run ended before the call completed."""


class TransactionalWriter(threading.Thread):
    """Writes transactions of several records over all partitions, and aborts `abort_share` of them on
    purpose.
    """

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, name: str, pause_s: float, chance: random.Random
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.sends: list[Send] = []
        self.transactions: list[Transaction] = []
        self.complaints: list[str] = []
        self.ends: dict[int, int] = {}
        self.is_over = threading.Event()
        self.abort_share = 0.2
        self._servers, self._topic, self._partitions = bootstrap, topic, partitions
        self._pause_s = pause_s
        self._chance = chance
        self._numbers = [0] * partitions
        self._count = 0

    def run(self) -> None:
        while not self.is_over.is_set():
            producer = Producer(
                {**connection(self._servers), "transactional.id": self.name, **WRITER_SETTINGS}
            )
            with contextlib.suppress(KafkaException, _Stopped):  # fenced: start again
                self._again(partial(producer.init_transactions, CALL_S))
                while not self.is_over.is_set():
                    self._transact(producer)
                    time.sleep(self._pause_s)

    def _transact(self, producer: Producer) -> None:
        self._count += 1
        name, began_s, outcome = f"{self.name}#{self._count}", time.monotonic(), UNKNOWN
        places: dict[int, int] = {}
        try:
            producer.begin_transaction()
            self.write(producer, name, places)
            if self._chance.random() < self.abort_share:
                producer.flush(CALL_S)
                self._again(partial(producer.abort_transaction, CALL_S))
                outcome = ABORTED
            else:
                outcome = self._commit(producer)
        finally:
            self.transactions.append(Transaction(name, outcome, began_s, time.monotonic()))
        if outcome == COMMITTED:
            for partition, end in places.items():
                self.ends[partition] = max(self.ends.get(partition, 0), end)

    def write(self, producer: Producer, transaction: str, places: dict[int, int]) -> None:
        for _ in range(self._chance.randint(2, 8)):
            self._send(producer, transaction, places)

    def _commit(self, producer: Producer) -> str:
        try:
            self._again(partial(producer.commit_transaction, CALL_S))
        except KafkaException as problem:
            if problem.args[0].fatal() or not problem.args[0].txn_requires_abort():
                raise
            self._again(partial(producer.abort_transaction, CALL_S))
            return ABORTED
        return COMMITTED

    def _send(self, producer: Producer, transaction: str, places: dict[int, int]) -> None:
        partition = self._chance.randrange(self._partitions)
        key, number = f"{self.name}.k{partition}", self._numbers[partition]
        self._numbers[partition] += 1
        at = len(self.sends)
        sent_s = time.monotonic()
        self.sends.append(
            Send(
                self.name, self._topic, partition, key, number, UNKNOWN, NO_PLACE, sent_s, sent_s, transaction
            )
        )

        def delivered(error: Any, message: Message) -> None:
            settled_s = time.monotonic()
            if error is not None:
                self.sends[at] = self.sends[at]._replace(settled_at_s=settled_s, error=str(error))
                return
            offset = message.offset()
            place = NO_PLACE if offset is None else offset
            self.sends[at] = self.sends[at]._replace(
                outcome=ACKNOWLEDGED, offset=place, settled_at_s=settled_s
            )
            places[partition] = max(places.get(partition, 0), place + 1)

        value = value_of(key, number, 120)
        producer.produce(self._topic, value, key=key, partition=partition, on_delivery=delivered)
        producer.poll(0)

    def _again(self, call: Callable[[], Any]) -> None:
        """Repeats the call until it succeeds or fails. After the end of the run, a pending call has `CALL_S`
        more.
        """
        while True:
            try:
                call()
                return
            except KafkaException as problem:
                if not problem.args[0].retriable():
                    raise
                if self.is_over.is_set():
                    raise _Stopped from problem
                time.sleep(AGAIN_S)


class _NotingCopier(Copier):
    """Copies, and records the content and the outcome of each transaction."""

    def __init__(self, owner: CopyingThread, *arguments: str) -> None:
        super().__init__(*arguments)
        self._owner = owner

    def copy(self, messages: list[Message]) -> bool:
        owner, began_s = self._owner, time.monotonic()
        owner.count += 1
        name, outcome = f"{owner.name}#{owner.count}", UNKNOWN
        for message in messages:
            partition, offset = message.partition(), message.offset()
            assert partition is not None and offset is not None
            read = read_of(partition, offset, message.key(), message.value())  # type: ignore[arg-type]
            owner.reads.append(
                TransactionRead(
                    *(name, owner.name, self.source, partition, offset, read.key, read.number, began_s)
                )
            )
            owner.sends.append(
                Send(
                    *(owner.name, self.target, partition, read.key, read.number, UNKNOWN, NO_PLACE),
                    *(began_s, began_s, name),
                )
            )
        try:
            is_copied = super().copy(messages)
            outcome = COMMITTED if is_copied else ABORTED
        finally:
            owner.transactions.append(Transaction(name, outcome, began_s, time.monotonic()))
        if is_copied:
            owner.copied += len(messages)
            for message in messages:
                partition, offset = message.partition(), message.offset()
                assert partition is not None and offset is not None
                owner.ends[partition] = max(owner.ends.get(partition, 0), offset + 1)
        return is_copied

    def retried(self, call: Any) -> None:
        """Retries the call for a limited time. librdkafka called an abort retriable for minutes although the
        coordinator had completed it (a message had timed out, and librdkafka wanted a new epoch). Then
        another producer takes over.
        """
        deadline_s = time.monotonic() + GIVE_UP_S
        while True:
            try:
                call()
                return
            except KafkaException as problem:
                is_late = self._owner.is_over.is_set() or time.monotonic() > deadline_s
                if is_late or not problem.args[0].retriable():
                    raise
                time.sleep(AGAIN_S)


class CopyingThread(threading.Thread):
    """Copies `source` to `target` in transactions, partition by partition, and starts again when it was
    fenced.
    """

    def __init__(self, bootstrap: str, source: str, target: str, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.sends: list[Send] = []
        self.reads: list[TransactionRead] = []
        self.transactions: list[Transaction] = []
        self.ends: dict[int, int] = {}
        """The offset after the last copied record of each of the source's partitions."""
        self.copied = 0
        self.count = 0
        self.is_over = threading.Event()
        self._arguments = (bootstrap, source, target, name, name)
        self._copier: _NotingCopier | None = None

    def run(self) -> None:
        while not self.is_over.is_set():
            self._copier = _NotingCopier(self, *self._arguments)
            if self.is_over.is_set():
                return
            try:
                self._copier.run(200, 0.2)
            except KafkaException:
                self._copier.consumer.close()
                time.sleep(AGAIN_S)

    def stop(self) -> None:
        self.is_over.set()
        if self._copier is not None:
            self._copier.is_stopping = True


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

    def write(self, producer: Producer, transaction: str, places: dict[int, int]) -> None:
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
        super().write(producer, transaction, places)
