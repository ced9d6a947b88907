"""A process that copies a topic in transactions, like Kafka's TransactionalMessageCopier.

Each transaction contains written messages and the offsets of the read messages. Messages keep their partition
numbers, so the copy must equal the original.

    python copier.py BOOTSTRAP SOURCE TARGET GROUP TRANSACTIONAL_ID MESSAGES_PER_TRANSACTION PAUSE_S

The process runs until SIGTERM, or until it is fenced (exit code 3). The parent process then starts it again.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from brokerlab.clients import connection

CALL_TIMEOUT_S = 30.0
FENCED_EXIT = 3


class Copier:
    def __init__(self, bootstrap: str, source: str, target: str, group: str, transactional_id: str) -> None:
        self.source, self.target = source, target
        self.is_stopping = False
        self.consumer = Consumer(
            {
                **connection(bootstrap),
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 500,
                "fetch.wait.max.ms": 100,
                "reconnect.backoff.max.ms": 500,
            }
        )
        self.producer = Producer(
            {
                **connection(bootstrap),
                "transactional.id": transactional_id,
                "transaction.timeout.ms": 10_000,
                "linger.ms": 5,
                "reconnect.backoff.max.ms": 500,
            }
        )

    def run(self, count: int, pause_s: float) -> None:
        self.retried(lambda: self.producer.init_transactions(CALL_TIMEOUT_S))
        self.consumer.subscribe([self.source])
        while not self.is_stopping:
            messages = self.consumer.consume(count, 0.5)
            found = [message for message in messages if message.error() is None]
            if found:
                self.copy(found)
                time.sleep(pause_s)
        self.consumer.close()

    def copy(self, messages: list[Message]) -> bool:
        """Returns whether the messages are copied. If not, the transaction is aborted and they are reread."""
        self.producer.begin_transaction()
        try:
            for message in messages:
                self.producer.produce(
                    self.target, message.value(), message.key(), partition=message.partition()
                )
                self.producer.poll(0)
            ends: dict[int, int] = {}
            for message in messages:
                ends[message.partition()] = max(ends.get(message.partition(), 0), message.offset() + 1)
            offsets = [TopicPartition(self.source, partition, end) for partition, end in ends.items()]
            metadata = self.consumer.consumer_group_metadata()
            self.retried(lambda: self.producer.send_offsets_to_transaction(offsets, metadata, CALL_TIMEOUT_S))
            self.retried(lambda: self.producer.commit_transaction(CALL_TIMEOUT_S))
            print(f"committed {len(messages)}", flush=True)
            return True
        except KafkaException as problem:
            error: KafkaError = problem.args[0]
            print(f"aborts: {error}", flush=True)
            if error.fatal() or not error.txn_requires_abort():
                raise
            self.retried(lambda: self.producer.abort_transaction(CALL_TIMEOUT_S))
            self.rewind()
            return False

    def retried(self, call: Callable[[], object]) -> None:
        while True:
            try:
                call()
                return
            except KafkaException as problem:
                error: KafkaError = problem.args[0]
                if not error.retriable():
                    raise
                print(f"again: {error}", flush=True)

    def rewind(self) -> None:
        """Seeks to the committed offsets."""
        while True:
            try:
                positions = self.consumer.committed(self.consumer.assignment(), CALL_TIMEOUT_S)
                for position in positions:
                    self.consumer.seek(
                        TopicPartition(position.topic, position.partition, max(position.offset, 0))
                    )
                return
            except KafkaException as problem:
                print(f"rewinds again: {problem}", flush=True)


def main() -> int:
    bootstrap, source, target, group, transactional_id, count, pause_s = sys.argv[1:]
    copier = Copier(bootstrap, source, target, group, transactional_id)

    def stop(*_: object) -> None:
        copier.is_stopping = True

    signal.signal(signal.SIGTERM, stop)
    try:
        copier.run(int(count), float(pause_s))
    except KafkaException as problem:
        print(f"gives up: {problem}", flush=True)
        return FENCED_EXIT
    return 0


if __name__ == "__main__":
    sys.exit(main())
