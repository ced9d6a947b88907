"""How a member comes from what it owns to what it is to own (KIP-848; Kafka's CurrentAssignmentBuilder).

First it gives up what is no longer its own and stays in its epoch until it has said so; then it moves to
the epoch of the target and gets what is free; what others still hold it gets once they have let go.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from tidelog.group_coordinator.groups.consumer.assignment import (
    Assignment,
    OwnedPartitions,
    holds_any,
)
from tidelog.group_coordinator.groups.consumer.member import Member, MemberState
from tidelog.model.errors import ErrorCode, KafkaError


class Goal(NamedTuple):
    """`is_held_by_other(topic_id, partition)` tells of partitions that another member has not given up."""

    epoch: int
    target: Assignment
    subscribed: Set[UUID]
    is_held_by_other: Callable[[UUID, int], bool]


def reconcile(
    member: Member, goal: Goal, told_owned: Assignment | None, *, subscription_changed: bool
) -> Member:
    """The member as it is after this step. `told_owned` is what it says it owns, None if it says nothing.
    Raises KafkaError (FENCED_MEMBER_EPOCH).
    """
    match member.state:
        case MemberState.STABLE if member.member_epoch == goal.epoch:
            if subscription_changed:
                return _without_unsubscribed(member, goal, told_owned)
            return member
        case MemberState.UNREVOKED_PARTITIONS if _still_holds(told_owned, member.revoking):
            if subscription_changed:
                return _without_unsubscribed(member, goal, told_owned)
            return member
        case MemberState.UNKNOWN:
            if told_owned is None or told_owned:
                raise KafkaError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    "The member is in an unknown state; it must abandon all its partitions and rejoin.",
                )
            return _next(replace(member, member_epoch=goal.epoch), goal, told_owned)
    return _next(member, goal, told_owned)


def _still_holds(told_owned: Assignment | None, revoking: OwnedPartitions) -> bool:
    return told_owned is None or holds_any(told_owned, revoking)


def _without_unsubscribed(member: Member, goal: Goal, told_owned: Assignment | None) -> Member:
    """Topics it no longer subscribes to go at once, whatever the target still says."""
    leaving = {topic_id: found for topic_id, found in member.owned.items() if topic_id not in goal.subscribed}
    if not leaving:
        return member
    owned = {topic_id: found for topic_id, found in member.owned.items() if topic_id in goal.subscribed}
    revoking = {
        topic_id: {**member.revoking.get(topic_id, {}), **leaving.get(topic_id, {})}
        for topic_id in member.revoking.keys() | leaving.keys()
    }
    if _still_holds(told_owned, revoking):
        return _moved(
            member,
            member.member_epoch,
            state=MemberState.UNREVOKED_PARTITIONS,
            owned=owned,
            revoking=revoking,
        )
    return _moved(member, member.member_epoch, state=member.state, owned=owned, revoking=member.revoking)


def _next(member: Member, goal: Goal, told_owned: Assignment | None) -> Member:
    target = {topic_id: found for topic_id, found in goal.target.items() if topic_id in goal.subscribed}
    kept: dict[UUID, dict[int, int]] = {}
    revoking: dict[UUID, dict[int, int]] = {}
    for topic_id, found in member.owned.items():
        wanted = target.get(topic_id, frozenset())
        stays = {partition: epoch for partition, epoch in found.items() if partition in wanted}
        goes = {partition: epoch for partition, epoch in found.items() if partition not in wanted}
        if stays:
            kept[topic_id] = stays
        if goes:
            revoking[topic_id] = goes
    if revoking and _still_holds(told_owned, revoking):
        return _moved(
            member,
            member.member_epoch,
            state=MemberState.UNREVOKED_PARTITIONS,
            owned=kept,
            revoking=revoking,
        )
    waits = False
    for topic_id, wanted in target.items():
        missing = wanted - kept.get(topic_id, {}).keys()
        free = {partition for partition in missing if not goal.is_held_by_other(topic_id, partition)}
        waits = waits or len(free) < len(missing)
        if free:
            kept.setdefault(topic_id, {}).update(dict.fromkeys(sorted(free), goal.epoch))
    state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
    return _moved(member, goal.epoch, state=state, owned=kept, revoking={})


def _moved(
    member: Member, epoch: int, *, state: MemberState, owned: OwnedPartitions, revoking: OwnedPartitions
) -> Member:
    return replace(
        member,
        member_epoch=epoch,
        # Of the same epoch: the one before stays, an answer to it may have been lost.
        previous_epoch=member.previous_epoch if epoch == member.member_epoch else member.member_epoch,
        state=state,
        owned=owned,
        revoking=revoking,
    )
