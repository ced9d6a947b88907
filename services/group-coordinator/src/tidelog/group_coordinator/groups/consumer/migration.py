"""A classic group that becomes a consumer group, and back, while its members work (KIP-848,
`group.consumer.migration.policy`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final
from uuid import UUID

from tidelog.group_coordinator.groups.classic.classic_groups import ClassicGroups
from tidelog.group_coordinator.groups.classic.group import ClassicGroup, ClassicState
from tidelog.group_coordinator.groups.classic.member import ClassicMember, MemberProtocol
from tidelog.group_coordinator.groups.consumer import group_records as records
from tidelog.group_coordinator.groups.consumer.classic_protocol import (
    encode_assignment,
    owned_partitions,
    read_assignment,
    read_subscription,
)
from tidelog.group_coordinator.groups.consumer.consumer_group import CONSUMER_PROTOCOL_TYPE, ConsumerGroup
from tidelog.group_coordinator.groups.consumer.group_changes import (
    JOIN,
    SESSION,
    SYNC,
    GroupChanges,
)
from tidelog.group_coordinator.groups.consumer.member import ClassicSide, Member
from tidelog.group_coordinator.groups.shared import Group, Groups
from tidelog.group_coordinator.shard_core import Decision
from tidelog.model.errors import ErrorCode, KafkaError

_UPGRADE_POLICIES: Final = ("upgrade", "bidirectional")
_DOWNGRADE_POLICIES: Final = ("downgrade", "bidirectional")


# -- upgrade


def from_classic(groups: Groups, known: Group) -> ConsumerGroup:
    """A consumer group of the same members, epoch and assignment; nothing is changed yet. Raises KafkaError
    (GROUP_ID_NOT_FOUND) if the group may not become one.
    """
    if not isinstance(known, ClassicGroup):
        raise _refused(known, "it is of another kind")
    if not known.members:
        return ConsumerGroup(known.group_id)
    settings = groups.settings
    if settings.group_consumer_migration_policy.lower() not in _UPGRADE_POLICIES:
        raise _refused(known, "online upgrade is disabled")
    if not known.uses_consumer_protocol:
        raise _refused(known, "it does not use the consumer embedded protocol")
    if len(known.members) > settings.group_consumer_max_size:
        raise _refused(known, "its size exceeds the consumer group maximum size")
    group = ConsumerGroup(known.group_id)
    group.put_group(known.generation, 0)
    group.assignment_epoch = known.generation
    for classic in known.members.values():
        try:
            member, assigned = _from_classic_member(groups, known, classic, group.owners)
        except ValueError as error:
            raise _refused(known, str(error)) from None
        group.put_subscription(member)
        group.put_standing(member)
        group.targets[member.member_id] = assigned
    return group


def _refused(known: Group, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Cannot upgrade classic group {known.group_id} to consumer group because {why}.",
    )


def _from_classic_member(
    groups: Groups,
    group: ClassicGroup,
    classic: ClassicMember,
    taken: Mapping[UUID, Mapping[int, str]],
) -> tuple[Member, dict[UUID, frozenset[int]]]:
    """Raises ValueError."""
    subscription = read_subscription(classic.metadata(group.protocol) or classic.protocols[0].metadata)
    assigned = read_assignment(classic.assignment, groups.image)
    if not assigned:
        # Within a rebalance assignments are gone, but who is cooperative still holds what it says.
        assigned = owned_partitions(subscription, groups.image)
    assigned = {
        topic_id: free
        for topic_id, found in assigned.items()
        if (free := found - taken.get(topic_id, {}).keys())
    }
    protocols = tuple((protocol.name, protocol.metadata) for protocol in classic.protocols)
    member = Member(
        classic.member_id,
        instance_id=classic.group_instance_id,
        rack_id=subscription.rack_id,
        client_id=classic.client_id,
        client_host=classic.client_host,
        rebalance_timeout_ms=classic.rebalance_timeout_ms,
        topic_names=frozenset(subscription.topics),
        classic=ClassicSide(classic.session_timeout_ms, protocols),
        member_epoch=group.generation,
        previous_epoch=group.generation,
        owned={topic: dict.fromkeys(found, group.generation) for topic, found in assigned.items()},
    )
    return member, assigned


def take_over(
    classic: ClassicGroups, known: Group, group: ConsumerGroup, decision: Decision, now_ms: int
) -> None:
    """The records by which the one ends and the other begins; `group` is as `from_classic` made it."""
    assert isinstance(known, ClassicGroup)
    classic.abandon(known, now_ms, decision)
    if not group.members:
        return
    group_id = group.group_id
    written = decision.records
    written += [records.member_record(group_id, member) for member in group.members.values()]
    written.append(records.group_record(group_id, group.epoch, group.metadata_hash))
    written += [records.target_record(group_id, name, target) for name, target in group.targets.items()]
    written.append(records.target_epoch_record(group_id, group.assignment_epoch, now_ms))
    written += [records.current_record(group_id, member) for member in group.members.values()]


# -- downgrade


def may_become_classic(groups: Groups, group: ConsumerGroup, gone: Collection[str]) -> bool:
    """Whether, without those, only members of the classic protocol are left."""
    left = [member for member in group.members.values() if member.member_id not in gone]
    return (
        bool(left)
        and all(member.classic is not None for member in left)
        and groups.settings.group_consumer_migration_policy.lower() in _DOWNGRADE_POLICIES
        and len(left) <= groups.settings.group_max_size
    )


def to_classic(
    groups: Groups, classic: ClassicGroups, group: ConsumerGroup, decision: Decision, now_ms: int
) -> None:
    """All members are of the classic protocol. They are called to join again."""
    changes = GroupChanges(groups, group, decision, now_ms)
    made = ClassicGroup(group.group_id, now_ms)
    made.generation = group.epoch
    for member in group.members.values():
        for what in (SESSION, JOIN, SYNC):
            changes.cancel_timer(what, member.member_id)
        made.add(_to_classic_member(groups, member), CONSUMER_PROTOCOL_TYPE)
    made.protocol = made.select_protocol()
    made.state = ClassicState.STABLE
    decision.records += group.tombstones()
    classic.adopt(made, now_ms, decision)


def _to_classic_member(groups: Groups, member: Member) -> ClassicMember:
    assert member.classic is not None
    protocols = tuple(MemberProtocol(name, data) for name, data in member.classic.protocols)
    return ClassicMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.classic.session_timeout_ms,
        protocols=protocols,
        assignment=encode_assignment(member.owned, protocols[0].metadata, groups.image),
    )
