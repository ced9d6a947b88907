"""The records of a group, as every type of group reads and writes them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from tidelog.group_coordinator.groups.shared import Group
from tidelog.group_coordinator.shard_core import CoordinatorRecord, ReplayedRecord
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
