"""Changes of one consumer group: each writes a record and applies the record to the state at once.

A member reaches its target assignment in steps (KIP-848; Kafka's CurrentAssignmentBuilder). First it gives up
the partitions that are no longer in its target, and stays in its epoch until it has confirmed this. Then it
moves to the epoch of the target and receives the partitions that are free. It receives the others when their
owners have given them up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import replace
from typing import Final, NamedTuple
from uuid import UUID

from tidelog.group_coordinator.groups.consumer import records
from tidelog.group_coordinator.groups.consumer.assignors import ASSIGNORS, MemberSpec
from tidelog.group_coordinator.groups.consumer.consumer_group import ConsumerGroup, metadata_hash
from tidelog.group_coordinator.groups.consumer.member import (
    Assignment,
    Member,
    MemberState,
    OwnedPartitions,
    holds_any,
)
from tidelog.group_coordinator.groups.consumer.records import RecordKind
from tidelog.group_coordinator.groups.consumer.topic_regex import (
    MAX_RESOLVED_BYTES,
    RegexSweep,
    ResolvedRegex,
    TopicRegex,
)
from tidelog.group_coordinator.groups.shared import Groups, TimerKey, may_assign
from tidelog.group_coordinator.shard_core import CancelTimer, CoordinatorRecord, SetTimer, ShardDecision
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.instants import WallMs
from tidelog.model.topics import DescribableTopics

TIMER_OWNER: Final = "consumer"
SESSION_TIMER: Final = "session"
REBALANCE_TIMER: Final = "rebalance"
JOIN_TIMER: Final = "join"
SYNC_TIMER: Final = "sync"
SWEEP_TIMER: Final = "sweep"
REGEX_TIMER: Final = "regex"
REGEX_INTERVAL_MS: Final = 1_000
"""The minimum time between two resolutions of all regular expressions (Kafka: 10 s, in another thread)."""
FIRST_EPOCH: Final = 2
"""The first epoch of a group, as in Kafka since 4.3."""
MATCHES_AT_ONCE: Final = 200
"""The matches of regular expressions with topic names in one event. They take up to 20 ms."""


class GroupChanges:
    """The changes that one event makes to one group. The caller keeps `groups.by_id` up to date.

    `describable` are the topics that the client of the event may describe, None if these are all topics.
    """

    def __init__(
        self,
        groups: Groups,
        group: ConsumerGroup,
        decision: ShardDecision,
        now_ms: WallMs,
        describable: DescribableTopics | None = None,
    ) -> None:
        self.group = group
        self._describable = describable
        self.decision = decision
        self.now_ms = now_ms
        self._groups = groups
        self._settings = groups.settings
        self._image = groups.image

    def put_group(self, epoch: int, new_metadata_hash: int) -> None:
        self.group.put_group(epoch, new_metadata_hash)
        self._write(records.group_record(self.group.group_id, epoch, new_metadata_hash))

    def put_subscription(self, member: Member) -> None:
        self.group.put_subscription(member)
        self._write(records.member_record(self.group.group_id, member))

    def put_current_assignment(self, member: Member) -> None:
        self.group.put_current_assignment(member)
        self._write(records.current_record(self.group.group_id, member))

    def put_target(self, member_id: str, assignment: Assignment) -> None:
        self.group.targets[member_id] = assignment
        self._write(records.target_record(self.group.group_id, member_id, assignment))

    def put_assignment_epoch(self, epoch: int) -> None:
        self.group.assignment_epoch, self.group.assignment_timestamp_ms = epoch, self.now_ms
        self._write(records.target_epoch_record(self.group.group_id, epoch, self.now_ms))

    def put_regex(self, expression: str, resolved: ResolvedRegex) -> None:
        self.group.put_regex(expression, resolved)
        self._write(records.regex_record(self.group.group_id, expression, resolved))

    def _write(self, record: CoordinatorRecord) -> None:
        self.decision.records.append(record)

    def remove_member(self, member: Member) -> None:
        """Removes a member with its partitions, its timers, and a regular expression that only it used."""
        group = self.group
        group.remove_member(member.member_id)
        group.targets.pop(member.member_id, None)
        group.called_to_join.discard(member.member_id)
        for kind in (RecordKind.CURRENT, RecordKind.TARGET, RecordKind.MEMBER):
            self._write(records.tombstone(kind, group.group_id, member.member_id))
        self.forget_regex(member.topic_regex)
        for timer in (SESSION_TIMER, REBALANCE_TIMER, JOIN_TIMER, SYNC_TIMER):
            self.cancel_timer(timer, member.member_id)

    def replace_static_member(self, before: Member, after: Member) -> None:
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
            self._write(records.tombstone(RecordKind.REGEX, group.group_id, expression))

    def update_member(
        self,
        before: Member,
        wanted: Member,
        reported: Assignment | None,
        compiled: Mapping[str, TopicRegex],
    ) -> Member:
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

    def update_epoch(self, *, must_grow: bool) -> None:
        """Increases the group epoch if members or topics changed, so that another target is computed."""
        group = self.group
        if not must_grow and not group.topics_changed:
            return
        new_hash = metadata_hash(group.subscribed_names(), self._image)
        group.topics_changed = False
        if must_grow or new_hash != group.metadata_hash:
            self.put_group(max(group.epoch + 1, FIRST_EPOCH), new_hash)
            if group.has_partition_metadata:
                group.has_partition_metadata = False
                self._write(records.tombstone(RecordKind.PARTITION_METADATA, group.group_id))

    def update_target(self) -> None:
        """Computes the target assignment of the group epoch if it does not exist yet and may be computed."""
        group = self.group
        if group.epoch <= group.assignment_epoch:
            return
        interval_ms = self._groups.group_settings.for_group(group.group_id).consumer_assignment_interval_ms
        if not may_assign(group.assignment_timestamp_ms, interval_ms, self.now_ms):
            return  # a later heartbeat computes it
        specs, counts = self._assignor_input()
        default = default_assignor(self._settings.group_consumer_assignors)
        chosen = group.preferred_assignor(default)
        targets = ASSIGNORS[chosen if chosen in ASSIGNORS else default](specs, counts)
        for member_id, target in targets.items():
            if member_id not in group.targets or group.targets[member_id] != target:
                self.put_target(member_id, target)
        self.put_assignment_epoch(group.epoch)

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

    def reconcile(self, member_id: str, reported: Assignment | None, *, subscription_changed: bool) -> Member:
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
                if after.state is MemberState.UNREVOKED_PARTITIONS:
                    self.set_timer(REBALANCE_TIMER, member_id, after.rebalance_timeout_ms)
                else:
                    self.cancel_timer(REBALANCE_TIMER, member_id)
        return after

    def set_timer(self, kind: str, member_id: str, delay_ms: int) -> None:
        key = TimerKey(TIMER_OWNER, kind, self.group.group_id, member_id)
        self.decision.timers.append(SetTimer(key, delay_ms))

    def cancel_timer(self, kind: str, member_id: str) -> None:
        self.decision.timers.append(CancelTimer(TimerKey(TIMER_OWNER, kind, self.group.group_id, member_id)))

    def expect_join(self, member: Member) -> None:
        """Starts the join timer of a classic member that was asked to rejoin."""
        if member.member_id not in self.group.called_to_join:
            self.group.called_to_join.add(member.member_id)
            self.set_timer(JOIN_TIMER, member.member_id, member.rebalance_timeout_ms)

    def joined(self, member_id: str) -> None:
        """Stops the join timer of a classic member that has rejoined."""
        if member_id in self.group.called_to_join:
            self.group.called_to_join.remove(member_id)
            self.cancel_timer(JOIN_TIMER, member_id)

    def extend_session(self, member: Member) -> None:
        """Restarts the member's session timeout."""
        if member.classic is None:
            settings = self._groups.group_settings.for_group(self.group.group_id)
            timeout_ms = settings.consumer_session_timeout_ms
        else:
            timeout_ms = member.classic.session_timeout_ms
        self.set_timer(SESSION_TIMER, member.member_id, timeout_ms)


def default_assignor(configured: Collection[str]) -> str:
    """Returns the first of `group.consumer.assignors` that exists here."""
    return next((name for name in configured if name in ASSIGNORS), "uniform")


class Goal(NamedTuple):
    """The state that a member has to reach.

    `is_held_by_other(topic_id, partition)` returns whether another member has not given up the partition.
    """

    epoch: int
    target: Assignment
    subscribed: Set[UUID]
    is_held_by_other: Callable[[UUID, int], bool]


def reconcile(
    member: Member, goal: Goal, reported: Assignment | None, *, subscription_changed: bool
) -> Member:
    """Returns the member after one step toward the goal.

    `reported` are the partitions that the member says it owns, None if it does not say. Raises KafkaError
    (FENCED_MEMBER_EPOCH).
    """
    match member.state:
        case MemberState.STABLE if member.member_epoch == goal.epoch:
            if subscription_changed:
                return _without_unsubscribed(member, goal, reported)
            return member
        case MemberState.UNREVOKED_PARTITIONS if _still_holds(reported, member.revoking):
            if subscription_changed:
                return _without_unsubscribed(member, goal, reported)
            return member
        case MemberState.UNKNOWN:
            if reported is None or reported:
                raise KafkaError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    "The member is in an unknown state; it must abandon all its partitions and rejoin.",
                )
            return _next_step(replace(member, member_epoch=goal.epoch), goal, reported)
    return _next_step(member, goal, reported)


def _still_holds(reported: Assignment | None, revoking: OwnedPartitions) -> bool:
    return reported is None or holds_any(reported, revoking)


def _without_unsubscribed(member: Member, goal: Goal, reported: Assignment | None) -> Member:
    """Returns the member without the topics that it no longer subscribes to, whatever its target says."""
    leaving = {topic_id: found for topic_id, found in member.owned.items() if topic_id not in goal.subscribed}
    if not leaving:
        return member
    owned = {topic_id: found for topic_id, found in member.owned.items() if topic_id in goal.subscribed}
    revoking = {
        topic_id: {**member.revoking.get(topic_id, {}), **leaving.get(topic_id, {})}
        for topic_id in member.revoking.keys() | leaving.keys()
    }
    if _still_holds(reported, revoking):
        return _moved(
            member,
            member.member_epoch,
            state=MemberState.UNREVOKED_PARTITIONS,
            owned=owned,
            revoking=revoking,
        )
    return _moved(member, member.member_epoch, state=member.state, owned=owned, revoking=member.revoking)


def _next_step(member: Member, goal: Goal, reported: Assignment | None) -> Member:
    target = {topic_id: found for topic_id, found in goal.target.items() if topic_id in goal.subscribed}
    kept: dict[UUID, dict[int, int]] = {}
    revoking: dict[UUID, dict[int, int]] = {}
    for topic_id, found in member.owned.items():
        wanted = target.get(topic_id, frozenset())
        remaining = {partition: epoch for partition, epoch in found.items() if partition in wanted}
        leaving = {partition: epoch for partition, epoch in found.items() if partition not in wanted}
        if remaining:
            kept[topic_id] = remaining
        if leaving:
            revoking[topic_id] = leaving
    if revoking and _still_holds(reported, revoking):
        return _moved(
            member,
            member.member_epoch,
            state=MemberState.UNREVOKED_PARTITIONS,
            owned=kept,
            revoking=revoking,
        )
    waits = False
    for topic_id, wanted in target.items():
        missing = wanted - kept.get(topic_id, {}).keys()
        free = {partition for partition in missing if not goal.is_held_by_other(topic_id, partition)}
        waits = waits or len(free) < len(missing)
        if free:
            kept.setdefault(topic_id, {}).update(dict.fromkeys(sorted(free), goal.epoch))
    state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
    return _moved(member, goal.epoch, state=state, owned=kept, revoking={})


def _moved(
    member: Member, epoch: int, *, state: MemberState, owned: OwnedPartitions, revoking: OwnedPartitions
) -> Member:
    return replace(
        member,
        member_epoch=epoch,
        # Within one epoch the previous epoch remains valid, because a response may have been lost.
        previous_epoch=member.previous_epoch if epoch == member.member_epoch else member.member_epoch,
        state=state,
        owned=owned,
        revoking=revoking,
    )
