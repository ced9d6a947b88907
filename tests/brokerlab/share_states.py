"""The share coordinator for tests of share partitions' leaders: states in memory, and errors on demand."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from uuid import UUID

from tidelog.model.errors import ErrorCode
from tidelog.wire.messages import read_share_group_state, write_share_group_state
from tidelog.wire.messages.read_share_group_state import (
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadStateResult,
)
from tidelog.wire.messages.write_share_group_state import (
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
    WriteStateResult,
)


@dataclass
class StoredState:
    """The state of one share partition, record by record."""

    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = -1
    records: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    paused_until: int = 0


@dataclass
class InMemoryShareStates:
    """A share coordinator. `errors` are the errors of the next writes; an error after which the outcome is
    unknown may be combined with `is_stored_nevertheless`.
    """

    states: dict[tuple[str, UUID, int], StoredState] = field(default_factory=dict)
    errors: list[ErrorCode] = field(default_factory=list)
    read_errors: list[ErrorCode] = field(default_factory=list)
    is_stored_nevertheless: bool = False
    gate: asyncio.Event | None = None
    """Requests wait for it, if there is one."""
    writes: list[write_share_group_state.PartitionData] = field(default_factory=list)

    async def read(self, request: ReadShareGroupStateRequest) -> ReadShareGroupStateResponse:
        await self._pass()
        ((topic_id, asked),) = [(topic.topic_id, topic.partitions[0]) for topic in request.topics]
        state = self.states.setdefault((request.group_id, topic_id, asked.partition), StoredState())
        error = self.read_errors.pop(0) if self.read_errors else ErrorCode.NONE
        if not error and asked.leader_epoch < state.leader_epoch:
            error = ErrorCode.FENCED_LEADER_EPOCH
        result = read_share_group_state.PartitionResult(asked.partition, error)
        if not error:
            state.leader_epoch = asked.leader_epoch
            result.state_epoch, result.start_offset = state.state_epoch, state.start_offset
            result.paused_until = state.paused_until
            result.state_batches = [
                read_share_group_state.StateBatch(at, at, *found)
                for at, found in sorted(state.records.items())
            ]
        return ReadShareGroupStateResponse([ReadStateResult(topic_id, [result])])

    async def write(self, request: WriteShareGroupStateRequest) -> WriteShareGroupStateResponse:
        await self._pass()
        ((topic_id, data),) = [(topic.topic_id, topic.partitions[0]) for topic in request.topics]
        state = self.states.setdefault((request.group_id, topic_id, data.partition), StoredState())
        error = self.errors.pop(0) if self.errors else ErrorCode.NONE
        if data.leader_epoch < state.leader_epoch:
            error = ErrorCode.FENCED_LEADER_EPOCH
        elif data.state_epoch < state.state_epoch:
            error = ErrorCode.FENCED_STATE_EPOCH
        elif not error or self.is_stored_nevertheless:
            self.writes.append(data)
            self._store(state, data)
        result = write_share_group_state.PartitionResult(data.partition, error)
        return WriteShareGroupStateResponse([WriteStateResult(topic_id, [result])])

    def _store(self, state: StoredState, data: write_share_group_state.PartitionData) -> None:
        state.start_offset, state.paused_until = data.start_offset, data.paused_until
        for batch in data.state_batches:
            for at in range(batch.first_offset, batch.last_offset + 1):
                state.records[at] = (batch.delivery_state, batch.delivery_count, batch.available_at)
        state.records = {at: found for at, found in state.records.items() if at >= state.start_offset}

    async def _pass(self) -> None:
        if self.gate is not None:
            await self.gate.wait()
