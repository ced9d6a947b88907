"""The requests, changes and checks that consumer, share and streams groups have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final, Generic, TypeVar
from uuid import UUID

from tidelog.group_coordinator.groups.modern_group import (
    JOIN_EPOCH,
    M,
    MemberState,
    ModernGroup,
    ModernMember,
    RecordType,
    SizedMembers,
    T,
    metadata_hash,
)
from tidelog.group_coordinator.groups.shared import (
    Group,
    GroupKind,
    Groups,
    TimerKey,
    TopicsChange,
    answer,
    may_assign,
)
from tidelog.group_coordinator.shard_core import (
    CancelTimer,
    CoordinatorRecord,
    ReplayedRecord,
    Reply,
    SetTimer,
    ShardDecision,
    ShardRequest,
    described_within_bound,
)
from tidelog.kernel.instants import WallMs
from tidelog.kernel.steps import Steps
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire.schema import Message

G = TypeVar("G", bound=ModernGroup[Any, Any])

FIRST_EPOCH: Final = 2
"""The first epoch of a group, as in Kafka since 4.3."""
SESSION_TIMER: Final = "session"
REBALANCE_TIMER: Final = "rebalance"
MAX_SUBSCRIBER_BYTES: Final = 1024 * 1024
"""The largest record of a member of a consumer or share group. It has room for as many topic names of the
greatest length as a heartbeat may contain. Kafka's default limit for a record of this topic is 1 MiB, too. An
append that is too large would end the coordinator's session, with the shards of all its groups.
"""
MAX_MEMBERS_BYTES: Final = 32 * 1024 * 1024
"""About the most memory that the members of a consumer, share or streams group may take by what they state.
It has room for 15,000 members with ten topics each.
"""


class ModernChanges(ABC, Generic[G, M, T]):
    """The changes that one event makes to one group: each writes a record and applies it to the state.

    The caller keeps `groups.by_id` up to date.
    """

    MEMBER_TIMERS: ClassVar[tuple[str, ...]] = (SESSION_TIMER, REBALANCE_TIMER)

    def __init__(self, groups: Groups, group: G, decision: ShardDecision, now_ms: WallMs) -> None:
        self.group = group
        self.decision = decision
        self.now_ms = now_ms
        self._groups = groups
        self._form = group.FORMAT
        self._settings = groups.group_settings.for_group(group.group_id)

    def write(self, record_type: RecordType, value: Message | None, *names: str) -> None:
        """Writes a record that is applied already. `names` are the fields of its key after the group."""
        self.decision.records.append(record_type.record(value, self.group.group_id, *names))

    def put_group(self, *fields: Any) -> None:
        """Sets the epoch of the group and what it depends on, as in the value of its record."""
        value = self._form.group.value(*fields)
        self.group.put_group(value)
        self.write(self._form.group, value)

    def put_subscription(self, member: M) -> None:
        self.group.put_subscription(member)
        self.write(self._form.member, self._form.member_value(member), member.member_id)

    def put_current_assignment(self, member: M) -> None:
        self.group.put_current_assignment(member)
        self.write(self._form.current, self._form.current_value(member), member.member_id)

    def put_target(self, member_id: str, target: T) -> None:
        self.group.targets[member_id] = target
        self.write(self._form.target, self._form.target_value(target), member_id)

    def put_targets(self, targets: Mapping[str, T], epoch: int) -> None:
        """Sets the target assignment of an epoch. Only targets that change are written."""
        for member_id, target in targets.items():
            former = self.group.targets.get(member_id)
            if target is not former and target != former:
                self.put_target(member_id, target)
        self.group.assignment_epoch, self.group.assignment_timestamp_ms = epoch, self.now_ms
        self.write(self._form.target_epoch, self._form.target_epoch.value(epoch, self.now_ms))

    def remove_member(self, member: M) -> None:
        """Removes a member with its assignment and its timers."""
        self.group.remove_member(member.member_id)
        self.group.targets.pop(member.member_id, None)
        for record_type in (self._form.current, self._form.target, self._form.member):
            self.write(record_type, None, member.member_id)
        for timer in self.MEMBER_TIMERS:
            self.cancel_timer(timer, member.member_id)

    def update_epoch(self, *, must_grow: bool) -> None:
        """Increases the group epoch if members or topics changed, so that another target is computed."""
        group = self.group
        if not must_grow and not group.topics_changed:
            return
        new_hash = metadata_hash(group.subscribed_names(), self._groups.image)
        group.topics_changed = False
        if must_grow or new_hash != group.metadata_hash:
            self.put_group(max(group.epoch + 1, FIRST_EPOCH), new_hash)

    def needs_target(self, interval_ms: int) -> bool:
        """Returns whether the target assignment of the group epoch does not exist yet and may be computed. If
        it is too early, a later heartbeat computes it.
        """
        group = self.group
        return group.epoch > group.assignment_epoch and may_assign(
            group.assignment_timestamp_ms, interval_ms, self.now_ms
        )

    @abstractmethod
    def extend_session(self, member: M) -> None:
        """Restarts the member's session timeout."""

    def time_revocation(self, member: ModernMember, timeout_ms: int) -> None:
        """Starts the timeout of what the member has to give up, or stops it if there is nothing."""
        if member.state is MemberState.UNREVOKED:
            self.set_timer(REBALANCE_TIMER, member.member_id, timeout_ms)
        else:
            self.cancel_timer(REBALANCE_TIMER, member.member_id)

    def set_timer(self, kind: str, member_id: str, delay_ms: int) -> None:
        self.decision.timers.append(SetTimer(self._timer(kind, member_id), delay_ms))

    def cancel_timer(self, kind: str, member_id: str) -> None:
        self.decision.timers.append(CancelTimer(self._timer(kind, member_id)))

    def _timer(self, kind: str, member_id: str) -> TimerKey:
        return TimerKey(self._form.kind.value, kind, self.group.group_id, member_id)


class ModernGroups(ABC, Generic[G]):
    """The handler of the heartbeats and descriptions of one type of group, and of its records."""

    GROUP: ClassVar[type[Any]]
    HEARTBEAT_RESPONSE: ClassVar[type[Any]]
    DESCRIBED_GROUP: ClassVar[type[Any]]
    DESCRIBE_RESPONSE: ClassVar[type[Any]]

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    def heartbeat(self, request: ShardRequest[Any], now_ms: WallMs) -> ShardDecision:
        """Decides on a heartbeat. Every request is answered by its own decision."""
        try:
            return self._beat(request, now_ms)
        except KafkaError as error:
            return answer(
                request, self.HEARTBEAT_RESPONSE(error_code=error.code, error_message=error.message)
            )

    @abstractmethod
    def _beat(self, request: ShardRequest[Any], now_ms: WallMs) -> ShardDecision:
        """Decides on a heartbeat. Raises KafkaError before anything has changed."""

    @abstractmethod
    def changes(self, group: G, decision: ShardDecision, now_ms: WallMs) -> ModernChanges[G, Any, Any]:
        """Returns the changes of an event, which become a part of the decision."""

    def _left(
        self, request: ShardRequest[Any], member: ModernMember, decision: ShardDecision
    ) -> ShardDecision:
        """Returns the decision with the reply to a member that has left."""
        response = self.HEARTBEAT_RESPONSE(
            member_id=member.member_id, member_epoch=request.message.member_epoch
        )
        decision.replies.append(Reply(request.reply_to, response))
        return decision

    def describe(self, request: ShardRequest[Any], now_ms: WallMs) -> ShardDecision:
        described = described_within_bound(
            request.message.group_ids,
            self._described,
            lambda group_id, error: self.DESCRIBED_GROUP(error_code=error, group_id=group_id),
            lambda groups: self.DESCRIBE_RESPONSE(groups=groups),
        )
        return answer(request, described)

    def _described(self, group_id: str) -> Steps[Any]:
        """Describes a group as it is at the first step."""
        try:
            group: G = find_group(self._groups, group_id, self.GROUP)
        except KafkaError as error:
            return self.DESCRIBED_GROUP(error_code=error.code, error_message=error.message, group_id=group_id)
        described = self.DESCRIBED_GROUP(
            group_id=group_id,
            group_state=group.state,
            group_epoch=group.epoch,
            assignment_epoch=group.assignment_epoch,
        )
        self._describe_group(group, described)
        members, targets = list(group.members.values()), dict(group.targets)
        for member in members:
            target = targets.get(member.member_id, group.FORMAT.no_target)
            described.members.append(self._described_member(member, target))
            yield
        return described

    @abstractmethod
    def _describe_group(self, group: G, described: Any) -> None:
        """Adds the name of the assignor, and what only this type of group has."""

    @abstractmethod
    def _described_member(self, member: Any, target: Any) -> object: ...

    def _named_topics(self, topic_class: type[Any], partitions: Mapping[UUID, Iterable[int]]) -> list[Any]:
        """Returns an assignment without deleted topics, which have no name anymore."""
        names = self._groups.image.topic_names
        return [
            topic_class(topic_id, names[topic_id], sorted(found))
            for topic_id, found in sorted(partitions.items())
            if topic_id in names
        ]

    def replay(self, record: ReplayedRecord) -> None:
        """Applies a record to the group of its key. A group begins with any record other than a tombstone.

        Only the tombstone of the group itself deletes the group. Raises MalformedMessageError,
        UnsupportedVersionError.
        """
        form = self.GROUP.FORMAT
        record_type, key, value = form.read(record)
        group = self._groups.by_id.get(key.group_id)
        if not isinstance(group, self.GROUP):
            if value is None:
                return
            group = self._groups.by_id[key.group_id] = self._new_group(key.group_id)
        if value is None and record_type is form.group:
            del self._groups.by_id[key.group_id]
        else:
            group.apply(record_type, key, value)

    def _new_group(self, group_id: str) -> G:
        new: G = self.GROUP(group_id)
        return new

    def _found_or_new(self, message: Any) -> G:
        """Returns the group of a heartbeat. A new group is not in `by_id` yet. Raises KafkaError
        (GROUP_ID_NOT_FOUND).
        """
        if message.group_id in self._groups.by_id:
            found: G = find_group(self._groups, message.group_id, self.GROUP)
            return found
        if message.member_epoch == JOIN_EPOCH:
            return self._new_group(message.group_id)
        kind = self.GROUP.FORMAT.kind.capitalize()
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"{kind} group {message.group_id} not found.")

    def activate(self, now_ms: WallMs) -> ShardDecision:
        """Starts a full session for every member, and goes on with what an earlier owner has begun."""
        decision = ShardDecision()
        for group in self._groups.by_id.values():
            if not isinstance(group, self.GROUP):
                continue
            changes = self.changes(group, decision, now_ms)
            for member in group.members.values():
                changes.extend_session(member)
            self._resume(changes)
        return decision

    @abstractmethod
    def _resume(self, changes: Any) -> None:
        """Goes on with what an earlier owner of the group has begun."""

    def topics_changed(self, group: G, change: TopicsChange, decision: ShardDecision, now_ms: WallMs) -> None:
        """Marks a group whose topics changed. The next heartbeat of a member decides what follows."""
        if not group.subscribed_names().isdisjoint(change.changed):
            group.topics_changed = True


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


def find_group(groups: Groups, group_id: str, group_class: type[G]) -> G:
    """Returns a group of this type. Raises KafkaError (GROUP_ID_NOT_FOUND, INVALID_GROUP_ID)."""
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    group = groups.by_id.get(group_id)
    if not isinstance(group, group_class):
        reason = "not found" if group is None else f"is not a {group_class.FORMAT.kind} group"
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {reason}.")
    return group


def find_member(group: ModernGroup[M, Any], member_id: str) -> M:
    """Returns a member. Raises KafkaError (UNKNOWN_MEMBER_ID)."""
    member = group.members.get(member_id)
    if member is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.group_id}."
        )
    return member


def check_room(group: Group, max_members: int) -> None:
    """Raises KafkaError (GROUP_MAX_SIZE_REACHED) if the group has no room for another member."""
    if group.member_count() >= max_members:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The {group.kind} group has reached its maximum capacity of {max_members} members.",
        )


def check_member(group: ModernGroup[M, Any], wanted: M, limit_bytes: int) -> None:
    """Raises KafkaError (INVALID_REQUEST) if the record of a member with its heartbeat is too large, or if
    the members of the group take too much memory then.
    """
    record = group.FORMAT.member_record(group.group_id, wanted)
    check_size("metadata of a member", record, limit_bytes)
    check_memory(group.members, wanted.member_id, wanted)


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


def check_epoch(kind: GroupKind, member: ModernMember, epoch: int, *, owns_reported: bool = True) -> None:
    """Raises KafkaError (FENCED_MEMBER_EPOCH) if the epoch of a heartbeat is not the one of the member.

    The response with the new epoch may have been lost. The previous epoch is therefore valid as long as the
    member claims nothing that it does not own. A member may join again in any epoch.
    """
    if epoch in (JOIN_EPOCH, member.member_epoch):
        return
    if epoch > member.member_epoch or epoch != member.previous_epoch or not owns_reported:
        how = "greater" if epoch > member.member_epoch else "smaller"
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The {kind} group member has a {how} member epoch ({epoch}) than the one known by the group "
            f"coordinator ({member.member_epoch}). The member must abandon all its partitions and rejoin.",
        )
