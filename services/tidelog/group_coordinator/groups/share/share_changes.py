"""Changes of one share group: each writes a record and applies the record to the state at once.

A member of a share group needs nobody's consent to get or to lose a partition, so its heartbeat gives it its
whole target assignment at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tidelog.group_coordinator.groups.consumer.consumer_group import metadata_hash
from tidelog.group_coordinator.groups.consumer.group_changes import FIRST_EPOCH
from tidelog.group_coordinator.groups.consumer.member import NO_PARTITIONS, Assignment
from tidelog.group_coordinator.groups.share import share_records as records
from tidelog.group_coordinator.groups.share.share_assignor import SharedTopic, ShareMemberSpec, assign
from tidelog.group_coordinator.groups.share.share_group import ShareGroup
from tidelog.group_coordinator.groups.share.share_member import ShareMember
from tidelog.group_coordinator.groups.share.share_partitions import SharePartitions
from tidelog.group_coordinator.groups.share.share_records import RecordKind
from tidelog.group_coordinator.groups.shared import Groups, TimerKey, may_assign
from tidelog.group_coordinator.shard_core import CancelTimer, CoordinatorRecord, SetTimer, ShardDecision
from tidelog.model.instants import WallMs

TIMER_OWNER: Final = "share"
SESSION_TIMER: Final = "session"
STATES_TIMER: Final = "states"
"""The timer of the next attempt to initialize or delete states."""


class ShareChanges:
    """The changes that one event makes to one group. The caller keeps `groups.by_id` up to date."""

    def __init__(self, groups: Groups, group: ShareGroup, decision: ShardDecision, now_ms: WallMs) -> None:
        self.group = group
        self.decision = decision
        self.now_ms = now_ms
        self._groups = groups

    def put_group(self, epoch: int, new_metadata_hash: int) -> None:
        self.group.epoch, self.group.metadata_hash = epoch, new_metadata_hash
        self.group.states_are_due = True
        self._write(records.group_record(self.group.group_id, epoch, new_metadata_hash))

    def put_member(self, member: ShareMember) -> None:
        """Sets a member's subscription. Its epoch and partitions are those of `member`, too."""
        self.group.members[member.member_id] = member
        self._write(records.member_record(self.group.group_id, member))

    def put_target(self, member_id: str, assignment: Assignment) -> None:
        self.group.targets[member_id] = assignment
        self._write(records.target_record(self.group.group_id, member_id, assignment))

    def put_assignment_epoch(self, epoch: int) -> None:
        self.group.assignment_epoch, self.group.assignment_timestamp_ms = epoch, self.now_ms
        self._write(records.target_epoch_record(self.group.group_id, epoch, self.now_ms))

    def put_current_assignment(self, member: ShareMember) -> None:
        self.group.members[member.member_id] = member
        self._write(records.current_record(self.group.group_id, member))

    def put_partitions(self, partitions: SharePartitions) -> None:
        if partitions != self.group.partitions:
            self.group.partitions = partitions
            self._write(records.partitions_record(self.group.group_id, partitions))

    def _write(self, record: CoordinatorRecord) -> None:
        self.decision.records.append(record)

    def update_member(self, before: ShareMember, wanted: ShareMember) -> ShareMember:
        """Applies a member's heartbeat, and returns the member with its target assignment."""
        group = self.group
        is_new = before.member_id not in group.members
        if is_new or not wanted.has_subscription_of(before):
            self.put_member(wanted)
        self.update_epoch(must_grow=is_new or wanted.topic_names != before.topic_names)
        self.update_target()
        return self._reconcile(group.members[wanted.member_id])

    def remove_member(self, member: ShareMember) -> None:
        """Removes a member with its partitions and its timer. The other members get another target."""
        group = self.group
        del group.members[member.member_id]
        group.targets.pop(member.member_id, None)
        for kind in (RecordKind.CURRENT, RecordKind.TARGET, RecordKind.MEMBER):
            self._write(records.tombstone(kind, group.group_id, member.member_id))
        self.cancel_timer(SESSION_TIMER, member.member_id)
        self.update_epoch(must_grow=True)

    def update_epoch(self, *, must_grow: bool) -> None:
        """Increases the group epoch if members or topics changed, so that another target is computed."""
        group, image = self.group, self._groups.image
        if not must_grow and not group.topics_changed:
            return
        new_hash = metadata_hash(group.subscribed_names(), image)
        group.topics_changed = False
        if must_grow or new_hash != group.metadata_hash:
            self.put_group(max(group.epoch + 1, FIRST_EPOCH), new_hash)

    def update_target(self) -> None:
        """Computes the target assignment of the group epoch if it does not exist yet and may be computed."""
        group, image = self.group, self._groups.image
        if group.epoch <= group.assignment_epoch:
            return
        interval_ms = self._groups.group_settings.for_group(group.group_id).share_assignment_interval_ms
        if not may_assign(group.assignment_timestamp_ms, interval_ms, self.now_ms):
            return  # a later heartbeat computes it
        existing = image.topics.keys() & group.subscribed_names()
        names_of: dict[frozenset[str], frozenset[str]] = {}
        specs = []
        for member in group.members.values():
            names = names_of.get(member.topic_names)
            if names is None:
                names = names_of[member.topic_names] = member.topic_names & existing
            before = group.targets.get(member.member_id, NO_PARTITIONS)
            specs.append(ShareMemberSpec(member.member_id, names, before))
        initialized = {
            topic.name: SharedTopic(topic_id, topic.partitions)
            for topic_id, topic in group.partitions.initialized.items()
            if topic_id in image.topic_names
        }
        for member_id, target in assign(specs, initialized).items():
            former = group.targets.get(member_id)
            if target is not former and target != former:
                self.put_target(member_id, target)
        self.put_assignment_epoch(group.epoch)

    def _reconcile(self, member: ShareMember) -> ShareMember:
        group = self.group
        target = group.targets.get(member.member_id, NO_PARTITIONS)
        if member.member_epoch == group.assignment_epoch and member.assigned == target:
            return member
        is_same_epoch = member.member_epoch == group.assignment_epoch
        after = replace(
            member,
            member_epoch=group.assignment_epoch,
            # Within one epoch the previous epoch remains valid, because a response may have been lost.
            previous_epoch=member.previous_epoch if is_same_epoch else member.member_epoch,
            assigned=target,
        )
        self.put_current_assignment(after)
        return after

    def set_timer(self, kind: str, member_id: str, delay_ms: int) -> None:
        key = TimerKey(TIMER_OWNER, kind, self.group.group_id, member_id)
        self.decision.timers.append(SetTimer(key, delay_ms))

    def cancel_timer(self, kind: str, member_id: str) -> None:
        self.decision.timers.append(CancelTimer(TimerKey(TIMER_OWNER, kind, self.group.group_id, member_id)))

    def extend_session(self, member: ShareMember) -> None:
        """Restarts the member's session timeout."""
        timeout_ms = self._groups.group_settings.for_group(self.group.group_id).share_session_timeout_ms
        self.set_timer(SESSION_TIMER, member.member_id, timeout_ms)
