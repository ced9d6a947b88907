"""The limits of the ids that clients choose: of groups, members, static members and transactions.

Each record of a group repeats the group's id, so one request with a long id could append a thousand times its
own size. Ids that are already in the log are loaded whatever their lengths are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tidelog.group_coordinator.shard_core import ShardRequest
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey

MAX_ID_BYTES: Final = 1024
"""The most bytes of an id in UTF-8."""

_MEMBER_FIELDS: Final[Mapping[int, tuple[str, ...]]] = {
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
"""The requests that create a group or change one, and their ids of members that the client chooses.

The ids of classic members are the coordinator's. Requests that delete or describe are not limited.
"""


def is_too_long(an_id: str) -> bool:
    """Returns whether the id exceeds MAX_ID_BYTES."""
    if len(an_id) * 4 <= MAX_ID_BYTES:  # no character has more than four bytes
        return False
    return len(an_id) > MAX_ID_BYTES or len(an_id.encode()) > MAX_ID_BYTES


def check_group_request(request: ShardRequest[Any]) -> ErrorCode:
    """Returns the error of a request that would create or change a group or a member with too long an id."""
    fields = _MEMBER_FIELDS.get(request.api_key)
    if fields is None:
        return ErrorCode.NONE
    message = request.message
    if is_too_long(message.group_id):
        return ErrorCode.INVALID_GROUP_ID
    for field in fields:
        if is_too_long(getattr(message, field) or ""):
            return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE
