"""Members of a share group (librdkafka) that record their deliveries and the outcomes of their
acknowledgements.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Final

from confluent_kafka import AcknowledgeType, KafkaException, ShareConsumer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from brokerlab.clients import admin_client, connection
from chaoslab.history import ACCEPTED, ACKNOWLEDGED, REJECTED, RELEASED, UNKNOWN, Delivery
from chaoslab.share_checks import DELIVERY_LIMIT
from clusterlab.history import read_of

POLL_S = 0.2
COMMIT_S = 30.0
ADMIN_S = 60.0
RELEASED_EACH, REJECTED_EACH = 17, 50
"""A member releases one of so many records at their first delivery, and rejects one of so many."""
GROUP_SETTINGS: Final = {
    "share.auto.offset.reset": "earliest",
    "share.record.lock.duration.ms": "15000",
    "share.delivery.count.limit": str(DELIVERY_LIMIT),
}
_TYPES: Final = {
    ACCEPTED: AcknowledgeType.ACCEPT,
    RELEASED: AcknowledgeType.RELEASE,
    REJECTED: AcknowledgeType.REJECT,
}
Log = tuple[str, int]


def answer_to(number: int, count: int) -> str:
    """Returns how a member acknowledges a record of this number at its delivery number `count`."""
    if number % REJECTED_EACH == 1:
        return REJECTED
    return RELEASED if count == 1 and number % RELEASED_EACH == 0 else ACCEPTED


class _Member(threading.Thread):
    """One share consumer from its start to its end."""

    def __init__(self, bootstrap: str, group: ShareMembers, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.deliveries: list[Delivery] = []
        self.complaints: list[str] = []
        self.is_over = threading.Event()
        self._group = group
        self._settings = {
            **connection(bootstrap),
            "group.id": group.name,
            "client.id": name,
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": 100,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }

    def run(self) -> None:
        with ShareConsumer(self._settings) as consumer:
            consumer.subscribe(list(self._group.topics))
            while not self.is_over.is_set():
                try:
                    self._turn(consumer)
                except KafkaException as error:
                    if error.args[0].fatal():
                        self.complaints.append(f"{self.name}: {error}")
                        return

    def _turn(self, consumer: ShareConsumer) -> None:
        """Receives records and acknowledges them."""
        found: list[Delivery] = []
        for message in consumer.poll(POLL_S):
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            if message.error() is not None or topic is None or partition is None or offset is None:
                continue
            read = read_of(partition, offset, message.key(), message.value())  # type: ignore[arg-type]
            count = message.delivery_count() or 1
            answer = answer_to(read.number, count)
            consumer.acknowledge(message, _TYPES[answer])
            found.append(
                Delivery(
                    *(self.name, self._group.name, topic, partition, offset, read.key, read.number),
                    *(read.is_intact, count, time.monotonic(), answer, UNKNOWN, 0.0),
                )
            )
        if not found:
            return
        stored: set[Log] = set()
        try:
            results = consumer.commit_sync(COMMIT_S)
            stored = {(place.topic, place.partition) for place, error in results.items() if error is None}
        except KafkaException:
            pass  # the outcomes are unknown
        finally:
            now_s = time.monotonic()
            settled = [
                delivery._replace(
                    outcome=ACKNOWLEDGED if (delivery.topic, delivery.partition) in stored else UNKNOWN,
                    settled_at_s=now_s,
                )
                for delivery in found
            ]
            self.deliveries += settled
            self._group.were_answered(settled)


class ShareMembers:
    """A share group of `members`. `replace_one` makes one member leave and another join."""

    def __init__(self, bootstrap: str, name: str, topics: Iterable[str], members: int = 2) -> None:
        self.name = name
        self.topics = tuple(topics)
        self._servers = bootstrap
        self._lock = threading.Lock()
        self._joined = 0
        self._finished: dict[Log, set[int]] = {}
        self._members: list[_Member] = []
        self._gone: list[_Member] = []
        _change_group(bootstrap, name)
        for _ in range(members):
            self._join()

    def _join(self) -> None:
        self._joined += 1
        member = _Member(self._servers, self, f"{self.name}.{self._joined}")
        self._members.append(member)
        member.start()

    def were_answered(self, deliveries: Iterable[Delivery]) -> None:
        with self._lock:
            for found in deliveries:
                if found.answer != RELEASED:
                    self._finished.setdefault((found.topic, found.partition), set()).add(found.offset)

    def finished(self) -> dict[Log, int]:
        """Returns how many records of each partition members have accepted or rejected."""
        with self._lock:
            return {log: len(offsets) for log, offsets in self._finished.items()}

    def replace_one(self) -> None:
        oldest = self._members.pop(0)
        oldest.is_over.set()
        self._gone.append(oldest)
        self._join()

    def stop(self, timeout_s: float) -> None:
        for member in self._members:
            member.is_over.set()
        deadline_s = time.monotonic() + timeout_s
        for member in self._members:
            member.join(max(0.0, deadline_s - time.monotonic()))

    @property
    def complaints(self) -> list[str]:
        return [text for member in self._gone + self._members for text in member.complaints]

    def deliveries(self) -> list[Delivery]:
        return [found for member in self._gone + self._members for found in list(member.deliveries)]


def _change_group(bootstrap: str, group: str) -> None:
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in GROUP_SETTINGS.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    for done in admin_client(bootstrap).incremental_alter_configs([resource]).values():
        done.result(ADMIN_S)
