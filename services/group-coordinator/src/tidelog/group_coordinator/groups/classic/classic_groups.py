"""The classic protocol's APIs."""

from __future__ import annotations

from tidelog.group_coordinator.groups.shared import Groups, TimerKey
from tidelog.group_coordinator.shard_core import Decision, ReplayedRecord, Reply, ShardRequest


class ClassicGroups:
    """Requests for classic groups, and their timers."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    def join(self, request: ShardRequest, now_ms: int) -> Decision:
        raise NotImplementedError

    def sync(self, request: ShardRequest, now_ms: int) -> Decision:
        raise NotImplementedError

    def heartbeat(self, request: ShardRequest, now_ms: int) -> Decision:
        raise NotImplementedError

    def leave(self, request: ShardRequest, now_ms: int) -> Decision:
        raise NotImplementedError

    def replay(self, record: ReplayedRecord, offset: int) -> None:
        """Kind 2."""

    def activate(self, now_ms: int) -> Decision:
        return Decision()

    def timer_fired(self, key: TimerKey, now_ms: int) -> Decision:
        return Decision()

    def deactivate(self) -> list[Reply]:
        return []
