"""The core of a share consumer (KIP-932): its membership, its sessions with brokers, and acknowledgements.

A broker gives records to one member and waits for an acknowledgement of each: accept, release or reject. The
consumer fetches only while the application waits for records and none are at hand, because the broker's lock
on a record runs from the fetch. One request of a session is under way at a time; acknowledgements go with the
next fetch, or alone if there is none. Kafka's class is `ShareConsumeRequestManager`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from tidelog.client.core.cluster_view import (
    ClusterView,
    MetadataReceived,
    MetadataSchedule,
    PartitionLeader,
    TopicProblems,
)
from tidelog.client.core.consuming.consumer_events import (
    AcknowledgedBatch,
    AcknowledgeType,
    DeliveredRecord,
    GroupRequestFailed,
    LeaveGroup,
    MetadataFailed,
    RecordsReady,
    RequestMetadata,
    SendGroupRequest,
    ShareSession,
    TopicsMissing,
)
from tidelog.client.core.consuming.membership import ConsumerMembership, HeartbeatAnswered, MemberState
from tidelog.client.core.consuming.records import read_batch
from tidelog.client.core.settings import ShareConsumerSettings
from tidelog.client.errors import request_error
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import NO_LEADER
from tidelog.model.topics import TopicPartition
from tidelog.records.aborted import visible_batches

_SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    }
)
_METADATA_ERRORS: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)

_ENDED_GENERATION: Final = -1
"""The generation of a delivery whose session exists, but whose record another broker has given again."""


class SharedPartition(NamedTuple):
    """The answer about one partition of a ShareFetch or a ShareAcknowledge."""

    error_code: int
    message: str | None
    acknowledge_error_code: int
    acknowledge_message: str | None
    records: memoryview
    acquired: tuple[tuple[int, int, int], ...]
    """First offset, last offset and delivery count of the ranges that the member got."""
    leader: PartitionLeader | None


class ShareAnswered(NamedTuple):
    """A response to SendShareFetch or SendAcknowledgements arrived."""

    request_id: int
    error_code: int
    message: str | None
    lock_timeout_ms: int
    partitions: Mapping[TopicPartition, SharedPartition]


class ShareRequestFailed(NamedTuple):
    """No response arrived. The session has ended with its connection."""

    request_id: int
    error: KafkaError


Event = (
    ShareAnswered
    | ShareRequestFailed
    | MetadataReceived
    | MetadataFailed
    | HeartbeatAnswered
    | GroupRequestFailed
)


class SendShareFetch(NamedTuple):
    """Fetch from a broker. An epoch of 0 opens a session. `added` has the partitions that the session does
    not have yet.
    """

    request_id: int
    node_id: int
    epoch: int
    added: tuple[TopicPartition, ...]
    forgotten: tuple[TopicPartition, ...]
    acknowledgements: Mapping[TopicPartition, tuple[AcknowledgedBatch, ...]]


class SendAcknowledgements(NamedTuple):
    request_id: int
    node_id: int
    epoch: int
    acknowledgements: Mapping[TopicPartition, tuple[AcknowledgedBatch, ...]]


class AcknowledgementDone(NamedTuple):
    """The broker has stored these acknowledgements, or they failed: the records may be delivered again."""

    place: TopicPartition
    offsets: tuple[int, ...]
    error: KafkaError | None


Effect = (
    SendShareFetch
    | SendAcknowledgements
    | AcknowledgementDone
    | RequestMetadata
    | TopicsMissing
    | SendGroupRequest
    | LeaveGroup
    | RecordsReady
)


class ShareMembership(ConsumerMembership):
    """A member of a share group. Its partitions may have other members, too, so it takes and gives them up
    at once, and says nothing about them.
    """

    def _say_owned(self, now_ms: int) -> None:
        """Share groups do not ask."""

    def reconcile(self, now_ms: int) -> None:
        """Takes the assignment that the coordinator sent."""
        if self.state is MemberState.LOSING:
            self.lost(now_ms)
        if self.state is MemberState.RECONCILING:
            if self.partitions_to_revoke():
                self.revoked(now_ms)
            self.take(self.target - self.owned, now_ms)


class _Buffered(NamedTuple):
    """A record that the application has not got yet, and the session that has to acknowledge it."""

    delivered: DeliveredRecord
    session: ShareSession
    generation: int
    expires_ms: int


class ShareConsumerCore:
    """A share consumer. It is not thread-safe. Times are milliseconds of a monotonic clock."""

    def __init__(self, settings: ShareConsumerSettings, *, jitter: Callable[[], float]) -> None:
        self.settings = settings
        self.view: ClusterView = ClusterView()
        self.topics: tuple[str, ...] = ()
        self._backoff = settings.retry_backoff(jitter)
        self.membership: ShareMembership = ShareMembership(settings.group_id, self._backoff)
        self.sessions: dict[int, ShareSession] = {}
        self.is_polling: bool = False
        self.is_removed_for_slowness: bool = False
        self.last_poll_ms: int = 0
        self.error: KafkaError | None = None
        """The error that the next poll raises. That of the membership is raised by each poll."""
        self._problems = TopicProblems()
        self._metadata = MetadataSchedule(self._backoff, settings.metadata_max_age_ms)
        self._buffer: deque[_Buffered] = deque()
        self._delivered: dict[
            tuple[TopicPartition, int], tuple[ShareSession, int, AcknowledgeType | None]
        ] = {}
        """The session, its generation and the acknowledgement of each record that the application got."""
        self._requests: dict[int, tuple[ShareSession, int]] = {}
        """The session of each request in flight, and the view's `ended_topics` when it was sent."""
        self._last_request_id = 0

    def subscribe(self, topics: tuple[str, ...], now_ms: int) -> None:
        self.topics = topics
        self.last_poll_ms = now_ms
        self.membership.subscribe(topics, None, now_ms)
        self._metadata.is_needed = True

    def unsubscribe(self) -> None:
        self.topics = ()
        self.error = None
        self.is_removed_for_slowness = False
        self.membership.leave()

    def begin_poll(self, now_ms: int) -> list[Effect]:
        """The application asks for records. Raises RuntimeError if it has not acknowledged all records that
        it got, although acknowledgements are explicit.
        """
        if self.settings.is_explicit and any(found[2] is None for found in self._delivered.values()):
            raise RuntimeError("all records must be acknowledged before the next poll (explicit mode)")
        self.is_polling = True
        self.last_poll_ms = now_ms
        if self.is_removed_for_slowness:
            self.is_removed_for_slowness = False
            self.membership.subscribe(self.topics, None, now_ms)
        effects: list[Effect] = []
        self.send_acknowledgements(effects)
        return effects + self.poll(now_ms)

    def end_poll(self, now_ms: int) -> None:
        self.is_polling = False
        self.last_poll_ms = now_ms

    def take(self, most: int, now_ms: int) -> list[DeliveredRecord]:
        """Returns up to `most` records. Raises KafkaError."""
        error, self.error = self.error, None
        if self.membership.state is MemberState.FAILED:
            error = self.membership.error
        if error is not None:
            self.is_polling = False  # the application's call ends here
            raise error
        found: list[DeliveredRecord] = []
        while self._buffer and len(found) < most:
            delivered, session, generation, expires_ms = self._buffer.popleft()
            if session.generation != generation or now_ms >= expires_ms:
                continue  # another member may have got it
            self._delivered[delivered.place, delivered.record.offset] = (session, generation, None)
            found.append(delivered)
        return found

    def acknowledge(self, place: TopicPartition, offset: int, kind: AcknowledgeType) -> None:
        """Says what became of a record. The next poll or commit sends it. Raises RuntimeError if the record
        is not one of those that the last poll delivered, or if acknowledgements are implicit.
        """
        if not self.settings.is_explicit:
            raise RuntimeError("acknowledge needs share.acknowledgement.mode=explicit")
        found = self._delivered.get((place, offset))
        if found is None:
            raise RuntimeError(f"{place} offset {offset} is not a record that waits for an acknowledgement")
        self._delivered[place, offset] = (found[0], found[1], kind)

    def release(self, place: TopicPartition, offset: int) -> None:
        """Lets another member have a record that was delivered in vain, in both modes."""
        found = self._delivered.get((place, offset))
        if found is not None:
            self._delivered[place, offset] = (found[0], found[1], AcknowledgeType.RELEASE)

    def commit(self, now_ms: int) -> list[Effect]:
        """Sends all acknowledgements. In the implicit mode it accepts all records that were delivered."""
        effects: list[Effect] = []
        self.send_acknowledgements(effects)
        return effects + self.poll(now_ms)

    @property
    def has_open_acknowledgements(self) -> bool:
        """Whether an acknowledgement has to be sent, or its response has not arrived."""
        return any(session.acknowledgements or session.in_flight for session in self.sessions.values())

    def send_acknowledgements(self, effects: list[Effect]) -> None:
        """Hands the acknowledgements of the application to the sessions of their brokers.

        In the implicit mode, all delivered records are accepted. An acknowledgement whose session has ended
        fails at once with SHARE_SESSION_NOT_FOUND.
        """
        for (place, offset), (session, generation, kind) in list(self._delivered.items()):
            if kind is None and self.settings.is_explicit:
                continue
            del self._delivered[place, offset]
            if session.generation == generation:
                session.acknowledge(place, {offset: AcknowledgeType.ACCEPT if kind is None else kind})
            else:
                error = request_error(ErrorCode.SHARE_SESSION_NOT_FOUND, f"acknowledgement of {place}")
                effects.append(AcknowledgementDone(place, (offset,), error))

    def close(self) -> dict[int, tuple[int, dict[TopicPartition, tuple[AcknowledgedBatch, ...]]]]:
        """Returns the last acknowledgements for each broker with a session, and the session's epoch. The
        broker gives all other records back when its session ends.
        """
        self._buffer.clear()
        return {
            node_id: (session.epoch, session.take_acknowledgements())
            for node_id, session in self.sessions.items()
            if session.is_open
        }

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Takes an event and returns what follows."""
        effects: list[Effect] = []
        match event:
            case ShareAnswered():
                self._answered(event, now_ms, effects)
            case ShareRequestFailed(request_id, error):
                session, _ = self._requests.pop(request_id)
                self._metadata.is_needed = True
                self._end(session, error, now_ms, effects)
            case MetadataReceived():
                self.view.update(event)
                due = self._problems.look(self.view, self.topics, (), now_ms)
                if due:
                    effects.append(TopicsMissing(due))
                is_incomplete = any(name not in self.view.topics for name in self.topics)
                places = self.partitions
                is_incomplete |= len(places) < len(self.membership.owned)
                is_incomplete |= any(self.view.leader(place).leader == NO_LEADER for place in places)
                self._metadata.received(is_incomplete, now_ms)
            case MetadataFailed():
                self._metadata.failed(now_ms)
            case HeartbeatAnswered():
                self.membership.answered(event, now_ms)
                self.membership.reconcile(now_ms)
                if self.membership.state is MemberState.FAILED:
                    effects.append(RecordsReady())
            case GroupRequestFailed(request):
                self.membership.failed(request, now_ms)
        return effects + self.poll(now_ms)

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions that the group gave and that metadata know."""
        named = [self.membership.place_of(each, self.view) for each in self.membership.owned]
        return sorted(place for place in named if place is not None)

    def _answered(self, event: ShareAnswered, now_ms: int, effects: list[Effect]) -> None:
        session, ended_topics = self._requests.pop(event.request_id)
        if event.error_code:
            subject = f"share session of group '{self.settings.group_id}' with broker {session.node_id}"
            error = request_error(event.error_code, subject, event.message)
            if event.error_code not in _SESSION_ERRORS and not error.is_retriable:
                self.error = error
                effects.append(RecordsReady())
            self._end(session, error, now_ms, effects)
            return
        session.answered()
        sent, session.in_flight = session.in_flight, {}
        for place, types in sent.items():
            answer = event.partitions.get(place)
            if answer is None:
                missing = "the response does not mention the partition"
                self._acknowledged(place, types, ErrorCode.UNKNOWN_SERVER_ERROR, missing, effects)
                continue
            code = answer.acknowledge_error_code
            self._acknowledged(place, types, code, answer.acknowledge_message, effects)
        deadline_ms = now_ms + event.lock_timeout_ms
        count = len(self._buffer)
        for place, answer in event.partitions.items():
            if answer.leader is not None:
                self.view.learn_leader(place, answer.leader, ended_topics)
            if answer.error_code:
                self._refused(session, place, answer, now_ms, effects)
            elif answer.acquired:
                self._acquire(session, place, answer, deadline_ms, effects)
        if len(self._buffer) > count:
            effects.append(RecordsReady())

    def _acknowledged(
        self,
        place: TopicPartition,
        types: dict[int, int],
        code: int,
        message: str | None,
        effects: list[Effect],
    ) -> None:
        """Tells the application about records, and not about gaps."""
        error = None if not code else request_error(code, f"acknowledgement of {place}", message)
        offsets = tuple(sorted(offset for offset, kind in types.items() if kind != AcknowledgeType.GAP))
        if offsets:
            effects.append(AcknowledgementDone(place, offsets, error))

    def _refused(
        self,
        session: ShareSession,
        place: TopicPartition,
        answer: SharedPartition,
        now_ms: int,
        effects: list[Effect],
    ) -> None:
        session.not_before_ms = now_ms + self._backoff.delay_ms(1)
        error = request_error(answer.error_code, f"share fetch of {place}", answer.message)
        if answer.error_code in _METADATA_ERRORS:
            self._metadata.is_needed = True
        elif not error.is_retriable:
            self.error = error
            effects.append(RecordsReady())

    def _acquire(
        self,
        session: ShareSession,
        place: TopicPartition,
        answer: SharedPartition,
        deadline_ms: int,
        effects: list[Effect],
    ) -> None:
        """Takes the records that the member acquired. Other records of the batches are not its own."""
        try:
            found = {
                record.offset: record
                for position, header, is_visible in visible_batches(answer.records, ())
                if is_visible
                for record in read_batch(place, answer.records, position, header)
            }
        except ValueError as error:
            self.error = KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{place}: {error}")
            effects.append(RecordsReady())
            for first, last, _ in answer.acquired:
                session.acknowledge(place, dict.fromkeys(range(first, last + 1), AcknowledgeType.RELEASE))
            return
        self._withdraw(session, place, answer, effects)
        for first, last, delivery_count in answer.acquired:
            for offset in range(first, last + 1):
                record = found.get(offset)
                if record is None:
                    session.acknowledge(place, {offset: AcknowledgeType.GAP})
                    continue
                delivered = DeliveredRecord(place, record, delivery_count)
                self._buffer.append(_Buffered(delivered, session, session.generation, deadline_ms))

    def _withdraw(
        self, session: ShareSession, place: TopicPartition, answer: SharedPartition, effects: list[Effect]
    ) -> None:
        """Voids earlier deliveries of records that another broker has given now: acknowledgements that wait
        to be sent fail, and so do those that the application makes later.
        """
        again = [offset for first, last, _ in answer.acquired for offset in range(first, last + 1)]
        for offset in again:
            delivered = self._delivered.get((place, offset))
            if delivered is not None and delivered[0] is not session:
                self._delivered[place, offset] = (delivered[0], _ENDED_GENERATION, delivered[2])
        for earlier in self.sessions.values():
            waiting = earlier.acknowledgements.get(place)
            if earlier is session or not waiting:
                continue
            void = {offset: waiting.pop(offset) for offset in again if offset in waiting}
            if not waiting:
                del earlier.acknowledgements[place]
            moved = f"broker {session.node_id} has delivered the record again"
            self._acknowledged(place, void, ErrorCode.NOT_LEADER_OR_FOLLOWER, moved, effects)

    def _end(self, session: ShareSession, error: KafkaError, now_ms: int, effects: list[Effect]) -> None:
        """The session has ended: its records belong to others, and its acknowledgements have failed."""
        for place, types in session.end().items():
            self._acknowledged(place, types, error.code, str(error), effects)
        session.not_before_ms = now_ms + self._backoff.delay_ms(1)

    def poll(self, now_ms: int) -> list[Effect]:
        """Returns the effects that are due at `now_ms`. `next_wake_ms` tells when to call it again."""
        effects: list[Effect] = []
        self._keep_membership(now_ms, effects)
        self._use_sessions(now_ms, effects)
        if self.topics and self._metadata.is_due(now_ms):
            effects.append(RequestMetadata(self.topics, False))
        return effects

    def next_wake_ms(self, now_ms: int) -> int | None:
        """Returns the next time at which `poll` has something to do, if no event comes before."""
        times = [each.not_before_ms for each in self.sessions.values() if each.not_before_ms > now_ms]
        metadata_ms = self._metadata.next_wake_ms() if self.topics else None
        if metadata_ms is not None:
            times.append(metadata_ms)
        if self.membership.is_active:
            due_ms = self.membership.next_wake_ms()
            if due_ms is not None:
                times.append(due_ms)
            if not self.is_polling:
                times.append(self.last_poll_ms + self.settings.max_poll_interval_ms)
        return min(times, default=None)

    def _keep_membership(self, now_ms: int, effects: list[Effect]) -> None:
        membership = self.membership
        if not membership.is_active:
            return
        if not self.is_polling and now_ms - self.last_poll_ms >= self.settings.max_poll_interval_ms:
            effects.append(LeaveGroup(membership.goodbye()))
            membership.leave()
            self.is_removed_for_slowness = True
            return
        request = membership.request(now_ms)
        if request is not None:
            effects.append(SendGroupRequest(request, membership.is_coordinator_unknown))
            membership.is_coordinator_unknown = False

    def _use_sessions(self, now_ms: int, effects: list[Effect]) -> None:
        wanted = self._partitions_by_leader()
        if self._buffer:
            self._clean_buffer(now_ms)
        for node_id in wanted:
            self._metadata.is_needed |= node_id not in self.view.nodes
            if node_id not in self.sessions:
                self.sessions[node_id] = ShareSession(node_id)
        for node_id, session in self.sessions.items():
            if session.is_in_flight or now_ms < session.not_before_ms:
                continue
            places = wanted.get(node_id, frozenset())
            fetches = self.is_polling and not self._buffer and bool(places) and node_id in self.view.nodes
            topics = self.view.topics
            is_recreated = any(
                name in topics and topics[name].topic_id != known for name, known in session.topic_ids.items()
            )
            if session.acknowledgements and (
                not fetches or is_recreated or session.acknowledgements.keys() - places
            ):
                epoch, acknowledged = session.epoch, session.take_acknowledgements()
                request_id = self._begin(session)
                effects.append(SendAcknowledgements(request_id, node_id, epoch, acknowledged))
            elif fetches:
                if is_recreated:
                    session.end()  # the broker knows the partitions by the id of the deleted topic
                session.topic_ids = {place.topic: topics[place.topic].topic_id for place in places}
                added, forgotten = session.change(places)
                epoch, acknowledged = session.epoch, session.take_acknowledgements()
                request_id = self._begin(session)
                effects.append(SendShareFetch(request_id, node_id, epoch, added, forgotten, acknowledged))

    def _begin(self, session: ShareSession) -> int:
        self._last_request_id += 1
        session.is_in_flight = True
        self._requests[self._last_request_id] = session, self.view.ended_topics
        return self._last_request_id

    def _partitions_by_leader(self) -> dict[int, frozenset[TopicPartition]]:
        found: dict[int, set[TopicPartition]] = {}
        for each in self.membership.owned:
            place = self.membership.place_of(each, self.view)
            leader = NO_LEADER if place is None else self.view.leader(place).leader
            if place is None or leader == NO_LEADER:
                self._metadata.is_needed = True
            else:
                found.setdefault(leader, set()).add(place)
        return {leader: frozenset(places) for leader, places in found.items()}

    def _clean_buffer(self, now_ms: int) -> None:
        """Drops records whose lock has ended, and releases those of partitions that the member does not read
        any more.
        """
        places = set(self.partitions)
        kept: deque[_Buffered] = deque()
        for each in self._buffer:
            place, record, _ = each.delivered
            if each.session.generation != each.generation or now_ms >= each.expires_ms:
                continue
            if place in places:
                kept.append(each)
            else:
                each.session.acknowledge(place, {record.offset: AcknowledgeType.RELEASE})
        self._buffer = kept
