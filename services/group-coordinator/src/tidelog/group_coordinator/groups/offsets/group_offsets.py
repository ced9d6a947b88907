"""Committed offsets. (Seam: helper 7 replaces this.)"""

from __future__ import annotations

from tidelog.group_coordinator.groups.shared import Group, Groups, TimerKey
from tidelog.group_coordinator.shard_core import (
    ClusterImage,
    Decision,
    Producer,
    ReplayedRecord,
    Reply,
    ShardRequest,
)


class GroupOffsets:
    """OffsetCommit, OffsetFetch, OffsetDelete, TxnOffsetCommit, and the end of transactions."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    # -- requests

    def commit(self, request: ShardRequest, now_ms: int) -> Decision:
        raise NotImplementedError

    def commit_in_transaction(self, request: ShardRequest, now_ms: int) -> Decision:
        raise NotImplementedError

    def fetch(self, request: ShardRequest, now_ms: int) -> Decision:
        raise NotImplementedError

    def delete(self, request: ShardRequest, now_ms: int) -> Decision:
        raise NotImplementedError

    def end_transactions(self, request: ShardRequest, now_ms: int) -> Decision:
        """WriteTxnMarkers."""
        raise NotImplementedError

    # -- of the groups

    def has_offsets(self, group_id: str) -> bool:
        return False

    def delete_group(self, group_id: str, decision: Decision) -> None:
        pass

    def expire(self, group: Group, now_ms: int, decision: Decision) -> None:
        pass

    # -- of the shard

    def replay(self, kind: int, record: ReplayedRecord, offset: int) -> None:
        """Kinds 0 and 1."""

    def replay_marker(self, producer: Producer, is_commit: bool) -> None:
        pass

    def activate(self, now_ms: int) -> Decision:
        return Decision()

    def image_changed(self, before: ClusterImage, now_ms: int) -> Decision:
        """Topics may be gone: their offsets go, too."""
        return Decision()

    def timer_fired(self, key: TimerKey, now_ms: int) -> Decision:
        return Decision()

    def deactivate(self) -> list[Reply]:
        return []
