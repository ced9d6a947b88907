"""The gate between a decoded request and its handler. `wiring.py` puts it there if an authorizer is
configured.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.broker.authorization.authorizer import Authorizer
from tidelog.broker.authorization.judging import InHandler, Judgement, Requirement
from tidelog.broker.authorization.table import TABLE
from tidelog.broker.coordination.batched import WholeRequest
from tidelog.broker.coordination.coordination import NamedRequest
from tidelog.broker.request import Answer, EncodedBody, Handling, Reply, RequestContext, Unanswered
from tidelog.timing.slices import in_slices, run_in_slices
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
        for position, requirement in enumerate(requirements, start=1):
            steps = requirement.apply(judgement)
            if steps is not None:
                rest = in_slices(steps)
                if rest is not None:
                    return handle_later(rest, requirements[position:], judgement, request)
            if judgement.refusal is not None:
                return judgement.refusal
        return handle_judged(judgement, request)

    async def handle_later(
        judging: Coroutine[object, None, None],
        left: Iterable[Requirement],
        judgement: Judgement,
        request: Any,  # the request of the API
    ) -> Reply:
        await judging
        for requirement in left:
            if judgement.refusal is None:
                steps = requirement.apply(judgement)
                if steps is not None:
                    await run_in_slices(steps)
        if judgement.refusal is not None:
            return judgement.refusal
        answer = handle_judged(judgement, request)
        return await answer if isinstance(answer, Coroutine) else answer

    def handle_judged(judgement: Judgement, request: Any) -> Answer:  # Any: the request of the API
        context = judgement.context
        if judgement.edits:
            context.edit = judgement.edit
        if judgement.is_nothing_left:
            return codec.response_class(api_key)()
        if judgement.is_changed:
            request = _with_message(api_key, request, judgement.message, context.api_version)
        if judgement.describable is not None:
            request = request._replace(describable=partial(judgement.describable, judgement))
        answer = handle(request, context)
        return _edited(judgement, answer) if judgement.is_edit_long else answer

    return handling._replace(handle=handle_guarded)


def _edited(judgement: Judgement, answer: Answer) -> Answer:
    """Returns the answer after edits that may take long."""
    if isinstance(answer, Coroutine):
        return _edited_later(judgement, answer)
    rest = _edit(judgement, answer)
    return answer if rest is None else _edited_then(rest, answer)


async def _edited_later(judgement: Judgement, answering: Coroutine[object, None, Reply]) -> Reply:
    answer = await answering
    rest = _edit(judgement, answer)
    if rest is not None:
        await rest
    return answer


async def _edited_then(rest: Coroutine[object, None, None], answer: Reply) -> Reply:
    await rest
    return answer


def _edit(judgement: Judgement, answer: Reply) -> Coroutine[object, None, None] | None:
    """Edits a response in slices. A response that is encoded already, or that comes later, is edited when it
    is sent.
    """
    if isinstance(answer, EncodedBody | Unanswered):
        return None
    judgement.context.edit = None
    return in_slices(judgement.edit_in_steps(answer))


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
