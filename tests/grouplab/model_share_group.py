"""A model of a share group whose members are the cores of our share consumer, in virtual time.

Two brokers lead two partitions each. A broker checks the epochs of sessions, locks the records that it gives,
and takes acknowledgements only from the member that has the lock. Faults are lost requests and responses
(which end the session, as a lost connection does), late answers, members that crash, and locks that end while
an application works on the records. The model checks that a broker accepts only what an application accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from brokerlab.model_brokers import VirtualTime
from tidelog.client.core.cluster_view import MetadataReceived, Node, PartitionLeader, TopicView
from tidelog.client.core.consuming.consumer_events import (
    AcknowledgedBatch,
    AcknowledgeType,
    GroupRequestFailed,
    LeaveGroup,
    RecordsReady,
    RequestMetadata,
    SendGroupRequest,
)
from tidelog.client.core.consuming.membership import Heartbeat, HeartbeatAnswered
from tidelog.client.core.consuming.share_consumer import (
    AcknowledgementDone,
    Effect,
    Event,
    SendAcknowledgements,
    SendShareFetch,
    ShareAnswered,
    ShareConsumerCore,
    SharedPartition,
    ShareRequestFailed,
)
from tidelog.client.core.settings import ShareConsumerSettings
from tidelog.client.errors import NetworkError
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.records.builder import build_batch
from tidelog.records.record import Record

TOPIC = "t"
TOPIC_ID = UUID(int=7)
PARTITIONS = 4
LOCK_MS = 30_000
SHORT_LOCK_MS = 1_500
"""Such a lock can end while an application works on the record."""
CHECK_MS = 40
POLL_WAIT_MS = 200
FETCH_WAIT_MS = 50
GAP_EACH = 7
"""Each offset that is a multiple of this has no record, as after compaction."""


@dataclass
class ShareFaults:
    lost: float = 0.0
    late: float = 0.0
    crashes: float = 0.0
    """The probability that a member crashes, for each of its polls."""
    lock_ms: int = LOCK_MS
    """A record that a member does not acknowledge in this time is available to others again."""


@dataclass
class ModelRecord:
    """A record of a share partition. It is available if no member has it and it is not done."""

    owner: str | None = None
    locked_until_ms: int = 0
    deliveries: int = 0
    outcome: int | None = None


@dataclass
class ModelSession:
    epoch: int
    partitions: set[int]


@dataclass
class ShareApplication:
    name: str
    core: ShareConsumerCore
    is_alive: bool = True
    waits: bool = False
    delivered: list[tuple[TopicPartition, int]] = field(default_factory=list)
    epoch: int = 0


class ModelShareGroup(VirtualTime):
    """Members, a coordinator that gives all partitions to all members, and two brokers."""

    def __init__(self, settings: ShareConsumerSettings, seed: int, faults: ShareFaults) -> None:
        super().__init__(seed)
        self.settings = settings
        self.faults = faults
        self.records: dict[int, list[ModelRecord]] = {index: [] for index in range(PARTITIONS)}
        self.batches: dict[int, list[tuple[int, int, bytes]]] = {index: [] for index in range(PARTITIONS)}
        self.sessions: dict[tuple[int, str], ModelSession] = {}
        self.said: dict[tuple[int, int], set[int]] = {}
        """The acknowledgements of applications for each record."""
        self.seen: dict[tuple[int, int], int] = {}
        self.failed = 0
        self.applications: list[ShareApplication] = []
        self._names = 0

    def _delay(self) -> int:
        return self.chance.randint(0, 800) if self._happens(self.faults.late) else self.chance.randint(0, 10)

    def produce(self, partition: int, count: int) -> None:
        start = len(self.records[partition])
        offsets = [offset for offset in range(start, start + count) if offset % GAP_EACH or not offset]
        if offsets:
            batch = build_batch([Record(offset, 1_000, None, b"v") for offset in offsets], leader_epoch=0)
            self.batches[partition].append((offsets[0], offsets[-1], bytes(batch)))
        self.records[partition] += [ModelRecord() for _ in range(count)]

    # -- applications

    def start_member(self) -> None:
        self._names += 1
        core = ShareConsumerCore(self.settings, jitter=self.chance.random)
        application = ShareApplication(f"m{self._names}", core)
        self.applications.append(application)
        core.subscribe((TOPIC,), self.now_ms)
        self.at(0, lambda: self._poll(application))
        self.at(0, lambda: self._wake(application))

    def _crash(self, application: ShareApplication) -> None:
        application.is_alive = False
        self.applications.remove(application)
        for node_id in (1, 2):
            self._end_session(node_id, application.name)
        self.at(self.chance.randint(0, 500), self.start_member)

    def _wake(self, application: ShareApplication) -> None:
        if application.is_alive:
            self._perform(application, application.core.poll(self.now_ms))
            self.at(CHECK_MS, lambda: self._wake(application))

    def _poll(self, application: ShareApplication) -> None:
        if not application.is_alive:
            return
        if self._happens(self.faults.crashes):
            self._crash(application)
            return
        application.waits = False
        self._deal_with(application)
        core = application.core
        self._perform(application, core.begin_poll(self.now_ms))
        for place, record, count in core.take(self.chance.randint(1, 8), self.now_ms):
            assert count == self.records[place.partition][record.offset].deliveries or self.faults.late
            application.delivered.append((place, record.offset))
            key = (place.partition, record.offset)
            self.seen[key] = self.seen.get(key, 0) + 1
        if application.delivered:
            core.end_poll(self.now_ms)
            self.at(self.chance.choice((0, 1, 30, 400)), lambda: self._poll(application))
        else:
            application.waits = True
            self.at(POLL_WAIT_MS, lambda: self._end_wait(application))

    def _deal_with(self, application: ShareApplication) -> None:
        """Says what became of the delivered records: with the next poll, or one by one."""
        for place, offset in application.delivered:
            kind = AcknowledgeType.ACCEPT
            if self.settings.is_explicit:
                if not self.is_healed:
                    kind = AcknowledgeType(self.chance.choice((1, 1, 1, 2, 3)))
                application.core.acknowledge(place, offset, kind)
            self.said.setdefault((place.partition, offset), set()).add(kind)
        application.delivered.clear()
        if self.settings.is_explicit and self.chance.random() < 0.2:
            self._perform(application, application.core.commit(self.now_ms))

    def _end_wait(self, application: ShareApplication) -> None:
        if application.waits:
            self._poll(application)

    def _step(self, application: ShareApplication, event: Event) -> None:
        if application.is_alive:
            self._perform(application, application.core.step(event, self.now_ms))

    # -- effects

    def _perform(self, application: ShareApplication, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendShareFetch() | SendAcknowledgements():
                    self._ask_broker(application, effect)
                case RequestMetadata():
                    leaders = tuple(PartitionLeader(1 + index % 2, 0) for index in range(PARTITIONS))
                    nodes = (Node(1, "model", 1), Node(2, "model", 2))
                    received = MetadataReceived(nodes, (TopicView(TOPIC, TOPIC_ID, leaders),))
                    self._reply_later(application, received)
                case SendGroupRequest(request, _):
                    self._hear(application, request)
                case AcknowledgementDone(_, offsets, error):
                    self.failed += 0 if error is None else len(offsets)
                case RecordsReady():
                    if application.waits:
                        application.waits = False
                        self.at(0, lambda: self._poll(application))
                case LeaveGroup():
                    raise AssertionError("no application is slow")

    def _reply_later(self, application: ShareApplication, event: Event) -> None:
        self.at(self._delay(), lambda: self._step(application, event))

    def _hear(self, application: ShareApplication, request: Any) -> None:
        assert isinstance(request, Heartbeat)
        if self._happens(self.faults.lost):
            self._reply_later(application, GroupRequestFailed(request))
            return
        application.epoch += 1
        everything = frozenset((TOPIC_ID, index) for index in range(PARTITIONS))
        self._reply_later(
            application, HeartbeatAnswered(request, 0, None, application.epoch, 500, everything)
        )

    def _ask_broker(
        self, application: ShareApplication, effect: SendShareFetch | SendAcknowledgements
    ) -> None:
        def arrive() -> None:
            if not application.is_alive:
                return
            lost = ShareRequestFailed(effect.request_id, NetworkError("the connection was lost"))
            if self._happens(self.faults.lost):
                self._end_session(effect.node_id, application.name)
                self._reply_later(application, lost)
                return
            answer = self._serve(application.name, effect)
            if self._happens(self.faults.lost):
                self._end_session(effect.node_id, application.name)
                self._reply_later(application, lost)
            else:
                self._reply_later(application, answer)

        self.at(self._delay() + self.chance.choice((0, FETCH_WAIT_MS)), arrive)

    # -- brokers

    def _end_session(self, node_id: int, name: str) -> None:
        if self.sessions.pop((node_id, name), None) is not None:
            for partition in range(PARTITIONS):
                for record in self.records[partition] if 1 + partition % 2 == node_id else ():
                    if record.owner == name:
                        record.owner = None

    def _serve(self, name: str, effect: SendShareFetch | SendAcknowledgements) -> ShareAnswered:
        key = (effect.node_id, name)
        is_fetch = isinstance(effect, SendShareFetch)
        if effect.epoch == 0:
            assert is_fetch and not effect.acknowledgements, (
                "a request that opens a session acknowledges nothing"
            )
            self._end_session(effect.node_id, name)
            self.sessions[key] = ModelSession(0, set())
        session = self.sessions.get(key)
        if session is None or session.epoch != effect.epoch:
            code = (
                ErrorCode.SHARE_SESSION_NOT_FOUND
                if session is None
                else ErrorCode.INVALID_SHARE_SESSION_EPOCH
            )
            assert session is None, "the consumer counts the epochs of its session wrongly"
            return ShareAnswered(effect.request_id, code, None, self.faults.lock_ms, {})
        session.epoch += 1
        answers: dict[TopicPartition, SharedPartition] = {}
        for place, batches in effect.acknowledgements.items():
            assert 1 + place.partition % 2 == effect.node_id, "the acknowledgement is for another broker"
            code = self._acknowledge(name, place.partition, batches)
            answers[place] = SharedPartition(0, None, code, None, memoryview(b""), (), None)
        if isinstance(effect, SendShareFetch):
            session.partitions |= {place.partition for place in effect.added}
            session.partitions -= {place.partition for place in effect.forgotten}
            for partition in sorted(session.partitions):
                place = TopicPartition(TOPIC, partition)
                found = self._acquire(name, partition)
                if found is not None:
                    code = answers[place].acknowledge_error_code if place in answers else 0
                    answers[place] = SharedPartition(0, None, code, None, *found, None)
        return ShareAnswered(effect.request_id, 0, None, self.faults.lock_ms, answers)

    def _acknowledge(self, name: str, partition: int, batches: tuple[AcknowledgedBatch, ...]) -> ErrorCode:
        end = -1
        rows: list[tuple[int, int]] = []
        for first, last, types in batches:
            assert end < first <= last and len(types) in (1, last - first + 1), "the batches are malformed"
            end = last
            kinds = types * (last - first + 1) if len(types) == 1 else types
            rows += zip(range(first, last + 1), kinds, strict=True)
        records = self.records[partition]
        if any(
            records[offset].owner != name or self.now_ms >= records[offset].locked_until_ms
            for offset, _ in rows
        ):
            return ErrorCode.INVALID_RECORD_STATE
        for offset, kind in rows:
            record = records[offset]
            record.owner = None
            is_gap = offset % GAP_EACH == 0 and offset > 0
            assert (kind == AcknowledgeType.GAP) == is_gap, f"{partition}-{offset} got {kind}"
            if kind in (AcknowledgeType.ACCEPT, AcknowledgeType.REJECT):
                assert kind in self.said.get((partition, offset), ()), f"nobody said {kind} of {offset}"
            if kind != AcknowledgeType.RELEASE:
                record.outcome = kind
        return ErrorCode.NONE

    def _acquire(
        self, name: str, partition: int
    ) -> tuple[memoryview, tuple[tuple[int, int, int], ...]] | None:
        records = self.records[partition]
        free = [
            offset
            for offset, record in enumerate(records)
            if record.outcome is None and (record.owner is None or self.now_ms >= record.locked_until_ms)
        ][: self.chance.randint(1, 10)]
        if not free:
            return None
        for offset in free:
            records[offset].owner = name
            records[offset].locked_until_ms = self.now_ms + self.faults.lock_ms
            records[offset].deliveries += 1
        data = b"".join(
            batch for first, last, batch in self.batches[partition] if first <= free[-1] and last >= free[0]
        )
        return memoryview(data), tuple((offset, offset, records[offset].deliveries) for offset in free)

    def outcomes(self) -> Mapping[tuple[int, int], int | None]:
        return {
            (partition, offset): record.outcome
            for partition, records in self.records.items()
            for offset, record in enumerate(records)
        }
