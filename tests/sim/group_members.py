"""Members of classic groups, which join, divide the partitions, commit offsets and leave."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any, Final

from sim.clients import REQUEST_TIMEOUT_S, RETRY_S, Metadata
from sim.histories import Commit, CommitHistory
from sim.loop import MS_PER_S, SimLoop
from sim.network import Network
from sim.plan import TOPIC
from sim.requests import ask
from tidelog.model.coordinator_shards import ShardKind, shard_for
from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.heartbeat import HeartbeatRequest
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from tidelog.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from tidelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

JOIN_VERSION: Final = 5
SYNC_VERSION: Final = 3
HEARTBEAT_VERSION: Final = 3
LEAVE_VERSION: Final = 3
COMMIT_VERSION: Final = 7
FETCH_VERSION: Final = 7
SESSION_TIMEOUT_MS: Final = 2000
REBALANCE_TIMEOUT_MS: Final = 2000
STAYS_S: Final = 15.0
AWAY_S: Final = 2.0
NO_OFFSET: Final = -1


class CoordinatorAddress:
    """The broker that leads the partition of a name's shard, as far as any broker knows."""

    def __init__(self, metadata: Metadata, kind: ShardKind, name: str, partition_count: int) -> None:
        self._metadata = metadata
        self._topic_partition = shard_for(kind, name, partition_count).topic_partition
        self._broker: str | None = None

    async def broker(self) -> str | None:
        if self._broker is None:
            leader = await self._metadata.leader(self._topic_partition)
            self._broker = None if leader is None else f"broker-{leader.broker_id}"
        return self._broker

    def forget(self) -> None:
        self._broker = None


class LeftGroupError(Exception):
    """The member has to join again. With `is_unknown`, it needs a new member id."""

    def __init__(self, error: ErrorCode) -> None:
        super().__init__(error.name)
        self.is_unknown = error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)


class CoordinatorClient:
    """A client that asks the coordinator of one name."""

    def __init__(
        self, name: str, address: CoordinatorAddress, network: Network, chance: random.Random
    ) -> None:
        self.name = name
        self.is_stopped = False
        self.last_error = ""
        self._address = address
        self._network = network
        self._chance = chance

    @property
    def _now_s(self) -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        return loop.now

    async def ask(self, message: Any, version: int, timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        """Asks once. Returns None if there is no answer or no broker to ask. The caller then looks again."""
        broker = await self._address.broker()
        if broker is None:
            await self._pause()
            return None
        try:
            return await ask(self._network, broker, message, version, timeout_s=timeout_s, over_tcp=True)
        except ConnectionError as error:
            self.last_error = str(error)
            self._address.forget()
            await self._pause()
            return None

    async def _pause(self) -> None:
        await asyncio.sleep(RETRY_S * (0.5 + self._chance.random()))


class SimGroupMember(CoordinatorClient):
    """A member of a group. Its committed offsets carry names that identify the commit."""

    def __init__(
        self,
        name: str,
        group: str,
        partitions: int,
        address: CoordinatorAddress,
        network: Network,
        history: CommitHistory,
        chance: random.Random,
        *,
        mean_pause_s: float,
    ) -> None:
        super().__init__(name, address, network, chance)
        self._group = group
        self._partitions = partitions
        self._history = history
        self._mean_pause_s = mean_pause_s
        self._member_id = ""
        self._generation = -1
        self._number = 0

    async def run(self) -> None:
        while not self.is_stopped:
            try:
                owned = await self._join()
                await self._work(owned, self._now_s + self._chance.expovariate(1 / STAYS_S))
            except LeftGroupError as error:
                self.last_error = str(error)
                if error.is_unknown:
                    self._member_id = ""

    # -- requests

    async def refused(self, code: int) -> None:
        """Raises LeftGroupError unless the request should be repeated."""
        error = ErrorCode(code)
        self.last_error = error.name
        if error in (
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.ILLEGAL_GENERATION,
            ErrorCode.REBALANCE_IN_PROGRESS,
        ):
            raise LeftGroupError(error)
        self._address.forget()
        await self._pause()

    # -- membership

    async def _join(self) -> list[int]:
        """Joins the group and returns this member's partitions when all members have joined."""
        while True:
            request = JoinGroupRequest(
                group_id=self._group,
                session_timeout_ms=SESSION_TIMEOUT_MS,
                rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
                member_id=self._member_id,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol("simulated", b"")],
            )
            timeout_s = REBALANCE_TIMEOUT_MS / MS_PER_S + 2 * REQUEST_TIMEOUT_S
            answer = await self.ask(request, JOIN_VERSION, timeout_s)
            if self.is_stopped:
                return []
            if answer is None:
                continue
            if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self._member_id = answer.member_id
            elif answer.error_code:
                await self.refused(answer.error_code)
            else:
                self._member_id, self._generation = answer.member_id, answer.generation_id
                return await self._sync(answer)

    async def _sync(self, joined: JoinGroupResponse) -> list[int]:
        assignments = []
        if joined.leader == self._member_id:
            members = sorted(member.member_id for member in joined.members)
            assignments = [
                SyncGroupRequestAssignment(
                    member, json.dumps(list(range(at, self._partitions, len(members)))).encode()
                )
                for at, member in enumerate(members)
            ]
        while True:
            request = SyncGroupRequest(
                group_id=self._group,
                generation_id=self._generation,
                member_id=self._member_id,
                assignments=assignments,
            )
            timeout_s = REBALANCE_TIMEOUT_MS / MS_PER_S + 2 * REQUEST_TIMEOUT_S
            answer = await self.ask(request, SYNC_VERSION, timeout_s)
            if answer is None:
                continue
            if answer.error_code:
                await self.refused(answer.error_code)
                continue
            self._history.generation_known(self._group, self._generation, self._now_s)
            owned: list[int] = json.loads(bytes(answer.assignment) or b"[]")
            return owned

    async def _work(self, owned: list[int], until_s: float) -> None:
        await self._fetch(range(self._partitions))
        while not self.is_stopped and self._now_s < until_s:
            await asyncio.sleep(self._chance.expovariate(1 / self._mean_pause_s))
            choice = self._chance.random()
            if choice < 0.6 and owned:
                await self._commit(self._chance.choice(owned))
            elif choice < 0.8:
                await self._fetch(range(self._partitions))
            else:
                await self._heartbeat()
        how = self._chance.random()
        if how < 0.5 and not self.is_stopped:
            await self._leave()
        self._member_id = ""
        if not self.is_stopped:
            await asyncio.sleep(self._chance.expovariate(1 / AWAY_S))

    async def _heartbeat(self) -> None:
        request = HeartbeatRequest(self._group, self._generation, self._member_id)
        answer = await self.ask(request, HEARTBEAT_VERSION)
        if answer is not None and answer.error_code:
            await self.refused(answer.error_code)

    async def _leave(self) -> None:
        request = LeaveGroupRequest(group_id=self._group, members=[MemberIdentity(self._member_id)])
        await self.ask(request, LEAVE_VERSION)

    # -- offsets

    async def _commit(self, partition: int) -> None:
        self._number += 1
        commit = Commit(self.name, self._number, self._generation, self._now_s)
        self._history.sent(self._group, partition, commit)
        request = OffsetCommitRequest(
            group_id=self._group,
            generation_id_or_member_epoch=self._generation,
            member_id=self._member_id,
            topics=[
                OffsetCommitRequestTopic(
                    name=TOPIC,
                    partitions=[
                        OffsetCommitRequestPartition(partition, self._number, -1, commit.name),
                    ],
                )
            ],
        )
        answer = await self.ask(request, COMMIT_VERSION)
        if answer is None:
            return
        code = answer.topics[0].partitions[0].error_code
        if code:
            await self.refused(code)
        else:
            self._history.was_acknowledged(self._group, partition, commit, self._now_s)

    async def _fetch(self, partitions: range) -> bool:
        """Fetches offsets. Returns True if there was an answer."""
        asked_s = self._now_s
        found = await fetch_offsets(self, self._group, partitions)
        if found is None:
            return False
        for partition, name in found.items():
            self._history.was_read(self._group, partition, name, asked_s)
        return True

    async def read_at_last(self) -> None:
        """Reads all offsets, however long it takes."""
        while not await self._fetch(range(self._partitions)):
            pass


async def fetch_offsets(
    member: SimGroupMember, group: str, partitions: range, *, stable: bool = False
) -> dict[int, str | None] | None:
    """Returns the metadata of the committed offsets by partition, or None if no broker could answer."""
    request = OffsetFetchRequest(
        group_id=group,
        topics=[OffsetFetchRequestTopic(TOPIC, list(partitions))],
        require_stable=stable,
    )
    answer = await member.ask(request, FETCH_VERSION)
    if answer is None:
        return None
    codes = [answer.error_code, *(p.error_code for topic in answer.topics for p in topic.partitions)]
    if any(codes):
        await member.refused(max(codes))
        return None
    return {
        partition.partition_index: None if partition.committed_offset == NO_OFFSET else partition.metadata
        for partition in answer.topics[0].partitions
    }
