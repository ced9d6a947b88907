"""Runs a GroupCore in virtual time, keeps its records, and checks that no request is answered twice."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any  # Any: generated messages have no common base

from grouplab.shards import completed
from tidelog.group_coordinator.groups.classic.classic_group import ClassicGroup
from tidelog.group_coordinator.groups.group_core import GroupCore
from tidelog.group_coordinator.shard_core import (
    ClusterImage,
    CoordinatorRecord,
    Refused,
    ReplayedRecord,
    Reply,
    SetTimer,
    ShardDecision,
    ShardRequest,
    TopicsNeeded,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import DescribableTopics
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.codec import record_codec, response_encoder
from tidelog.wire.messages.describe_groups import DescribedGroup, DescribeGroupsRequest
from tidelog.wire.messages.heartbeat import HeartbeatRequest
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidelog.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tidelog.wire.messages.records.consumer_protocol_subscription import ConsumerProtocolSubscription
from tidelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

GROUP = "readers"
SESSION_MS = 10_000
REBALANCE_MS = 60_000


class AnsweredTwiceError(AssertionError):
    pass


def subscription(*topics: str) -> bytes:
    return record_codec(ConsumerProtocolSubscription).encode(
        ConsumerProtocolSubscription(topics=list(topics))
    )


EAGER: dict[str, Any] = {
    "group_consumer_assignment_interval_ms": 0,
    "group_share_assignment_interval_ms": 0,
}
"""Settings with which each change of a group gives another assignment at once."""


class ShardLab:
    def __init__(
        self, settings: BrokerSettings | None = None, now_ms: int = 1_000_000, uuids: str = "u{}"
    ) -> None:
        self.settings = settings or BrokerSettings(**EAGER)
        self.now_ms = now_ms
        self.log: list[CoordinatorRecord] = []
        self.owed: dict[Hashable, ShardRequest] = {}
        self.answers: dict[Hashable, Any] = {}
        self.answered: list[tuple[ShardRequest, Any]] = []
        self.on_decision: Callable[[ShardDecision], None] = lambda decision: None
        self._uuids = uuids
        self._uuid = 0
        self._reply_to = 0
        self.timers: dict[Hashable, int] = {}
        self.image = ClusterImage(1, {}, {})
        self.describable: DescribableTopics | None = None
        """The topics that clients may describe; None for all."""
        self.core = self._new_core()
        self.take(self.core.activate(self.image, self.now_ms))

    def _new_core(self) -> GroupCore:
        return GroupCore(self.settings, self._new_uuid)

    def _new_uuid(self) -> str:
        self._uuid += 1
        return self._uuids.format(self._uuid)

    # -- the runtime's part

    def take(self, decision: ShardDecision) -> None:
        self.log += decision.records
        for timer in decision.timers:
            if isinstance(timer, SetTimer):
                self.timers[timer.key] = self.now_ms + timer.delay_ms
            else:
                self.timers.pop(timer.key, None)
        self._take_replies(decision.replies)
        self.on_decision(decision)

    def _take_replies(self, replies: list[Reply]) -> None:
        for reply_to, in_steps, _ in replies:
            message = completed(in_steps)
            request = self.owed.pop(reply_to, None)
            if request is None:
                raise AnsweredTwiceError(f"{reply_to}: {message}")
            if isinstance(message, TopicsNeeded):
                self._handle(request._replace(describable=self.describable))
                continue
            if not isinstance(message, Refused):
                response_encoder(request.api_key, request.api_version)(message)
            self.answers[reply_to] = message
            self.answered.append((request, message))

    def pass_time(self, milliseconds: int) -> None:
        end_ms = self.now_ms + milliseconds
        while self.timers:
            key, deadline_ms = min(self.timers.items(), key=lambda timer: timer[1])
            if deadline_ms > end_ms:
                break
            del self.timers[key]
            self.now_ms = max(self.now_ms, deadline_ms)
            self.take(self.core.timer_fired(key, self.now_ms))
        self.now_ms = end_ms

    def fail_over(self) -> None:
        """Lets another coordinator load the shard."""
        self._take_replies(self.core.deactivate())
        self.timers.clear()
        self.core = self.reloaded()
        self.take(self.core.activate(self.image, self.now_ms))

    def reloaded(self) -> GroupCore:
        core = self._new_core()
        for offset, record in enumerate(self.log):
            core.replay(ReplayedRecord(record.key, record.value, self.now_ms, None), offset)
        return core

    # -- requests

    def send(self, api_key: ApiKey, api_version: int, message: Any, client_id: str = "client") -> int:
        """Sends a request and returns the number under which `answers` will hold the response."""
        self._reply_to += 1
        untold = None if self.describable is None else DescribableTopics()
        self._handle(
            ShardRequest(
                self._reply_to,
                api_key,
                api_version,
                message,
                client_id=client_id,
                host="127.0.0.1",
                describable=untold,
            )
        )
        return self._reply_to

    def _handle(self, request: ShardRequest) -> None:
        self.owed[request.reply_to] = request
        self.take(self.core.handle(request, self.now_ms))

    def ask(self, api_key: ApiKey, api_version: int, message: Any) -> Any:
        """Sends a request and returns the response, which must follow at once."""
        return self.answers[self.send(api_key, api_version, message)]

    def join(
        self,
        member_id: str = "",
        *,
        group: str = GROUP,
        version: int = 9,
        instance: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = (("range", subscription("orders")),),
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        client_id: str = "client",
    ) -> int:
        return self.send(
            ApiKey.JOIN_GROUP,
            version,
            JoinGroupRequest(
                group_id=group,
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=rebalance_ms,
                member_id=member_id,
                group_instance_id=instance,
                protocol_type=protocol_type,
                protocols=[JoinGroupRequestProtocol(name, memoryview(data)) for name, data in protocols],
            ),
            client_id,
        )

    def join_with_id(self, **how: Any) -> tuple[str, int]:
        """Obtains an id and joins with it, as a client does. Returns the id and the number of the join."""
        given = self.answers[self.join(**how)]
        assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED
        return given.member_id, self.join(given.member_id, **how)

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        group: str = GROUP,
        instance: str | None = None,
        version: int = 5,
        protocol: str | None = None,
    ) -> int:
        """Sends a SyncGroup, by default with the group's own protocol."""
        known = self.core.groups.by_id.get(group)
        kind = known.protocol_type if isinstance(known, ClassicGroup) else None
        own = known.protocol if isinstance(known, ClassicGroup) else None
        return self.send(
            ApiKey.SYNC_GROUP,
            version,
            SyncGroupRequest(
                group_id=group,
                generation_id=generation,
                member_id=member_id,
                group_instance_id=instance,
                protocol_type=kind or "consumer",
                protocol_name=protocol or own or "range",
                assignments=[
                    SyncGroupRequestAssignment(name, memoryview(data))
                    for name, data in (assignments or {}).items()
                ],
            ),
        )

    def heartbeat(
        self, member_id: str, generation: int, *, group: str = GROUP, instance: str | None = None
    ) -> ErrorCode:
        request = HeartbeatRequest(group, generation, member_id, instance)
        return ErrorCode(self.ask(ApiKey.HEARTBEAT, 4, request).error_code)

    def leave(self, *members: tuple[str, str | None], group: str = GROUP) -> list[ErrorCode]:
        request = LeaveGroupRequest(
            group_id=group, members=[MemberIdentity(member_id, instance) for member_id, instance in members]
        )
        answer = self.ask(ApiKey.LEAVE_GROUP, 5, request)
        assert answer.error_code == ErrorCode.NONE
        return [ErrorCode(member.error_code) for member in answer.members]

    def describe(self, group: str = GROUP) -> DescribedGroup:
        described: DescribedGroup = self.ask(
            ApiKey.DESCRIBE_GROUPS, 6, DescribeGroupsRequest(groups=[group])
        ).groups[0]
        return described

    # -- short cuts

    def group(self, group: str = GROUP) -> ClassicGroup:
        found = self.core.groups.by_id[group]
        assert isinstance(found, ClassicGroup)
        return found

    def stable_group(self, size: int, **how: Any) -> list[str]:
        """Forms a stable group and returns the member ids, the leader's first. Assignments are the ids."""
        joins = [self.join_with_id(**how) for _ in range(size)]
        self.pass_time(self.settings.group_initial_rebalance_delay_ms)
        while not all(number in self.answers for _, number in joins):
            self.pass_time(self.settings.group_initial_rebalance_delay_ms)
        self.sync_all([member_id for member_id, _ in joins])
        leader = self.group().leader
        return sorted((member_id for member_id, _ in joins), key=lambda member_id: member_id != leader)

    def sync_all(self, member_ids: list[str]) -> None:
        """Assigns each member its own id."""
        group = self.group()
        assert group.leader is not None
        self.sync(group.leader, group.generation, {name: name.encode() for name in group.members})
        for member_id in member_ids:
            if member_id != group.leader:
                answer = self.answers[self.sync(member_id, group.generation)]
                assert bytes(answer.assignment) == member_id.encode()
