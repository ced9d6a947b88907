"""The state and the records that consumer, share and streams groups have in common (Kafka's ModernGroup).

Each of these groups has five kinds of records: its epoch, the subscriptions of its members, the epoch of its
target assignment, the targets of its members, and what the members have reached of them. `GroupFormat` is the
table of the records of one type of group. A change applies a record to the state, as the replay does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from functools import cached_property
from hashlib import blake2b
from operator import attrgetter
from types import MappingProxyType
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, Self, TypeAlias, TypeVar
from uuid import UUID

from tidelog.group_coordinator.groups.shared import GroupKind, OffsetCommitter
from tidelog.group_coordinator.shard_core import (
    ClusterImage,
    CoordinatorRecord,
    ReplayedRecord,
    ShardDecision,
    ShardRequest,
)
from tidelog.kernel.instants import WallMs
from tidelog.model.errors import ErrorCode
from tidelog.wire.codec import record_codec, record_kind
from tidelog.wire.messages.list_groups import ListedGroup
from tidelog.wire.schema import Message

LEAVE_EPOCH: Final = -1
"""The epoch in the heartbeat of a member that leaves."""
STATIC_LEAVE_EPOCH: Final = -2
"""The epoch in the heartbeat of a static member that leaves temporarily, and its epoch while it is away."""
JOIN_EPOCH: Final = 0
"""The epoch in the heartbeat of a member that joins."""

Assignment: TypeAlias = Mapping[UUID, frozenset[int]]
"""The partitions that a member should own, by topic id. No topic has an empty set."""
NO_PARTITIONS: Final[Assignment] = MappingProxyType({})

K = TypeVar("K", UUID, str)
"""The key of partitions: a topic id, or the id of a subtopology, whose partitions are tasks."""
K_contra = TypeVar("K_contra", UUID, str, contravariant=True)
P_co = TypeVar("P_co", covariant=True)
Owned: TypeAlias = Mapping[K, Mapping[int, int]]
"""The partitions that a member owns: each maps to the member epoch in which the member received it. No key
has an empty mapping.
"""


class GroupKey(Message, Protocol):
    """A generated class of the keys of a group's records."""

    API_KEY: ClassVar[int]
    group_id: str


class RecordType(NamedTuple):
    """One kind of a group's records: the generated classes of its key and of its value."""

    key: type[GroupKey]
    value: Callable[..., Message]

    def record(self, value: Message | None, *names: str) -> CoordinatorRecord:
        """Returns a record, or a tombstone if there is no value. `names` are the fields of the key, of which
        the first is the group.
        """
        new_key: Callable[..., GroupKey] = self.key
        return CoordinatorRecord(
            record_codec(self.key).encode(new_key(*names)),
            None if value is None else record_codec(type(value)).encode(value),
        )


class MemberState(IntEnum):
    """The place of a member on its way to its target assignment (Kafka's MemberState)."""

    STABLE = 0
    """The member owns its target assignment, as far as it is free."""
    UNREVOKED = 1
    """The member has not confirmed yet that it gave up what it has to."""
    UNRELEASED = 2
    """The member waits for what others have not given up."""
    UNKNOWN = 127
    """The record holds a state that this version does not know."""


def byte_of_state(state: MemberState, stable: int) -> int:
    """Returns the byte of a state in a record in which `stable` is the byte of STABLE."""
    return state if state is MemberState.UNKNOWN else state + stable


def state_of_byte(value: int, stable: int) -> MemberState:
    """Returns the state of a byte in such a record."""
    try:
        return MemberState(value - stable)
    except ValueError:
        return MemberState.UNKNOWN


@dataclass(frozen=True, slots=True)
class ModernMember(ABC):
    """A member as its records describe it. A change replaces the object."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    member_epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE

    ASSIGNMENT: ClassVar[tuple[str, ...]] = ("member_epoch", "previous_epoch", "state")
    """The fields of the record about what the member has reached. Its other fields are its subscription."""

    @property
    @abstractmethod
    def memory_bytes(self) -> int:
        """About how many bytes the member takes, without its assignment."""

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        """Returns whether the member has reached the target assignment of this epoch."""
        return self.state is MemberState.STABLE and self.member_epoch == assignment_epoch

    def with_assignment_of(self, other: Self) -> Self:
        """Returns this member with the epochs and the assignment of the other."""
        return replace(self, **{name: getattr(other, name) for name in self.ASSIGNMENT})

    def with_client_of(self, request: ShardRequest[Any], **subscription: Any) -> Self:
        """Returns this member with the client and the rack of a heartbeat, and with these fields of its
        subscription. A rack that the request omits keeps its value.
        """
        rack_id = request.message.rack_id
        return replace(
            self,
            rack_id=self.rack_id if rack_id is None else rack_id,
            client_id=request.client_id or "",
            client_host=f"/{request.host}",  # Java prints addresses with a slash
            **subscription,
        )

    def moved(self, epoch: int, **assignment: Any) -> Self:
        """Returns this member in an epoch and with these fields of its assignment. Within one epoch the
        previous epoch remains valid, because a response may have been lost.
        """
        previous = self.previous_epoch if epoch == self.member_epoch else self.member_epoch
        return replace(self, member_epoch=epoch, previous_epoch=previous, **assignment)

    def has_subscription_of(self, other: Self) -> bool:
        """Returns whether both members have the same record of a subscription."""
        return self.with_assignment_of(other) == other

    def has_assignment_of(self, other: Self) -> bool:
        """Returns whether both members have the same record of an assignment."""
        return other.with_assignment_of(self) == other


M = TypeVar("M", bound=ModernMember)


class SizedMembers(dict[str, M]):
    """The members of a group by their ids, and about how many bytes they take."""

    def __init__(self) -> None:
        super().__init__()
        self.memory_bytes = 0
        self._bytes_of: dict[str, int] = {}

    def bytes_of(self, member_id: str) -> int:
        return self._bytes_of.get(member_id, 0)

    def __setitem__(self, member_id: str, member: M) -> None:
        size_bytes = member.memory_bytes
        self.memory_bytes += size_bytes - self.bytes_of(member_id)
        self._bytes_of[member_id] = size_bytes
        super().__setitem__(member_id, member)

    def __delitem__(self, member_id: str) -> None:
        super().__delitem__(member_id)
        self.memory_bytes -= self._bytes_of.pop(member_id)

    def remove(self, member_id: str) -> M | None:
        """Removes a member and returns it, None if there is no such member."""
        member = self.get(member_id)
        if member is not None:
            del self[member_id]
        return member


T = TypeVar("T")
"""The target assignment of a member."""


@dataclass(frozen=True)
class GroupFormat(Generic[M, T]):
    """The records of one type of group, and the conversions between their values and the state."""

    kind: GroupKind
    group: RecordType
    member: RecordType
    target_epoch: RecordType
    target: RecordType
    current: RecordType
    others: tuple[RecordType, ...]
    """The records that only this type of group has."""
    new_member: Callable[[str], M]
    no_target: T
    member_value: Callable[[M], Message]
    member_of: Callable[[str, Any], M]
    target_value: Callable[[T], Message]
    target_of: Callable[[Any], T]
    current_value: Callable[[M], Message]
    current_of: Callable[[str, Any], M]

    @cached_property
    def types(self) -> dict[int, RecordType]:
        """The types of records by their kinds. The kind is the int16 before the key."""
        known = (self.group, self.member, self.target_epoch, self.target, self.current, *self.others)
        return {record_type.key.API_KEY: record_type for record_type in known}

    def read(self, record: ReplayedRecord) -> tuple[RecordType, GroupKey, Any]:
        """Returns a record's type, key and value; the value of a tombstone is None.

        Raises MalformedMessageError, UnsupportedVersionError.
        """
        found = self.types[record_kind(record.key)]
        key = record_codec(found.key).decode(record.key)
        value_class: Any = found.value
        return found, key, None if record.value is None else record_codec(value_class).decode(record.value)

    def member_record(self, group_id: str, member: M) -> CoordinatorRecord:
        """Returns the record of a member's subscription."""
        return self.member.record(self.member_value(member), group_id, member.member_id)


class ModernState(StrEnum):
    """The state of a group, named as in ListGroups."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class ModernGroup(ABC, Generic[M, T]):
    """The state of a group according to its records, and some state that is rebuilt after loading.

    Only the `put_` and `remove_` methods change the members. Each applies one record.
    """

    FORMAT: ClassVar[GroupFormat[Any, Any]]
    INITIAL_EPOCH: ClassVar[int] = 0
    """The epoch of a group before its first member, and of its empty assignment."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = self.INITIAL_EPOCH
        self.metadata_hash = 0
        self.assignment_epoch = self.INITIAL_EPOCH
        self.assignment_timestamp_ms = WallMs(0)
        self.members: SizedMembers[M] = SizedMembers()
        self.targets: dict[str, T] = {}
        """Maps each member id to its target assignment."""
        self.is_dead = False
        # No record holds the following state.
        self.topics_changed = True
        """Whether a topic may have changed since `metadata_hash` was computed."""

    @property
    def state(self) -> ModernState:
        """The state. It follows from the records and is never stored, so no transition can be forgotten."""
        if self.is_dead:
            return ModernState.DEAD
        if not self.members:
            return ModernState.EMPTY
        if not self.is_ready():
            return ModernState.NOT_READY
        if self.epoch > self.assignment_epoch:  # members or topics have changed
            return ModernState.ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return ModernState.STABLE
        return ModernState.RECONCILING

    def is_ready(self) -> bool:
        """Returns whether assignments are possible."""
        return True

    @abstractmethod
    def subscribed_names(self) -> frozenset[str]:
        """Returns the topics on which the assignment of the group depends."""

    @abstractmethod
    def is_subscribed_to(self, topic: str) -> bool: ...

    def apply(self, record_type: RecordType, key: Any, value: Any) -> None:
        """Applies a record. A tombstone has no value. That of the group itself is the caller's to apply.

        Compaction may remove any record and may change the order of the remaining ones.
        """
        form = self.FORMAT
        if record_type is form.group:
            self.put_group(value)
        elif record_type is form.target_epoch:
            self.assignment_epoch = self.INITIAL_EPOCH if value is None else value.assignment_epoch
            self.assignment_timestamp_ms = WallMs(0 if value is None else value.assignment_timestamp)
        elif record_type is form.member:
            if value is None:
                self.remove_member(key.member_id)
            else:
                self.put_subscription(form.member_of(key.member_id, value))
        elif record_type is form.target:
            if value is None:
                self.targets.pop(key.member_id, None)
            else:
                self.targets[key.member_id] = form.target_of(value)
        elif record_type is form.current:
            if value is not None:
                self.put_current_assignment(form.current_of(key.member_id, value))
            elif key.member_id in self.members:
                self.put_current_assignment(form.new_member(key.member_id))
        else:
            self.apply_other(record_type, key, value)

    @abstractmethod
    def apply_other(self, record_type: RecordType, key: Any, value: Any) -> None:
        """Applies a record that only this type of group has. A tombstone has no value."""

    def put_group(self, value: Any) -> None:
        """Sets the epoch of the group from the value of its record."""
        self.epoch, self.metadata_hash = value.epoch, value.metadata_hash

    def put_subscription(self, member: M) -> None:
        """Sets a member's subscription. Its epoch and assignment remain."""
        self.members[member.member_id] = member.with_assignment_of(self._known(member.member_id))

    def put_current_assignment(self, member: M) -> None:
        """Sets a member's epoch and assignment. Its subscription remains."""
        before = self._known(member.member_id)
        self._release(before)
        after = self.members[member.member_id] = before.with_assignment_of(member)
        self._hold(after)

    def remove_member(self, member_id: str) -> None:
        member = self.members.remove(member_id)
        if member is not None:
            self._release(member)

    def _known(self, member_id: str) -> M:
        """Returns the member, which is empty if it is new."""
        known = self.members.get(member_id)
        return self.FORMAT.new_member(member_id) if known is None else known

    def _hold(self, member: M) -> None:
        """Notes what the member has not given up. Nobody waits for the share partitions of others."""

    def _release(self, member: M) -> None:
        """Forgets what the member has not given up."""

    def target_of(self, member_id: str) -> T:
        no_target: T = self.FORMAT.no_target
        return self.targets.get(member_id, no_target)

    @property
    def kind(self) -> GroupKind:
        return self.FORMAT.kind

    def check_commit(self, committer: OffsetCommitter, decision: ShardDecision) -> ErrorCode:
        if committer.is_outside(self.members):
            return ErrorCode.NONE
        member, epoch = self.members.get(committer.member_id), committer.generation_or_epoch
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if committer.has_no_field_for_epochs and not self._has_generation(member):
            return ErrorCode.UNSUPPORTED_VERSION
        # For an older epoch, partition_commit_check decides on each partition.
        return ErrorCode.NONE if 0 < epoch < member.member_epoch else self._epoch_error(member, epoch)

    def _has_generation(self, member: M) -> bool:
        """Returns whether the member speaks the classic protocol, in which its epoch is a generation."""
        return False

    def _epoch_error(self, member: M, epoch: int) -> ErrorCode:
        if epoch == member.member_epoch:
            return ErrorCode.NONE
        return ErrorCode.ILLEGAL_GENERATION if self._has_generation(member) else ErrorCode.STALE_MEMBER_EPOCH

    def partition_commit_check(self, committer: OffsetCommitter) -> Callable[[UUID, int], ErrorCode] | None:
        return None

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        if not member_id and member_epoch < 0:
            return ErrorCode.NONE
        member = self.members.get(member_id or "")
        return ErrorCode.UNKNOWN_MEMBER_ID if member is None else self._epoch_error(member, member_epoch)

    def check_offset_delete(self) -> ErrorCode:
        return ErrorCode.NONE

    def check_delete(self) -> ErrorCode:
        return ErrorCode.NON_EMPTY_GROUP if self.members else ErrorCode.NONE

    def offsets_expire_from(self, topic: str, commit_timestamp_ms: WallMs) -> WallMs | None:
        return None if self.is_subscribed_to(topic) else commit_timestamp_ms

    def end(self) -> list[CoordinatorRecord]:
        """Makes the group Dead and returns the tombstones of it and of everything that belongs to it.

        That of the group is the last, so a log that ends between them still describes a group.
        """
        self.is_dead = True
        form, group_id, members = self.FORMAT, self.group_id, self.members
        found = [form.current.record(None, group_id, member_id) for member_id in members]
        found += [form.target.record(None, group_id, name) for name in {**members, **self.targets}]
        found.append(form.target_epoch.record(None, group_id))
        found += [form.member.record(None, group_id, member_id) for member_id in members]
        return [*found, *self._other_tombstones(), form.group.record(None, group_id)]

    @abstractmethod
    def _other_tombstones(self) -> list[CoordinatorRecord]:
        """Returns the tombstones of the records that only this type of group has."""

    def has_members(self) -> bool:
        return bool(self.members)

    def member_count(self) -> int:
        return len(self.members)

    @property
    def generation_or_epoch(self) -> int:
        return self.epoch

    def listed(self) -> ListedGroup:
        return ListedGroup(self.group_id, self.kind.value, self.state, self.kind.value)


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


class _TakesEpochs(Protocol[K_contra, P_co]):
    """A generated class that holds the partitions of a key, and the epochs in which they were received."""

    def __call__(self, key: K_contra, partitions: list[int], epochs: list[int], /) -> P_co: ...


def with_epochs(message_class: _TakesEpochs[K, P_co], owned: Owned[K]) -> list[P_co]:
    """Returns owned partitions as message objects, in an order that does not depend on that of `owned`."""
    return [
        message_class(key, sorted(epochs), [epochs[partition] for partition in sorted(epochs)])
        for key, epochs in sorted(owned.items())
    ]


class Difference(NamedTuple, Generic[K]):
    """The way from the partitions that a member owns to its target assignment."""

    kept: Owned[K]
    """The partitions that it owns and should own."""
    revoked: Owned[K]
    """The partitions that it owns and should not own."""
    free: Owned[K]
    """The partitions that it should own, does not own, and that nobody holds."""
    waits: bool
    """Whether somebody holds a partition that it should own."""


def difference(
    owned: Owned[K], target: Mapping[K, frozenset[int]], epoch: int, is_held: Callable[[K, int], bool]
) -> Difference[K]:
    """Returns the way to a target assignment, whose epoch free partitions get."""
    kept: dict[K, Mapping[int, int]] = {}
    revoked: dict[K, Mapping[int, int]] = {}
    free: dict[K, Mapping[int, int]] = {}
    for key, epochs in owned.items():
        wanted = target.get(key, frozenset())
        staying = {partition: given for partition, given in epochs.items() if partition in wanted}
        leaving = {partition: given for partition, given in epochs.items() if partition not in wanted}
        if staying:
            kept[key] = staying
        if leaving:
            revoked[key] = leaving
    waits = False
    for key, wanted in target.items():
        missing = wanted - kept.get(key, {}).keys()
        found = {partition for partition in missing if not is_held(key, partition)}
        waits = waits or len(found) < len(missing)
        if found:
            free[key] = dict.fromkeys(sorted(found), epoch)
    return Difference(kept, revoked, free, waits)


def merged(first: Owned[K], second: Owned[K]) -> Owned[K]:
    """Returns the partitions of both."""
    return {key: {**first.get(key, {}), **second.get(key, {})} for key in {**first, **second}}


def holds_any(partitions: Mapping[K, frozenset[int]], of: Mapping[K, Collection[int]]) -> bool:
    """Returns whether `partitions` contains at least one partition of `of`."""
    return any(key in of and not found.isdisjoint(of[key]) for key, found in partitions.items())


def holds_all(owned: Mapping[K, Collection[int]], partitions: Mapping[K, frozenset[int]]) -> bool:
    """Returns whether `owned` contains every partition of `partitions`."""
    return all(key in owned and all(map(owned[key].__contains__, found)) for key, found in partitions.items())


class _Topic(Protocol):
    """A generated class that holds partitions of one topic."""

    topic_id: UUID
    partitions: list[int]


P = TypeVar("P", bound=_Topic)


def from_message(topics: Iterable[_Topic]) -> Assignment:
    """Returns the partitions of a message, which may name a topic more than once."""
    found: dict[UUID, frozenset[int]] = {}
    for topic in topics:
        if topic.partitions:
            found[topic.topic_id] = found.get(topic.topic_id, frozenset()) | frozenset(topic.partitions)
    return found


def to_message(topic_class: type[P], partitions: Mapping[UUID, Iterable[int]]) -> list[P]:
    """Returns the partitions as message objects.

    They are sorted by topic id and partition, so that equal assignments have equal bytes.
    """
    topics = []
    for topic_id in sorted(partitions, key=attrgetter("int")):  # their own order, but faster
        topic = topic_class()
        topic.topic_id = topic_id
        topic.partitions = sorted(partitions[topic_id])
        topics.append(topic)
    return topics


def metadata_hash(names: Iterable[str], image: ClusterImage) -> int:
    """Returns an int64 hash of everything that an assignment depends on (KIP-1101).

    The hash changes if a topic is created, is deleted, grows, or moves to other racks. It is 0 if none of the
    topics exists. The function is not Kafka's, so a group that comes from Kafka is reassigned once.
    """
    found = sorted(name for name in names if name in image.topics)
    if not found:
        return 0
    digest = blake2b(digest_size=8)
    for name in found:
        topic = image.topics[name]
        racks = ";".join(",".join(sorted(of_partition)) for of_partition in topic.racks)
        digest.update(f"{len(name)}:{name}{topic.topic_id.hex}{topic.partition_count}:{racks}\n".encode())
    return int.from_bytes(digest.digest(), "big", signed=True)
