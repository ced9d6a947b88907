"""Refuses the APIs of a feature that is turned off: its finalized level is 0 (KIP-1022).

As in Kafka, ApiVersions lists these APIs nevertheless, and they are answered with UNSUPPORTED_VERSION.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from tidelog.broker.request import Handling
from tidelog.model.errors import ErrorCode
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from tidelog.broker.metadata_view import MetadataView
    from tidelog.broker.request import Answer, RequestContext
    from tidelog.wire.schema import Message

_GROUPS: Final = {
    ApiKey.CONSUMER_GROUP_DESCRIBE: ("group_ids", "DescribedGroup"),
    ApiKey.SHARE_GROUP_DESCRIBE: ("group_ids", "DescribedGroup"),
    ApiKey.STREAMS_GROUP_DESCRIBE: ("group_ids", "DescribedGroup"),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: ("groups", "DescribeShareGroupOffsetsResponseGroup"),
}
"""The APIs whose responses state the error of each group: the field of their requests with the groups, and
the class of an item in the response's `groups`.
"""


def with_feature(api_key: int, feature: str, handling: Handling, metadata: MetadataView) -> Handling:
    """Returns a handling that refuses the requests of an API while its feature is off."""
    handle: Callable[[Any, RequestContext], Answer] = handling.handle

    @wraps(handle)
    def handle_if_on(request: Any, context: RequestContext) -> Answer:
        if metadata.features.level(feature) > 0:
            return handle(request, context)
        return _refusal(api_key, context.api_version, request)

    return Handling(handle_if_on, handling.decoder)


def _refusal(api_key: int, version: int, request: Any) -> Message:
    """Returns UNSUPPORTED_VERSION in the form of the API. A request to a coordinator still has its body."""
    code, response = ErrorCode.UNSUPPORTED_VERSION, codec.response_class(api_key)
    by_group = _GROUPS.get(ApiKey(api_key))
    if by_group is None:
        return response(error_code=code)
    field, class_name = by_group
    body = getattr(request, "body", None)
    message = request if body is None else codec.request_decoder(api_key, version)(body, 0)[0]
    described = getattr(sys.modules[response.__module__], class_name)
    return response(
        groups=[
            described(group_id=getattr(group, "group_id", group), error_code=code)
            for group in getattr(message, field)
        ]
    )
