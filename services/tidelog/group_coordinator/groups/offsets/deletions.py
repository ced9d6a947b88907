"""The deletion of many offsets, in steps that each take a few milliseconds.

The offsets of a deleted topic or group are marked at once, and no longer found from then on. Their tombstones
follow in several turns. A topic or group of the same name may have new offsets before then. The marks do not
apply to these, because they are later in the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from typing import Final

from tidelog.group_coordinator.groups.offsets.offset_table import GroupPartition, OffsetTable, offset_record
from tidelog.group_coordinator.groups.shared import TimerKey, WhenDeleted
from tidelog.group_coordinator.shard_core import Reply, SetTimer, ShardDecision
from tidelog.model.errors import ErrorCode
from tidelog.model.instants import WallMs
from tidelog.model.topics import TopicPartition

MAX_DELETED_AT_ONCE: Final = 250
"""The offsets that are deleted in one turn. All shards of a coordinator may have a turn at the same time."""
MAX_SOUGHT_AT_ONCE: Final = 2_500
"""The groups and offsets among which those to delete are sought in one turn."""
DELETIONS_TIMER: Final = TimerKey("offsets", "deletions")
DELETIONS_PAUSE_MS: Final = 20
"""The pause between two turns of a shard."""


def delete_keys(table: OffsetTable, keys: Iterable[GroupPartition], decision: ShardDecision) -> None:
    """Deletes all offsets of these keys, committed and pending, with their tombstones."""
    for key in sorted(keys):
        decision.records.append(offset_record(key, None))
        table.apply(key, None, None, WallMs(-1))


class _Sought:
    """A group among whose offsets the marked ones are sought."""

    __slots__ = ("done", "group_id", "partitions")

    def __init__(self, group_id: str, partitions: list[TopicPartition], done: WhenDeleted | None) -> None:
        self.group_id = group_id
        self.partitions = partitions
        """The partitions that are still to be looked at."""
        self.done = done


class Deletions:
    """The marked offsets of one shard, whose tombstones are to be written."""

    def __init__(self, table: OffsetTable) -> None:
        self._table = table
        self._sought: _Sought | None = None
        """The group that is looked through at present. There is one while a deletion is under way."""
        self._deleted_groups: deque[tuple[str, WhenDeleted | None]] = deque()
        self._round: deque[str] = deque()
        """The other groups that are looked through for offsets of deleted topics."""
        self._begins_again = False
        """Whether topics were deleted since the round through all groups began."""

    def topics_deleted(self, topics: Collection[str], decision: ShardDecision) -> None:
        """Deletes all offsets of these topics that there are now."""
        self._table.mark_topics(topics)
        self._begins_again = True
        if self._sought is None:
            self._sought = self._next()
            self.go_on(decision)

    def group_deleted(self, group_id: str, done: WhenDeleted | None, decision: ShardDecision) -> bool:
        """Deletes all offsets of a group that there are now.

        Returns False if the deletion takes more than this turn. `done` is called at its end then.
        """
        partitions = self._table.all_partitions_of(group_id)
        if not partitions or len(partitions) + len(decision.records) <= MAX_DELETED_AT_ONCE:
            delete_keys(
                self._table, [GroupPartition(group_id, *partition) for partition in partitions], decision
            )
            return True
        self._table.mark_group(group_id)
        self._deleted_groups.append((group_id, done))
        if self._sought is None:
            self._sought = self._next()
            self._set_timer(decision)
        return False

    def go_on(self, decision: ShardDecision) -> None:
        """Deletes some marked offsets."""
        looked_at = deleted = 0
        while self._sought and deleted < MAX_DELETED_AT_ONCE and looked_at < MAX_SOUGHT_AT_ONCE:
            group_id, partitions = self._sought.group_id, self._sought.partitions
            some = partitions[deleted - MAX_DELETED_AT_ONCE :]
            del partitions[deleted - MAX_DELETED_AT_ONCE :]
            keys = [GroupPartition(group_id, *partition) for partition in some]
            marked = [key for key in keys if self._table.is_marked(key)]
            delete_keys(self._table, marked, decision)
            deleted += len(marked)
            looked_at += 1 + len(some)
            if not partitions:
                if self._sought.done is not None:
                    decision.replies += self._sought.done(ErrorCode.NONE)
                self._sought = self._next()
        if self._sought is not None:
            self._set_timer(decision)
        else:
            self._table.forget_marks()

    def deactivate(self) -> list[Reply]:
        """Returns the replies that still wait. The next owner of the shard has the other offsets."""
        waiting = [done for _, done in self._deleted_groups]
        if self._sought is not None:
            waiting.append(self._sought.done)
        self._sought = None
        self._deleted_groups.clear()
        return [
            reply
            for done in waiting
            if done is not None
            for reply in done(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        ]

    def _next(self) -> _Sought | None:
        """Returns the next group to look through, or None at the end of all deletions."""
        done: WhenDeleted | None = None
        if self._deleted_groups:
            group_id, done = self._deleted_groups.popleft()
        else:
            if not self._round and self._begins_again:
                self._begins_again = False
                self._round.extend(self._table.group_ids())
            if not self._round:
                return None
            group_id = self._round.popleft()
        return _Sought(group_id, self._table.all_partitions_of(group_id), done)

    @staticmethod
    def _set_timer(decision: ShardDecision) -> None:
        decision.timers.append(SetTimer(DELETIONS_TIMER, DELETIONS_PAUSE_MS))
