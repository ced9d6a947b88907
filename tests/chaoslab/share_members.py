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
from chaoslab.group_readers import GroupMembers, Member
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


class _ShareMember(Member):
    """One share consumer."""

    def __init__(self, bootstrap: str, group: ShareMembers, name: str) -> None:
        super().__init__(name)
        self.deliveries: list[Delivery] = []
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
            read = read_of(partition, offset, message.key(), message.value())
            count = message.delivery_count() or 1
            answer = answer_to(read.number, count)
            consumer.acknowledge(message, _TYPES[answer])
            found.append(
                Delivery(
                    self.name,
                    self._group.name,
                    topic,
                    partition,
                    offset,
                    read.key,
                    read.number,
                    read.is_intact,
                    count,
                    delivered_at_s=time.monotonic(),
                    answer=answer,
                    outcome=UNKNOWN,
                    settled_at_s=0.0,
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


class ShareMembers(GroupMembers[_ShareMember]):
    """A share group of `members`."""

    def __init__(self, bootstrap: str, name: str, topics: Iterable[str], members: int = 2) -> None:
        super().__init__(name, topics)
        self._servers = bootstrap
        self._lock = threading.Lock()
        self._finished: dict[Log, set[int]] = {}
        _change_group(bootstrap, name)
        self.join(members)

    def _new_member(self, name: str) -> _ShareMember:
        return _ShareMember(self._servers, self, name)

    def were_answered(self, deliveries: Iterable[Delivery]) -> None:
        with self._lock:
            for found in deliveries:
                if found.answer != RELEASED:
                    self._finished.setdefault((found.topic, found.partition), set()).add(found.offset)

    def finished(self) -> dict[Log, int]:
        """Returns how many records of each partition members have accepted or rejected."""
        with self._lock:
            return {log: len(offsets) for log, offsets in self._finished.items()}

    def deliveries(self) -> list[Delivery]:
        return [found for member in self.everyone for found in list(member.deliveries)]


def _change_group(bootstrap: str, group: str) -> None:
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in GROUP_SETTINGS.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    for done in admin_client(bootstrap).incremental_alter_configs([resource]).values():
        done.result(ADMIN_S)
