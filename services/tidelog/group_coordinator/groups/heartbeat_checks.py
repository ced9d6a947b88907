"""Checks of heartbeats that are the same for every type of group with heartbeats of its own."""

from __future__ import annotations

from typing import TypeVar

from tidelog.group_coordinator.groups.shared import Group, GroupKind, Groups
from tidelog.model.errors import ErrorCode, KafkaError

G = TypeVar("G", bound=Group)


def invalid_request(message: str) -> KafkaError:
    """Returns the error for a heartbeat that is invalid, whatever the group's state is."""
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def check_not_empty(**names: str | None) -> None:
    """Raises KafkaError (INVALID_REQUEST) if one of these fields of a heartbeat is present but blank."""
    for name, text in names.items():
        if text is not None and not text.strip():
            raise invalid_request(f"{name} can't be empty.")


def find_group(groups: Groups, group_id: str, group_class: type[G], kind: GroupKind) -> G:
    """Returns a group of this type. Raises KafkaError (GROUP_ID_NOT_FOUND, INVALID_GROUP_ID)."""
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    group = groups.by_id.get(group_id)
    if not isinstance(group, group_class):
        reason = "not found" if group is None else f"is not a {kind} group"
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {reason}.")
    return group


def check_room(group: Group, max_members: int) -> None:
    """Raises KafkaError (GROUP_MAX_SIZE_REACHED) if the group has no room for another member."""
    if group.member_count() >= max_members:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The {group.kind} group has reached its maximum capacity of {max_members} members.",
        )


def unknown_member(group: Group, member_id: str) -> KafkaError:
    """Returns the error for a member that does not exist."""
    return KafkaError(
        ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.group_id}."
    )
