"""The state of one consumer group (KIP-848)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from tidelog.group_coordinator.groups.consumer.member import (
    CONSUMER_FORMAT,
    PARTITION_METADATA,
    REGEX,
    Member,
    OwnedPartitions,
)
from tidelog.group_coordinator.groups.consumer.topic_regex import RegexSweep, ResolvedRegex
from tidelog.group_coordinator.groups.modern_group import Assignment, ModernGroup, RecordType
from tidelog.group_coordinator.groups.shared import OffsetCommitter
from tidelog.group_coordinator.shard_core import ClusterImage, CoordinatorRecord
from tidelog.model.errors import ErrorCode
from tidelog.model.instants import WallMs


class ConsumerState(StrEnum):
    """The state of a consumer group, named as in ListGroups (Kafka's ConsumerGroupState)."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class ConsumerGroup(ModernGroup[Member, Assignment]):
    """The state of a group, and which of its members hold which partitions."""

    FORMAT = CONSUMER_FORMAT

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.static_members: dict[str, str] = {}
        """Maps each instance id to its member id."""
        self.regexes: dict[str, ResolvedRegex] = {}
        """Maps each subscribed regular expression to the topics that match."""
        self.resolved_bytes = 0
        """The size of these topics, as `topics_bytes` counts it."""
        self.owners: dict[UUID, dict[int, str]] = {}
        """Maps each topic id and partition to the member that has not given the partition up."""
        self.has_partition_metadata = False
        """Whether the log holds a record of Kafka up to 4.0 that has to be deleted."""

        # No record holds the following state.
        self._subscribed: frozenset[str] | None = None
        """The topics that any member subscribes to, None if they have changed since they were read."""
        self.called_to_join: set[str] = set()
        """Classic members that were asked to rejoin and have not done so yet."""
        self.regexes_are_due = True
        """Whether the next heartbeat has to resolve all regular expressions."""
        self.oversized_regexes: set[str] = set()
        """The regular expressions for whose topics there was no room, so that they match nothing."""
        self.is_regex_timer_running = False
        self.regex_sweep: RegexSweep | None = None
        """The resolution of regular expressions that is under way."""

    @property
    def state(self) -> ConsumerState:
        """The state, which follows from the members and the two epochs: the first rule that holds decides."""
        return next(state for state, holds in _STATE_RULES if holds(self))

    def apply_other(self, record_type: RecordType, key: Any, value: Any) -> None:
        if record_type is PARTITION_METADATA:
            self.has_partition_metadata = value is not None
        elif value is None:
            self.remove_regex(key.regular_expression)
        else:
            resolved = ResolvedRegex(frozenset(value.topics), value.version, WallMs(value.timestamp))
            self.put_regex(key.regular_expression, resolved)

    def put_regex(self, expression: str, resolved: ResolvedRegex) -> None:
        self.remove_regex(expression)
        self.regexes[expression] = resolved
        self._subscribed = None
        self.resolved_bytes += resolved.size_bytes()

    def remove_regex(self, expression: str) -> None:
        resolved = self.regexes.pop(expression, None)
        if resolved is not None:
            self.resolved_bytes -= resolved.size_bytes()
            self._subscribed = None

    def put_subscription(self, member: Member) -> None:
        before = self._known(member.member_id)
        if before.instance_id is not None and before.instance_id != member.instance_id:
            self._release_instance(before)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        if member.topic_names != before.topic_names:
            self._subscribed = None
        super().put_subscription(member)

    def remove_member(self, member_id: str) -> None:
        member = self._known(member_id)
        super().remove_member(member_id)
        self._release_instance(member)
        self._subscribed = None

    def _hold(self, member: Member) -> None:
        for owned in (member.owned, member.revoking):
            for topic_id, partitions in owned.items():
                self.owners.setdefault(topic_id, {}).update(dict.fromkeys(partitions, member.member_id))

    def _release(self, member: Member) -> None:
        for owned in (member.owned, member.revoking):
            for topic_id, partitions in owned.items():
                owners = self.owners.get(topic_id, {})
                for partition in partitions:
                    if owners.get(partition) == member.member_id:
                        del owners[partition]
                if not owners:
                    self.owners.pop(topic_id, None)

    def _release_instance(self, member: Member) -> None:
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member.member_id:
            del self.static_members[member.instance_id]

    def static_member(self, instance_id: str | None) -> Member | None:
        """Returns the member with this instance id, or None."""
        member_id = None if instance_id is None else self.static_members.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def is_held_by_other(self, member_id: str, topic_id: UUID, partition: int) -> bool:
        """Returns whether another member has not given up the partition."""
        owner = self.owners.get(topic_id, {}).get(partition)
        return owner is not None and owner != member_id

    def is_waiting_for_others(self, member: Member) -> bool:
        """Returns whether another member still holds a partition of the member's target."""
        return any(
            self.is_held_by_other(member.member_id, topic_id, partition)
            for topic_id, partitions in self.target_of(member.member_id).items()
            for partition in partitions
        )

    def preferred_assignor(self, default: str) -> str:
        """Returns the assignor that most members ask for."""
        votes = Counter(member.server_assignor for member in self.members.values() if member.server_assignor)
        return max(votes, key=lambda name: (votes[name], name == default, name)) if votes else default

    def topic_names_of(self, member: Member) -> frozenset[str]:
        """Returns the topics that the member subscribes to, by name or by regular expression."""
        resolved = self.regexes.get(member.topic_regex)
        return member.topic_names if resolved is None else member.topic_names | resolved.topics

    def topic_ids_of(self, member: Member, image: ClusterImage) -> frozenset[UUID]:
        """Returns the ids of the existing topics that the member subscribes to."""
        names = self.topic_names_of(member)
        return frozenset(image.topics[name].topic_id for name in names if name in image.topics)

    def subscribed_names(self) -> frozenset[str]:
        """Returns the topics that any member subscribes to."""
        if self._subscribed is None:
            self._subscribed = self._read_subscribed_names()
        return self._subscribed

    def _read_subscribed_names(self) -> frozenset[str]:
        names: set[str] = set()
        for subscription in {member.topic_names for member in self.members.values()}:
            names |= subscription
        for resolved in self.regexes.values():
            names |= resolved.topics
        return frozenset(names)

    def due_regexes(self, members: Iterable[Member]) -> set[str]:
        """Returns the regular expressions of members that have to be resolved."""
        wanted = {member.topic_regex for member in members if member.topic_regex}
        return wanted if self.regexes_are_due else wanted - self.regexes.keys()

    def subscribers_of_regex(self, expression: str) -> int:
        return sum(member.topic_regex == expression for member in self.members.values())

    def _has_generation(self, member: Member) -> bool:
        return member.classic is not None

    def partition_commit_check(self, committer: OffsetCommitter) -> Callable[[UUID, int], ErrorCode] | None:
        """Returns a check for a member that commits with an older epoch than its current one (KIP-1251).

        The member has not received its new epoch yet. It may commit offsets of partitions that it owned in
        the older epoch and has not given up since.
        """
        member = self.members.get(committer.member_id)
        epoch = committer.generation_or_epoch
        if member is None or epoch < 0 or epoch == member.member_epoch:
            return None
        owner = member

        def check(topic_id: UUID, partition: int) -> ErrorCode:
            held: tuple[OwnedPartitions, ...] = (owner.owned, owner.revoking)
            for owned in held:
                given_epoch = owned.get(topic_id, {}).get(partition)
                if given_epoch is not None and given_epoch <= epoch:
                    return ErrorCode.NONE
            return self._epoch_error(owner, epoch)

        return check

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.subscribed_names()

    def _other_tombstones(self) -> list[CoordinatorRecord]:
        found = [REGEX.record(None, self.group_id, expression) for expression in self.regexes]
        if self.has_partition_metadata:
            found.append(PARTITION_METADATA.record(None, self.group_id))
        return found


def _is_reconciled(group: ConsumerGroup) -> bool:
    return all(member.is_reconciled_to(group.assignment_epoch) for member in group.members.values())


_STATE_RULES: Final[tuple[tuple[ConsumerState, Callable[[ConsumerGroup], bool]], ...]] = (
    # The group is deleted.
    (ConsumerState.DEAD, lambda group: group.is_dead),
    # The group has no members.
    (ConsumerState.EMPTY, lambda group: not group.members),
    # The members or topics have changed, and no target assignment of the new group epoch exists yet.
    (ConsumerState.ASSIGNING, lambda group: group.epoch > group.assignment_epoch),
    # Every member has reached its target assignment.
    (ConsumerState.STABLE, _is_reconciled),
    # Members still have to give up partitions or to receive them.
    (ConsumerState.RECONCILING, lambda group: True),
)
"""The states in the order in which their conditions are checked.

The state is derived from the records, never stored, so no transition can be forgotten.
"""
