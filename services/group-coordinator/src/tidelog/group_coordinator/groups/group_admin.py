"""DescribeGroups, ListGroups, DeleteGroups, and the expiry of offsets and groups."""

from __future__ import annotations

from typing import Final

from tidelog.group_coordinator.groups.classic.description import described
from tidelog.group_coordinator.groups.classic.group import ClassicGroup
from tidelog.group_coordinator.groups.shared import Groups, answer
from tidelog.group_coordinator.shard_core import Decision, Reply, ShardRequest
from tidelog.model.errors import ErrorCode
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

DEAD: Final = "Dead"
"""What DescribeGroups calls the state of a group that is not there."""
ABSENT_IS_ERROR_FROM: Final = 6
"""Version of DescribeGroups."""


class GroupAdmin:
    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    def describe(self, request: ShardRequest, now_ms: int) -> Decision:
        message: DescribeGroupsRequest = request.message
        return answer(
            request,
            DescribeGroupsResponse(
                groups=[self._described(group_id, request.api_version) for group_id in message.groups]
            ),
        )

    def _described(self, group_id: str, version: int) -> DescribedGroup:
        """Other kinds than classic ones are as good as not there (KIP-1043: from version 6 an error)."""
        group = self._groups.by_id.get(group_id)
        if isinstance(group, ClassicGroup):
            return described(group)
        absent = DescribedGroup(group_id=group_id, group_state=DEAD)
        if version >= ABSENT_IS_ERROR_FROM:
            absent.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            what = "not found" if group is None else "is not a classic group"
            absent.error_message = f"Group {group_id} {what}."
        return absent

    def list(self, request: ShardRequest, now_ms: int) -> Decision:
        """Filters by state and type, without regard to case (KIP-518, KIP-848)."""
        message: ListGroupsRequest = request.message
        states = {state.lower() for state in message.states_filter}
        types = {kind.lower() for kind in message.types_filter}

        def is_asked_for(group: ListedGroup) -> bool:
            return (not states or group.group_state.lower() in states) and (
                not types or group.group_type.lower() in types
            )

        listed = (group.listed() for group in self._groups.by_id.values())
        return answer(request, ListGroupsResponse(groups=[group for group in listed if is_asked_for(group)]))

    def delete(self, request: ShardRequest, now_ms: int) -> Decision:
        message: DeleteGroupsRequest = request.message
        decision = Decision()
        results = []
        for group_id in message.groups_names:
            group = self._groups.by_id.get(group_id)
            error = ErrorCode.GROUP_ID_NOT_FOUND if group is None else group.check_delete()
            if group is not None and error is ErrorCode.NONE:
                self._groups.drop(group, decision)
            results.append(DeletableGroupResult(group_id=group_id, error_code=error))
        decision.replies.append(Reply(request.reply_to, DeleteGroupsResponse(results=results)))
        return decision

    def expire(self, now_ms: int) -> Decision:
        """Offsets past their retention go; groups without members and offsets with them."""
        decision = Decision()
        offsets = self._groups.offsets
        for group in list(self._groups.by_id.values()):
            offsets.expire(group, now_ms, decision)
            if not group.has_members() and not offsets.has_offsets(group.group_id):
                self._groups.drop(group, decision)
        return decision
