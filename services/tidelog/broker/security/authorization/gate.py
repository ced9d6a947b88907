"""The gate between a decoded request and its handler. `chain.py` puts it there if an authorizer is
configured.

Long requests are judged in slices, after which a coroutine calls their handler. What is denied or hidden in
the response is left to `RequestContext.edit`, except for a response that is there at once.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.broker.coordination.batched import WholeRequest
from tidelog.broker.coordination.coordination import NamedRequest
from tidelog.broker.requests.request import Answer, EncodedBody, Handling, Reply, RequestContext, Unanswered
from tidelog.broker.security.authorization.authorizer import Authorizer
from tidelog.broker.security.authorization.judging import InHandler, Judgement, Requirement
from tidelog.kernel.slices import in_slices
from tidelog.kernel.steps import Steps
from tidelog.wire import codec

if TYPE_CHECKING:
    from tidelog.broker.cluster.current_settings import CurrentSettings


def guarded(
    api_key: int,
    needs: Iterable[Requirement],
    handling: Handling,
    authorizer: Authorizer,
    settings: CurrentSettings,
) -> Handling:
    """Returns a handling that passes on only what the client may do."""
    requirements = [each for each in needs if not isinstance(each, InHandler)]
    if not requirements:
        return handling
    handle = handling.handle

    def handle_guarded(request: Any, context: RequestContext) -> Answer:  # Any: the request of the API
        message = _message(api_key, request, context.api_version)
        creates = settings.broker.auto_create_topics_enable
        judgement = Judgement(api_key, authorizer, context, message, creates)
        rest = in_slices(_judge(judgement, requirements))
        return handle_judged(judgement, request) if rest is None else handle_later(rest, judgement, request)

    async def handle_later(
        rest: Coroutine[object, None, None],
        judgement: Judgement,
        request: Any,  # the request of the API
    ) -> Reply:
        await rest
        answer = handle_judged(judgement, request)
        return await answer if isinstance(answer, Coroutine) else answer

    def handle_judged(judgement: Judgement, request: Any) -> Answer:  # Any: the request of the API
        if judgement.refusal is not None:
            return judgement.refusal
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
        return _edited(judgement, answer) if judgement.edits else answer

    return handling._replace(handle=handle_guarded)


def _judge(judgement: Judgement, requirements: Iterable[Requirement]) -> Steps[None]:
    """Applies the requirements until one of them refuses the whole request."""
    for requirement in requirements:
        steps = requirement.apply(judgement)
        if steps is not None:
            yield from steps
        if judgement.refusal is not None:
            return


def _edited(judgement: Judgement, answer: Answer) -> Answer:
    """Edits a response that is there already, in slices. Any other is edited when it is sent."""
    if isinstance(answer, EncodedBody | Unanswered | Coroutine):
        return answer
    judgement.context.edit = None
    rest = in_slices(judgement.edit(answer))
    return answer if rest is None else _edited_later(rest, answer)


async def _edited_later(rest: Coroutine[object, None, None], answer: Reply) -> Reply:
    await rest
    return answer


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
