"""A classic group as DescribeGroups shows it."""

from __future__ import annotations

from tidelog.group_coordinator.groups.classic.group import ClassicGroup, ClassicState
from tidelog.wire.messages.describe_groups import DescribedGroup, DescribedGroupMember


def described(group: ClassicGroup) -> DescribedGroup:
    """Only a stable group has a protocol and what its members said to it."""
    protocol = group.protocol if group.state is ClassicState.STABLE else None
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol or "",
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(protocol),
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )
