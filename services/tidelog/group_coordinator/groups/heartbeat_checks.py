"""Checks of heartbeats that are the same for every type of group with heartbeats of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

from tidelog.group_coordinator.groups.shared import Group, GroupKind, Groups, M, SizedMembers
from tidelog.group_coordinator.shard_core import CoordinatorRecord
from tidelog.model.errors import ErrorCode, KafkaError

G = TypeVar("G", bound=Group)

MAX_SUBSCRIBER_BYTES: Final = 1024 * 1024
"""The largest record of a member of a consumer or share group. It has room for as many topic names of the
greatest length as a heartbeat may contain. Kafka's default limit for a record of this topic is 1 MiB, too. An
append that is too large would end the coordinator's session, with the shards of all its groups.
"""
MAX_MEMBERS_BYTES: Final = 32 * 1024 * 1024
"""About the most memory that the members of a consumer, share or streams group may take by what they state.
It has room for 15,000 members with ten topics each.
"""


def invalid_request(message: str) -> KafkaError:
    """Returns the error for a heartbeat that is invalid, whatever the group's state is."""
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def check_not_empty(**names: str | None) -> None:
    """Raises KafkaError (INVALID_REQUEST) if one of these fields of a heartbeat is present but blank."""
    for name, text in names.items():
        if text is not None and not text.strip():
            raise invalid_request(f"{name} can't be empty.")


def check_size(what: str, record: CoordinatorRecord, limit_bytes: int) -> None:
    """Raises KafkaError (INVALID_REQUEST) if the value of the record is too large."""
    size_bytes = len(record.value or b"")
    if size_bytes > limit_bytes:
        raise invalid_request(f"The {what} takes {size_bytes} bytes, and {limit_bytes} bytes are allowed.")


def check_texts(what: str, texts: Iterable[str | None], limit_bytes: int) -> None:
    """Raises KafkaError (INVALID_REQUEST) if texts that become a part of one record exceed its limit.

    It looks at their lengths only, so a refused heartbeat of many megabytes is neither hashed nor encoded.
    A character counts as one byte; `check_size` checks the record.
    """
    left_bytes = limit_bytes
    for text in texts:
        left_bytes -= len(text or "")
        if left_bytes < 0:
            raise invalid_request(f"The {what} takes more than {limit_bytes} bytes, which is the limit.")


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


def check_memory(members: SizedMembers[M], member_id: str, wanted: M) -> None:
    """Raises KafkaError (INVALID_REQUEST) if the members take too much memory after the member's heartbeat.

    A member may always state less.
    """
    added_bytes = wanted.memory_bytes - members.bytes_of(member_id)
    if added_bytes > 0 and members.memory_bytes + added_bytes > MAX_MEMBERS_BYTES:
        raise invalid_request(
            f"The names and subscriptions of all members of the group take more than {MAX_MEMBERS_BYTES} "
            "bytes, which is the limit."
        )


def unknown_member(group: Group, member_id: str) -> KafkaError:
    """Returns the error for a member that does not exist."""
    return KafkaError(
        ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.group_id}."
    )


def fenced_member(kind: GroupKind, epoch: int, known_epoch: int) -> KafkaError:
    """Returns the error for a heartbeat with an epoch that is not the one that the group knows."""
    how = "greater" if epoch > known_epoch else "smaller"
    return KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The {kind} group member has a {how} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({known_epoch}). The member must abandon all its partitions and rejoin.",
    )
