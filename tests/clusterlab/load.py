"""Idempotent acks=all producers (librdkafka) that write numbered records, and a reader that follows them.

They are not informed about faults. They continue with librdkafka's own retries.
"""

from __future__ import annotations

import functools
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as Place

from brokerlab.clients import connection
from clusterlab.history import ACKNOWLEDGED, NO_PLACE, UNKNOWN, History, Read, Sent, read_of, value_of

MOST_UNSETTLED = 30_000
DRAIN_S = 60.0
GIVE_UP_S = 1.0
POLL_S = 0.002
READ_S = 90.0
PRODUCER_SETTINGS: Mapping[str, Any] = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 2,
    "message.timeout.ms": 300_000,
    # A frozen leader answers nothing. Without this limit, the client would wait for 30 s or more.
    "request.timeout.ms": 5_000,
    "socket.timeout.ms": 8_000,
    "log_level": 0,
}
READER_SETTINGS: Mapping[str, Any] = {
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "fetch.wait.max.ms": 100,
    "check.crcs": True,
    "socket.timeout.ms": 8_000,
    "log_level": 0,
}


@dataclass(frozen=True)
class LoadPlan:
    """Every producer has `keys` keys of its own. Key k goes to partition k modulo `partitions`."""

    topic: str
    partitions: int
    producers: int = 2
    keys: int = 12
    records_per_s: float = 800
    """The rate of all producers together."""
    value_bytes: int = 200
    settings: Mapping[str, Any] = field(default_factory=dict)


class _Writer(threading.Thread):
    def __init__(self, bootstrap: str, plan: LoadPlan, number: int) -> None:
        super().__init__(name=f"writer-{number}")
        self.settled: list[Sent] = []
        self.fatal = ""
        self.drain_s = DRAIN_S
        self.is_over = threading.Event()
        self._plan = plan
        self._keys = [f"p{number}.k{key}" for key in range(plan.keys)]
        self._counts = [0] * plan.keys
        self._unsettled: dict[tuple[int, int], float] = {}
        self.acknowledged = 0
        self.ends: dict[int, int] = {}
        """Maps a partition to the offset after the last acknowledged record."""
        self.last_s: dict[int, float] = {}
        self._producer = Producer(
            {
                **connection(bootstrap),
                "client.id": f"writer-{number}",
                **PRODUCER_SETTINGS,
                **plan.settings,
                "error_cb": self._on_error,
            }
        )

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self.fatal = str(error)

    def run(self) -> None:
        rate = self._plan.records_per_s / self._plan.producers
        began, count = time.monotonic(), 0
        while not self.is_over.is_set():
            due = int((time.monotonic() - began) * rate)
            while count < due and len(self._unsettled) < MOST_UNSETTLED:
                self._send(count % len(self._keys))
                count += 1
            count = max(count, due - MOST_UNSETTLED)
            self._producer.poll(POLL_S)
        self._producer.flush(self.drain_s)
        now_s = time.monotonic()
        for (key, number), sent_at_s in self._unsettled.items():
            partition = key % self._plan.partitions
            lost_sight = "neither delivered nor failed"
            self.settled.append(
                Sent(self._keys[key], number, UNKNOWN, partition, NO_PLACE, sent_at_s, now_s, lost_sight)
            )

    def _send(self, key: int) -> None:
        number, name = self._counts[key], self._keys[key]
        now_s = time.monotonic()
        try:
            self._producer.produce(
                self._plan.topic,
                value_of(name, number, self._plan.value_bytes),
                key=name,
                partition=key % self._plan.partitions,
                on_delivery=functools.partial(self._on_delivery, key, number),
            )
        except (BufferError, KafkaException) as error:
            # The record was never handed over, so it cannot be stored. The next record uses its number.
            if isinstance(error, KafkaException):
                self.fatal = self.fatal or str(error)
                self.is_over.set()
            return
        self._unsettled[key, number] = now_s
        self._counts[key] += 1

    def _on_delivery(self, key: int, number: int, error: KafkaError | None, message: Message) -> None:
        sent_at_s = self._unsettled.pop((key, number))
        outcome = ACKNOWLEDGED if error is None else UNKNOWN
        offset = message.offset() if error is None else NO_PLACE
        if error is None:
            partition = key % self._plan.partitions
            self.acknowledged += 1
            self.last_s[partition] = time.monotonic()
            self.ends[partition] = max(self.ends.get(partition, 0), (offset or 0) + 1)
        self.settled.append(
            Sent(
                self._keys[key],
                number,
                outcome,
                key % self._plan.partitions,
                NO_PLACE if offset is None else offset,
                sent_at_s,
                time.monotonic(),
                "" if error is None else str(error),
            )
        )


class _Tail(threading.Thread):
    """Follows all partitions from the beginning and keeps what it receives."""

    def __init__(self, bootstrap: str, plan: LoadPlan) -> None:
        super().__init__(name="tail")
        self.reads: list[Read] = []
        self.refusals: list[str] = []
        self.is_over = threading.Event()
        self._consumer = new_reader(bootstrap)
        self._consumer.assign([Place(plan.topic, p, OFFSET_BEGINNING) for p in range(plan.partitions)])

    def run(self) -> None:
        while not self.is_over.is_set():
            for message in self._consumer.consume(500, 0.1):
                error = message.error()
                if error is None:
                    self.reads.append(read_message(message))
                elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                    self.refusals.append(f"partition {message.partition()}: {error}")
        self._consumer.close()


class Load:
    """`with Load(...) as load:` writes and reads until the block ends. Then `load.history` is complete."""

    def __init__(self, bootstrap: str, plan: LoadPlan) -> None:
        self.plan = plan
        self.bootstrap = bootstrap
        self.history = History()
        self._writers = [_Writer(bootstrap, plan, number) for number in range(plan.producers)]
        self._tail = _Tail(bootstrap, plan)

    def __enter__(self) -> Load:
        self._tail.start()
        for writer in self._writers:
            writer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for writer in self._writers:
            if kind is not None:
                writer.drain_s = GIVE_UP_S
            writer.is_over.set()
        for writer in self._writers:
            writer.join(DRAIN_S + 10)
        self._tail.is_over.set()
        self._tail.join(30)
        self.history.sent = [record for writer in self._writers for record in writer.settled]
        self.history.tailed = self._tail.reads

    @property
    def complaints(self) -> list[str]:
        """Returns the errors that clients must never get: fatal errors, and positions that a broker
        refused.
        """
        fatal = [f"{writer.name}: {writer.fatal}" for writer in self._writers if writer.fatal]
        return fatal + self._tail.refusals

    @property
    def acknowledged(self) -> int:
        """Returns the number of acknowledged records so far. Like the next two methods, it may be called
        under load.
        """
        return sum(writer.acknowledged for writer in self._writers)

    def ends(self) -> dict[int, int]:
        """Returns the offset after each partition's last acknowledged record."""
        return {
            partition: max(writer.ends.get(partition, 0) for writer in self._writers)
            for partition in range(self.plan.partitions)
        }

    def last_acknowledged_s(self) -> dict[int, float]:
        return {
            partition: max(writer.last_s.get(partition, 0.0) for writer in self._writers)
            for partition in range(self.plan.partitions)
        }

    def acknowledgements_s(self, partition: int, from_s: float = 0.0) -> list[float]:
        """Returns the times of the partition's acknowledgements since `from_s`, in order. It may be called
        under load.
        """
        times = [
            record.settled_at_s
            for writer in self._writers
            for record in list(writer.settled)
            if record.partition == partition
            and record.outcome == ACKNOWLEDGED
            and record.settled_at_s >= from_s
        ]
        return sorted(times)

    def await_acknowledged(self, partitions: Iterable[int], timeout_s: float) -> None:
        """Waits until each partition has acknowledged a record that was sent after this call. Raises
        TimeoutError.
        """
        now_s = time.monotonic()
        missing = set(partitions)
        seen = [0] * len(self._writers)
        while missing:
            if time.monotonic() - now_s > timeout_s:
                raise TimeoutError(f"no acknowledgement of partitions {sorted(missing)} in {timeout_s} s")
            time.sleep(0.01)
            for index, writer in enumerate(self._writers):
                end = len(writer.settled)
                for record in writer.settled[seen[index] : end]:
                    if record.outcome == ACKNOWLEDGED and record.sent_at_s >= now_s:
                        missing.discard(record.partition)
                seen[index] = end

    def acknowledged_since(self, partition: int, sent_since_s: float) -> list[Sent]:
        """Returns the partition's acknowledged records that were sent since then."""
        return [
            record
            for writer in self._writers
            for record in list(writer.settled)
            if record.partition == partition
            and record.outcome == ACKNOWLEDGED
            and record.sent_at_s >= sent_since_s
        ]

    def first_acknowledged_s(self, partition: int, sent_since_s: float) -> float:
        """Returns the time of the first acknowledgement of a record that was sent since then. Raises
        ValueError without one.
        """
        return min(record.settled_at_s for record in self.acknowledged_since(partition, sent_since_s))

    def longest_silence_s(self, partition: int, from_s: float, to_s: float) -> float:
        """Returns the longest time in [from_s, to_s] without an acknowledgement of the partition."""
        times = [time_s for time_s in self.acknowledgements_s(partition, from_s) if time_s <= to_s]
        return max(after - before for before, after in zip([from_s, *times], [*times, to_s], strict=True))

    def errors(self) -> Mapping[str, int]:
        counts: dict[str, int] = defaultdict(int)
        for record in self.history.sent:
            if record.error:
                counts[record.error] += 1
        return counts


def new_reader(bootstrap: str) -> Consumer:
    return Consumer({**connection(bootstrap), "group.id": f"r-{uuid.uuid4().hex}", **READER_SETTINGS})


def read_message(message: Message) -> Read:
    partition, offset = message.partition(), message.offset()
    assert partition is not None and offset is not None
    key = message.key()
    return read_of(partition, offset, key.encode() if isinstance(key, str) else key, message.value())


def read_all(bootstrap: str, topic: str, partitions: int, timeout_s: float = READ_S) -> list[Read]:
    """Reads each partition from its first record to its high watermark, with a separate client."""
    consumer = new_reader(bootstrap)
    deadline_s = time.monotonic() + timeout_s
    try:
        ends = {p: _end_offset(consumer, Place(topic, p), deadline_s) for p in range(partitions)}
        consumer.assign([Place(topic, p, OFFSET_BEGINNING) for p in range(partitions)])
        left = {p for p, end in ends.items() if end > 0}
        reads: list[Read] = []
        while left:
            if time.monotonic() > deadline_s:
                raise TimeoutError(
                    f"{len(reads)} records read, partitions {sorted(left)} are not at their end"
                )
            for message in consumer.consume(2000, 0.2):
                if message.error() is not None:
                    continue
                read = read_message(message)
                reads.append(read)
                if read.offset >= ends[read.partition] - 1:
                    left.discard(read.partition)
        return reads
    finally:
        consumer.close()


def _end_offset(consumer: Consumer, place: Place, deadline_s: float) -> int:
    while True:
        try:
            found = consumer.get_watermark_offsets(place, 5)
        except KafkaException:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)
            continue
        return int(found[1])
