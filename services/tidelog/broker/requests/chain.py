"""The chain of a request: what happens between its decoding and its handler, in one order for all APIs.

An audited call is written with its outcome; the API's feature has to be on; an authorizer lets pass what the
client may do; then the handler answers, or the controller, or the coordinators that the request names. A
request that fails on the way is answered by `error_responses.py`. The dispatcher decodes, authenticates and
charges before, and encodes after.

ApiVersions lists the APIs of a feature that is off (its finalized level is 0, KIP-1022), as in Kafka. They
are answered with UNSUPPORTED_VERSION.

Long requests are judged in slices, after which a coroutine calls their handler. What is denied or hidden in
the response is left to `RequestContext.edit`, except for a response that is there at once.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final

from tidelog.broker.coordination.batched import (
    WholeRequest,
    forward_batched,
    forward_described,
    forward_edited,
    whole_decoder,
)
from tidelog.broker.coordination.coordination import NamedRequest, forward_named, named_decoder
from tidelog.broker.requests.apis import APIS, TO_CONTROLLER, ToShard
from tidelog.broker.requests.error_responses import error_response
from tidelog.broker.requests.request import Answer, EncodedBody, Handling, Reply, RequestContext, Unanswered
from tidelog.broker.security.audit import audited
from tidelog.broker.security.authorizer import Authorizer
from tidelog.broker.security.judging import InHandler, Judgement, Requirement
from tidelog.kernel.slices import in_slices
from tidelog.kernel.steps import Steps
from tidelog.model.errors import ErrorCode
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from tidelog.broker.cluster.controller_connection import ControllerConnection
    from tidelog.broker.cluster.view import CurrentSettings, MetadataView
    from tidelog.broker.coordination.coordination import Coordination
    from tidelog.broker.parts import BrokerParts
    from tidelog.broker.requests.request import Answer, RequestContext
    from tidelog.wire.schema import Message

_DESCRIBED: Final = frozenset(
    {
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.SHARE_GROUP_DESCRIBE,
        ApiKey.STREAMS_GROUP_DESCRIBE,
    }
)
"""The APIs whose answers the broker completes with the operations that the client may do."""


class RequestChain:
    """The chains of one broker, by API. Each is built at the API's first request."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        self._handlings: dict[int, Handling] = {}

    def handling(self, api_key: int) -> Handling:
        """Returns how an API of APIS is handled."""
        handling = self._handlings.get(api_key)
        if handling is None:
            handling = self._handlings[api_key] = self._chained(api_key)
        return handling

    def _chained(self, api_key: int) -> Handling:
        api, parts = APIS[api_key], self._parts
        handling = self._answering(api_key)
        if parts.authorizer is not None:
            handling = guarded(api_key, api.needs, handling, parts.authorizer, parts.current_settings)
        if api.feature:
            handling = with_feature(api_key, api.feature, handling, parts.metadata)
        if api.is_audited:
            handling = audited(handling)
        return handling._replace(may_answer_large=api.may_answer_large)

    def _answering(self, api_key: int) -> Handling:
        answered = APIS[api_key].answered
        if answered is TO_CONTROLLER:
            return Handling(partial(_forward_to_controller, self._parts.controller_connection))
        if isinstance(answered, ToShard):
            return _to_shard(self._parts.coordination, api_key, answered)
        return answered(self._parts)[api_key]


async def _forward_to_controller(
    controller: ControllerConnection, request: Message, context: RequestContext
) -> Message:
    api_key, version = int(context.route.api_key), context.api_version

    def refuse(code: ErrorCode, message: str | None) -> Message:
        return error_response(api_key, version, request, code, message)

    return await controller.forward_or_refuse(api_key, request, context, refuse)


def _to_shard(coordination: Coordination, api_key: int, to: ToShard) -> Handling:
    kind, batched_from = to.kind, to.batched_from
    if batched_from is None:
        return Handling(partial(forward_named, coordination, kind), partial(named_decoder, api_key))
    forward_several = forward_described if api_key in _DESCRIBED else forward_batched

    def decoder(version: int) -> codec.Decoder:
        make = named_decoder if version < batched_from else whole_decoder
        return make(api_key, version)

    def handle(request: NamedRequest | WholeRequest, context: RequestContext) -> Answer:
        if isinstance(request, NamedRequest):
            if context.edit is not None:  # an answer may have the offsets of thousands of topics
                return forward_edited(coordination, kind, request, context)
            return forward_named(coordination, kind, request, context)
        return forward_several(coordination, kind, request, context)

    return Handling(handle, decoder)


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
