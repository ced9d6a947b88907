"""The core of a consumer: the application's calls, the steps of its membership in a group, and commits.

`step` takes an event and `poll` the time; both return effects. `Positions` looks up positions and checks
them, and `Fetcher` fetches from there. The application's calls of the shell's `poll` are events, too, because
partitions are given up only while the application waits for records: then it has dealt with all that it got.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar
from uuid import UUID

from tidelog.client.core.cluster_view import (
    ClusterView,
    MetadataReceived,
    MetadataSchedule,
    TopicProblems,
)
from tidelog.client.core.consuming.assigned_partitions import AssignedPartitions, ConsumerState
from tidelog.client.core.consuming.classic_membership import (
    ClassicMembership,
    GroupHeartbeatAnswered,
    JoinAnswered,
    SyncAnswered,
)
from tidelog.client.core.consuming.consumed_partition import (
    ConsumedPartition,
    PositionState,
)
from tidelog.client.core.consuming.consumer_batch import ConsumerBatch
from tidelog.client.core.consuming.consumer_events import (
    AssignmentDone,
    CommitConsumed,
    CommittedFound,
    Effect,
    Event,
    FetchAnswered,
    FetchFailed,
    GroupRequestFailed,
    LeaveGroup,
    LookupFailed,
    MetadataFailed,
    OffsetsFound,
    PartitionsAssigned,
    PositionsChecked,
    RecordsReady,
    RequestMetadata,
    RevocationDone,
    RevokePartitions,
    SendGroupRequest,
    TopicReplaced,
    TopicsMissing,
)
from tidelog.client.core.consuming.fetcher import Fetcher
from tidelog.client.core.consuming.membership import (
    ConsumerMembership,
    GroupPartition,
    HeartbeatAnswered,
    Membership,
    MemberState,
)
from tidelog.client.core.consuming.positions import Positions
from tidelog.client.core.consuming.records import ConsumerRecord
from tidelog.client.core.settings import ConsumerSettings
from tidelog.client.errors import request_error
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import NO_LEADER
from tidelog.model.topics import TopicPartition

T = TypeVar("T")

FULL_POLL_EACH_MS: Final = 50
"""A consumer that always finds records reconciles its assignment and fetches at least this often."""
ERROR_ATTEMPTS: Final = 2
"""The attempts for which a partition backs off after the application got its error."""
_TOPIC_REFUSALS: Final = frozenset({ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION})
"""The errors of metadata that no repetition cures. The next poll raises them for assigned partitions."""


class ConsumerCore:
    """A consumer. It is not thread-safe. Times are milliseconds of a monotonic clock."""

    def __init__(self, settings: ConsumerSettings, *, jitter: Callable[[], float]) -> None:
        self.settings = settings
        self.view: ClusterView = ClusterView()
        self.partitions: AssignedPartitions = AssignedPartitions()
        self._turn = self.partitions.turn
        self._delivered: dict[ConsumedPartition, None] = {}
        """The partitions whose positions have moved since the application last asked."""
        self._backoff = settings.retry_backoff(jitter)
        self._metadata = MetadataSchedule(self._backoff, settings.metadata_max_age_ms)
        state = ConsumerState(settings, self._backoff, self.view, self.partitions, self._metadata)
        self._positions = Positions(state)
        self._fetcher = Fetcher(state, self._positions)
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
        self._found_topics = 0
        """The view's `found_topics` when the core last compared the ids of topics."""
        self.problems: TopicProblems = TopicProblems()
        self._next_commit_ms: int | None = None
        self.is_drained: bool = False
        """Whether the application has got the last record of a fetch since the core last sent fetches."""
        self._is_telling_assignment = False
        self._assigned: dict[GroupPartition, TopicPartition] = {}
        """The names of the partitions that the group gave. Metadata may forget a topic before the group."""

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
        self.partitions.replace(wanted)
        self.topics = tuple(dict.fromkeys(place.topic for place in wanted))
        self.problems = TopicProblems()
        self._metadata.is_needed = True

    def unsubscribe(self) -> None:
        """Forgets the partitions and the membership."""
        self.topics, self.pattern = (), None
        self.problems = TopicProblems()
        self.partitions.replace()
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
                raise partition.recover(self.last_poll_ms + self._backoff.delay_ms(ERROR_ATTEMPTS))
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

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Takes an event and returns what follows."""
        effects: list[Effect] = []
        self._compare_topics(effects)
        match event:
            case FetchAnswered():
                self._fetcher.answered(event, now_ms, effects)
            case FetchFailed():
                self._fetcher.failed(event, now_ms)
            case CommittedFound():
                self._positions.found_committed(event, effects)
            case OffsetsFound():
                self._positions.found_offsets(event)
            case PositionsChecked():
                self._positions.checked(event, now_ms, effects)
            case LookupFailed():
                self._positions.lookup_failed(event, now_ms, effects)
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
                for partition in self.partitions.known(places):
                    partition.is_being_assigned = False
            case RevocationDone():
                self._revocation_done(event, now_ms)
        return effects + self.poll(now_ms)

    def _take_metadata(self, event: MetadataReceived, now_ms: int, effects: list[Effect]) -> None:
        self.view.update(event)
        topics = (*self.topics, *(place.topic for place in self.partitions))
        due = self.problems.look(self.view, topics, self.partitions, now_ms)
        if due:
            effects.append(TopicsMissing(due))
        for place, partition in self.partitions.items():
            code = self.view.errors.get(place.topic)
            if code in _TOPIC_REFUSALS and partition.state is not PositionState.FAILED:
                self.partitions.fail(partition, request_error(code, f"topic '{place.topic}'"))
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
            self.partitions.committed_offsets.pop(place, None)
            self.partitions.end_turn(partition)
        effects += [TopicReplaced(topic) for topic in replaced]

    def _revocation_done(self, event: RevocationDone, now_ms: int) -> None:
        revocation = self._revocation
        if revocation is None or revocation.step != event.step:
            return  # the membership has ended since, or the group has taken all partitions
        is_telling_slowness, self._revocation = self._is_telling_slowness, None
        for partition in self.partitions.known(revocation.partitions):
            if partition.is_revoked:  # else the application has assigned it by hand since it was lost
                self.partitions.remove(partition.place)
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

    def poll(self, now_ms: int) -> list[Effect]:
        """Returns the effects that are due at `now_ms`. `next_wake_ms` tells when to call it again."""
        self.is_drained = False
        effects: list[Effect] = []
        self._compare_topics(effects)
        if self.membership is not None and self.membership.state is not MemberState.OUTSIDE:
            self._keep_membership(self.membership, now_ms, effects)
        self._positions.look_up(now_ms, effects)
        self._fetcher.fetch(now_ms, effects)
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
            self.partitions.replace()
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
                self.partitions.add(place)
            membership.take(frozenset(added), now_ms)
            if places:
                self._is_telling_assignment = True
                for partition in self.partitions.known(places):
                    partition.is_being_assigned = True
                effects.append(PartitionsAssigned(tuple(places)))

    def _stop_delivery(self, places: Iterable[TopicPartition], *, is_lost: bool) -> RevokePartitions:
        """Delivers no more records of these partitions, so that a commit covers all delivered ones."""
        told = tuple(places)
        for partition in self.partitions.known(told):
            partition.is_revoked = True
            self.partitions.end_turn(partition)
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

    def _commit(self, now_ms: int, effects: list[Effect]) -> None:
        if not self.settings.enable_auto_commit or self.settings.group_id is None or not self.partitions:
            self._next_commit_ms = None
            return
        if self._next_commit_ms is None:
            self._next_commit_ms = now_ms + self.settings.auto_commit_interval_ms
        if now_ms < self._next_commit_ms:
            return
        self._next_commit_ms = now_ms + max(1, self.settings.auto_commit_interval_ms)
        offsets = self.partitions.commitable()
        if offsets:
            effects.append(CommitConsumed(offsets))
