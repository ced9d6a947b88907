"""The core of a consumer: its partitions and positions, what to fetch, and its membership in a group.

`step` takes an event and `poll` the time; both return effects. The application's calls of the shell's `poll`
are events, too, because partitions are given up only while the application waits for records: then it has
dealt with all that it got.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import count
from typing import Any, Final, TypeVar
from uuid import UUID

from tidelog.client.core.cluster_view import (
    ClusterView,
    EpochEnd,
    MetadataReceived,
    MetadataSchedule,
    TopicProblems,
)
from tidelog.client.core.consuming.classic_membership import (
    ClassicMembership,
    GroupHeartbeatAnswered,
    JoinAnswered,
    SyncAnswered,
)
from tidelog.client.core.consuming.consumed_partition import (
    ConsumedPartition,
    FetchedBatches,
    OffsetToCommit,
    PositionState,
)
from tidelog.client.core.consuming.consumer_batch import ConsumerBatch
from tidelog.client.core.consuming.consumer_events import (
    AssignmentDone,
    CheckPositions,
    CommitConsumed,
    CommittedFound,
    Effect,
    Event,
    FetchAnswered,
    FetchedPartition,
    FetchFailed,
    FetchSession,
    GroupRequestFailed,
    LeaveGroup,
    LookUpCommitted,
    LookupFailed,
    LookUpOffsets,
    MetadataFailed,
    OffsetsFound,
    PartitionsAssigned,
    PositionCheck,
    PositionsChecked,
    RecordsReady,
    RequestMetadata,
    RevocationDone,
    RevokePartitions,
    SendFetch,
    SendGroupRequest,
    TopicReplaced,
    TopicsMissing,
    TruncationFound,
)
from tidelog.client.core.consuming.membership import (
    ConsumerMembership,
    GroupPartition,
    HeartbeatAnswered,
    Membership,
    MemberState,
)
from tidelog.client.core.consuming.records import ConsumerRecord
from tidelog.client.core.settings import ConsumerSettings
from tidelog.client.errors import LogTruncationError, OffsetOutOfRangeError, request_error
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, NO_LEADER
from tidelog.model.topics import ZERO_TOPIC_ID, TopicPartition
from tidelog.records.batch import iterate_headers

T = TypeVar("T")

FULL_POLL_EACH_MS: Final = 50
"""A consumer that always finds records reconciles its assignment and fetches at least this often."""
ERROR_ATTEMPTS: Final = 2
"""The attempts for which a partition backs off after the application got its error."""
PREFERRED_REPLICA_MS: Final = 300_000
"""The time for which a consumer fetches from a closer replica before it asks the leader again (KIP-392)."""
_METADATA_ERRORS: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
    }
)
_TOPIC_REFUSALS: Final = frozenset({ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION})
"""The errors of metadata that no repetition cures. The next poll raises them for assigned partitions."""
_SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""After these errors the consumer opens another session at once."""


class ConsumerCore:
    """A consumer. It is not thread-safe. Times are milliseconds of a monotonic clock."""

    def __init__(self, settings: ConsumerSettings, *, jitter: Callable[[], float]) -> None:
        self.settings = settings
        self.view: ClusterView = ClusterView()
        self.partitions: dict[TopicPartition, ConsumedPartition] = {}
        self._generations = count()
        self._backoff = settings.retry_backoff(jitter)
        self.membership: Membership | None = None
        if settings.group_id is not None and settings.is_classic:
            self.membership = ClassicMembership(settings, self._backoff)
        elif settings.group_id is not None:
            is_static = settings.group_instance_id is not None
            self.membership = ConsumerMembership(settings.group_id, self._backoff, is_static=is_static)
        self.topics: tuple[str, ...] = ()
        """The topics of the subscription or of the assignment by hand."""
        self.pattern: str | None = None
        self.is_polling: bool = False
        self.is_removed_for_slowness: bool = False
        """Whether the consumer left its group because the application did not poll. It joins again after the
        application was told in its next poll what it lost."""
        self._lost: tuple[TopicPartition, ...] = ()
        self._revocation: RevokePartitions | None = None
        """The step of the present membership for whose end the core waits."""
        self._last_step = 0
        self.last_poll_ms: int = 0
        self._next_full_poll_ms = 0
        self._fetches: dict[int, tuple[int, dict[ConsumedPartition, int], int, Mapping[str, UUID]]] = {}
        """The broker of each fetch in flight, the generations of its partitions, the view's `ended_topics`
        when it was sent, and the ids of its topics."""
        self._found_topics = 0
        """The view's `found_topics` when the core last compared the ids of topics."""
        self._busy_nodes: set[int] = set()
        self._last_request_id = 0
        self._sessions: dict[int, FetchSession] = {}
        """The fetch session with each broker."""
        self.problems: TopicProblems = TopicProblems()
        self._metadata = MetadataSchedule(self._backoff, settings.metadata_max_age_ms)
        self._next_commit_ms: int | None = None
        self._committed: dict[TopicPartition, int] = {}
        self.is_drained: bool = False
        """Whether the application has got the last record of a fetch since the core last sent fetches."""
        self._turn: list[ConsumedPartition] = []
        """The partitions with records or an error for the application."""
        self._delivered: dict[ConsumedPartition, None] = {}
        """The partitions whose positions have moved since the application last asked."""
        self._is_telling_assignment = False
        self._assigned: dict[GroupPartition, TopicPartition] = {}
        """The names of the partitions that the group gave. Metadata may forget a topic before the group."""

    # -- the application's calls

    def subscribe(self, topics: tuple[str, ...], pattern: str | None, now_ms: int) -> None:
        """Raises ValueError if a classic group's pattern is no regular expression."""
        assert self.membership is not None
        self.membership.subscribe(topics, pattern, now_ms)
        self.topics, self.pattern = topics, pattern
        self.last_poll_ms = now_ms
        self._metadata.is_needed = True

    def assign(self, places: Iterable[TopicPartition]) -> None:
        """Replaces the partitions of a consumer that chooses them itself."""
        wanted = dict.fromkeys(places)
        for place in [place for place in self.partitions if place not in wanted]:
            self._remove(place)
        for place in wanted:
            self._add(place)
        self.topics = tuple(dict.fromkeys(place.topic for place in wanted))
        self.problems = TopicProblems()
        self._metadata.is_needed = True

    def unsubscribe(self) -> None:
        """Forgets the partitions and the membership."""
        self.topics, self.pattern = (), None
        self.problems = TopicProblems()
        for place in list(self.partitions):
            self._remove(place)
        if self.membership is not None:
            if self._is_telling_slowness:
                self.is_removed_for_slowness = False
            self._leave(self.membership)

    def partitions_to_leave(self) -> tuple[tuple[TopicPartition, ...], bool]:
        """Returns the partitions that the application gives up if the consumer leaves its group now, and
        whether it has lost them already. Partitions of which the application is being told are left out.
        """
        membership = self.membership
        if self.is_removed_for_slowness:
            return (() if self._is_telling_slowness else self._lost), True
        if membership is None or membership.state is MemberState.OUTSIDE:
            return (), False
        told = frozenset(() if self._revocation is None else self._revocation.partitions)
        is_lost = membership.state in (MemberState.LOSING, MemberState.FAILED)
        return tuple(place for place in self.partitions if place not in told), is_lost

    def require_full_poll(self) -> None:
        """Lets the next poll begin with `begin_poll`."""
        self._next_full_poll_ms = 0

    def begin_poll(self, now_ms: int) -> list[Effect]:
        """The application asks for records."""
        self.is_polling = True
        self.last_poll_ms = now_ms
        self._next_full_poll_ms = now_ms + FULL_POLL_EACH_MS
        self.finish_delivered()
        effects: list[Effect] = []
        if self.is_removed_for_slowness and not self._is_telling_slowness:
            effects.append(self._revoke(self._lost, is_lost=True))
        return effects + self.poll(now_ms)

    def continue_polls(self, now_ms: int) -> bool:
        """Returns whether the application may take records without `begin_poll`, because a recent one has
        done all that is due. The application has then asked for records.
        """
        if now_ms >= self._next_full_poll_ms:
            return False
        self.last_poll_ms = now_ms
        self.finish_delivered()
        return True

    def end_poll(self, now_ms: int) -> None:
        self.is_polling = False
        self.last_poll_ms = now_ms

    def finish_delivered(self) -> None:
        """Counts all delivered records as processed, because the application asks for more."""
        while self._delivered:
            self._delivered.popitem()[0].finish_delivered()

    def take(self, most: int, *, raises: bool = True) -> list[ConsumerRecord[Any, Any]] | None:
        """Returns up to `most` fetched records of one partition, None if there are none. Raises KafkaError of
        a partition. With `raises` False, it returns None before such a partition, and a later call raises.
        """
        return self._take_turn(lambda partition: partition.take(most), raises=raises)

    def take_decoded(self) -> ConsumerRecord[Any, Any] | None:
        """Returns the next record if `take` would return it without decoding. This is the hot path of an
        iteration.
        """
        if not self._turn:
            return None
        partition = self._turn[0]
        if partition.error is not None or partition.is_paused:
            return None
        record = partition.take_decoded()
        if record is not None:
            self._delivered[partition] = None
        return record

    def take_batch(self) -> ConsumerBatch[Any, Any] | None:
        """Returns the fetched records of one partition, None if there are none. Raises KafkaError of a
        partition.
        """
        return self._take_turn(ConsumedPartition.take_batch, raises=True)

    def _take_turn(self, take: Callable[[ConsumedPartition], T | None], *, raises: bool) -> T | None:
        while self._turn:
            partition = self._turn[0]
            if partition.error is not None:
                if not raises:
                    return None
                self._turn.pop(0)
                self.is_polling = False  # the application's call ends here
                not_before_ms = self.last_poll_ms + self._backoff.delay_ms(ERROR_ATTEMPTS)
                raise partition.recover(not_before_ms)
            if not partition.is_paused:
                try:
                    found = take(partition)
                except ValueError as error:
                    text = f"{partition.place} near {partition.position}: {error}"
                    partition.fail(KafkaError(ErrorCode.CORRUPT_MESSAGE, text))
                    continue
                self._delivered[partition] = None  # without records, it may have passed control records
                if found is not None:
                    return found
            self._turn.pop(0)
            self.is_drained = True
            if partition.fetched and not partition.is_paused:
                self._turn.append(partition)  # its next fetch waits behind those of other partitions
        return None

    def commitable(
        self, places: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetToCommit]:
        """Returns the offsets up to which records are processed but not committed."""
        chosen = self.partitions.values() if places is None else self._known(places)
        return {
            partition.place: OffsetToCommit(partition.consumed, partition.consumed_epoch, partition.topic_id)
            for partition in chosen
            if partition.state is PositionState.KNOWN
            and self._committed.get(partition.place) != partition.consumed
        }

    def chosen_to_commit(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetToCommit]:
        """Returns the offsets that the application wants to commit, as ones of the topics whose records it
        got.
        """
        topic_ids = {
            partition.place: partition.delivered_topic_id or partition.topic_id
            for partition in self._known(offsets)
        }
        return {
            place: OffsetToCommit(offset, topic_id=topic_ids.get(place)) for place, offset in offsets.items()
        }

    def committed(self, offsets: Mapping[TopicPartition, OffsetToCommit]) -> None:
        """A commit was stored."""
        for place, (offset, _, topic_id) in offsets.items():
            if place in self.partitions and topic_id in (None, self.partitions[place].topic_id):
                self._committed[place] = offset

    def pause(self, places: Iterable[TopicPartition]) -> None:
        for partition in self._known(places):
            partition.is_paused = True

    def resume(self, places: Iterable[TopicPartition]) -> None:
        for partition in self._known(places):
            partition.is_paused = False
            if partition.fetched:
                self._wait_turn(partition)

    def _known(self, places: Iterable[TopicPartition]) -> list[ConsumedPartition]:
        return [self.partitions[place] for place in places if place in self.partitions]

    def _unchanged(self, generations: Mapping[TopicPartition, int]) -> list[ConsumedPartition]:
        """Returns the partitions to whose positions a response applies. The application may have sought, or
        the partition may have been another member's since the request.
        """
        return [
            partition
            for partition in self._known(generations)
            if partition.generation == generations[partition.place]
        ]

    def _add(self, place: TopicPartition) -> None:
        if place not in self.partitions:
            self.partitions[place] = ConsumedPartition(place, self._generations)

    def _remove(self, place: TopicPartition) -> None:
        partition = self.partitions.pop(place, None)
        self._committed.pop(place, None)
        if partition is not None:
            partition.fetched.clear()
            if partition in self._turn:
                self._turn.remove(partition)

    def _wait_turn(self, partition: ConsumedPartition) -> None:
        if partition not in self._turn and not partition.is_revoked:
            self._turn.append(partition)

    # -- events

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Takes an event and returns what follows."""
        effects: list[Effect] = []
        self._compare_topics(effects)
        match event:
            case FetchAnswered():
                self._fetched(event, now_ms, effects)
            case FetchFailed():
                self._fetch_failed(event, now_ms)
            case CommittedFound():
                self._found_committed(event, effects)
            case OffsetsFound(request, found):
                for partition in self._unchanged(request.generations):
                    partition.seek(found[partition.place], topic_id=partition.topic_id)
            case PositionsChecked():
                self._checked(event, now_ms, effects)
            case LookupFailed():
                self._lookup_failed(event, now_ms, effects)
            case MetadataReceived():
                self._take_metadata(event, now_ms, effects)
            case MetadataFailed():
                self._metadata.failed(now_ms)
            case HeartbeatAnswered() | JoinAnswered() | SyncAnswered() | GroupHeartbeatAnswered():
                assert self.membership is not None
                self.membership.answered(event, now_ms)
                self._metadata.is_needed |= self.membership.assign_if_known(self.view, now_ms)
                if self.membership.state is MemberState.FAILED:
                    effects.append(RecordsReady())
            case GroupRequestFailed(request):
                assert self.membership is not None
                self.membership.failed(request, now_ms)
            case AssignmentDone(places):
                self._is_telling_assignment = False
                for partition in self._known(places):
                    partition.is_being_assigned = False
            case RevocationDone():
                self._revocation_done(event, now_ms)
        return effects + self.poll(now_ms)

    def _fetched(self, event: FetchAnswered, now_ms: int, effects: list[Effect]) -> None:
        node_id, generations, ended_topics, topic_ids = self._fetches.pop(event.request_id)
        self._busy_nodes.discard(node_id)
        if event.error_code:
            self._sessions[node_id].refused(event.error_code)
            self._metadata.is_needed |= event.error_code not in _SESSION_ERRORS - _METADATA_ERRORS
        else:
            self._sessions[node_id].answered(event.session_id)
        has_news = False
        for partition, generation in generations.items():
            place = partition.place
            partition.is_fetching = False
            if self.partitions.get(place) is not partition:
                continue
            answer = event.partitions.get(place)
            if partition.generation != generation or partition.state is not PositionState.KNOWN:
                continue
            if answer is None:
                if event.error_code and event.error_code not in _SESSION_ERRORS:
                    partition.not_before_ms = now_ms + self._backoff.delay_ms(1)
                continue
            if answer.leader is not None:
                self.view.learn_leader(place, answer.leader, ended_topics)
            topic_id = topic_ids.get(place.topic)
            if place.topic in self.view.topics and self.view.topics[place.topic].topic_id != topic_id:
                continue  # the answer is about an earlier topic of the name
            if not answer.error_code and topic_id != ZERO_TOPIC_ID:
                partition.topic_id = topic_id
            has_news |= self._take_answer(partition, answer, node_id, now_ms)
        if has_news:
            effects.append(RecordsReady())

    def _take_answer(
        self, partition: ConsumedPartition, answer: FetchedPartition, node_id: int, now_ms: int
    ) -> bool:
        """Returns whether the application gets something to see."""
        code = answer.error_code
        if code == ErrorCode.NONE:
            partition.high_watermark = answer.high_watermark
            partition.last_stable_offset = answer.last_stable_offset
            partition.log_start_offset = answer.log_start_offset
            if answer.preferred_replica >= 0 and answer.preferred_replica != node_id:
                if answer.preferred_replica not in self.view.nodes:
                    self._metadata.is_needed = True
                    partition.not_before_ms = now_ms + self._backoff.delay_ms(1)
                    return False
                partition.preferred_replica = answer.preferred_replica
                partition.preferred_until_ms = now_ms + PREFERRED_REPLICA_MS
                return False
            if not len(answer.records):
                return False
            partition.fetched.append(
                FetchedBatches(partition.place, answer.records, partition.fetch_offset, answer.aborted)
            )
            partition.fetch_offset, partition.fetch_epoch = _end_of(answer.records, partition)
            self._wait_turn(partition)
            return True
        partition.not_before_ms = now_ms + self._backoff.delay_ms(1)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            if partition.preferred_replica >= 0:
                partition.preferred_replica = -1  # a follower may be behind; the leader knows
                return False
            if partition.fetched:
                return False  # first deliver what was fetched
            return self._reset_by_policy(partition)
        partition.preferred_replica = -1
        if code in _METADATA_ERRORS:
            self._metadata.is_needed = True
            return False
        error = request_error(code, f"fetch of {partition.place}")
        if error.is_retriable:
            return False
        partition.fail(error)
        self._wait_turn(partition)
        return True

    def _checked(self, event: PositionsChecked, now_ms: int, effects: list[Effect]) -> None:
        for partition in self._unchanged({place: each.generation for place, each in event.asked.items()}):
            place, check = partition.place, event.asked[partition.place]
            partition.is_checking = False
            end = event.ends.get(place)
            error = None if end is None else request_error(end.error_code, f"check of {place}")
            if end is not None and not end.error_code:
                self._compare(partition, check, end, effects)
            elif error is None or error.is_retriable or error.code in _METADATA_ERRORS:
                self._metadata.is_needed = True
                partition.not_before_ms = now_ms + self._backoff.delay_ms(1)
            else:
                partition.fail(error)
                self._wait_turn(partition)
                effects.append(RecordsReady())

    def _compare(
        self, partition: ConsumedPartition, check: PositionCheck, end: EpochEnd, effects: list[Effect]
    ) -> None:
        """Goes on if the leader's log contains the position, and otherwise where the logs diverge. Source:
        `SubscriptionState.maybeCompleteValidation`.
        """
        is_known = end.epoch >= 0 and end.end_offset >= 0
        if is_known and end.end_offset >= partition.fetch_offset:
            partition.checked_epoch = check.leader_epoch
            return
        if partition.fetch_offset > partition.position:
            partition.drop_fetched()  # the position itself is checked next
            return
        place, position = partition.place, partition.position
        end_offset = end.end_offset if is_known else None
        if self.settings.auto_offset_reset == "none":
            where = "" if end_offset is None else f" from offset {end_offset} on"
            text = f"{place} has lost records that were read before offset {position}{where}"
            partition.fail(LogTruncationError(text, end_offset))
            self._wait_turn(partition)
            effects.append(RecordsReady())
            return
        effects.append(TruncationFound(place, position, end_offset))
        if end_offset is None:
            self._reset_by_policy(partition)
        else:
            partition.seek(end_offset, end.epoch, partition.topic_id)
            partition.checked_epoch = check.leader_epoch

    def _reset_by_policy(self, partition: ConsumedPartition) -> bool:
        """Returns whether the application gets an error."""
        policy = self.settings.auto_offset_reset
        if policy == "none":
            partition.fail(
                OffsetOutOfRangeError(
                    f"{partition.place} has no committed offset, or no offset {partition.position}, and "
                    "auto.offset.reset is none"
                )
            )
            self._wait_turn(partition)
            return True
        partition.reset(EARLIEST_TIMESTAMP if policy == "earliest" else LATEST_TIMESTAMP)
        return False

    def _fetch_failed(self, event: FetchFailed, now_ms: int) -> None:
        node_id, generations, _, _ = self._fetches.pop(event.request_id)
        self._busy_nodes.discard(node_id)
        self._sessions[node_id].failed()
        self._metadata.is_needed = True
        for partition in generations:
            partition.is_fetching = False
            partition.preferred_replica = -1
            partition.not_before_ms = now_ms + self._backoff.delay_ms(1)

    def _found_committed(self, event: CommittedFound, effects: list[Effect]) -> None:
        for partition in self._unchanged(event.request.generations):
            place = partition.place
            offset, epoch = event.offsets[place]
            if offset >= 0:
                partition.seek(offset, epoch, partition.topic_id)
                self._committed[place] = offset
            elif self._reset_by_policy(partition):
                effects.append(RecordsReady())

    def _lookup_failed(self, event: LookupFailed, now_ms: int, effects: list[Effect]) -> None:
        self._metadata.is_needed = True
        for partition in self._unchanged(event.request.generations):
            partition.is_looked_up = False
            partition.not_before_ms = now_ms + self._backoff.delay_ms(2)
            if not event.error.is_retriable:
                partition.fail(event.error)
                self._wait_turn(partition)
                effects.append(RecordsReady())

    def _take_metadata(self, event: MetadataReceived, now_ms: int, effects: list[Effect]) -> None:
        self.view.update(event)
        topics = (*self.topics, *(place.topic for place in self.partitions))
        due = self.problems.look(self.view, topics, self.partitions, now_ms)
        if due:
            effects.append(TopicsMissing(due))
        for place, partition in self.partitions.items():
            code = self.view.errors.get(place.topic)
            if code in _TOPIC_REFUSALS and partition.state is not PositionState.FAILED:
                partition.fail(request_error(code, f"topic '{place.topic}'"))
                self._wait_turn(partition)
                effects.append(RecordsReady())
        is_incomplete = any(name not in self.view.topics for name in self.topics) or any(
            self.view.leader(place).leader == NO_LEADER for place in self.partitions
        )
        if self.pattern is not None and not event.is_complete:
            is_incomplete = True  # it answers a request of an earlier subscription, which had no pattern
        elif self.membership is not None:
            is_incomplete |= self.membership.took_metadata(self.view, now_ms)
        self._metadata.received(is_incomplete, now_ms)

    def _compare_topics(self, effects: list[Effect]) -> None:
        """Looks up the positions of topics again that were deleted and created again under their names.

        A group of KIP-848 assigns partitions by the ids of topics. There, another member may get the
        partitions of the new topic, so nothing is read until the group has assigned them.
        """
        view = self.view
        if self._found_topics == view.found_topics:
            return
        self._found_topics = view.found_topics
        assigned = {place: topic_id for (topic_id, _), place in self._assigned.items()}
        replaced: dict[str, None] = {}
        for place, partition in self.partitions.items():
            topic_id, given_id = view.topic_id(place.topic), assigned.get(place)
            is_by_id = isinstance(given_id, UUID)
            former_id = given_id if is_by_id else partition.topic_id
            if topic_id is None or former_id is None or former_id == topic_id:
                continue
            replaced[place.topic] = None
            partition.replace_topic()
            partition.is_revoked |= is_by_id
            self._committed.pop(place, None)
            if partition in self._turn:
                self._turn.remove(partition)
        effects += [TopicReplaced(topic) for topic in replaced]

    def _revocation_done(self, event: RevocationDone, now_ms: int) -> None:
        revocation = self._revocation
        if revocation is None or revocation.step != event.step:
            return  # the membership has ended since, or the group has taken all partitions
        is_telling_slowness, self._revocation = self._is_telling_slowness, None
        for partition in self._known(revocation.partitions):
            if partition.is_revoked:  # else the application has assigned it by hand since it was lost
                self._remove(partition.place)
        self._assigned = {
            each: place
            for each, place in self._assigned.items()
            if place in self.partitions and not revocation.is_lost
        }
        membership = self.membership
        if membership is None:
            return
        if is_telling_slowness:
            self.is_removed_for_slowness = False
            if self.topics or self.pattern is not None:
                membership.subscribe(self.topics, self.pattern, now_ms)
        elif revocation.is_lost:
            membership.lost(now_ms)
        else:
            membership.revoked(now_ms)

    # -- time

    def poll(self, now_ms: int) -> list[Effect]:
        """Returns the effects that are due at `now_ms`. `next_wake_ms` tells when to call it again."""
        self.is_drained = False
        effects: list[Effect] = []
        self._compare_topics(effects)
        if self.membership is not None and self.membership.state is not MemberState.OUTSIDE:
            self._keep_membership(self.membership, now_ms, effects)
        self._look_up(now_ms, effects)
        self._fetch(now_ms, effects)
        self._commit(now_ms, effects)
        if (self.topics or self.pattern) and self._metadata.is_due(now_ms):
            group_topics = () if self.membership is None else self.membership.group_topics
            topics = dict.fromkeys((*self.topics, *(place.topic for place in self.partitions), *group_topics))
            effects.append(RequestMetadata(tuple(topics), self.pattern is not None))
        return effects

    def next_wake_ms(self, now_ms: int) -> int | None:
        """Returns the next time at which `poll` has something to do, if no event comes before."""
        times = [
            partition.not_before_ms
            for partition in self.partitions.values()
            if partition.not_before_ms > now_ms
        ]
        metadata_ms = self._metadata.next_wake_ms() if self.topics or self.pattern else None
        if metadata_ms is not None:
            times.append(metadata_ms)
        if self._next_commit_ms is not None:
            times.append(self._next_commit_ms)
        membership = self.membership
        if membership is not None and membership.is_active:
            due_ms = membership.next_wake_ms()
            if due_ms is not None:
                times.append(due_ms)
            if not self.is_polling:
                times.append(self.last_poll_ms + self.settings.max_poll_interval_ms)
        return min(times, default=None)

    def _keep_membership(self, membership: Membership, now_ms: int, effects: list[Effect]) -> None:
        if not membership.is_active:
            return
        is_slow = now_ms - self.last_poll_ms >= self.settings.max_poll_interval_ms
        if is_slow and not self.is_polling:
            effects.append(LeaveGroup(membership.goodbye()))
            self._leave(membership)
            self.is_removed_for_slowness = True
            self._lost = tuple(self.partitions)
            for place in self._lost:
                self._remove(place)
            return
        if self.is_polling:
            self._reconcile(membership, now_ms, effects)
        request = membership.request(now_ms)
        if request is not None:
            effects.append(SendGroupRequest(request, membership.is_coordinator_unknown))
            membership.is_coordinator_unknown = False

    def _reconcile(self, membership: Membership, now_ms: int, effects: list[Effect]) -> None:
        if self._is_telling_assignment or (self._revocation is not None and self._revocation.is_lost):
            return
        if membership.state is MemberState.LOSING:
            effects.append(self._stop_delivery(self.partitions, is_lost=True))
            return
        membership.prepare(now_ms)
        if membership.state is not MemberState.RECONCILING:
            return
        revoked = membership.partitions_to_revoke()
        if revoked:
            given_up = sorted(self._assigned[each] for each in revoked if each in self._assigned)
            effects.append(self._stop_delivery(given_up, is_lost=False))
            return
        wanted = membership.target - membership.owned
        named = {each: membership.place_of(each, self.view) for each in wanted}
        added = {each: place for each, place in named.items() if place is not None}
        if len(added) < len(wanted):
            self._metadata.is_needed = True
        if added and not membership.may_take:
            return
        if added or not wanted:
            self._assigned |= added
            places = sorted(added.values())
            for place in places:
                self._add(place)
            membership.take(frozenset(added), now_ms)
            if places:
                self._is_telling_assignment = True
                for partition in self._known(places):
                    partition.is_being_assigned = True
                effects.append(PartitionsAssigned(tuple(places)))

    def _stop_delivery(self, places: Iterable[TopicPartition], *, is_lost: bool) -> RevokePartitions:
        """Delivers no more records of these partitions, so that a commit covers all delivered ones."""
        told = tuple(places)
        for partition in self._known(told):
            partition.is_revoked = True
            if partition in self._turn:
                self._turn.remove(partition)
        return self._revoke(told, is_lost=is_lost)

    def _revoke(self, places: tuple[TopicPartition, ...], *, is_lost: bool) -> RevokePartitions:
        self._last_step += 1
        self._revocation = RevokePartitions(places, is_lost, self._last_step)
        return self._revocation

    @property
    def _is_telling_slowness(self) -> bool:
        """Whether the application is being told what it lost because it polled too rarely."""
        return self.is_removed_for_slowness and self._revocation is not None

    def _leave(self, membership: Membership) -> None:
        """Ends the membership, and with it the step that the application is being told of."""
        membership.leave()
        self._revocation = None
        self._assigned = {}

    def _look_up(self, now_ms: int, effects: list[Effect]) -> None:
        committed: dict[TopicPartition, int] = {}
        resetting: dict[TopicPartition, int] = {}
        timestamps: dict[TopicPartition, int] = {}
        for place, partition in self.partitions.items():
            if partition.is_looked_up or partition.is_revoked or now_ms < partition.not_before_ms:
                continue
            if partition.state is PositionState.UNKNOWN:
                partition.topic_id = self.view.topic_id(place.topic)
                if self.settings.group_id is None:
                    self._reset_by_policy(partition)
                else:
                    partition.is_looked_up = True
                    committed[place] = partition.generation
            if partition.state is PositionState.RESETTING:
                if self.view.leader(place).leader == NO_LEADER:
                    self._metadata.is_needed = True
                else:
                    partition.is_looked_up = True
                    partition.topic_id = self.view.topic_id(place.topic)
                    resetting[place] = partition.generation
                    timestamps[place] = partition.reset_timestamp
        if committed:
            effects.append(LookUpCommitted(committed))
        if resetting:
            effects.append(LookUpOffsets(resetting, timestamps))

    def _fetch(self, now_ms: int, effects: list[Effect]) -> None:
        by_node: dict[int, dict[TopicPartition, tuple[int, int]]] = {}
        checks: dict[int, dict[TopicPartition, PositionCheck]] = {}
        for place, partition in self.partitions.items():
            if not partition.can_fetch or now_ms < partition.not_before_ms:
                continue
            found = self.view.leader(place)
            node_id = found.leader
            if partition.needs_check(found.leader_epoch):
                if node_id not in self.view.nodes:
                    self._metadata.is_needed = True
                elif not partition.is_checking:
                    partition.is_checking = True
                    checks.setdefault(node_id, {})[place] = PositionCheck(
                        found.leader_epoch, partition.fetch_epoch, partition.generation
                    )
                continue
            if partition.preferred_replica in self.view.nodes:
                if now_ms < partition.preferred_until_ms:
                    node_id = partition.preferred_replica
                else:
                    partition.preferred_replica = -1
            if node_id not in self.view.nodes:
                self._metadata.is_needed = True
            elif node_id not in self._busy_nodes:
                by_node.setdefault(node_id, {})[place] = (partition.fetch_offset, found.leader_epoch)
                partition.checked_epoch = found.leader_epoch
        effects += [CheckPositions(node_id, found) for node_id, found in checks.items()]
        topics = self.view.topics
        topic_ids = {
            place.topic: topics[place.topic].topic_id
            for offsets in by_node.values()
            for place in offsets
            if place.topic in topics
        }
        for node_id, offsets in by_node.items():
            self._last_request_id += 1
            session = self._sessions.setdefault(node_id, FetchSession()).request(offsets, topic_ids)
            for place in session.read:
                self.partitions[place].is_fetching = True
            self._fetches[self._last_request_id] = (
                node_id,
                {self.partitions[place]: self.partitions[place].generation for place in session.read},
                self.view.ended_topics,
                session.topic_ids,
            )
            self._busy_nodes.add(node_id)
            effects.append(SendFetch(self._last_request_id, node_id, offsets, session))

    def _commit(self, now_ms: int, effects: list[Effect]) -> None:
        if not self.settings.enable_auto_commit or self.settings.group_id is None or not self.partitions:
            self._next_commit_ms = None
            return
        if self._next_commit_ms is None:
            self._next_commit_ms = now_ms + self.settings.auto_commit_interval_ms
        if now_ms < self._next_commit_ms:
            return
        self._next_commit_ms = now_ms + max(1, self.settings.auto_commit_interval_ms)
        offsets = self.commitable()
        if offsets:
            effects.append(CommitConsumed(offsets))


def _end_of(records: memoryview, partition: ConsumedPartition) -> tuple[int, int]:
    """Returns the offset after the last whole batch, and its leader epoch."""
    end, epoch = partition.fetch_offset, partition.fetch_epoch
    with suppress(ValueError):  # the application gets the error after the records before it
        for _, header in iterate_headers(records):
            if header.last_offset >= end:
                end, epoch = header.last_offset + 1, header.partition_leader_epoch
    return end, epoch
