"""The gate between a decoded request and its handler. `wiring.py` puts it there if an authorizer is
configured.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.broker.authorization.authorizer import Authorizer
from tidelog.broker.authorization.judging import InHandler, Judgement
from tidelog.broker.authorization.table import TABLE
from tidelog.broker.coordination.batched import WholeRequest
from tidelog.broker.coordination.coordination import NamedRequest
from tidelog.broker.request import Answer, Handling, RequestContext
from tidelog.wire import codec

if TYPE_CHECKING:
    from tidelog.broker.current_settings import CurrentSettings


def guarded(api_key: int, handling: Handling, authorizer: Authorizer, settings: CurrentSettings) -> Handling:
    """Returns a handling that passes on only what the client may do. Raises KeyError for an API that is not
    in the table.
    """
    requirements = TABLE[api_key]
    if all(isinstance(requirement, InHandler) for requirement in requirements):
        return handling
    handle = handling.handle

    def handle_guarded(request: Any, context: RequestContext) -> Answer:  # Any: the request of the API
        message = _message(api_key, request, context.api_version)
        creates = settings.broker.auto_create_topics_enable
        judgement = Judgement(api_key, authorizer, context, message, creates)
        for requirement in requirements:
            requirement.apply(judgement)
            if judgement.refusal is not None:
                return judgement.refusal
        if judgement.edits:
            context.edit = judgement.edit
        if judgement.is_nothing_left:
            return codec.response_class(api_key)()
        if judgement.is_changed:
            request = _with_message(api_key, request, judgement.message, context.api_version)
        if judgement.describable is not None:
            request = request._replace(describable=partial(judgement.describable, judgement))
        return handle(request, context)

    return handling._replace(handle=handle_guarded)


def _message(api_key: int, request: Any, version: int) -> Any:
    """Returns the decoded request. A handler that passes a request on may have decoded only its beginning."""
    if isinstance(request, WholeRequest):
        return request.message
    if isinstance(request, NamedRequest):
        return codec.request_decoder(api_key, version)(request.body, 0)[0]
    return request


def _with_message(api_key: int, request: Any, message: Any, version: int) -> Any:
    """Returns the request with another message, in the form that its handler takes."""
    if not isinstance(request, (WholeRequest, NamedRequest)):
        return message
    body = b"".join(map(bytes, codec.request_encoder(api_key, version)(message)))
    if isinstance(request, WholeRequest):
        return WholeRequest(message, body)
    return NamedRequest(request.name, body)
