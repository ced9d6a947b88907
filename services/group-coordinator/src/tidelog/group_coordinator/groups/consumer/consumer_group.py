"""The state of one consumer group (KIP-848)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from hashlib import blake2b
from typing import Final
from uuid import UUID

from tidelog.group_coordinator.groups.consumer import group_records as records
from tidelog.group_coordinator.groups.consumer.assignment import NO_PARTITIONS, NOTHING_OWNED, Assignment
from tidelog.group_coordinator.groups.consumer.member import Member
from tidelog.group_coordinator.groups.consumer.topic_regex import ResolvedRegex
from tidelog.group_coordinator.groups.shared import GroupKind, OffsetCommitter
from tidelog.group_coordinator.shard_core import ClusterImage, CoordinatorRecord, Decision
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.list_groups import ListedGroup

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
_FIRST_COMMIT_WITH_MEMBER_EPOCH: Final = 9
"""Version of OffsetCommit."""


class ConsumerGroup:
    """What the records say, and a little that is found out anew after loading. The `put_` methods are the
    only ones that change what records say; each is the effect of one record.
    """

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.assignment_epoch = 0
        self.metadata_hash = 0
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        """Instance id -> member id."""
        self.targets: dict[str, Assignment] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.owners: dict[UUID, dict[int, str]] = {}
        """Who has not given a partition up."""
        self.has_partition_metadata = False
        """A record of Kafka up to 4.0 is in the log, to be removed."""

        self.topics_changed = True
        """Whether a topic may have changed since `metadata_hash` was told."""
        self.called_to_join: set[str] = set()
        """Members of the classic protocol that were told of a rebalance and have not joined since."""
        self.regexes_due_ms: int | None = 0
        """When regular expressions are to be resolved again; None: not before topics come or go."""

    # -- what records say

    def put_group(self, epoch: int, metadata_hash: int) -> None:
        self.epoch = epoch
        self.metadata_hash = metadata_hash

    def put_subscription(self, member: Member) -> None:
        """Its standing stays as it was."""
        before = self.members.get(member.member_id, Member(member.member_id))
        if before.instance_id is not None and before.instance_id != member.instance_id:
            self._release_instance(before)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self.members[member.member_id] = replace(
            member,
            member_epoch=before.member_epoch,
            previous_epoch=before.previous_epoch,
            state=before.state,
            owned=before.owned,
            revoking=before.revoking,
        )

    def put_standing(self, member: Member) -> None:
        """Its epoch and partitions; the subscription stays as it was."""
        before = self.members.get(member.member_id, Member(member.member_id))
        self._release(before)
        after = self.members[member.member_id] = replace(
            before,
            member_epoch=member.member_epoch,
            previous_epoch=member.previous_epoch,
            state=member.state,
            owned=member.owned,
            revoking=member.revoking,
        )
        for owned in (after.owned, after.revoking):
            for topic_id, partitions in owned.items():
                self.owners.setdefault(topic_id, {}).update(dict.fromkeys(partitions, after.member_id))

    def _release(self, member: Member) -> None:
        for owned in (member.owned, member.revoking):
            for topic_id, partitions in owned.items():
                of_topic = self.owners.get(topic_id, {})
                for partition in partitions:
                    if of_topic.get(partition) == member.member_id:
                        del of_topic[partition]
                if not of_topic:
                    self.owners.pop(topic_id, None)

    def remove_standing(self, member_id: str) -> None:
        if member_id in self.members:
            self.put_standing(Member(member_id, owned=NOTHING_OWNED))

    def remove_member(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is not None:
            self._release(member)
            self._release_instance(member)

    def _release_instance(self, member: Member) -> None:
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member.member_id:
            del self.static_members[member.instance_id]

    # -- questions

    @property
    def kind(self) -> GroupKind:
        return GroupKind.CONSUMER

    @property
    def state(self) -> str:
        """Kafka's ConsumerGroupState."""
        if not self.members:
            return "Empty"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return "Stable"
        return "Reconciling"

    def static_member(self, instance_id: str | None) -> Member | None:
        member_id = None if instance_id is None else self.static_members.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def target_of(self, member_id: str) -> Assignment:
        return self.targets.get(member_id, NO_PARTITIONS)

    def is_held_by_other(self, member_id: str, topic_id: UUID, partition: int) -> bool:
        owner = self.owners.get(topic_id, {}).get(partition)
        return owner is not None and owner != member_id

    def topic_names_of(self, member: Member) -> frozenset[str]:
        resolved = self.regexes.get(member.topic_regex)
        return member.topic_names if resolved is None else member.topic_names | resolved.topics

    def topic_ids_of(self, member: Member, image: ClusterImage) -> frozenset[UUID]:
        """Those that exist."""
        return topic_ids(self.topic_names_of(member), image)

    def subscribed_names(self) -> frozenset[str]:
        names: set[str] = set()
        for of_some in {member.topic_names for member in self.members.values()}:
            names |= of_some
        for resolved in self.regexes.values():
            names |= resolved.topics
        return frozenset(names)

    def subscribers_of_regex(self, expression: str) -> int:
        return sum(member.topic_regex == expression for member in self.members.values())

    def preferred_assignor(self, default: str) -> str:
        """The one that most members ask for."""
        asked = Counter(member.server_assignor for member in self.members.values() if member.server_assignor)
        return max(asked, key=lambda name: (asked[name], name == default, name)) if asked else default

    def is_waiting_for_others(self, member: Member) -> bool:
        """Whether a partition that it is to get is still held by another."""
        return any(
            self.is_held_by_other(member.member_id, topic_id, partition)
            for topic_id, partitions in self.target_of(member.member_id).items()
            for partition in partitions
        )

    # -- as one of the shard's groups

    def check_commit(self, committer: OffsetCommitter, now_ms: int, decision: Decision) -> ErrorCode:
        epoch = committer.generation_or_epoch
        names_nobody = not committer.member_id and committer.group_instance_id is None
        if epoch < 0 and (not self.members or (committer.is_transactional and names_nobody)):
            return ErrorCode.NONE  # not by a member
        member = self.members.get(committer.member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if (
            member.classic is None
            and committer.api_key == ApiKey.OFFSET_COMMIT
            and committer.api_version < _FIRST_COMMIT_WITH_MEMBER_EPOCH
        ):
            return ErrorCode.UNSUPPORTED_VERSION
        # With an older epoch each partition counts for itself.
        return ErrorCode.NONE if 0 < epoch < member.member_epoch else _epoch_error(member, epoch)

    def check_commits_singly(self, committer: OffsetCommitter) -> Callable[[UUID, int], ErrorCode] | None:
        """A member that hasn't yet heard of its new epoch commits with an older one: good for what it owned
        then and has not given up since (KIP-1251).
        """
        member = self.members.get(committer.member_id)
        epoch = committer.generation_or_epoch
        if member is None or epoch < 0 or epoch == member.member_epoch:
            return None
        owner = member

        def check(topic_id: UUID, partition: int) -> ErrorCode:
            for owned in (owner.owned, owner.revoking):
                given_epoch = owned.get(topic_id, {}).get(partition)
                if given_epoch is not None and given_epoch <= epoch:
                    return ErrorCode.NONE
            return _epoch_error(owner, epoch)

        return check

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        if not member_id and member_epoch < 0:
            return ErrorCode.NONE
        member = self.members.get(member_id or "")
        return ErrorCode.UNKNOWN_MEMBER_ID if member is None else _epoch_error(member, member_epoch)

    def check_offset_delete(self) -> ErrorCode:
        return ErrorCode.NONE

    def check_delete(self) -> ErrorCode:
        return ErrorCode.NON_EMPTY_GROUP if self.members else ErrorCode.NONE

    def is_subscribed_to(self, topic: str) -> bool:
        return any(topic in member.topic_names for member in self.members.values()) or any(
            topic in resolved.topics for resolved in self.regexes.values()
        )

    def offsets_expire_from(self, topic: str, commit_timestamp_ms: int) -> int | None:
        return None if self.is_subscribed_to(topic) else commit_timestamp_ms

    def tombstones(self) -> list[CoordinatorRecord]:
        """Members first, the group last: a log that ends in between is one of a group."""
        group_id = self.group_id
        found = [records.tombstone(records.CURRENT_KIND, group_id, member_id) for member_id in self.members]
        found += [
            records.tombstone(records.TARGET_KIND, group_id, member_id)
            for member_id in self.members.keys() | self.targets.keys()
        ]
        found.append(records.tombstone(records.TARGET_EPOCH_KIND, group_id))
        found += [records.tombstone(records.MEMBER_KIND, group_id, member_id) for member_id in self.members]
        if self.has_partition_metadata:
            found.append(records.tombstone(records.PARTITION_METADATA_KIND, group_id))
        found += [records.tombstone(records.REGEX_KIND, group_id, expression) for expression in self.regexes]
        found.append(records.tombstone(records.GROUP_KIND, group_id))
        return found

    def has_members(self) -> bool:
        return bool(self.members)

    def member_count(self) -> int:
        return len(self.members)

    @property
    def generation_or_epoch(self) -> int:
        return self.epoch

    def listed(self) -> ListedGroup:
        return ListedGroup(self.group_id, CONSUMER_PROTOCOL_TYPE, self.state, GroupKind.CONSUMER.value)


def _epoch_error(member: Member, epoch: int) -> ErrorCode:
    if epoch == member.member_epoch:
        return ErrorCode.NONE
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION


def topic_ids(names: Iterable[str], image: ClusterImage) -> frozenset[UUID]:
    return frozenset(image.topics[name].topic_id for name in names if name in image.topics)


def metadata_hash(names: Iterable[str], image: ClusterImage) -> int:
    """Of all that an assignment is made from: another if a topic comes, goes, grows or moves to other racks
    (KIP-1101; not Kafka's function: a group that comes from Kafka is assigned anew once). An int64; 0 if no
    topic is there.
    """
    found = sorted(name for name in names if name in image.topics)
    if not found:
        return 0
    digest = blake2b(digest_size=8)
    for name in found:
        topic = image.topics[name]
        racks = ";".join(",".join(sorted(of_partition)) for of_partition in topic.racks)
        digest.update(f"{len(name)}:{name}{topic.topic_id.hex}{topic.partition_count}:{racks}\n".encode())
    return int.from_bytes(digest.digest(), "big", signed=True)


def changed_topics(before: ClusterImage, after: ClusterImage) -> frozenset[str]:
    """Names of topics that came, went, grew or moved to other racks."""
    return frozenset(
        name
        for name in before.topics.keys() | after.topics.keys()
        if before.topics.get(name) is not after.topics.get(name)
        and before.topics.get(name) != after.topics.get(name)
    )
