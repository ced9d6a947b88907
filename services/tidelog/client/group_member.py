"""The only member of a classic consumer group, for checks: it joins, commits and leaves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidelog.client.answers import raise_on_error
from tidelog.client.cluster import Cluster
from tidelog.client.coordinators import CONSUMER_PROTOCOL, GROUP, coordinator_of, until_loaded
from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from tidelog.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidelog.wire.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

SESSION_TIMEOUT_MS: Final = 10_000
REBALANCE_TIMEOUT_MS: Final = 10_000
_ASSIGNOR: Final = "range"
_NOTHING: Final = b"\x00\x00" + b"\x00" * 4 + b"\xff" * 4
"""An empty ConsumerProtocol subscription or assignment in version 0, without topics and user data."""
_LAST_COMMIT_BY_NAME: Final = 9


class GroupMember:
    """A member, which is not thread-safe. Every call is retried while the coordinator loads or moves."""

    def __init__(self, cluster: Cluster, group_id: str) -> None:
        self._cluster = cluster
        self.group_id = group_id
        self._member_id = ""
        self._generation = -1

    def join(self) -> None:
        """Joins the group. Raises KafkaError, ClientError."""
        until_loaded(self._cluster, self._join)
        until_loaded(self._cluster, self._sync)

    def commit(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Commits the next offset of each partition. Raises KafkaError, ClientError."""
        rows = [OffsetCommitRequestPartition(partition, offset) for partition, offset in offsets.items()]
        request = OffsetCommitRequest(
            self.group_id,
            self._generation,
            self._member_id,
            topics=[OffsetCommitRequestTopic(topic, partitions=rows)],
        )

        def ask() -> None:
            answer = coordinator_of(self._cluster, GROUP, self.group_id).call(
                request, OffsetCommitResponse, at_least=2, at_most=_LAST_COMMIT_BY_NAME
            )
            for row in answer.topics[0].partitions:
                raise_on_error(row.error_code, f"commit of partition {row.partition_index}")

        until_loaded(self._cluster, ask)

    def leave(self) -> None:
        """Leaves the group. Raises KafkaError, ClientError."""
        member = MemberIdentity(self._member_id)
        request = LeaveGroupRequest(self.group_id, self._member_id, [member])

        def ask() -> None:
            answer = coordinator_of(self._cluster, GROUP, self.group_id).call(request, LeaveGroupResponse)
            raise_on_error(answer.error_code, f"group '{self.group_id}'")

        until_loaded(self._cluster, ask)

    def _join(self) -> None:
        answer = self._ask_to_join()
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:  # the broker first assigns an id (KIP-394)
            self._member_id = answer.member_id
            answer = self._ask_to_join()
        raise_on_error(answer.error_code, f"group '{self.group_id}'")
        self._member_id = answer.member_id
        self._generation = answer.generation_id

    def _ask_to_join(self) -> JoinGroupResponse:
        request = JoinGroupRequest(
            self.group_id,
            SESSION_TIMEOUT_MS,
            REBALANCE_TIMEOUT_MS,
            self._member_id,
            protocol_type=CONSUMER_PROTOCOL,
            protocols=[JoinGroupRequestProtocol(_ASSIGNOR, _NOTHING)],
        )
        return coordinator_of(self._cluster, GROUP, self.group_id).call(
            request, JoinGroupResponse, wait_ms=REBALANCE_TIMEOUT_MS
        )

    def _sync(self) -> None:
        request = SyncGroupRequest(
            self.group_id,
            self._generation,
            self._member_id,
            protocol_type=CONSUMER_PROTOCOL,
            protocol_name=_ASSIGNOR,
            assignments=[SyncGroupRequestAssignment(self._member_id, _NOTHING)],
        )
        answer = coordinator_of(self._cluster, GROUP, self.group_id).call(request, SyncGroupResponse)
        raise_on_error(answer.error_code, f"group '{self.group_id}'")
