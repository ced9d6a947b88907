"""Members of consumer groups (librdkafka) that record what they receive and which commits are
acknowledged.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from brokerlab.clients import connection
from chaoslab.history import ACKNOWLEDGED, NOTHING_COMMITTED, UNKNOWN, Commit, Poll, ReaderPosition, poll_of
from clusterlab.history import read_of

POLL_S = 0.1
COMMIT_INTERVAL_S = 0.7
ASK_S = 5.0
ASK_LIMIT_S = 15.0
"""The error of a member that was fenced. It persists until the assignment ends, and only then can the member
join again.
"""
Log = tuple[str, int]
MEMBER_SETTINGS: Mapping[str, Any] = {
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 100,
    "reconnect.backoff.max.ms": 500,
    "socket.timeout.ms": 8_000,
    "check.crcs": True,
    "log_level": 0,
}
CLASSIC: Mapping[str, Any] = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500}
CONSUMER: Mapping[str, Any] = {"group.protocol": "consumer"}


class Member(threading.Thread):
    """One member from its start to its end. It ends soon after `is_over` is set."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.complaints: list[str] = []
        self.is_over = threading.Event()


M = TypeVar("M", bound=Member)


class GroupMembers(Generic[M]):
    """The members of a group. `replace_one` makes one leave and another join."""

    def __init__(self, name: str, topics: Iterable[str]) -> None:
        self.name = name
        self.topics = tuple(topics)
        self._joined = 0
        self._members: list[M] = []
        self._gone: list[M] = []

    def _new_member(self, name: str) -> M:
        """Returns a member that has not started."""
        raise NotImplementedError

    def join(self, count: int = 1) -> None:
        """Starts members."""
        for _ in range(count):
            self._joined += 1
            member = self._new_member(f"{self.name}.{self._joined}")
            self._members.append(member)
            member.start()

    def replace_one(self) -> None:
        oldest = self._members.pop(0)
        oldest.is_over.set()
        self._gone.append(oldest)
        self.join()

    def stop(self, timeout_s: float) -> None:
        for member in self._members:
            member.is_over.set()
        deadline_s = time.monotonic() + timeout_s
        for member in self._members:
            member.join(max(0.0, deadline_s - time.monotonic()))

    @property
    def everyone(self) -> list[M]:
        """The present members and those that have left."""
        return self._gone + self._members

    @property
    def complaints(self) -> list[str]:
        return [text for member in self.everyone for text in member.complaints]


class _Reader(Member):
    """One consumer. All members of the group share `assignments`."""

    def __init__(self, bootstrap: str, group: GroupReaders, name: str) -> None:
        super().__init__(name)
        self.polls: list[Poll] = []
        self.commits: list[Commit] = []
        self.positions: list[ReaderPosition] = []
        self._group = group
        self._servers = bootstrap
        self._assignments: dict[Log, int] = {}
        self._next: dict[Log, int] = {}
        self._committed: dict[Log, int] = {}
        self._is_cooperative = "group.protocol" in group.settings

    def run(self) -> None:
        consumer = Consumer(
            {
                **connection(self._servers),
                "group.id": self._group.name,
                "client.id": self.name,
                **MEMBER_SETTINGS,
                **self._group.settings,
            }
        )
        consumer.subscribe(
            list(self._group.topics),
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )
        committed_s = time.monotonic()
        while not self.is_over.is_set():
            try:
                message = consumer.poll(POLL_S)
            except KafkaException as error:
                self.complaints.append(f"{self.name}: {error}")
                continue
            if message is not None and message.error() is not None:
                if message.error().fatal():
                    self.complaints.append(f"{self.name}: {message.error()}")
                    break
            elif message is not None:
                self._note(message)
            if time.monotonic() - committed_s >= COMMIT_INTERVAL_S:
                self._commit(consumer, self._next)
                committed_s = time.monotonic()
        consumer.close()

    def _note(self, message: Any) -> None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        read = read_of(partition, offset, message.key(), message.value())
        poll = poll_of(
            read,
            self.name,
            topic,
            group=self._group.name,
            assignment=self._assignments.get((topic, partition), 0),
            at_s=time.monotonic(),
        )
        self.polls.append(poll)
        self._next[topic, partition] = offset + 1
        self._group.was_shown(topic, partition, offset)

    def _commit(self, consumer: Consumer, positions: Mapping[Log, int]) -> None:
        due = {log: offset for log, offset in positions.items() if self._committed.get(log) != offset}
        if not due:
            return
        began_s, outcome = time.monotonic(), ACKNOWLEDGED
        failed: set[Log] = set()
        try:
            answers = consumer.commit(
                offsets=[
                    TopicPartition(topic, partition, offset) for (topic, partition), offset in due.items()
                ],
                asynchronous=False,
            )
            failed = {(answer.topic, answer.partition) for answer in answers or [] if answer.error}
        except KafkaException:
            outcome = UNKNOWN
        ended_s = time.monotonic()
        for (topic, partition), offset in due.items():
            came = UNKNOWN if (topic, partition) in failed else outcome
            self.commits.append(Commit(self._group.name, topic, partition, offset, came, began_s, ended_s))
            if came == ACKNOWLEDGED:
                self._committed[topic, partition] = offset

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        began_s = time.monotonic()
        found = self._ask(functools.partial(consumer.committed, partitions, ASK_S)) if partitions else []
        ended_s = time.monotonic()
        for place in partitions:
            self._assignments[place.topic, place.partition] = self._group.next_assignment()
            self._next.pop((place.topic, place.partition), None)
            self._committed.pop((place.topic, place.partition), None)
        for place in found:
            offset = place.offset if place.offset >= 0 else NOTHING_COMMITTED
            self.positions.append(
                ReaderPosition(
                    self.name,
                    self._group.name,
                    self._assignments[place.topic, place.partition],
                    place.topic,
                    place.partition,
                    offset,
                    began_s,
                    ended_s,
                )
            )
            if offset == NOTHING_COMMITTED:
                place.offset = OFFSET_BEGINNING
        # The member continues at the positions that it asked for. The client would ask again and might get
        # other answers.
        places = found or partitions
        if self._is_cooperative:
            consumer.incremental_assign(places)
        else:
            consumer.assign(places)

    def _ask(self, ask: Callable[[], list[TopicPartition]]) -> list[TopicPartition]:
        """Returns [] if no broker answered in time. Then the client asks by itself."""
        deadline_s = time.monotonic() + ASK_LIMIT_S
        while time.monotonic() < deadline_s and not self.is_over.is_set():
            try:
                found = ask()
            except KafkaException:
                time.sleep(0.1)
                continue
            if not any(place.error for place in found):
                return found
            time.sleep(0.1)
        return []

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        logs = [(place.topic, place.partition) for place in partitions]
        self._commit(consumer, {log: self._next[log] for log in logs if log in self._next})
        self._on_lost(consumer, partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for place in partitions:
            self._next.pop((place.topic, place.partition), None)


class GroupReaders(GroupMembers[_Reader]):
    """A consumer group of `members`."""

    def __init__(
        self, bootstrap: str, name: str, topics: Iterable[str], settings: Mapping[str, Any], members: int = 2
    ) -> None:
        super().__init__(name, topics)
        self.settings = settings
        self._servers = bootstrap
        self._lock = threading.Lock()
        self._assignment = 0
        self._ends: dict[Log, int] = {}
        self.join(members)

    def _new_member(self, name: str) -> _Reader:
        return _Reader(self._servers, self, name)

    def next_assignment(self) -> int:
        with self._lock:
            self._assignment += 1
            return self._assignment

    def was_shown(self, topic: str, partition: int, offset: int) -> None:
        with self._lock:
            log = (topic, partition)
            self._ends[log] = max(self._ends.get(log, 0), offset + 1)

    def ends(self) -> dict[Log, int]:
        """Returns the offset after the last record that any member received."""
        with self._lock:
            return dict(self._ends)

    def polls(self) -> list[Poll]:
        return [poll for member in self.everyone for poll in list(member.polls)]

    def commits(self) -> list[Commit]:
        return [commit for member in self.everyone for commit in list(member.commits)]

    def positions(self) -> list[ReaderPosition]:
        return [position for member in self.everyone for position in list(member.positions)]
