"""DescribeGroups, ListGroups, DeleteGroups, and the expiry of offsets and groups."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Final

from tidelog.group_coordinator.answer_room import described_within_bound
from tidelog.group_coordinator.groups.classic.classic_group import ClassicGroup, ClassicState
from tidelog.group_coordinator.groups.share.share_admin import ShareAdmin
from tidelog.group_coordinator.groups.share.share_group import ShareGroup
from tidelog.group_coordinator.groups.shared import Group, Groups, answer
from tidelog.group_coordinator.shard_core import Reply, ShardDecision, ShardRequest
from tidelog.model.errors import ErrorCode
from tidelog.model.instants import WallMs
from tidelog.model.topics import TopicPartition
from tidelog.timing.steps import Steps
from tidelog.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from tidelog.wire.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from tidelog.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

ABSENT_IS_ERROR_FROM: Final = 6
"""The version of DescribeGroups that answers GROUP_ID_NOT_FOUND for an absent group (KIP-1043)."""

MAX_EXAMINED_AT_ONCE: Final = 500
"""The groups and offsets after which an expiry pauses. All shards of a coordinator may expire at once."""


class GroupAdmin:
    """The requests of administrators about groups of any kind."""

    def __init__(self, groups: Groups, share: ShareAdmin) -> None:
        self._groups = groups
        self._share = share
        self._to_expire: deque[str] = deque()
        """The groups that the expiry under way has not examined yet, or the first of them only in part."""
        self._to_examine: list[TopicPartition] | None = None
        """The partitions of the first group of `_to_expire` that are not examined yet. None if no partition
        is examined.
        """

    def describe(self, request: ShardRequest[DescribeGroupsRequest], now_ms: WallMs) -> ShardDecision:
        described = described_within_bound(
            request.message.groups,
            lambda group_id: self._described(group_id, request.api_version),
            lambda group_id, error: DescribedGroup(error_code=error, group_id=group_id),
            lambda groups: DescribeGroupsResponse(groups=groups),
        )
        return answer(request, described)

    def _described(self, group_id: str, version: int) -> Steps[DescribedGroup]:
        """Describes a classic group. A group of another kind counts as absent."""
        group = self._groups.by_id.get(group_id)
        if isinstance(group, ClassicGroup):
            return (yield from group.described())
        absent = DescribedGroup(group_id=group_id, group_state=ClassicState.DEAD)
        if version >= ABSENT_IS_ERROR_FROM:
            absent.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            reason = "not found" if group is None else "is not a classic group"
            absent.error_message = f"Group {group_id} {reason}."
        return absent

    def list(self, request: ShardRequest[ListGroupsRequest], now_ms: WallMs) -> ShardDecision:
        return answer(request, self._listed(request.message))

    def _listed(self, message: ListGroupsRequest) -> Steps[ListGroupsResponse]:
        """Lists groups, filtered by state (KIP-518) and type (KIP-848). The filters ignore case."""
        states = {state.lower() for state in message.states_filter}
        types = {kind.lower() for kind in message.types_filter}

        def is_requested(group: ListedGroup) -> bool:
            return (not states or group.group_state.lower() in states) and (
                not types or group.group_type.lower() in types
            )

        response = ListGroupsResponse()
        for group_id in tuple(self._groups.by_id):
            group = self._groups.by_id.get(group_id)
            if group is not None and is_requested(listed := group.listed()):  # None if deleted meanwhile
                response.groups.append(listed)
            yield
        return response

    def delete(self, request: ShardRequest[DeleteGroupsRequest], now_ms: WallMs) -> ShardDecision:
        """Deletes groups. The reply waits until the states of share groups and all offsets are deleted."""
        decision = ShardDecision()
        names = request.message.groups_names
        errors: dict[int, ErrorCode] = {}

        def answered(number: int, error: ErrorCode) -> list[Reply]:
            errors[number] = error
            if len(errors) < len(names):
                return []
            results = [DeletableGroupResult(name, errors[at]) for at, name in enumerate(names)]
            return [Reply(request.reply_to, DeleteGroupsResponse(results=results))]

        for number, group_id in enumerate(names):
            group = self._groups.by_id.get(group_id)
            error = ErrorCode.GROUP_ID_NOT_FOUND if group is None else group.check_delete()
            if group is not None and error is ErrorCode.NONE:
                if isinstance(group, ShareGroup):
                    self._share.delete_group(group, decision, now_ms, partial(answered, number))
                    continue
                if not self._groups.delete(group, decision, partial(answered, number)):
                    continue
            decision.replies += answered(number, error)
        if not names:
            decision.replies.append(Reply(request.reply_to, DeleteGroupsResponse()))
        return decision

    def expire(self, now_ms: WallMs, decision: ShardDecision) -> bool:
        """Deletes offsets whose retention time is over, then groups without members and offsets.

        Returns False if it has paused. The next call then examines the other offsets and groups.
        """
        offsets = self._groups.offsets
        if not self._to_expire:
            offsets.forget_producers(now_ms)
            self._to_expire.extend(self._groups.by_id)
        examined = 0
        while self._to_expire and examined < MAX_EXAMINED_AT_ONCE:
            group = self._groups.by_id.get(self._to_expire[0])
            if group is not None:  # otherwise deleted during a pause
                if self._to_examine is None:
                    self._to_examine = offsets.committed_partitions(group.group_id)
                now_examined = self._to_examine[: MAX_EXAMINED_AT_ONCE - examined]
                del self._to_examine[: len(now_examined)]
                examined += 1 + len(now_examined)
                offsets.expire(group, now_examined, now_ms, decision)
                if self._to_examine:
                    return False
                self._delete_if_unused(group, decision)
            self._to_expire.popleft()
            self._to_examine = None
        return not self._to_expire

    def _delete_if_unused(self, group: Group, decision: ShardDecision) -> None:
        if isinstance(group, ShareGroup) and not group.partitions.is_empty():
            return  # its progress is in the states of its share partitions
        if not group.has_members() and not self._groups.offsets.has_offsets(group.group_id):
            self._groups.delete(group, decision)
