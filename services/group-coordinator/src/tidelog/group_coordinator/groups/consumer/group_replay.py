"""Loading consumer groups from their records."""

from __future__ import annotations

from typing import Any

from tidelog.group_coordinator.groups.consumer import group_records as records
from tidelog.group_coordinator.groups.consumer.consumer_group import ConsumerGroup
from tidelog.group_coordinator.groups.consumer.member import Member
from tidelog.group_coordinator.groups.shared import Group
from tidelog.group_coordinator.shard_core import ReplayedRecord
from tidelog.wire.codec import record_codec


class GroupReplay:
    """A log that was cleaned tells a group in any order, and may begin with anything but its first record;
    only the tombstone of the group itself ends it.
    """

    def __init__(self, by_id: dict[str, Group]) -> None:
        self._by_id = by_id

    def replay(self, kind: int, record: ReplayedRecord) -> None:
        """Raises MalformedMessageError, UnsupportedVersionError."""
        key = record_codec(records.KEY_CLASSES[kind]).decode(record.key)
        known = self._by_id.get(key.group_id)
        group = known if isinstance(known, ConsumerGroup) else None
        if record.value is None:
            if group is not None:
                self._remove(kind, key, group)
            return
        value = record_codec(records.VALUE_CLASSES[kind]).decode(record.value)
        if group is None:
            group = self._by_id[key.group_id] = ConsumerGroup(key.group_id)
        self._put(kind, key, value, group)

    def _put(self, kind: int, key: Any, value: Any, group: ConsumerGroup) -> None:
        match kind:
            case records.GROUP_KIND:
                group.put_group(value.epoch, value.metadata_hash)
            case records.PARTITION_METADATA_KIND:
                group.has_partition_metadata = True
            case records.MEMBER_KIND:
                before = group.members.get(key.member_id, Member(key.member_id))
                group.put_subscription(records.with_subscription(before, value))
            case records.TARGET_EPOCH_KIND:
                group.assignment_epoch = value.assignment_epoch
            case records.TARGET_KIND:
                group.targets[key.member_id] = records.target_of(value)
            case records.CURRENT_KIND:
                before = group.members.get(key.member_id, Member(key.member_id))
                group.put_standing(records.with_standing(before, value))
            case records.REGEX_KIND:
                group.regexes[key.regular_expression] = records.resolved_of(value)

    def _remove(self, kind: int, key: Any, group: ConsumerGroup) -> None:
        match kind:
            case records.GROUP_KIND:
                del self._by_id[group.group_id]
            case records.PARTITION_METADATA_KIND:
                group.has_partition_metadata = False
            case records.MEMBER_KIND:
                group.remove_member(key.member_id)
            case records.TARGET_EPOCH_KIND:
                group.assignment_epoch = 0
            case records.TARGET_KIND:
                group.targets.pop(key.member_id, None)
            case records.CURRENT_KIND:
                group.remove_standing(key.member_id)
            case records.REGEX_KIND:
                group.regexes.pop(key.regular_expression, None)
