"""Consumer groups of a shard: ConsumerGroupHeartbeat v0-1, ConsumerGroupDescribe v0-1, and what members of
the classic protocol ask of a consumer group (KIP-848).

A member's first heartbeat makes the group, or takes over a classic one. Every change of members, their
subscriptions or topics is a new group epoch; the next heartbeat of any member makes the target of that
epoch; each member comes to its target by its own heartbeats.

Deviations: targets are made, and regular expressions resolved, at once, within the heartbeat.
"""

from __future__ import annotations

from dataclasses import replace

from tidelog.group_coordinator.groups.classic.classic_groups import ClassicGroups
from tidelog.group_coordinator.groups.consumer import migration
from tidelog.group_coordinator.groups.consumer.assignment import Assignment, from_message, to_message
from tidelog.group_coordinator.groups.consumer.classic_members import ClassicMembers
from tidelog.group_coordinator.groups.consumer.consumer_group import ConsumerGroup, changed_topics
from tidelog.group_coordinator.groups.consumer.departures import fence
from tidelog.group_coordinator.groups.consumer.describe import describe
from tidelog.group_coordinator.groups.consumer.group_changes import (
    OWNER,
    REBALANCE,
    REGEX_INTERVAL_MS,
    GroupChanges,
)
from tidelog.group_coordinator.groups.consumer.group_replay import GroupReplay
from tidelog.group_coordinator.groups.consumer.heartbeat_rules import (
    check_request,
    check_room,
    check_static,
    find_member,
    is_leaving,
    unknown_member,
)
from tidelog.group_coordinator.groups.consumer.member import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    Member,
    MemberState,
)
from tidelog.group_coordinator.groups.consumer.topic_regex import TopicRegex
from tidelog.group_coordinator.groups.shared import Groups, TimerKey, answer
from tidelog.group_coordinator.shard_core import ClusterImage, Decision, ReplayedRecord, Reply, ShardRequest
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire.messages.consumer_group_heartbeat import (
    Assignment as AssignmentMessage,
)
from tidelog.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)


class ConsumerGroups:
    """Nothing is ever owed here: each request is answered by the decision it leads to."""

    def __init__(self, groups: Groups, classic: ClassicGroups) -> None:
        self._groups = groups
        self._replay = GroupReplay(groups.by_id)
        self._classic = classic
        members = ClassicMembers(groups, classic)
        self.classic_join = members.join
        self.classic_sync = members.sync
        self.classic_heartbeat = members.heartbeat
        self.classic_leave = members.leave

    # -- requests

    def heartbeat(self, request: ShardRequest, now_ms: int) -> Decision:
        message: ConsumerGroupHeartbeatRequest = request.message
        try:
            if OWNER not in self._groups.settings.group_coordinator_rebalance_protocols:
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
            check_request(message, request.api_version, self._groups.settings.group_consumer_assignors)
            if is_leaving(message.member_epoch):
                return self._leave(request, message, now_ms)
            return self._join_or_go_on(request, message, now_ms)
        except KafkaError as error:
            refusal = ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
            return answer(request, refusal)

    def _join_or_go_on(
        self, request: ShardRequest, message: ConsumerGroupHeartbeatRequest, now_ms: int
    ) -> Decision:
        groups = self._groups
        told = None if message.topic_partitions is None else from_message(message.topic_partitions)
        group, takes_over = self._group_for(message)
        member_id = message.member_id or groups.new_member_uuid()
        check_room(group, member_id, groups.settings.group_consumer_max_size)
        found = find_member(group, member_id, message.instance_id, message.member_epoch, told)
        wanted = _wanted(found.member, request)
        compiled = {}
        if wanted.topic_regex and wanted.topic_regex not in group.regexes:
            compiled[wanted.topic_regex] = TopicRegex(wanted.topic_regex)
        # Nothing is refused from here on: the state changes.
        decision = Decision()
        changes = GroupChanges(groups, group, decision, now_ms)
        if takes_over:
            migration.take_over(self._classic, groups.by_id[group.group_id], group, decision, now_ms)
            for other in group.members.values():
                changes.prolong_session(other)
        groups.by_id[group.group_id] = group
        if found.replaced is not None:
            changes.replace_static_member(found.replaced, found.member)
        member = changes.update_member(found.member, wanted, told, compiled)
        changes.prolong_session(member)
        decision.replies.append(Reply(request.reply_to, self._response(message, found.member, member, told)))
        return decision

    def _group_for(self, message: ConsumerGroupHeartbeatRequest) -> tuple[ConsumerGroup, bool]:
        """The group, and whether it takes the place of a classic one. A new one is not known yet."""
        known = self._groups.by_id.get(message.group_id)
        if isinstance(known, ConsumerGroup):
            return known, False
        if message.member_epoch != JOIN_EPOCH:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {message.group_id} not found.")
        if known is None:
            return ConsumerGroup(message.group_id), False
        return migration.from_classic(self._groups, known), True

    def _response(
        self,
        message: ConsumerGroupHeartbeatRequest,
        before: Member,
        member: Member,
        told: Assignment | None,
    ) -> ConsumerGroupHeartbeatResponse:
        """With the assignment if it changed, or if the member told everything about itself."""
        is_full = (
            message.rebalance_timeout_ms != -1
            and (message.subscribed_topic_names is not None or message.subscribed_topic_regex is not None)
            and told is not None
        )
        tells = message.member_epoch == JOIN_EPOCH or is_full or member.owned != before.owned
        return ConsumerGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=member.member_epoch,
            heartbeat_interval_ms=self._groups.settings.group_consumer_heartbeat_interval_ms,
            assignment=AssignmentMessage(to_message(TopicPartitions, member.owned)) if tells else None,
        )

    def _leave(self, request: ShardRequest, message: ConsumerGroupHeartbeatRequest, now_ms: int) -> Decision:
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
        decision = Decision()
        if message.member_epoch == STATIC_LEAVE_EPOCH:
            # It keeps its partitions until its session ends, or it is back.
            changes = GroupChanges(self._groups, group, decision, now_ms)
            changes.put_standing(replace(member, member_epoch=STATIC_LEAVE_EPOCH, revoking={}))
            changes.cancel_timer(REBALANCE, member.member_id)
        else:
            fence(self._groups, self._classic, group, [member], decision, now_ms)
        response = ConsumerGroupHeartbeatResponse(
            member_id=member.member_id, member_epoch=message.member_epoch
        )
        decision.replies.append(Reply(request.reply_to, response))
        return decision

    def describe(self, request: ShardRequest, now_ms: int) -> Decision:
        return answer(request, describe(self._groups, request.message))

    # -- of the shard

    def replay(self, kind: int, record: ReplayedRecord, offset: int) -> None:
        """Kinds 3 to 8, and 16."""
        self._replay.replay(kind, record)

    def activate(self, now_ms: int) -> Decision:
        """Every member has a whole session from now on; who was giving partitions up, its whole time for
        that.
        """
        decision = Decision()
        for group in self._all():
            changes = GroupChanges(self._groups, group, decision, now_ms)
            for member in group.members.values():
                changes.prolong_session(member)
                if member.classic is None and member.state is MemberState.UNREVOKED_PARTITIONS:
                    changes.set_timer(REBALANCE, member.member_id, member.rebalance_timeout_ms)
        return decision

    def image_changed(self, before: ClusterImage, now_ms: int) -> Decision:
        """Nothing is decided yet: the next heartbeat of a member does."""
        groups = self._all()
        changed = changed_topics(before, self._groups.image) if groups else frozenset()
        if not changed:
            return Decision()
        came_or_went = before.topics.keys() != self._groups.image.topics.keys()
        for group in groups:
            if not changed.isdisjoint(group.subscribed_names()):
                group.topics_changed = True
            if came_or_went and group.regexes and group.regexes_due_ms is None:
                group.regexes_due_ms = now_ms + REGEX_INTERVAL_MS
        return Decision()

    def timer_fired(self, key: TimerKey, now_ms: int) -> Decision:
        """The member is gone, or did not do in time what it had to."""
        decision = Decision()
        group = self._groups.by_id.get(key.group_id)
        if isinstance(group, ConsumerGroup):
            member = group.members.get(key.member_id)
            still_due = member is not None and (
                key.what != REBALANCE or member.state is MemberState.UNREVOKED_PARTITIONS
            )
            if member is not None and still_due:
                fence(self._groups, self._classic, group, [member], decision, now_ms)
        return decision

    def deactivate(self) -> list[Reply]:
        return []

    def _all(self) -> list[ConsumerGroup]:
        return [group for group in self._groups.by_id.values() if isinstance(group, ConsumerGroup)]


def _wanted(member: Member, request: ShardRequest) -> Member:
    """The member with what the request says; what it leaves out stays. Who sends this speaks the consumer
    protocol, whatever was before.
    """
    message: ConsumerGroupHeartbeatRequest = request.message
    names, regex = message.subscribed_topic_names, message.subscribed_topic_regex
    timeout_ms = message.rebalance_timeout_ms
    return replace(
        member,
        instance_id=member.instance_id if message.instance_id is None else message.instance_id,
        rack_id=member.rack_id if message.rack_id is None else message.rack_id,
        client_id=request.client_id or "",
        client_host=f"/{request.host}",  # as Java prints an address
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        topic_names=member.topic_names if names is None else frozenset(names),
        topic_regex=member.topic_regex if regex is None else regex,
        server_assignor=member.server_assignor
        if message.server_assignor is None
        else message.server_assignor,
        classic=None,
    )
