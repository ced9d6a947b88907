"""Changes of one consumer group, and which heartbeats are valid for which of its members."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple
from uuid import UUID

from tidelog.group_coordinator.groups.consumer.assignors import ASSIGNORS, MemberSpec
from tidelog.group_coordinator.groups.consumer.consumer_group import (
    PARTITION_METADATA,
    REGEX,
    ConsumerGroup,
    ConsumerMember,
    Goal,
    reconcile,
    unknown_state,
)
from tidelog.group_coordinator.groups.consumer.topic_regex import (
    MAX_RESOLVED_BYTES,
    RegexSweep,
    ResolvedRegex,
    TopicRegex,
    check_expression,
)
from tidelog.group_coordinator.groups.modern_group import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    Assignment,
    MemberState,
    holds_all,
)
from tidelog.group_coordinator.groups.modern_groups import (
    MAX_SUBSCRIBER_BYTES,
    REBALANCE_TIMER,
    SESSION_TIMER,
    ModernChanges,
    check_epoch,
    check_not_empty,
    check_texts,
    find_member,
    invalid_request,
)
from tidelog.group_coordinator.groups.shared import GroupKind, Groups
from tidelog.group_coordinator.shard_core import ShardDecision
from tidelog.kernel.instants import WallMs
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import DescribableTopics
from tidelog.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tidelog.wire.messages.records.consumer_group_regular_expression import (
    ConsumerGroupRegularExpressionValue,
)

JOIN_TIMER: Final = "join"
SYNC_TIMER: Final = "sync"
SWEEP_TIMER: Final = "sweep"
REGEX_TIMER: Final = "regex"
REGEX_INTERVAL_MS: Final = 1_000
"""The minimum time between two resolutions of all regular expressions (Kafka: 10 s, in another thread)."""
MATCHES_AT_ONCE: Final = 200
"""The matches of regular expressions with topic names in one event. They take up to 20 ms."""
_MEMBER_CHOOSES_ITS_ID: Final = 1
"""The version from which a member chooses its own id (KIP-1082)."""


class GroupChanges(ModernChanges[ConsumerGroup, ConsumerMember, Assignment]):
    """The changes that one event makes to one group.

    `describable` are the topics that the client of the event may describe, None if these are all topics.
    """

    MEMBER_TIMERS = (SESSION_TIMER, REBALANCE_TIMER, JOIN_TIMER, SYNC_TIMER)

    def __init__(
        self,
        groups: Groups,
        group: ConsumerGroup,
        decision: ShardDecision,
        now_ms: WallMs,
        describable: DescribableTopics | None = None,
    ) -> None:
        super().__init__(groups, group, decision, now_ms)
        self._describable = describable
        self._image = groups.image

    def put_group(self, *fields: Any) -> None:
        super().put_group(*fields)
        if self.group.has_partition_metadata:
            self.group.has_partition_metadata = False
            self.write(PARTITION_METADATA, None)

    def put_regex(self, expression: str, resolved: ResolvedRegex) -> None:
        self.group.put_regex(expression, resolved)
        value = ConsumerGroupRegularExpressionValue(
            sorted(resolved.topics), resolved.version, resolved.timestamp_ms
        )
        self.write(REGEX, value, expression)

    def remove_member(self, member: ConsumerMember) -> None:
        """Removes a member with its partitions, its timers, and a regular expression that only it used."""
        super().remove_member(member)
        self.group.called_to_join.discard(member.member_id)
        self.forget_regex(member.topic_regex)

    def replace_static_member(self, before: ConsumerMember, after: ConsumerMember) -> None:
        """Transfers everything from a static member to a process with the same instance id."""
        target = self.group.target_of(before.member_id)
        self.remove_member(before)
        self.put_subscription(after)
        self.put_target(after.member_id, target)
        self.put_current_assignment(after)

    def forget_regex(self, expression: str) -> None:
        """Deletes a regular expression that no member subscribes to."""
        group = self.group
        if expression in group.regexes and not group.subscribers_of_regex(expression):
            group.remove_regex(expression)
            group.oversized_regexes.discard(expression)
            self.write(REGEX, None, expression)

    def update_member(
        self,
        before: ConsumerMember,
        wanted: ConsumerMember,
        reported: Assignment | None,
        compiled: Mapping[str, TopicRegex],
    ) -> ConsumerMember:
        """Applies a member's request, and returns the member after one step of its reconciliation.

        `reported` are the partitions that the member says it owns, None if it does not say.
        """
        group = self.group
        is_new = before.member_id not in group.members
        if is_new or not wanted.has_subscription_of(before):
            self.put_subscription(wanted)
        regex_changed = wanted.topic_regex != before.topic_regex
        if regex_changed:
            self.forget_regex(before.topic_regex)
        subscription_changed = regex_changed or wanted.topic_names != before.topic_names
        resolved = self.resolve_regexes(compiled)
        self.update_epoch(must_grow=group.epoch == 0 or is_new or subscription_changed or resolved)
        self.update_target()
        return self.reconcile(wanted.member_id, reported, subscription_changed=subscription_changed)

    def resolve_regexes(self, compiled: Mapping[str, TopicRegex]) -> bool:
        """Resolves new regular expressions, and all of them if topics were created or deleted. As in Kafka,
        they match only topics that the client of the request may describe.

        Returns whether an expression matches other topics than before. `compiled` holds the new ones. With
        many topics, a timer continues the work, and a later heartbeat gets the result.
        """
        group = self.group
        due = group.due_regexes(group.members.values())
        names = self._topics_to_match()
        if not due or names is None or group.regex_sweep is not None:
            return False
        group.regexes_are_due = False
        group.regex_sweep = RegexSweep(due, compiled, names, self._image.version)
        return self._advance_sweep(group.regex_sweep)

    def _topics_to_match(self) -> tuple[str, ...] | None:
        """Returns the topics that regular expressions may match, None if another request has to resolve them.

        If the broker does not know the same number of topics, they are resolved again later.
        """
        topics, describable = self._image.topics, self._describable
        if describable is None:
            return tuple(topics)
        if describable.names is None:
            return None
        if describable.known_count != len(topics) and not self.group.is_regex_timer_running:
            self.group.is_regex_timer_running = True
            self.set_timer(REGEX_TIMER, "", REGEX_INTERVAL_MS)
        return tuple(name for name in topics if name in describable.names)

    def continue_sweep(self) -> None:
        """Continues to resolve regular expressions. The next heartbeats compute and get the assignment."""
        sweep = self.group.regex_sweep
        if sweep is not None and self._advance_sweep(sweep):
            self.update_epoch(must_grow=True)

    def _advance_sweep(self, sweep: RegexSweep) -> bool:
        """Writes what the sweep completes in one step, so that no append has the topics of all expressions.
        Returns whether the sweep is complete and there are changes.
        """
        for expression, topics in sweep.advance(MATCHES_AT_ONCE):
            found = ResolvedRegex(topics, sweep.version, self.now_ms)
            if self.group.subscribers_of_regex(expression) and self._resolve(expression, found):
                sweep.has_changes = True
        if not sweep.is_complete:
            self.set_timer(SWEEP_TIMER, "", 0)
            return False
        self.group.regex_sweep = None
        return sweep.has_changes

    def _resolve(self, expression: str, found: ResolvedRegex) -> bool:
        """Sets the topics of an expression, within the limit for all expressions of the group. Returns
        whether they change.
        """
        group = self.group
        before = group.regexes.get(expression)
        former_bytes = 0 if before is None else before.size_bytes()
        if group.resolved_bytes - former_bytes + found.size_bytes() <= MAX_RESOLVED_BYTES:
            group.oversized_regexes.discard(expression)
        elif former_bytes:
            return False  # the expression keeps the topics that it has matched so far
        else:
            group.oversized_regexes.add(expression)
            found = found._replace(topics=frozenset())
        if before is not None and before.topics == found.topics:
            return False
        self.put_regex(expression, found)
        return True

    def update_target(self) -> None:
        """Computes the target assignment of the group epoch if it does not exist yet and may be computed."""
        group = self.group
        if self.needs_target(self._settings.consumer_assignment_interval_ms):
            default = default_assignor(self._groups.settings.group_consumer_assignors)
            chosen = group.preferred_assignor(default)
            specs, counts = self._assignor_input()
            assign = ASSIGNORS[chosen if chosen in ASSIGNORS else default]
            self.put_targets(assign(specs, counts), group.epoch)

    def _assignor_input(self) -> tuple[list[MemberSpec], dict[UUID, int]]:
        """Returns the members and the partition counts. Equal subscriptions are looked up only once."""
        group, image = self.group, self._image
        topics_of: dict[tuple[frozenset[str], str], frozenset[UUID]] = {}
        specs = []
        for member in group.members.values():
            subscription = member.topic_names, member.topic_regex
            topics = topics_of.get(subscription)
            if topics is None:
                topics = topics_of[subscription] = group.topic_ids_of(member, image)
            target = group.target_of(member.member_id)
            specs.append(MemberSpec(member.member_id, member.instance_id, topics, target))
        subscribed = frozenset[UUID]().union(*topics_of.values())
        counts = {
            topic_id: image.topics[image.topic_names[topic_id]].partition_count for topic_id in subscribed
        }
        return specs, counts

    def reconcile(
        self, member_id: str, reported: Assignment | None, *, subscription_changed: bool
    ) -> ConsumerMember:
        """Moves the member one step toward its target assignment and returns it."""
        group = self.group
        before = group.members[member_id]
        if not subscription_changed and before.is_reconciled_to(group.assignment_epoch):
            return before
        goal = Goal(
            group.assignment_epoch,
            group.target_of(member_id),
            group.topic_ids_of(before, self._image),
            lambda topic_id, partition: group.is_held_by_other(member_id, topic_id, partition),
        )
        after = reconcile(before, goal, reported, subscription_changed=subscription_changed)
        if not after.has_assignment_of(before):
            self.put_current_assignment(after)
            # Classic members have a join timer and a sync timer instead.
            if after.classic is None:
                self.time_revocation(after, after.rebalance_timeout_ms)
        return after

    def expect_join(self, member: ConsumerMember) -> None:
        """Starts the join timer of a classic member that was asked to rejoin."""
        if member.member_id not in self.group.called_to_join:
            self.group.called_to_join.add(member.member_id)
            self.set_timer(JOIN_TIMER, member.member_id, member.rebalance_timeout_ms)

    def joined(self, member_id: str) -> None:
        """Stops the join timer of a classic member that has rejoined."""
        if member_id in self.group.called_to_join:
            self.group.called_to_join.remove(member_id)
            self.cancel_timer(JOIN_TIMER, member_id)

    def extend_session(self, member: ConsumerMember) -> None:
        """Restarts the member's session timeout."""
        if member.classic is None:
            timeout_ms = self._settings.consumer_session_timeout_ms
        else:
            timeout_ms = member.classic.session_timeout_ms
        self.set_timer(SESSION_TIMER, member.member_id, timeout_ms)


def default_assignor(configured: Collection[str]) -> str:
    """Returns the first of `group.consumer.assignors` that exists here."""
    return next((name for name in configured if name in ASSIGNORS), "uniform")


def check_request(message: ConsumerGroupHeartbeatRequest, version: int, assignors: Collection[str]) -> None:
    """Raises KafkaError if a ConsumerGroupHeartbeat is invalid, whatever the group's state is."""
    check_not_empty(GroupId=message.group_id, InstanceId=message.instance_id, RackId=message.rack_id)
    epoch = message.member_epoch
    if (epoch != JOIN_EPOCH or version >= _MEMBER_CHOOSES_ITS_ID) and not message.member_id.strip():
        raise invalid_request("MemberId can't be empty.")
    if epoch == JOIN_EPOCH:
        _check_join(message)
    elif epoch == STATIC_LEAVE_EPOCH and message.instance_id is None:
        raise invalid_request("InstanceId can't be null.")
    elif epoch < STATIC_LEAVE_EPOCH:
        raise invalid_request(f"MemberEpoch is invalid: {epoch}.")
    if message.server_assignor is not None and message.server_assignor not in assignors:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {message.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(assignors)}.",
        )
    check_expression(message.subscribed_topic_regex or "")
    check_texts("metadata of a member", message.subscribed_topic_names or (), MAX_SUBSCRIBER_BYTES)


def _check_join(message: ConsumerGroupHeartbeatRequest) -> None:
    if message.rebalance_timeout_ms == -1:
        raise invalid_request("RebalanceTimeoutMs must be provided in first request.")
    if message.topic_partitions is None or message.topic_partitions:
        raise invalid_request("TopicPartitions must be empty when (re-)joining.")
    if message.subscribed_topic_names is None and message.subscribed_topic_regex is None:
        raise invalid_request(
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
        )


class FoundMember(NamedTuple):
    """The member of a request."""

    member: ConsumerMember
    """The member before the request; empty if it is new."""
    replaced: ConsumerMember | None = None
    """The static member that this one replaces."""


def find_sender(
    group: ConsumerGroup,
    member_id: str,
    instance_id: str | None,
    epoch: int,
    reported: Assignment | None,
) -> FoundMember:
    """Returns the member that sends a heartbeat.

    `reported` are the partitions that the member says it owns. Raises KafkaError if the member does not exist
    or is fenced.
    """
    joins = epoch == JOIN_EPOCH
    if instance_id is None:
        if joins and member_id not in group.members:
            return FoundMember(ConsumerMember(member_id))
        member = find_member(group, member_id)
        _check_epoch(member, epoch, reported)
        return FoundMember(member)
    static = group.static_member(instance_id)
    if joins:
        return join_as_static(group, static, member_id, instance_id, speaks_classic=False)
    checked = check_static(static, member_id, instance_id)
    _check_epoch(checked, epoch, reported)
    return FoundMember(checked)


def join_as_static(
    group: ConsumerGroup,
    static: ConsumerMember | None,
    member_id: str,
    instance_id: str,
    *,
    speaks_classic: bool,
) -> FoundMember:
    """Returns the member for a join with an instance id, of which `static` is the current member.

    Raises KafkaError (UNRELEASED_INSTANCE_ID) if a running member holds the instance id.
    """
    if static is None:
        return FoundMember(group.members.get(member_id, ConsumerMember(member_id)))
    if static.member_id == member_id and static.member_epoch != STATIC_LEAVE_EPOCH:
        return FoundMember(static)  # the same process, which missed a response or was fenced
    both_consumer = not speaks_classic and static.classic is None
    if both_consumer and static.member_epoch != STATIC_LEAVE_EPOCH:
        raise KafkaError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} cannot join the group because the "
            f"instance id is owned by {static.member_id} member.",
        )
    return FoundMember(replace(static, member_id=member_id, member_epoch=0, previous_epoch=0), static)


def check_static(static: ConsumerMember | None, member_id: str, instance_id: str) -> ConsumerMember:
    """Returns `static`, the member with this instance id. Raises KafkaError if its member id differs."""
    if static is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if static.member_id != member_id:
        raise KafkaError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member "
            f"{static.member_id}.",
        )
    return static


def _check_epoch(member: ConsumerMember, epoch: int, reported: Assignment | None) -> None:
    owns_reported = reported is not None and holds_all(member.owned, reported)
    check_epoch(GroupKind.CONSUMER, member, epoch, owns_reported=owns_reported)
    if epoch != JOIN_EPOCH and member.state is MemberState.UNKNOWN and reported != {}:
        raise unknown_state()
