"""Changes of one consumer group: each is a record and, at once, its effect on the state."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final
from uuid import UUID

from tidelog.group_coordinator.groups.consumer import group_records as records
from tidelog.group_coordinator.groups.consumer.assignment import Assignment
from tidelog.group_coordinator.groups.consumer.assignors import ASSIGNORS, MemberSpec
from tidelog.group_coordinator.groups.consumer.consumer_group import ConsumerGroup, metadata_hash
from tidelog.group_coordinator.groups.consumer.member import Member, MemberState
from tidelog.group_coordinator.groups.consumer.reconciliation import Goal, reconcile
from tidelog.group_coordinator.groups.consumer.topic_regex import ResolvedRegex, TopicRegex
from tidelog.group_coordinator.groups.shared import Groups, TimerKey
from tidelog.group_coordinator.shard_core import CancelTimer, CoordinatorRecord, Decision, SetTimer
from tidelog.model.errors import KafkaError

OWNER: Final = "consumer"
SESSION: Final = "session"
REBALANCE: Final = "rebalance"
JOIN: Final = "join"
SYNC: Final = "sync"
FIRST_EPOCH: Final = 2
"""Kafka's since 4.3."""
REGEX_INTERVAL_MS: Final = 1_000
"""Least time between two looks for new topics that match (Kafka: 10 s, as it resolves in a thread)."""


class GroupChanges:
    """What one event does to one group. `groups.by_id` is the caller's concern."""

    def __init__(self, groups: Groups, group: ConsumerGroup, decision: Decision, now_ms: int) -> None:
        self.group = group
        self.decision = decision
        self.now_ms = now_ms
        self._groups = groups
        self._settings = groups.settings
        self._image = groups.image

    # -- one record each

    def put_group(self, epoch: int, new_metadata_hash: int) -> None:
        self.group.put_group(epoch, new_metadata_hash)
        self._write(records.group_record(self.group.group_id, epoch, new_metadata_hash))

    def put_subscription(self, member: Member) -> None:
        self.group.put_subscription(member)
        self._write(records.member_record(self.group.group_id, member))

    def put_standing(self, member: Member) -> None:
        self.group.put_standing(member)
        self._write(records.current_record(self.group.group_id, member))

    def put_target(self, member_id: str, assignment: Assignment) -> None:
        self.group.targets[member_id] = assignment
        self._write(records.target_record(self.group.group_id, member_id, assignment))

    def put_assignment_epoch(self, epoch: int) -> None:
        self.group.assignment_epoch = epoch
        self._write(records.target_epoch_record(self.group.group_id, epoch, self.now_ms))

    def put_regex(self, expression: str, resolved: ResolvedRegex) -> None:
        self.group.regexes[expression] = resolved
        self._write(records.regex_record(self.group.group_id, expression, resolved))

    def _write(self, record: CoordinatorRecord) -> None:
        self.decision.records.append(record)

    # -- members

    def remove_member(self, member: Member) -> None:
        """Its partitions are free, its timers off, a regular expression that was its alone is gone."""
        group = self.group
        group.remove_member(member.member_id)
        group.targets.pop(member.member_id, None)
        group.called_to_join.discard(member.member_id)
        for kind in (records.CURRENT_KIND, records.TARGET_KIND, records.MEMBER_KIND):
            self._write(records.tombstone(kind, group.group_id, member.member_id))
        self.forget_regex(member.topic_regex)
        for what in (SESSION, REBALANCE, JOIN, SYNC):
            self.cancel_timer(what, member.member_id)

    def replace_static_member(self, before: Member, after: Member) -> None:
        """Another process with the same instance id takes everything over."""
        target = self.group.target_of(before.member_id)
        self.remove_member(before)
        self.put_subscription(after)
        self.put_target(after.member_id, target)
        self.put_standing(after)

    def forget_regex(self, expression: str) -> None:
        group = self.group
        if expression in group.regexes and not group.subscribers_of_regex(expression):
            del group.regexes[expression]
            self._write(records.tombstone(records.REGEX_KIND, group.group_id, expression))

    # -- from a change to the target

    def update_member(
        self,
        before: Member,
        wanted: Member,
        told_owned: Assignment | None,
        compiled: Mapping[str, TopicRegex],
    ) -> Member:
        """Subscription, epoch, target, and a step of this member."""
        group = self.group
        is_new = before.member_id not in group.members
        if is_new or not wanted.subscribes_as(before):
            self.put_subscription(wanted)
        regex_changed = wanted.topic_regex != before.topic_regex
        if regex_changed:
            self.forget_regex(before.topic_regex)
        subscription_changed = regex_changed or wanted.topic_names != before.topic_names
        resolved = self.resolve_regexes(compiled)
        self.update_epoch(must_grow=group.epoch == 0 or is_new or subscription_changed or resolved)
        self.update_target()
        return self.reconcile(wanted.member_id, told_owned, subscription_changed=subscription_changed)

    def resolve_regexes(self, compiled: Mapping[str, TopicRegex]) -> bool:
        """Whether one of them matches other topics than before. `compiled`: those that must be resolved now;
        the others are when topics came or went, but not too often.
        """
        group = self.group
        wanted = {member.topic_regex for member in group.members.values() if member.topic_regex}
        due = group.regexes_due_ms is not None and group.regexes_due_ms <= self.now_ms
        if not wanted or not (due or wanted - group.regexes.keys()):
            return False
        changed = False
        for expression in sorted(wanted):
            before = group.regexes.get(expression)
            if before is not None and not due:
                continue
            regex = compiled.get(expression) or _compile(expression)
            topics = frozenset[str]() if regex is None else regex.resolve(self._image.topics)
            if before is None or before.topics != topics:
                changed = True
                self.put_regex(expression, ResolvedRegex(topics, self._image.version, self.now_ms))
        if due:
            group.regexes_due_ms = None
        return changed

    def update_epoch(self, *, must_grow: bool) -> None:
        """A new epoch if members or topics changed: the target of all is to be made anew."""
        group = self.group
        if not must_grow and not group.topics_changed:
            return
        now_hash = metadata_hash(group.subscribed_names(), self._image)
        group.topics_changed = False
        if must_grow or now_hash != group.metadata_hash:
            self.put_group(max(group.epoch + 1, FIRST_EPOCH), now_hash)
            if group.has_partition_metadata:
                group.has_partition_metadata = False
                self._write(records.tombstone(records.PARTITION_METADATA_KIND, group.group_id))

    def update_target(self) -> None:
        group = self.group
        if group.epoch <= group.assignment_epoch:
            return
        specs, counts = self._question()
        default = default_assignor(self._settings.group_consumer_assignors)
        chosen = group.preferred_assignor(default)
        targets = ASSIGNORS[chosen if chosen in ASSIGNORS else default](specs, counts)
        for member_id, target in targets.items():
            if member_id not in group.targets or group.targets[member_id] != target:
                self.put_target(member_id, target)
        self.put_assignment_epoch(group.epoch)

    def _question(self) -> tuple[list[MemberSpec], dict[UUID, int]]:
        """For the assignor. Most members subscribe to the same: their topics are looked up once."""
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
        self, member_id: str, told_owned: Assignment | None, *, subscription_changed: bool
    ) -> Member:
        """One step of this member towards its target."""
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
        after = reconcile(before, goal, told_owned, subscription_changed=subscription_changed)
        if not after.stands_as(before):
            self.put_standing(after)
            # Members of the classic protocol have a time-out for joining and one for syncing instead.
            if after.classic is None:
                if after.state is MemberState.UNREVOKED_PARTITIONS:
                    self.set_timer(REBALANCE, member_id, after.rebalance_timeout_ms)
                else:
                    self.cancel_timer(REBALANCE, member_id)
        return after

    # -- timers

    def set_timer(self, what: str, member_id: str, delay_ms: int) -> None:
        key = TimerKey(OWNER, what, self.group.group_id, member_id)
        self.decision.timers.append(SetTimer(key, self.now_ms + delay_ms))

    def cancel_timer(self, what: str, member_id: str) -> None:
        self.decision.timers.append(CancelTimer(TimerKey(OWNER, what, self.group.group_id, member_id)))

    def expect_join(self, member: Member) -> None:
        """Of the classic protocol: it was called to join again, and has its rebalance time-out for that."""
        if member.member_id not in self.group.called_to_join:
            self.group.called_to_join.add(member.member_id)
            self.set_timer(JOIN, member.member_id, member.rebalance_timeout_ms)

    def joined(self, member_id: str) -> None:
        if member_id in self.group.called_to_join:
            self.group.called_to_join.remove(member_id)
            self.cancel_timer(JOIN, member_id)

    def prolong_session(self, member: Member) -> None:
        if member.classic is None:
            self.set_timer(SESSION, member.member_id, self._settings.group_consumer_session_timeout_ms)
        else:
            self.set_timer(SESSION, member.member_id, member.classic.session_timeout_ms)


def _compile(expression: str) -> TopicRegex | None:
    """None for one that another coordinator let in and this one does not understand."""
    try:
        return TopicRegex(expression)
    except KafkaError:
        return None


def default_assignor(configured: Collection[str]) -> str:
    """The first of `group.consumer.assignors` that is one of ours."""
    return next((name for name in configured if name in ASSIGNORS), "uniform")
