"""Reads a topic as a member of a group of KIP-848, and commits what was printed."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Final

from tidelog.cli.tool_command import command_config
from tidelog.client.core.consumer_record import ConsumerRecord
from tidelog.client.core.delivery_errors import StaleMemberError
from tidelog.client.core.properties import Properties
from tidelog.client.security import security_properties
from tidelog.client.threads.consumer import Consumer
from tidelog.model.topics import TopicPartition
from tidelog.records.record import Record

MAX_POLL_RECORDS: Final = 500
_POLL_S: Final = 0.5


def member_settings(group: str, *, from_beginning: bool, isolation_level: str, timeout_ms: int) -> Properties:
    """Returns the settings of the group's member, with the security of --command-config.

    Raises SecurityConfigError.
    """
    path = command_config()
    return {
        **({} if path is None else security_properties(path)),
        "group.id": group,
        "auto.offset.reset": "earliest" if from_beginning else "latest",
        "isolation.level": isolation_level,
        "client.id": "tidelog-cli",
        "request.timeout.ms": timeout_ms,
    }


def read_with_group(
    bootstrap: str,
    settings: Properties,
    topic: str,
    take: Callable[[int, Sequence[Record]], None],
    *,
    max_records: int | None,
    max_headers: int,
    idle_ms: int | None,
) -> None:
    """Passes the records of each partition to `take` until `max_records` or until none arrives for `idle_ms`.

    At the end, also after Ctrl-C, it commits the positions of all partitions, as Kafka's tool does. If `take`
    fails, its records are not committed. Raises KafkaError, ClientError.
    """
    positions: dict[TopicPartition, int] = {}
    left = max_records
    with Consumer[bytes, bytes](bootstrap, settings) as consumer, _interruption() as interruption:
        try:
            consumer.subscribe([topic])
            last_seen_s = time.monotonic()
            while (left is None or left > 0) and not interruption.is_set():
                wait_s = _POLL_S if idle_ms is None else min(_POLL_S, idle_ms / 1000)
                records = consumer.poll(
                    wait_s, max_records=MAX_POLL_RECORDS if left is None else min(left, MAX_POLL_RECORDS)
                )
                for place, found in _by_place(records).items():
                    take(place.partition, [_record_of(record, max_headers) for record in found])
                try:
                    positions = consumer.positions()
                except StaleMemberError:  # the output was blocked for long; the next poll joins again
                    positions = {}
                if left is not None:
                    left -= len(records)
                now_s = time.monotonic()
                if records or consumer.health().state == "joining":
                    last_seen_s = now_s
                elif idle_ms is not None and (now_s - last_seen_s) * 1000 >= idle_ms:
                    break
        finally:
            owned = set(consumer.assignment())
            consumer.commit({place: offset for place, offset in positions.items() if place in owned})
            consumer.close(commits=False)


@contextlib.contextmanager
def _interruption() -> Iterator[threading.Event]:
    """Yields an event that the first Ctrl-C sets, so that it can't fall between a record and its commit.

    The second Ctrl-C raises KeyboardInterrupt, which also ends a write to a pipe that nobody reads. Threads
    other than the main one get no signals.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.getsignal(signal.SIGINT) or signal.default_int_handler

    def note_it(number: int, frame: FrameType | None) -> None:
        asked.set()
        signal.signal(signal.SIGINT, before)

    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, note_it)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def _by_place(
    records: Sequence[ConsumerRecord[bytes, bytes]],
) -> dict[TopicPartition, list[ConsumerRecord[bytes, bytes]]]:
    found: dict[TopicPartition, list[ConsumerRecord[bytes, bytes]]] = {}
    for record in records:
        found.setdefault(record.place, []).append(record)
    return found


def _record_of(record: ConsumerRecord[bytes, bytes], max_headers: int) -> Record:
    return Record(
        record.offset,
        record.timestamp,
        record.key_bytes,
        record.value_bytes,
        record.headers[:max_headers],
        max(0, len(record.headers) - max_headers),
    )
