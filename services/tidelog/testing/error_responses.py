"""The response to a request that fails on purpose, with the error where the API has a place for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tidelog.broker.requests import error_responses
from tidelog.model.errors import ErrorCode
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages import metadata
from tidelog.wire.schema import Message

_MESSAGE: Final = "tidelog.testing made this request fail."


def error_response(
    api_key: ApiKey,
    version: int,
    request: Any,  # the request class of the API
    code: ErrorCode,
    brokers: Sequence[metadata.MetadataResponseBroker] = (),
) -> Message:
    """Returns the response that carries the error. Metadata also names the brokers. Raises ValueError for an
    API that has no place for an error.
    """
    if api_key == ApiKey.FETCH and not request.topics:  # a session (KIP-227) names only what has changed
        return codec.response_class(api_key)(error_code=code)
    response: Any = error_responses.error_response(api_key, version, request, code, _MESSAGE)
    if api_key == ApiKey.METADATA:
        response.brokers = list(brokers)
        response.controller_id = brokers[0].node_id if brokers else -1
    if error_responses.items_of(api_key, version) is None and api_key not in _ELSEWHERE:
        body = b"".join(codec.response_encoder(api_key, version)(response))
        # An old version may lack the field, and the client would take the response for a success.
        if codec.response_decoder(api_key, version)(body, 0)[0].error_code != response.error_code:
            raise ValueError(
                f"tidelog.testing has no error response for {api_key.name_in_kafka} v{version}; delay and "
                "lose_response work for each API"
            )
    found: Message = response
    return found


_ELSEWHERE: Final = frozenset({ApiKey.ALTER_USER_SCRAM_CREDENTIALS})
"""The APIs without a row in ITEMS whose responses do not state the error once."""
