"""Consumer groups. (Seam: helper 6 replaces this.)"""

from __future__ import annotations

from tidelog.group_coordinator.groups.shared import Groups, TimerKey
from tidelog.group_coordinator.shard_core import ClusterImage, Decision, ReplayedRecord, Reply, ShardRequest


class ConsumerGroups:
    """ConsumerGroupHeartbeat, ConsumerGroupDescribe, and what members of the classic protocol ask of a
    consumer group.
    """

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    # -- requests

    def heartbeat(self, request: ShardRequest, now_ms: int) -> Decision:
        raise NotImplementedError

    def describe(self, request: ShardRequest, now_ms: int) -> Decision:
        raise NotImplementedError

    # -- requests of the classic protocol whose group is a consumer group

    def classic_join(self, request: ShardRequest, now_ms: int) -> Decision:
        raise NotImplementedError

    def classic_sync(self, request: ShardRequest, now_ms: int) -> Decision:
        raise NotImplementedError

    def classic_heartbeat(self, request: ShardRequest, now_ms: int) -> Decision:
        raise NotImplementedError

    def classic_leave(self, request: ShardRequest, now_ms: int) -> Decision:
        raise NotImplementedError

    # -- of the shard

    def replay(self, kind: int, record: ReplayedRecord, offset: int) -> None:
        """Kinds 3 to 8, and 16."""

    def activate(self, now_ms: int) -> Decision:
        return Decision()

    def image_changed(self, before: ClusterImage, now_ms: int) -> Decision:
        return Decision()

    def timer_fired(self, key: TimerKey, now_ms: int) -> Decision:
        return Decision()

    def deactivate(self) -> list[Reply]:
        return []
