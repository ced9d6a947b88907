"""Members that leave a consumer group, or are taken out of it."""

from __future__ import annotations

from collections.abc import Collection

from tidelog.group_coordinator.groups.classic.classic_groups import ClassicGroups
from tidelog.group_coordinator.groups.consumer import migration
from tidelog.group_coordinator.groups.consumer.consumer_group import ConsumerGroup
from tidelog.group_coordinator.groups.consumer.group_changes import GroupChanges
from tidelog.group_coordinator.groups.consumer.member import Member
from tidelog.group_coordinator.groups.shared import Groups
from tidelog.group_coordinator.shard_core import Decision


def fence(
    groups: Groups,
    classic: ClassicGroups,
    group: ConsumerGroup,
    members: Collection[Member],
    decision: Decision,
    now_ms: int,
) -> None:
    """Their partitions are free at once. If only members of the classic protocol are left, the group becomes
    a classic one (`group.consumer.migration.policy`).
    """
    if not members:
        return
    changes = GroupChanges(groups, group, decision, now_ms)
    gone = {member.member_id for member in members}
    becomes_classic = migration.may_become_classic(groups, group, gone)
    for member in members:
        changes.remove_member(member)
    if becomes_classic:
        migration.to_classic(groups, classic, group, decision, now_ms)
        return
    changes.update_epoch(must_grow=True)
