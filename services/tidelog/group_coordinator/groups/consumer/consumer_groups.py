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

from tidelog.group_coordinator.answer_room import described_within_bound
from tidelog.group_coordinator.groups.classic.classic_groups import ClassicGroups
from tidelog.group_coordinator.groups.consumer.classic_members import (
    ClassicMembers,
    from_classic,
    remove_members,
    take_over,
)
from tidelog.group_coordinator.groups.consumer.consumer_group import ConsumerGroup, changed_topics
from tidelog.group_coordinator.groups.consumer.group_changes import (
    REBALANCE_TIMER,
    REGEX_INTERVAL_MS,
    REGEX_TIMER,
    SWEEP_TIMER,
    TIMER_OWNER,
    GroupChanges,
    default_assignor,
)
from tidelog.group_coordinator.groups.consumer.member import (
    JOIN_EPOCH,
    NO_PARTITIONS,
    STATIC_LEAVE_EPOCH,
    Assignment,
    Member,
    MemberState,
    from_message,
    to_message,
)
from tidelog.group_coordinator.groups.consumer.membership import (
    check_request,
    check_static,
    find_member,
    is_leaving,
)
from tidelog.group_coordinator.groups.consumer.records import FORMATS, member_record
from tidelog.group_coordinator.groups.consumer.topic_regex import MAX_RESOLVED_BYTES, TopicRegex
from tidelog.group_coordinator.groups.modern import (
    MAX_SUBSCRIBER_BYTES,
    check_memory,
    check_room,
    check_size,
    find_group,
    unknown_member,
)
from tidelog.group_coordinator.groups.shared import GroupKind, Groups, TimerKey, answer
from tidelog.group_coordinator.shard_core import (
    ClusterImage,
    ReplayedRecord,
    Reply,
    SetTimer,
    ShardDecision,
    ShardRequest,
    TopicsNeeded,
)
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.instants import WallMs
from tidelog.timing.steps import Steps
from tidelog.wire.messages import consumer_group_describe as describing
from tidelog.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
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


class ConsumerGroups:
    """The handler of requests for consumer groups. Every request is answered by its own decision."""

    def __init__(self, groups: Groups, classic: ClassicGroups) -> None:
        self.classic_members = ClassicMembers(groups, classic)
        self._groups = groups
        self._classic = classic

    def heartbeat(
        self, request: ShardRequest[ConsumerGroupHeartbeatRequest], now_ms: WallMs
    ) -> ShardDecision:
        message = request.message
        try:
            if GroupKind.CONSUMER not in self._groups.settings.group_coordinator_rebalance_protocols:
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
            check_request(message, request.api_version, self._groups.settings.group_consumer_assignors)
            if is_leaving(message.member_epoch):
                return self._leave(request, now_ms)
            return self._join_or_update(request, now_ms)
        except KafkaError as error:
            refusal = ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
            return answer(request, refusal)

    def _join_or_update(
        self, request: ShardRequest[ConsumerGroupHeartbeatRequest], now_ms: WallMs
    ) -> ShardDecision:
        groups, message = self._groups, request.message
        reported = None if message.topic_partitions is None else from_message(message.topic_partitions)
        group, takes_over = self._group_for(message)
        member_id = message.member_id or groups.new_member_uuid()
        if member_id not in group.members:
            check_room(group, groups.settings.group_consumer_max_size)
        found = find_member(group, member_id, message.instance_id, message.member_epoch, reported)
        wanted = _with_request(found.member, request)
        if wanted != found.member:
            check_size("metadata of a member", member_record(group.group_id, wanted), MAX_SUBSCRIBER_BYTES)
            check_memory(group.members, wanted.member_id, wanted)
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
            take_over(self._classic, groups.by_id[group.group_id], group, decision, now_ms)
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
        before: Member,
        member: Member,
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
            member = group.members.get(message.member_id)
            if member is None:
                raise unknown_member(group, message.member_id)
        else:
            member = check_static(
                group.static_member(message.instance_id), message.member_id, message.instance_id
            )
        decision = ShardDecision()
        if message.member_epoch == STATIC_LEAVE_EPOCH:
            # The static member keeps its partitions until it rejoins or its session ends.
            changes = GroupChanges(self._groups, group, decision, now_ms)
            changes.put_current_assignment(replace(member, member_epoch=STATIC_LEAVE_EPOCH, revoking={}))
            changes.cancel_timer(REBALANCE_TIMER, member.member_id)
        else:
            remove_members(self._groups, self._classic, group, [member], decision, now_ms)
        response = ConsumerGroupHeartbeatResponse(
            member_id=member.member_id, member_epoch=message.member_epoch
        )
        decision.replies.append(Reply(request.reply_to, response))
        return decision

    def describe(self, request: ShardRequest[ConsumerGroupDescribeRequest], now_ms: WallMs) -> ShardDecision:
        described = described_within_bound(
            request.message.group_ids,
            lambda group_id: _described(self._groups, group_id),
            lambda group_id, error: DescribedGroup(error_code=error, group_id=group_id),
            lambda groups: ConsumerGroupDescribeResponse(groups=groups),
        )
        return answer(request, described)

    def replay(self, record: ReplayedRecord) -> None:
        """Applies a record of kind 3 to 8 or 16. Raises MalformedMessageError, UnsupportedVersionError."""
        FORMATS.replay(record, self._groups.by_id, ConsumerGroup, ConsumerGroup)

    def activate(self, now_ms: WallMs) -> ShardDecision:
        """Starts a full session for every member, and the full timeout of every revocation."""
        decision = ShardDecision()
        for group in self._all():
            changes = GroupChanges(self._groups, group, decision, now_ms)
            for member in group.members.values():
                changes.extend_session(member)
                if member.classic is None and member.state is MemberState.UNREVOKED_PARTITIONS:
                    changes.set_timer(REBALANCE_TIMER, member.member_id, member.rebalance_timeout_ms)
        return decision

    def image_changed(self, before: ClusterImage) -> ShardDecision:
        """Marks the groups whose topics changed. The next heartbeat of a member decides what follows."""
        decision = ShardDecision()
        groups = self._all()
        changed = changed_topics(before, self._groups.image) if groups else frozenset()
        if not changed:
            return decision
        names_changed = before.topics.keys() != self._groups.image.topics.keys()
        for group in groups:
            if not changed.isdisjoint(group.subscribed_names()):
                group.topics_changed = True
            is_pending = group.regexes_are_due or group.is_regex_timer_running
            has_regexes = group.regexes or group.regex_sweep is not None
            if names_changed and has_regexes and not is_pending:
                group.is_regex_timer_running = True
                key = TimerKey(TIMER_OWNER, REGEX_TIMER, group.group_id)
                decision.timers.append(SetTimer(key, REGEX_INTERVAL_MS))
        return decision

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
            GroupChanges(self._groups, group, decision, now_ms).continue_sweep()
            return decision
        member = group.members.get(key.member_id)
        if member is not None and (
            key.kind != REBALANCE_TIMER or member.state is MemberState.UNREVOKED_PARTITIONS
        ):
            remove_members(self._groups, self._classic, group, [member], decision, now_ms)
        return decision

    def _all(self) -> list[ConsumerGroup]:
        return [group for group in self._groups.by_id.values() if isinstance(group, ConsumerGroup)]


def _with_request(member: Member, request: ShardRequest[ConsumerGroupHeartbeatRequest]) -> Member:
    """Returns the member with the fields of a heartbeat. Fields that the request omits keep their values.

    The member speaks the consumer protocol from now on, whichever protocol it spoke before.
    """
    message = request.message
    names, regex = message.subscribed_topic_names, message.subscribed_topic_regex
    timeout_ms = message.rebalance_timeout_ms
    return replace(
        member,
        instance_id=member.instance_id if message.instance_id is None else message.instance_id,
        rack_id=member.rack_id if message.rack_id is None else message.rack_id,
        client_id=request.client_id or "",
        client_host=f"/{request.host}",  # Java prints addresses with a slash
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        topic_names=member.topic_names if names is None else frozenset(names),
        topic_regex=member.topic_regex if regex is None else regex,
        server_assignor=member.server_assignor
        if message.server_assignor is None
        else message.server_assignor,
        classic=None,
    )


def _described(groups: Groups, group_id: str) -> Steps[DescribedGroup]:
    """Describes a group as it is at the first step."""
    try:
        group = find_group(groups, group_id, ConsumerGroup, GroupKind.CONSUMER)
    except KafkaError as error:
        return DescribedGroup(error_code=error.code, error_message=error.message, group_id=group_id)
    described = DescribedGroup(
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.preferred_assignor(default_assignor(groups.settings.group_consumer_assignors)),
    )
    members, targets = list(group.members.values()), dict(group.targets)
    for member in members:
        target = targets.get(member.member_id, NO_PARTITIONS)
        described.members.append(_described_member(groups, member, target))
        yield
    return described


def _described_member(groups: Groups, member: Member, target: Assignment) -> describing.Member:
    return describing.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topic_names),
        subscribed_topic_regex=member.topic_regex or None,
        assignment=_described_assignment(groups, _held(member)),
        target_assignment=_described_assignment(groups, target),
        member_type=_CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
    )


def _held(member: Member) -> dict[UUID, set[int]]:
    """Returns the partitions that the member holds, including those that it has to give up."""
    held: dict[UUID, set[int]] = {}
    for owned in (member.owned, member.revoking):
        for topic_id, partitions in owned.items():
            held.setdefault(topic_id, set()).update(partitions)
    return held


def _described_assignment(groups: Groups, partitions: Mapping[UUID, Iterable[int]]) -> describing.Assignment:
    """Returns an assignment without deleted topics, which have no name anymore."""
    names = groups.image.topic_names
    return describing.Assignment(
        [
            describing.TopicPartitions(topic_id, names[topic_id], sorted(found))
            for topic_id, found in sorted(partitions.items())
            if topic_id in names
        ]
    )
