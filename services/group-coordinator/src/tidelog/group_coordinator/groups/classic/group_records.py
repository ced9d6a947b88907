"""GroupMetadata records, in Kafka's format, and the consumers' subscriptions within them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from tidelog.group_coordinator.groups.classic.member import ClassicMember, MemberProtocol
from tidelog.group_coordinator.shard_core import CoordinatorRecord
from tidelog.wire.codec import MalformedMessageError, UnsupportedVersionError, record_codec
from tidelog.wire.messages.records.consumer_protocol_subscription import ConsumerProtocolSubscription
from tidelog.wire.messages.records.group_metadata import GroupMetadataKey, GroupMetadataValue, MemberMetadata

if TYPE_CHECKING:
    from tidelog.group_coordinator.groups.classic.group import ClassicGroup

VALUE_VERSION: Final = 3
"""As Kafka writes; version 4 differs only by its encoding."""

_key_codec: Final = record_codec(GroupMetadataKey)
_value_codec: Final = record_codec(GroupMetadataValue)
_subscription_codec: Final = record_codec(ConsumerProtocolSubscription)


def group_record(group: ClassicGroup) -> CoordinatorRecord:
    """The group as it stands."""
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol,
        leader=group.leader,
        current_state_timestamp=-1 if group.state_since_ms is None else group.state_since_ms,
        members=[_member_metadata(member, group.protocol) for member in group.members.values()],
    )
    group.is_recorded = True
    return CoordinatorRecord(_key(group.group_id), _value_codec.encode(value, VALUE_VERSION))


def group_tombstone(group_id: str) -> CoordinatorRecord:
    return CoordinatorRecord(_key(group_id), None)


def _key(group_id: str) -> bytes:
    return _key_codec.encode(GroupMetadataKey(group=group_id))


def _member_metadata(member: ClassicMember, protocol: str | None) -> MemberMetadata:
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms,
        subscription=member.metadata(protocol),
        assignment=member.assignment,
    )


def decode_group_id(key: bytes) -> str:
    return _key_codec.decode(key).group


def decode_value(value: bytes) -> GroupMetadataValue:
    return _value_codec.decode(value)


def recorded_members(value: GroupMetadataValue) -> Iterable[ClassicMember]:
    """Of each member only the protocol in use is known."""
    for member in value.members:
        yield ClassicMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=(
                member.session_timeout if member.rebalance_timeout == -1 else member.rebalance_timeout
            ),
            session_timeout_ms=member.session_timeout,
            protocols=(MemberProtocol(value.protocol or "", bytes(member.subscription)),),
            assignment=bytes(member.assignment),
        )


def decode_subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """None if one of them can't be read."""
    topics: set[str] = set()
    try:
        for subscription in subscriptions:
            topics.update(_subscription_codec.decode(subscription, newer_as_newest=True).topics)
    except (MalformedMessageError, UnsupportedVersionError):
        return None
    return frozenset(topics)
