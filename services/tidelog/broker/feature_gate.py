"""Refuses the APIs of a feature that is turned off: its finalized level is 0 (KIP-1022).

As in Kafka, ApiVersions lists these APIs nevertheless, and they are answered with UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from tidelog.broker.error_responses import error_response
from tidelog.broker.request import Handling
from tidelog.model.errors import ErrorCode
from tidelog.wire import codec

if TYPE_CHECKING:
    from tidelog.broker.metadata_view import MetadataView
    from tidelog.broker.request import Answer, RequestContext
    from tidelog.wire.schema import Message


def with_feature(api_key: int, feature: str, handling: Handling, metadata: MetadataView) -> Handling:
    """Returns a handling that refuses the requests of an API while its feature is off."""
    handle: Callable[[Any, RequestContext], Answer] = handling.handle

    @wraps(handle)
    def handle_if_on(request: Any, context: RequestContext) -> Answer:
        if metadata.features.level(feature) > 0:
            return handle(request, context)
        return _refusal(api_key, context.api_version, request)

    return handling._replace(handle=handle_if_on)


def _refusal(api_key: int, version: int, request: Any) -> Message:
    """Returns UNSUPPORTED_VERSION in the form of the API. A request to a coordinator still has its body."""
    body = getattr(request, "body", None)
    message = request if body is None else codec.request_decoder(api_key, version)(body, 0)[0]
    return error_response(api_key, version, message, ErrorCode.UNSUPPORTED_VERSION)
