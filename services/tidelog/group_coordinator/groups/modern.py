"""The records and the checks of heartbeats that consumer, share and streams groups have in common."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from tidelog.group_coordinator.groups.shared import Group, GroupKind, Groups, M, SizedMembers
from tidelog.group_coordinator.shard_core import CoordinatorRecord, ReplayedRecord
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire.codec import record_codec, record_kind
from tidelog.wire.schema import Message


class GroupKey(Message, Protocol):
    """A generated class of the keys of a group's records."""

    group_id: str


Key = TypeVar("Key", bound=GroupKey)
Value = TypeVar("Value", bound=Message)
Key_contra = TypeVar("Key_contra", bound=GroupKey, contravariant=True)
Value_contra = TypeVar("Value_contra", bound=Message, contravariant=True)


def new_record(key: Message, value: Message | None) -> CoordinatorRecord:
    """Returns the record of a key and a value, or the tombstone of the key."""
    return CoordinatorRecord(
        record_codec(type(key)).encode(key),
        None if value is None else record_codec(type(value)).encode(value),
    )


def epochs_by_partition(
    partitions: Sequence[int], assignment_epochs: Sequence[int] | None, member_epoch: int
) -> dict[int, int]:
    """Returns the epochs in which a member received partitions, from a record of its current assignment.

    Kafka before 4.2 (streams groups) and 4.3 (consumer groups) records no such epochs. The partitions then
    get the member's epoch.
    """
    if assignment_epochs and len(assignment_epochs) == len(partitions):
        return dict(zip(partitions, assignment_epochs, strict=True))
    return dict.fromkeys(partitions, member_epoch)


class RecordedGroup(Group, Protocol[Key_contra, Value_contra]):
    """A group whose state follows from records of several kinds."""

    def apply_record(self, key: Key_contra, value: Value_contra) -> None:
        """Applies a record other than a tombstone."""
        ...

    def apply_tombstone(self, key: Key_contra) -> bool:
        """Applies a tombstone. Returns False if the group itself is deleted, which the caller has to do."""
        ...


class MemberKinds(NamedTuple):
    """The kinds of the records about the members of a group."""

    current: int
    target: int
    target_epoch: int
    member: int


class RecordFormats(Generic[Key, Value]):
    """The formats of one type of group: its classes of keys and values, by the kind of the record.

    The kind is the int16 before the key.
    """

    def __init__(self, classes: Mapping[int, tuple[type[Key], type[Value]]]) -> None:
        self._classes = classes

    def replay(
        self,
        record: ReplayedRecord,
        by_id: dict[str, Group],
        group_class: type[RecordedGroup[Key, Value]],
        new_group: Callable[[str], RecordedGroup[Key, Value]],
    ) -> None:
        """Applies a record to the group of its key. A group begins with any record other than a tombstone.

        Only the tombstone of the group itself deletes the group. Raises MalformedMessageError,
        UnsupportedVersionError.
        """
        key, value = self.read(record)
        known = by_id.get(key.group_id)
        group = known if isinstance(known, group_class) else None
        if value is not None:
            if group is None:
                group = by_id[key.group_id] = new_group(key.group_id)
            group.apply_record(key, value)
        elif group is not None and not group.apply_tombstone(key):
            del by_id[key.group_id]

    def read(self, record: ReplayedRecord) -> tuple[Key, Value | None]:
        """Returns a record's key and value; the value of a tombstone is None.

        Raises MalformedMessageError, UnsupportedVersionError.
        """
        key_class, value_class = self._classes[record_kind(record.key)]
        key = record_codec(key_class).decode(record.key)
        return key, None if record.value is None else record_codec(value_class).decode(record.value)

    def tombstone(self, kind: int, *names: str) -> CoordinatorRecord:
        """Returns a tombstone. `names` are the fields of the key, of which the first is the group."""
        key_class: Callable[..., Key] = self._classes[kind][0]
        return new_record(key_class(*names), None)

    def member_tombstones(
        self, kinds: MemberKinds, group_id: str, members: Collection[str], targets: Collection[str]
    ) -> list[CoordinatorRecord]:
        """Returns the tombstones of members and of target assignments, by member id.

        A group that ends writes them before the tombstone of the group. A log that ends between them still
        describes a group.
        """
        found = [self.tombstone(kinds.current, group_id, member_id) for member_id in members]
        found += [self.tombstone(kinds.target, group_id, member_id) for member_id in {*members, *targets}]
        found.append(self.tombstone(kinds.target_epoch, group_id))
        found += [self.tombstone(kinds.member, group_id, member_id) for member_id in members]
        return found


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
