"""The share groups of a shard (KIP-932): the states of their share partitions, and their requests.

The owners of the states keep them; `ShareStates` asks to create, delete, reset and describe them. What the
coordinator is about to do is in its log before it asks, and `ShareStateProgress` says how far it has got. A
question without an answer is asked again after a while. A state is created only once: a repeated question
names the same state epoch, and the owner ignores it.

`ShareGroups` handles ShareGroupHeartbeat v1 and ShareGroupDescribe v1. A member's first heartbeat creates the
group. Every change of members, subscriptions or topics increases the group epoch, and the next heartbeat of
any member computes the target assignment of that epoch, as in consumer groups. Only share partitions whose
state exists are assigned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

from tidelog.group_coordinator.groups.modern_group import JOIN_EPOCH, LEAVE_EPOCH, to_message
from tidelog.group_coordinator.groups.modern_groups import (
    MAX_SUBSCRIBER_BYTES,
    SESSION_TIMER,
    ModernGroups,
    check_epoch,
    check_member,
    check_not_empty,
    check_room,
    check_texts,
    find_group,
    find_member,
    invalid_request,
)
from tidelog.group_coordinator.groups.share.share_assignor import SIMPLE
from tidelog.group_coordinator.groups.share.share_group import (
    STATES_TIMER,
    ShareChanges,
    ShareGroup,
    ShareMember,
    Shares,
    TopicShare,
)
from tidelog.group_coordinator.groups.shared import GroupKind, Groups, TimerKey, TopicsChange, merge
from tidelog.group_coordinator.shard_core import (
    AskEndOffsets,
    AskShareStates,
    Reply,
    ShardDecision,
    ShardRequest,
)
from tidelog.kernel.instants import Backoff, WallMs
from tidelog.model.errors import ErrorCode
from tidelog.model.protocol_values import UNKNOWN_EPOCH, UNKNOWN_OFFSET
from tidelog.model.topics import TopicPartition
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages import delete_share_group_state as deleting
from tidelog.wire.messages import initialize_share_group_state as initializing
from tidelog.wire.messages import read_share_group_state_summary as summarizing
from tidelog.wire.messages import share_group_describe as describing
from tidelog.wire.messages import share_group_heartbeat as heartbeat
from tidelog.wire.messages.share_group_describe import (
    DescribedGroup,
    ShareGroupDescribeResponse,
)
from tidelog.wire.messages.share_group_heartbeat import Assignment as AssignmentMessage
from tidelog.wire.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

FIRST_RETRY_MS: Final = 500
_INITIALIZED: Final = (ErrorCode.NONE, ErrorCode.FENCED_STATE_EPOCH)
"""The results after which a state exists. A newer state epoch is that of a later reset."""

Result = Any
"""A `PartitionResult` of one of the APIs, which have the same fields for errors."""
Results = Mapping[tuple[UUID, int], Result]
"""The results by topic id and partition."""
Answered = Callable[[Results, WallMs], ShardDecision]


EndOffsets = Mapping[TopicPartition, int]
EndsAnswered = Callable[[EndOffsets, WallMs], ShardDecision]


class _Question(NamedTuple):
    answered: Callable[[Any, WallMs], ShardDecision]  # Any: Results or EndOffsets, by the effect
    refuse: Callable[[], list[Reply]]


def _no_replies() -> list[Reply]:
    return []


class ShareStates:
    """The open questions of one shard."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._next_token = 0
        self._open: dict[int, _Question] = {}

    def effect_done(
        self, effect: AskShareStates | AskEndOffsets, response: Any, now_ms: WallMs
    ) -> ShardDecision:
        """Passes the results of a question to the function that asked it: none if there is no response."""
        assert isinstance(effect.token, int)  # `_ask` made it
        question = self._open.pop(effect.token, None)
        if question is None:
            return ShardDecision()
        if isinstance(effect, AskEndOffsets):
            return question.answered(response, now_ms)
        topics = () if response is None else response.results
        results = {
            (topic.topic_id, result.partition): result for topic in topics for result in topic.partitions
        }
        return question.answered(results, now_ms)

    def deactivate(self) -> list[Reply]:
        """Returns the refusals of all requests that wait for an answer."""
        questions = list(self._open.values())
        self._open.clear()
        return [reply for question in questions for reply in question.refuse()]

    def _ask(
        self,
        decision: ShardDecision,
        api_key: int,
        request: object,
        answered: Answered,
        refuse: Callable[[], list[Reply]] = _no_replies,
    ) -> None:
        self._next_token += 1
        self._open[self._next_token] = _Question(answered, refuse)
        decision.effects.append(AskShareStates(self._next_token, api_key, request))

    def initialize_subscribed(self, changes: ShareChanges) -> None:
        """Begins to create the states of subscribed share partitions that have none."""
        group = changes.group
        if not group.states_are_due:
            return
        group.states_are_due = False
        missing = group.partitions.missing(group.subscribed(self._groups.image))
        if missing:
            changes.put_partitions(group.partitions.with_initializing(missing))
            self._initialize(changes, missing)

    def _initialize(self, changes: ShareChanges, shares: Shares) -> None:
        """Asks for the states of `shares`, except of topics about which a question is open."""
        group = changes.group
        wanted = {topic_id: topic for topic_id, topic in shares.items() if topic_id not in group.asked_about}
        if not wanted:
            return
        group.asked_about |= wanted.keys()
        offsets = {
            topic_id: dict.fromkeys(topic.partitions, UNKNOWN_OFFSET) for topic_id, topic in wanted.items()
        }
        self._ask(
            changes.decision,
            ApiKey.INITIALIZE_SHARE_GROUP_STATE,
            _initialization(group, offsets),
            lambda results, now_ms: self._initialized(group, wanted, results, now_ms),
        )

    def _initialized(
        self, group: ShareGroup, wanted: Shares, results: Results, now_ms: WallMs
    ) -> ShardDecision:
        decision = ShardDecision()
        if self._groups.by_id.get(group.group_id) is not group:
            return decision
        group.asked_about -= wanted.keys()
        changes = ShareChanges(self._groups, group, decision, now_ms)
        done = _initialized_of(group.partitions.initializing, wanted, results)
        if done:
            changes.put_partitions(group.partitions.with_initialized(done))
            changes.update_epoch(must_grow=True)  # so that the next heartbeat assigns them
        is_complete = wanted.keys().isdisjoint(group.partitions.initializing)
        self._retry_later(changes, is_complete=is_complete)
        return decision

    def delete_topics(
        self,
        changes: ShareChanges,
        topic_ids: Iterable[UUID],
        answered: Answered,
        refuse: Callable[[], list[Reply]],
    ) -> None:
        """Deletes the states of known topics, and then calls `answered`. The group forgets the topics whose
        states are deleted.
        """
        group, image = changes.group, self._groups.image
        partitions: dict[UUID, frozenset[int]] = {}
        for topic_id in topic_ids:
            known = group.partitions.partitions_of(topic_id)
            name = image.topic_names.get(topic_id)
            count = 0 if name is None else image.topics[name].partition_count
            partitions[topic_id] = known | frozenset(range(count))
        changes.put_partitions(group.partitions.with_deleting(partitions))
        group.asked_about |= partitions.keys()
        request = deleting.DeleteShareGroupStateRequest(
            group.group_id,
            [
                deleting.DeleteStateData(
                    topic_id,
                    [deleting.PartitionData(partition) for partition in sorted(numbers)],
                )
                for topic_id, numbers in sorted(partitions.items())
            ],
        )

        def deleted(results: Results, now_ms: WallMs) -> ShardDecision:
            group.asked_about -= partitions.keys()
            decision = ShardDecision()
            if self._groups.by_id.get(group.group_id) is group:
                later = ShareChanges(self._groups, group, decision, now_ms)
                gone = {
                    topic_id
                    for topic_id, numbers in partitions.items()
                    if all(error_of(results, topic_id, number) is ErrorCode.NONE for number in numbers)
                }
                later.put_partitions(group.partitions.without(gone))
                group.states_are_due = True
                self._retry_later(later, is_complete=gone == partitions.keys())
            merge(decision, answered(results, now_ms))
            return decision

        self._ask(changes.decision, ApiKey.DELETE_SHARE_GROUP_STATE, request, deleted, refuse)

    def _retry_later(self, changes: ShareChanges, *, is_complete: bool) -> None:
        group = changes.group
        if is_complete:
            group.failures = 0
            return
        longest_ms = self._groups.settings.group_share_initialize_retry_interval_ms
        group.failures += 1
        backoff = Backoff(FIRST_RETRY_MS, longest_ms)
        changes.set_timer(STATES_TIMER, "", backoff.delay_ms(group.failures))

    def resume(self, changes: ShareChanges) -> None:
        """Creates and deletes the states of share partitions that the group's record lists as unfinished."""
        group = changes.group
        self._initialize(changes, group.partitions.initializing)
        deleting = group.partitions.deleting.keys() - group.asked_about
        if deleting:
            self.delete_topics(changes, deleting, lambda results, now_ms: ShardDecision(), _no_replies)

    def reset(
        self,
        changes: ShareChanges,
        offsets: Mapping[UUID, Mapping[int, int]],
        names: Mapping[UUID, str],
        answered: Answered,
        refuse: Callable[[], list[Reply]],
    ) -> None:
        """Sets the start offsets of share partitions, whether or not they have a state, and calls `answered`.

        `offsets` are the offsets by topic id and partition. The group must be empty.
        """
        group = changes.group
        changes.update_epoch(must_grow=True)  # its epoch becomes the state epoch, which fences earlier writes
        wanted = {
            topic_id: TopicShare(names[topic_id], frozenset(numbers)) for topic_id, numbers in offsets.items()
        }
        changes.put_partitions(group.partitions.with_initializing(group.partitions.missing(wanted)))
        group.asked_about |= wanted.keys()

        def done(results: Results, now_ms: WallMs) -> ShardDecision:
            decision = self._initialized(group, wanted, results, now_ms)
            decision.replies += answered(results, now_ms).replies
            return decision

        request = _initialization(group, offsets)
        self._ask(changes.decision, ApiKey.INITIALIZE_SHARE_GROUP_STATE, request, done, refuse)

    def summarize(
        self,
        decision: ShardDecision,
        group: ShareGroup,
        partitions: Mapping[UUID, Iterable[int]],
        answered: Answered,
        refuse: Callable[[], list[Reply]],
    ) -> None:
        """Reads the start offsets of share partitions and calls `answered`."""
        request = summarizing.ReadShareGroupStateSummaryRequest(
            group.group_id,
            [
                summarizing.ReadStateSummaryData(
                    topic_id,
                    [summarizing.PartitionData(partition, UNKNOWN_EPOCH) for partition in sorted(numbers)],
                )
                for topic_id, numbers in sorted(partitions.items())
            ],
        )
        self._ask(decision, ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, request, answered, refuse)

    def ask_end_offsets(
        self,
        decision: ShardDecision,
        partitions: Iterable[TopicPartition],
        answered: EndsAnswered,
        refuse: Callable[[], list[Reply]],
    ) -> None:
        """Asks for the high watermarks of partitions and calls `answered` with those that are known."""
        self._next_token += 1
        self._open[self._next_token] = _Question(answered, refuse)
        decision.effects.append(AskEndOffsets(self._next_token, tuple(partitions)))


def _initialization(
    group: ShareGroup, offsets: Mapping[UUID, Mapping[int, int]]
) -> initializing.InitializeShareGroupStateRequest:
    """Returns the request to create states that begin at these offsets, in the group epoch."""
    return initializing.InitializeShareGroupStateRequest(
        group.group_id,
        [
            initializing.InitializeStateData(
                topic_id,
                [
                    initializing.PartitionData(number, group.epoch, offset)
                    for number, offset in sorted(numbers.items())
                ],
            )
            for topic_id, numbers in sorted(offsets.items())
        ],
    )


def error_of(results: Results, topic_id: UUID, partition: int) -> ErrorCode:
    """Returns the error code of a share partition. Without an answer, the client may try again."""
    result = results.get((topic_id, partition))
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if result is None else ErrorCode(result.error_code)


def _initialized_of(initializing: Shares, wanted: Shares, results: Results) -> Shares:
    """Returns the wanted share partitions that are initializing and whose state exists now."""
    found: dict[UUID, TopicShare] = {}
    for topic_id, topic in wanted.items():
        known = initializing.get(topic_id)
        if known is not None:
            exist = frozenset(
                partition
                for partition in topic.partitions & known.partitions
                if error_of(results, topic_id, partition) in _INITIALIZED
            )
            if exist:
                found[topic_id] = TopicShare(topic.name, exist)
    return found


class ShareGroups(ModernGroups[ShareGroup]):
    """The handler of requests for share groups."""

    GROUP = ShareGroup
    HEARTBEAT_RESPONSE = ShareGroupHeartbeatResponse
    DESCRIBED_GROUP = DescribedGroup
    DESCRIBE_RESPONSE = ShareGroupDescribeResponse

    def __init__(self, groups: Groups, states: ShareStates) -> None:
        super().__init__(groups)
        self._states = states

    def changes(self, group: ShareGroup, decision: ShardDecision, now_ms: WallMs) -> ShareChanges:
        return ShareChanges(self._groups, group, decision, now_ms)

    def _beat(self, request: ShardRequest[ShareGroupHeartbeatRequest], now_ms: WallMs) -> ShardDecision:
        message = request.message
        _check_request(message)
        if message.member_epoch != LEAVE_EPOCH:
            return self._join_or_update(request, now_ms)
        group = find_group(self._groups, message.group_id, ShareGroup)
        member = find_member(group, message.member_id)
        decision = ShardDecision()
        self.changes(group, decision, now_ms).remove_member(member)
        return self._left(request, member, decision)

    def _join_or_update(
        self, request: ShardRequest[ShareGroupHeartbeatRequest], now_ms: WallMs
    ) -> ShardDecision:
        message = request.message
        group = self._found_or_new(message)
        before = self._member_for(group, message)
        wanted = _with_request(before, request)
        if wanted != before:
            check_member(group, wanted, MAX_SUBSCRIBER_BYTES)
        # All checks have passed. From here on the state changes.
        decision = ShardDecision()
        changes = self.changes(group, decision, now_ms)
        self._groups.by_id[group.group_id] = group
        member = changes.update_member(before, wanted)
        self._states.initialize_subscribed(changes)
        changes.extend_session(member)
        is_full = message.member_epoch == JOIN_EPOCH or message.subscribed_topic_names is not None
        settings = self._groups.group_settings.for_group(group.group_id)
        response = ShareGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=member.member_epoch,
            heartbeat_interval_ms=settings.share_heartbeat_interval_ms,
            assignment=AssignmentMessage(to_message(heartbeat.TopicPartitions, member.assigned))
            if is_full or member.assigned != before.assigned
            else None,
        )
        decision.replies.append(Reply(request.reply_to, response))
        return decision

    def _member_for(self, group: ShareGroup, message: ShareGroupHeartbeatRequest) -> ShareMember:
        """Returns the member before the heartbeat; it is empty if it is new."""
        if message.member_epoch == JOIN_EPOCH and message.member_id not in group.members:
            check_room(group, self._groups.settings.group_share_max_size)
            return ShareMember(message.member_id)
        member = find_member(group, message.member_id)
        check_epoch(GroupKind.SHARE, member, message.member_epoch)
        return member

    def _describe_group(self, group: ShareGroup, described: DescribedGroup) -> None:
        described.assignor_name = SIMPLE

    def _described_member(self, member: ShareMember, target: object) -> describing.Member:
        assigned = self._named_topics(describing.TopicPartitions, member.assigned)
        return describing.Member(
            member_id=member.member_id,
            rack_id=member.rack_id,
            member_epoch=member.member_epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.topic_names),
            assignment=describing.Assignment(assigned),
        )

    def _resume(self, changes: ShareChanges) -> None:
        self._states.resume(changes)

    def topics_changed(
        self, group: ShareGroup, change: TopicsChange, decision: ShardDecision, now_ms: WallMs
    ) -> None:
        """Marks a group whose topics changed, and forgets the share partitions of deleted topics. The owners
        of their states delete these.
        """
        super().topics_changed(group, change, decision, now_ms)
        deleted = group.partitions.topic_ids().intersection(change.deleted.values())
        if deleted:
            self.changes(group, decision, now_ms).put_partitions(group.partitions.without(deleted))

    def timer_fired(self, key: TimerKey, now_ms: WallMs) -> ShardDecision:
        """Removes a member whose session ended, or repeats questions about states."""
        decision = ShardDecision()
        group = self._groups.by_id.get(key.group_id)
        if not isinstance(group, ShareGroup):
            return decision
        changes = self.changes(group, decision, now_ms)
        if key.kind == STATES_TIMER:
            self._states.resume(changes)
        elif key.kind == SESSION_TIMER and key.member_id in group.members:
            changes.remove_member(group.members[key.member_id])
        return decision


def _check_request(message: ShareGroupHeartbeatRequest) -> None:
    """Raises KafkaError if a ShareGroupHeartbeat is invalid, whatever the group's state is."""
    check_not_empty(GroupId=message.group_id, MemberId=message.member_id, RackId=message.rack_id)
    if message.member_epoch == JOIN_EPOCH and not message.subscribed_topic_names:
        raise invalid_request("SubscribedTopicNames must be set in first request.")
    if message.member_epoch < LEAVE_EPOCH:
        raise invalid_request("MemberEpoch is invalid.")
    check_texts("metadata of a member", message.subscribed_topic_names or (), MAX_SUBSCRIBER_BYTES)


def _with_request(member: ShareMember, request: ShardRequest[ShareGroupHeartbeatRequest]) -> ShareMember:
    """Returns the member with the fields of a heartbeat. Fields that the request omits keep their values."""
    message = request.message
    names = message.subscribed_topic_names
    return member.with_client_of(
        request,
        topic_names=member.topic_names if names is None else frozenset(names),
    )
