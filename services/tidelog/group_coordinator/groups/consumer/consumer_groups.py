"""The consumer groups of a shard: ConsumerGroupHeartbeat v0-1 and ConsumerGroupDescribe v0-1 (KIP-848).

A member's first heartbeat creates the group, or takes over a classic group. Every change of members,
subscriptions or topics increases the group epoch. The next heartbeat of any member computes the target
assignment of that epoch. Each member then reaches its target by its own heartbeats.

Unlike Kafka, the heartbeat itself computes target assignments. It also resolves regular expressions if
there are few topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from uuid import UUID

from tidelog.group_coordinator.groups.classic.classic_groups import ClassicGroups
from tidelog.group_coordinator.groups.consumer.classic_members import (
    ClassicMembers,
    from_classic,
    remove_members,
    take_over,
)
from tidelog.group_coordinator.groups.consumer.consumer_group import (
    ConsumerGroup,
    ConsumerMember,
)
from tidelog.group_coordinator.groups.consumer.group_changes import (
    REGEX_INTERVAL_MS,
    REGEX_TIMER,
    SWEEP_TIMER,
    GroupChanges,
    check_request,
    check_static,
    default_assignor,
    find_sender,
)
from tidelog.group_coordinator.groups.consumer.topic_regex import MAX_RESOLVED_BYTES, TopicRegex
from tidelog.group_coordinator.groups.modern_group import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    Assignment,
    MemberState,
    from_message,
    to_message,
)
from tidelog.group_coordinator.groups.modern_groups import (
    MAX_SUBSCRIBER_BYTES,
    REBALANCE_TIMER,
    ModernGroups,
    check_member,
    check_room,
    find_member,
)
from tidelog.group_coordinator.groups.shared import GroupKind, Groups, TimerKey, TopicsChange
from tidelog.group_coordinator.shard_core import (
    Reply,
    ShardDecision,
    ShardRequest,
    TopicsNeeded,
)
from tidelog.kernel.instants import WallMs
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire.messages import consumer_group_describe as describing
from tidelog.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from tidelog.wire.messages.consumer_group_heartbeat import Assignment as AssignmentMessage
from tidelog.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1


class ConsumerGroups(ModernGroups[ConsumerGroup]):
    """The handler of requests for consumer groups."""

    GROUP = ConsumerGroup
    HEARTBEAT_RESPONSE = ConsumerGroupHeartbeatResponse
    DESCRIBED_GROUP = DescribedGroup
    DESCRIBE_RESPONSE = ConsumerGroupDescribeResponse

    def __init__(self, groups: Groups, classic: ClassicGroups) -> None:
        super().__init__(groups)
        self.classic_members = ClassicMembers(groups, classic)
        self._classic = classic

    def changes(self, group: ConsumerGroup, decision: ShardDecision, now_ms: WallMs) -> GroupChanges:
        return GroupChanges(self._groups, group, decision, now_ms)

    def _beat(self, request: ShardRequest[ConsumerGroupHeartbeatRequest], now_ms: WallMs) -> ShardDecision:
        settings, message = self._groups.settings, request.message
        if GroupKind.CONSUMER not in settings.group_coordinator_rebalance_protocols:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        check_request(message, request.api_version, settings.group_consumer_assignors)
        if message.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return self._leave(request, now_ms)
        return self._join_or_update(request, now_ms)

    def _join_or_update(
        self, request: ShardRequest[ConsumerGroupHeartbeatRequest], now_ms: WallMs
    ) -> ShardDecision:
        groups, message = self._groups, request.message
        reported = None if message.topic_partitions is None else from_message(message.topic_partitions)
        group, takes_over = self._group_for(message)
        member_id = message.member_id or groups.new_member_uuid()
        if member_id not in group.members:
            check_room(group, groups.settings.group_consumer_max_size)
        found = find_sender(group, member_id, message.instance_id, message.member_epoch, reported)
        wanted = _with_request(found.member, request)
        if wanted != found.member:
            check_member(group, wanted, MAX_SUBSCRIBER_BYTES)
        compiled = {}
        if wanted.topic_regex and wanted.topic_regex not in group.regexes:
            compiled[wanted.topic_regex] = TopicRegex(wanted.topic_regex)
        describable = request.describable
        if (
            describable is not None
            and describable.names is None
            and group.regex_sweep is None
            and group.due_regexes((*group.members.values(), wanted))
        ):
            return ShardDecision(replies=[Reply(request.reply_to, TopicsNeeded())])
        if wanted.topic_regex in group.oversized_regexes and not group.regexes_are_due:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The regular expressions of consumer group {group.group_id} match topics that take more "
                f"than {MAX_RESOLVED_BYTES} bytes, which is the limit. Use fewer expressions.",
            )
        # All checks have passed. From here on the state changes.
        decision = ShardDecision()
        changes = GroupChanges(groups, group, decision, now_ms, describable)
        if takes_over:
            take_over(self._classic, groups.by_id[group.group_id], changes)
            for other in group.members.values():
                changes.extend_session(other)
        groups.by_id[group.group_id] = group
        if found.replaced is not None:
            changes.replace_static_member(found.replaced, found.member)
        member = changes.update_member(found.member, wanted, reported, compiled)
        changes.extend_session(member)
        response = self._response(message, found.member, member, reported)
        decision.replies.append(Reply(request.reply_to, response))
        return decision

    def _group_for(self, message: ConsumerGroupHeartbeatRequest) -> tuple[ConsumerGroup, bool]:
        """Returns the group, and whether it replaces a classic group. A new group is not in `by_id` yet."""
        known = self._groups.by_id.get(message.group_id)
        if isinstance(known, ConsumerGroup):
            return known, False
        if message.member_epoch != JOIN_EPOCH:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {message.group_id} not found.")
        if known is None:
            return ConsumerGroup(message.group_id), False
        return from_classic(self._groups, known), True

    def _response(
        self,
        message: ConsumerGroupHeartbeatRequest,
        before: ConsumerMember,
        member: ConsumerMember,
        reported: Assignment | None,
    ) -> ConsumerGroupHeartbeatResponse:
        """Returns the response, with the assignment if it changed or if the request was complete."""
        is_full = (
            message.rebalance_timeout_ms != -1
            and (message.subscribed_topic_names is not None or message.subscribed_topic_regex is not None)
            and reported is not None
        )
        has_assignment = message.member_epoch == JOIN_EPOCH or is_full or member.owned != before.owned
        return ConsumerGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=member.member_epoch,
            heartbeat_interval_ms=self._groups.group_settings.for_group(
                message.group_id
            ).consumer_heartbeat_interval_ms,
            assignment=AssignmentMessage(to_message(TopicPartitions, member.owned))
            if has_assignment
            else None,
        )

    def _leave(self, request: ShardRequest[ConsumerGroupHeartbeatRequest], now_ms: WallMs) -> ShardDecision:
        message = request.message
        group = self._groups.by_id.get(message.group_id)
        if not isinstance(group, ConsumerGroup):
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {message.group_id} not found.")
        if message.instance_id is None:
            member = find_member(group, message.member_id)
        else:
            member = check_static(
                group.static_member(message.instance_id), message.member_id, message.instance_id
            )
        decision = ShardDecision()
        if message.member_epoch == STATIC_LEAVE_EPOCH:
            # The static member keeps its partitions until it rejoins or its session ends.
            changes = self.changes(group, decision, now_ms)
            changes.put_current_assignment(replace(member, member_epoch=STATIC_LEAVE_EPOCH, revoking={}))
            changes.cancel_timer(REBALANCE_TIMER, member.member_id)
        else:
            remove_members(self._groups, self._classic, group, [member], decision, now_ms)
        return self._left(request, member, decision)

    def _resume(self, changes: GroupChanges) -> None:
        """Starts the full timeout of every revocation."""
        for member in changes.group.members.values():
            if member.classic is None and member.state is MemberState.UNREVOKED:
                changes.set_timer(REBALANCE_TIMER, member.member_id, member.rebalance_timeout_ms)

    def topics_changed(
        self, group: ConsumerGroup, change: TopicsChange, decision: ShardDecision, now_ms: WallMs
    ) -> None:
        """Marks a group whose topics changed, and lets its regular expressions be resolved again."""
        super().topics_changed(group, change, decision, now_ms)
        is_pending = group.regexes_are_due or group.is_regex_timer_running
        has_regexes = group.regexes or group.regex_sweep is not None
        if change.has_other_names and has_regexes and not is_pending:
            group.is_regex_timer_running = True
            self.changes(group, decision, now_ms).set_timer(REGEX_TIMER, "", REGEX_INTERVAL_MS)

    def timer_fired(self, key: TimerKey, now_ms: WallMs) -> ShardDecision:
        """Removes a member whose session ended or which exceeded its rebalance timeout, or continues the
        resolution of regular expressions.
        """
        decision = ShardDecision()
        group = self._groups.by_id.get(key.group_id)
        if not isinstance(group, ConsumerGroup):
            return decision
        if key.kind == REGEX_TIMER:
            group.is_regex_timer_running = False
            group.regexes_are_due = True
            return decision
        if key.kind == SWEEP_TIMER:
            self.changes(group, decision, now_ms).continue_sweep()
            return decision
        member = group.members.get(key.member_id)
        if member is not None and (key.kind != REBALANCE_TIMER or member.state is MemberState.UNREVOKED):
            remove_members(self._groups, self._classic, group, [member], decision, now_ms)
        return decision

    def _describe_group(self, group: ConsumerGroup, described: DescribedGroup) -> None:
        default = default_assignor(self._groups.settings.group_consumer_assignors)
        described.assignor_name = group.preferred_assignor(default)

    def _described_member(self, member: ConsumerMember, target: Assignment) -> describing.Member:
        return describing.Member(
            member_id=member.member_id,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            member_epoch=member.member_epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.topic_names),
            subscribed_topic_regex=member.topic_regex or None,
            assignment=self._described_assignment(_held(member)),
            target_assignment=self._described_assignment(target),
            member_type=_CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
        )

    def _described_assignment(self, partitions: Mapping[UUID, Iterable[int]]) -> describing.Assignment:
        return describing.Assignment(self._named_topics(describing.TopicPartitions, partitions))


def _with_request(
    member: ConsumerMember, request: ShardRequest[ConsumerGroupHeartbeatRequest]
) -> ConsumerMember:
    """Returns the member with the fields of a heartbeat. Fields that the request omits keep their values.

    The member speaks the consumer protocol from now on, whichever protocol it spoke before.
    """
    message = request.message
    names, regex = message.subscribed_topic_names, message.subscribed_topic_regex
    timeout_ms = message.rebalance_timeout_ms
    return member.with_client_of(
        request,
        instance_id=member.instance_id if message.instance_id is None else message.instance_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        topic_names=member.topic_names if names is None else frozenset(names),
        topic_regex=member.topic_regex if regex is None else regex,
        server_assignor=member.server_assignor
        if message.server_assignor is None
        else message.server_assignor,
        classic=None,
    )


def _held(member: ConsumerMember) -> dict[UUID, set[int]]:
    """Returns the partitions that the member holds, including those that it has to give up."""
    held: dict[UUID, set[int]] = {}
    for owned in (member.owned, member.revoking):
        for topic_id, partitions in owned.items():
            held.setdefault(topic_id, set()).update(partitions)
    return held
