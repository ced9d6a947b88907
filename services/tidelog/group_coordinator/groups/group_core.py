"""The core of one group shard.

`GroupCore` dispatches requests, records and timers to the objects that handle them. `GroupAdmin` handles
those that concern groups of any kind: DescribeGroups, ListGroups, DeleteGroups, and the expiry of offsets
and groups.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any, Final, Protocol
from uuid import UUID

from tidelog.group_coordinator.groups.classic.classic_group import ClassicGroup, ClassicState
from tidelog.group_coordinator.groups.classic.classic_groups import ClassicGroups
from tidelog.group_coordinator.groups.classic.rebalance import join_refusal
from tidelog.group_coordinator.groups.consumer.consumer_groups import ConsumerGroups
from tidelog.group_coordinator.groups.group_offsets import GroupOffsets
from tidelog.group_coordinator.groups.modern_groups import ModernGroups
from tidelog.group_coordinator.groups.offset_commits import OffsetCommits, OffsetTable
from tidelog.group_coordinator.groups.share.share_admin import ShareAdmin
from tidelog.group_coordinator.groups.share.share_group import ShareGroup
from tidelog.group_coordinator.groups.share.share_groups import ShareGroups, ShareStates
from tidelog.group_coordinator.groups.shared import (
    ApiHandler,
    Group,
    GroupKind,
    Groups,
    TimerKey,
    TimerOwner,
    TopicsChange,
    answer,
    as_timer_key,
    merge,
)
from tidelog.group_coordinator.groups.streams.streams_groups import StreamsGroups
from tidelog.group_coordinator.shard_core import (
    AskEndOffsets,
    AskShareStates,
    ClusterImage,
    Effect,
    EffectOutcome,
    Producer,
    Refused,
    ReplayedRecord,
    Reply,
    SetTimer,
    ShardDecision,
    ShardRequest,
    UnknownRecordError,
    described_within_bound,
)
from tidelog.kernel.instants import WallMs
from tidelog.kernel.steps import Steps
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition, is_too_long
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.codec import MalformedMessageError, UnsupportedVersionError, record_kind
from tidelog.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from tidelog.wire.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from tidelog.wire.messages.join_group import JoinGroupRequest
from tidelog.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from tidelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

_OFFSET_KINDS: Final = (0, 1)
_CLASSIC_KIND: Final = 2
_PROTOCOL_NAMED_FROM: Final = 5
"""The version from which a SyncGroup must name the protocol of its generation (KIP-559)."""
MAX_MEMBER_METADATA_BYTES: Final = 1024 * 1024
"""The most bytes of metadata with which a classic member may join, over all its protocols. The record of a
group has the metadata of all its members, and Kafka's default limit for a record is 1 MiB.
"""
_EXPIRY_TIMER: Final = TimerKey("expiry", "check")
EXPIRY_PAUSE_MS: Final = 100
"""The pause of an expiry that has examined many offsets."""
ABSENT_IS_ERROR_FROM: Final = 6
"""The version of DescribeGroups that answers GROUP_ID_NOT_FOUND for an absent group (KIP-1043)."""
MAX_EXAMINED_AT_ONCE: Final = 500
"""The groups and offsets after which an expiry pauses. All shards of a coordinator may expire at once."""


def _no_overrides(group_id: str) -> Mapping[str, str]:
    return {}


_CHOSEN_IDS: Final[Mapping[int, tuple[str, ...]]] = {
    ApiKey.JOIN_GROUP: ("group_instance_id",),
    ApiKey.SYNC_GROUP: (),
    ApiKey.HEARTBEAT: (),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: ("member_id", "instance_id"),
    ApiKey.SHARE_GROUP_HEARTBEAT: ("member_id",),
    ApiKey.STREAMS_GROUP_HEARTBEAT: ("member_id", "instance_id"),
    ApiKey.OFFSET_COMMIT: (),
    ApiKey.TXN_OFFSET_COMMIT: (),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: (),
}
"""The requests that create or change a group, and their fields with member ids that the client chooses.

Each record of a group repeats the group's id, so one request with a long id could append a thousand times its
own size. The ids of classic members are the coordinator's. Requests that delete or describe are not limited,
and ids that are already in the log are loaded whatever their lengths are.
"""


def _error_of_ids(request: ShardRequest[Any]) -> ErrorCode:
    """Returns the error of a request that would create or change a group or a member with too long an id."""
    fields = _CHOSEN_IDS.get(request.api_key)
    if fields is None:
        return ErrorCode.NONE
    message = request.message
    if is_too_long(message.group_id):
        return ErrorCode.INVALID_GROUP_ID
    for field in fields:
        if is_too_long(getattr(message, field) or ""):
            return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


class _NamesGroup(Protocol):
    """A request for one group."""

    group_id: str


class GroupCore:
    """A ShardCore. `new_member_uuid` returns texts in the format of Kafka's `Uuid.randomUuid`, and
    `overrides_of` the settings that a group overrides. `current_settings` returns the broker settings from
    which groups take the others; without it, they are `settings`.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        new_member_uuid: Callable[[], str],
        overrides_of: Callable[[str], Mapping[str, str]] = _no_overrides,
        current_settings: Callable[[], BrokerSettings] | None = None,
    ) -> None:
        current = current_settings or (lambda: settings)
        self.groups = groups = Groups(settings, new_member_uuid, overrides_of, current)
        table = OffsetTable()
        self.offsets = offsets = GroupOffsets(groups, table)
        commits = OffsetCommits(groups, table)
        self.classic = classic = ClassicGroups(groups)
        self.consumer = consumer = ConsumerGroups(groups, classic)
        groups.offsets = offsets
        groups.new_simple_group = classic.new_simple_group
        members = consumer.classic_members
        self._states = states = ShareStates(groups)
        self.share = share = ShareGroups(groups, states)
        self.streams = streams = StreamsGroups(groups, classic)
        share_admin = ShareAdmin(groups, states)
        admin = GroupAdmin(groups, share_admin)
        self._handlers: dict[int, ApiHandler] = {
            ApiKey.JOIN_GROUP: self._join,
            ApiKey.SYNC_GROUP: self._with_protocol(self._by_kind(classic.sync, members.sync)),
            ApiKey.HEARTBEAT: self._by_kind(classic.heartbeat, members.heartbeat),
            ApiKey.LEAVE_GROUP: self._by_kind(classic.leave, members.leave),
            ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer.heartbeat,
            ApiKey.CONSUMER_GROUP_DESCRIBE: consumer.describe,
            ApiKey.SHARE_GROUP_HEARTBEAT: share.heartbeat,
            ApiKey.SHARE_GROUP_DESCRIBE: share.describe,
            ApiKey.STREAMS_GROUP_HEARTBEAT: streams.heartbeat,
            ApiKey.STREAMS_GROUP_DESCRIBE: streams.describe,
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: share_admin.describe_offsets,
            ApiKey.ALTER_SHARE_GROUP_OFFSETS: share_admin.alter_offsets,
            ApiKey.DELETE_SHARE_GROUP_OFFSETS: share_admin.delete_offsets,
            ApiKey.OFFSET_COMMIT: commits.commit,
            ApiKey.OFFSET_FETCH: offsets.fetch,
            ApiKey.OFFSET_DELETE: offsets.delete,
            ApiKey.TXN_OFFSET_COMMIT: commits.commit_in_transaction,
            ApiKey.WRITE_TXN_MARKERS: offsets.end_transactions,
            ApiKey.DESCRIBE_GROUPS: admin.describe,
            ApiKey.LIST_GROUPS: admin.list,
            ApiKey.DELETE_GROUPS: admin.delete,
        }
        self._admin = admin
        modern: tuple[ModernGroups[Any], ...] = (consumer, share, streams)
        self._modern: dict[type[Any], ModernGroups[Any]] = {handler.GROUP: handler for handler in modern}
        self._replays = {kind: handler.replay for handler in modern for kind in handler.GROUP.FORMAT.types}
        self._timer_owners: dict[str, TimerOwner] = {
            "classic": classic,
            "consumer": consumer,
            "share": share,
            "streams": streams,
            "offsets": offsets,
        }

    def _join(self, request: ShardRequest[JoinGroupRequest], now_ms: WallMs) -> ShardDecision:
        """Joins a classic group, or a consumer group as a classic member.

        A JoinGroup turns a consumer or streams group without members into a classic group. The group's
        offsets remain. A member with more metadata than MAX_MEMBER_METADATA_BYTES gets INVALID_REQUEST.
        """
        message = request.message
        if sum(len(protocol.metadata) for protocol in message.protocols) > MAX_MEMBER_METADATA_BYTES:
            refusal = join_refusal(ErrorCode.INVALID_REQUEST, message.member_id, request.api_version)
            return answer(request, refusal)
        group = self.groups.by_id.get(message.group_id)
        if group is None or group.kind is GroupKind.CLASSIC:
            return self.classic.join(request, now_ms)
        has_members = group.has_members()
        if group.kind is GroupKind.SHARE or (group.kind is GroupKind.STREAMS and has_members):
            refusal = join_refusal(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message.member_id, request.api_version
            )
            return answer(request, refusal)
        if has_members:
            return self.consumer.classic_members.join(request, now_ms)
        decision = ShardDecision(records=group.end())
        self.groups.new_simple_group(group.group_id, now_ms)
        merge(decision, self.classic.join(request, now_ms))
        return decision

    @staticmethod
    def _with_protocol(handler: ApiHandler) -> ApiHandler:
        """Wraps the handler of SyncGroup so that requests without a required protocol name are rejected."""

        def checked(request: ShardRequest[SyncGroupRequest], now_ms: WallMs) -> ShardDecision:
            message = request.message
            names_protocol = message.protocol_type and message.protocol_name
            if request.api_version < _PROTOCOL_NAMED_FROM or names_protocol:
                return handler(request, now_ms)
            return answer(request, SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL))

        return checked

    def _by_kind(self, classic: ApiHandler, consumer: ApiHandler) -> ApiHandler:
        """Returns a handler that chooses by the kind of the request's group."""

        def handler(request: ShardRequest[_NamesGroup], now_ms: WallMs) -> ShardDecision:
            group = self.groups.by_id.get(request.message.group_id)
            if group is not None and group.kind is GroupKind.CONSUMER:
                return consumer(request, now_ms)
            return classic(request, now_ms)

        return handler

    def replay(self, record: ReplayedRecord, offset: int) -> None:
        try:
            kind = record_kind(record.key)
            if kind in _OFFSET_KINDS:
                self.offsets.replay(kind, record, offset)
            elif kind == _CLASSIC_KIND:
                self.classic.replay(record)
            elif kind in self._replays:
                self._replays[kind](record)
            else:
                raise UnknownRecordError(f"unknown record kind {kind}")
        except (MalformedMessageError, UnsupportedVersionError) as error:
            raise UnknownRecordError(str(error)) from error

    def replay_marker(self, producer: Producer, is_commit: bool) -> None:
        self.offsets.replay_marker(producer, is_commit)

    def activate(self, image: ClusterImage, now_ms: WallMs) -> ShardDecision:
        self.groups.image = image
        decision = ShardDecision()
        merge(decision, self.classic.activate(now_ms))
        merge(decision, self.consumer.activate(now_ms))
        merge(decision, self.share.activate(now_ms))
        merge(decision, self.streams.activate(now_ms))
        self.offsets.activate(now_ms)
        decision.timers.append(self._next_expiry())
        return decision

    def handle(self, request: ShardRequest[object], now_ms: WallMs) -> ShardDecision:
        """Decides on a request. All requests pass here, so the lengths of ids are checked here."""
        error = _error_of_ids(request)
        if error is not ErrorCode.NONE:
            return answer(request, Refused(error))
        return self._handlers[request.api_key](request, now_ms)

    def timer_fired(self, key: Hashable, now_ms: WallMs) -> ShardDecision:
        timer = as_timer_key(key)
        if timer == _EXPIRY_TIMER:
            decision = ShardDecision()
            is_done = self._admin.expire(now_ms, decision)
            decision.timers.append(
                self._next_expiry() if is_done else SetTimer(_EXPIRY_TIMER, EXPIRY_PAUSE_MS)
            )
            return decision
        return self._timer_owners[timer.owner].timer_fired(timer, now_ms)

    def _next_expiry(self) -> SetTimer:
        return SetTimer(_EXPIRY_TIMER, self.groups.settings.offsets_retention_check_interval_ms)

    def effect_done(self, effect: Effect, outcome: EffectOutcome, now_ms: WallMs) -> ShardDecision:
        assert isinstance(effect, AskShareStates | AskEndOffsets)  # a group shard has no other effects
        return self._states.effect_done(effect, outcome, now_ms)

    def image_changed(self, image: ClusterImage, now_ms: WallMs) -> ShardDecision:
        before, self.groups.image = self.groups.image, image
        change = _change_of_topics(before, image)
        decision = ShardDecision()
        if change.changed:
            for group in self.groups.by_id.values():
                handler = self._modern.get(type(group))
                if handler is not None:
                    handler.topics_changed(group, change, decision, now_ms)
        if change.deleted:
            self.offsets.topics_deleted(change.deleted, decision)
        return decision

    def deactivate(self) -> list[Reply]:
        replies = self.classic.deactivate() + self._states.deactivate() + self.offsets.deactivate()
        self._handlers.clear()
        self._timer_owners.clear()
        self._replays.clear()
        self._modern.clear()
        self.groups.clear()
        return replies


def _change_of_topics(before: ClusterImage, after: ClusterImage) -> TopicsChange:
    """Compares the topics. Most of those that have not changed are the same object in both images."""
    changed = after.topics.keys() - before.topics.keys()
    has_other_names = bool(changed)
    deleted: dict[str, UUID] = {}
    for name, topic in before.topics.items():
        now = after.topics.get(name)
        if now is topic:
            continue
        if now is None or now.topic_id != topic.topic_id:
            deleted[name] = topic.topic_id
            changed.add(name)
            has_other_names = has_other_names or now is None
        elif now[1:] != topic[1:]:
            changed.add(name)
    return TopicsChange(changed, deleted, has_other_names)


class GroupAdmin:
    """The requests of administrators about groups of any kind."""

    def __init__(self, groups: Groups, share: ShareAdmin) -> None:
        self._groups = groups
        self._share = share
        self._to_expire: deque[str] = deque()
        """The groups that the expiry under way has not examined yet, or the first of them only in part."""
        self._to_examine: list[TopicPartition] | None = None
        """The partitions of the first group of `_to_expire` that are not examined yet. None if no partition
        is examined.
        """

    def describe(self, request: ShardRequest[DescribeGroupsRequest], now_ms: WallMs) -> ShardDecision:
        described = described_within_bound(
            request.message.groups,
            lambda group_id: self._described(group_id, request.api_version),
            lambda group_id, error: DescribedGroup(error_code=error, group_id=group_id),
            lambda groups: DescribeGroupsResponse(groups=groups),
        )
        return answer(request, described)

    def _described(self, group_id: str, version: int) -> Steps[DescribedGroup]:
        """Describes a classic group. A group of another kind counts as absent."""
        group = self._groups.by_id.get(group_id)
        if isinstance(group, ClassicGroup):
            return (yield from group.described())
        absent = DescribedGroup(group_id=group_id, group_state=ClassicState.DEAD)
        if version >= ABSENT_IS_ERROR_FROM:
            absent.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            reason = "not found" if group is None else "is not a classic group"
            absent.error_message = f"Group {group_id} {reason}."
        return absent

    def list(self, request: ShardRequest[ListGroupsRequest], now_ms: WallMs) -> ShardDecision:
        return answer(request, self._listed(request.message))

    def _listed(self, message: ListGroupsRequest) -> Steps[ListGroupsResponse]:
        """Lists groups, filtered by state (KIP-518) and type (KIP-848). The filters ignore case."""
        states = {state.lower() for state in message.states_filter}
        types = {kind.lower() for kind in message.types_filter}

        def is_requested(group: ListedGroup) -> bool:
            return (not states or group.group_state.lower() in states) and (
                not types or group.group_type.lower() in types
            )

        response = ListGroupsResponse()
        for group_id in tuple(self._groups.by_id):
            group = self._groups.by_id.get(group_id)
            if group is not None and is_requested(listed := group.listed()):  # None if deleted meanwhile
                response.groups.append(listed)
            yield
        return response

    def delete(self, request: ShardRequest[DeleteGroupsRequest], now_ms: WallMs) -> ShardDecision:
        """Deletes groups. The reply waits until the states of share groups and all offsets are deleted."""
        decision = ShardDecision()
        names = request.message.groups_names
        errors: dict[int, ErrorCode] = {}

        def answered(number: int, error: ErrorCode) -> list[Reply]:
            errors[number] = error
            if len(errors) < len(names):
                return []
            results = [DeletableGroupResult(name, errors[at]) for at, name in enumerate(names)]
            return [Reply(request.reply_to, DeleteGroupsResponse(results=results))]

        for number, group_id in enumerate(names):
            group = self._groups.by_id.get(group_id)
            error = ErrorCode.GROUP_ID_NOT_FOUND if group is None else group.check_delete()
            if group is not None and error is ErrorCode.NONE:
                if isinstance(group, ShareGroup):
                    self._share.delete_group(group, decision, now_ms, partial(answered, number))
                    continue
                if not self._groups.delete(group, decision, partial(answered, number)):
                    continue
            decision.replies += answered(number, error)
        if not names:
            decision.replies.append(Reply(request.reply_to, DeleteGroupsResponse()))
        return decision

    def expire(self, now_ms: WallMs, decision: ShardDecision) -> bool:
        """Deletes offsets whose retention time is over, then groups without members and offsets.

        Returns False if it has paused. The next call then examines the other offsets and groups.
        """
        offsets = self._groups.offsets
        if not self._to_expire:
            offsets.forget_producers(now_ms)
            self._to_expire.extend(self._groups.by_id)
        examined = 0
        while self._to_expire and examined < MAX_EXAMINED_AT_ONCE:
            group = self._groups.by_id.get(self._to_expire[0])
            if group is not None:  # otherwise deleted during a pause
                if self._to_examine is None:
                    self._to_examine = offsets.committed_partitions(group.group_id)
                now_examined = self._to_examine[: MAX_EXAMINED_AT_ONCE - examined]
                del self._to_examine[: len(now_examined)]
                examined += 1 + len(now_examined)
                offsets.expire(group, now_examined, now_ms, decision)
                if self._to_examine:
                    return False
                self._delete_if_unused(group, decision)
            self._to_expire.popleft()
            self._to_examine = None
        return not self._to_expire

    def _delete_if_unused(self, group: Group, decision: ShardDecision) -> None:
        if isinstance(group, ShareGroup) and not group.partitions.is_empty():
            return  # its progress is in the states of its share partitions
        if not group.has_members() and not self._groups.offsets.has_offsets(group.group_id):
            self._groups.delete(group, decision)
