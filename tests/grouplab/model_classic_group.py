"""A model of a classic group whose members are the cores of our consumer, in virtual time.

The coordinator lets all members join, sends the leader their subscriptions, and gives the leader's assignment
to the members that sync. The faults and the checks are those of `ModelGroup`. A member that is late for a
rebalance is removed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from grouplab.model_group import SESSION_TIMEOUT_MS, Application, GroupFaults, ModelGroup
from tidelog.client.core.consuming.classic_membership import (
    ClassicAnswer,
    GroupHeartbeat,
    GroupHeartbeatAnswered,
    GroupMember,
    JoinAnswered,
    JoinGroup,
    SyncAnswered,
    SyncGroup,
)
from tidelog.client.core.consuming.consumer_events import GroupRequestFailed
from tidelog.client.core.settings import ConsumerSettings
from tidelog.model.errors import ErrorCode

REBALANCE_TIMEOUT_MS = 2_000
EXPIRY_CHECK_MS = 200


class GroupState(Enum):
    EMPTY = "empty"
    PREPARING = "preparing"
    COMPLETING = "completing"
    STABLE = "stable"


@dataclass
class JoinedMember:
    last_seen_ms: int
    protocols: tuple[tuple[str, bytes], ...] = ()
    assignment: bytes = b""
    join: tuple[JoinGroup, Callable[[Any], None]] | None = None
    """The JoinGroup that waits for an answer."""
    sync: tuple[SyncGroup, Callable[[Any], None]] | None = None


class ModelClassicGroup(ModelGroup):
    """Members of a classic group, its coordinator and the logs of a topic."""

    def __init__(
        self, settings: ConsumerSettings, seed: int, faults: GroupFaults, partition_count: int = 4
    ) -> None:
        super().__init__(settings, seed, faults, partition_count)
        self.state = GroupState.EMPTY
        self.generation = 0
        self.leader = ""
        self.joined: dict[str, JoinedMember] = {}
        self.pending: set[str] = set()
        self._ids = 0
        self.at(EXPIRY_CHECK_MS, self._expire_regularly)

    # -- what ModelGroup asks

    def _member_name(self, application: Application) -> str:
        membership = application.core.membership
        assert membership is not None
        return membership.member_id or ""

    def stop_member(self, application: Application, *, leaves: bool) -> None:
        super().stop_member(application, leaves=False)
        if leaves:
            self._remove(self._member_name(application))

    def _epoch_moves(self, application: Application) -> bool:
        membership = application.core.membership
        assert membership is not None
        is_member = self._member_name(application) in self.joined
        return is_member and (membership.epoch != self.generation or self.state is GroupState.COMPLETING)

    def _may_commit(self, application: Application) -> bool:
        return self._member_name(application) in self.joined and not self._epoch_moves(application)

    def _may_deliver(self, application: Application, partition: int) -> bool:
        """No two members of the present generation have a partition. A removed member may not know it yet."""
        if not self._is_present(application):
            return True
        return not any(
            place.partition == partition and not owned.is_revoked
            for other in self.applications
            if other is not application and self._is_present(other)
            for place, owned in other.core.partitions.items()
        )

    def _is_present(self, application: Application) -> bool:
        membership = application.core.membership
        assert membership is not None
        return self._member_name(application) in self.joined and membership.epoch == self.generation

    # -- the coordinator

    def _ask_group(self, application: Application, request: Any) -> None:
        lost = GroupRequestFailed(request)

        def reply(answer: ClassicAnswer) -> None:
            is_lost = self._happens(self.faults.lost)
            self.at(self._delay(), lambda: self._step(application, lost if is_lost else answer))

        def arrive() -> None:
            if not application.is_alive:
                return
            if self._happens(self.faults.lost):
                self.at(self._delay(), lambda: self._step(application, lost))
                return
            match request:
                case JoinGroup():
                    self._join(request, reply)
                case SyncGroup():
                    self._sync(request, reply)
                case GroupHeartbeat():
                    reply(GroupHeartbeatAnswered(request, self._hear(request)))

        self.at(self._delay(), arrive)

    def _join(self, request: JoinGroup, reply: Callable[[Any], None]) -> None:
        member_id = request.member_id
        if not member_id:
            self._ids += 1
            self.pending.add(f"id{self._ids}")
            reply(JoinAnswered(request, ErrorCode.MEMBER_ID_REQUIRED, f"id{self._ids}", -1, "", "", ()))
            return
        if member_id in self.pending:
            self.pending.discard(member_id)
            self.joined[member_id] = JoinedMember(self.now_ms)
        member = self.joined.get(member_id)
        if member is None:
            reply(JoinAnswered(request, ErrorCode.UNKNOWN_MEMBER_ID, "", -1, "", "", ()))
            return
        member.last_seen_ms = self.now_ms
        member.protocols = request.protocols
        member.join = (request, reply)
        self._prepare()

    def _prepare(self) -> None:
        if self.state is not GroupState.PREPARING:
            self.state = GroupState.PREPARING
            for member in self.joined.values():
                if member.sync is not None:
                    (request, reply), member.sync = member.sync, None
                    reply(SyncAnswered(request, ErrorCode.REBALANCE_IN_PROGRESS, b""))
            generation = self.generation
            self.at(REBALANCE_TIMEOUT_MS, lambda: self._give_up_waiting(generation))
        self._complete_join()

    def _give_up_waiting(self, generation: int) -> None:
        if self.state is GroupState.PREPARING and self.generation == generation:
            for member_id in [name for name, member in self.joined.items() if member.join is None]:
                del self.joined[member_id]
            self._complete_join()

    def _complete_join(self) -> None:
        if not self.joined:
            self.state = GroupState.EMPTY
            return
        if any(member.join is None for member in self.joined.values()):
            return
        self.generation += 1
        self.state = GroupState.COMPLETING
        names = list(self.joined)
        self.leader = self.leader if self.leader in self.joined else names[0]
        protocol = next(
            name
            for name, _ in self.joined[self.leader].protocols
            if all(name in dict(member.protocols) for member in self.joined.values())
        )
        told = tuple(
            GroupMember(name, None, dict(member.protocols)[protocol]) for name, member in self.joined.items()
        )
        for name, member in self.joined.items():
            assert member.join is not None
            (request, reply), member.join = member.join, None
            member.last_seen_ms = self.now_ms
            members = told if name == self.leader else ()
            reply(JoinAnswered(request, 0, name, self.generation, protocol, self.leader, members))

    def _sync(self, request: SyncGroup, reply: Callable[[Any], None]) -> None:
        error = self._hear(GroupHeartbeat(0, request.member_id, request.generation))
        if error:
            reply(SyncAnswered(request, error, b""))
            return
        member = self.joined[request.member_id]
        member.sync = (request, reply)
        if self.state is GroupState.COMPLETING and request.member_id == self.leader:
            given = dict(request.assignments)
            for name, other in self.joined.items():
                other.assignment = given.get(name, b"")
            self.state = GroupState.STABLE
        if self.state is GroupState.STABLE:
            for other in self.joined.values():
                if other.sync is not None:
                    (waiting, answer), other.sync = other.sync, None
                    other.last_seen_ms = self.now_ms
                    answer(SyncAnswered(waiting, 0, other.assignment))

    def _hear(self, request: GroupHeartbeat) -> ErrorCode:
        member = self.joined.get(request.member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if request.generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        member.last_seen_ms = self.now_ms
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING else ErrorCode.NONE

    def _expire_regularly(self) -> None:
        for name, member in list(self.joined.items()):
            waits = member.join is not None or member.sync is not None
            if not waits and self.now_ms - member.last_seen_ms > SESSION_TIMEOUT_MS:
                self._remove(name)
        self.at(EXPIRY_CHECK_MS, self._expire_regularly)

    def _remove(self, name: str) -> None:
        if self.joined.pop(name, None) is not None:
            self._prepare()
