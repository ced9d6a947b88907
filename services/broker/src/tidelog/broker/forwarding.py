"""Requests that the controller answers: passed on, with an answer in the request's own form if there is
no controller to be had.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tidelog.model.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.request import RequestContext

Answer = TypeVar("Answer")
_UNREACHABLE: Final = "The controller can't be reached; whether the change was made is unknown"


async def forward(
    broker: Broker,
    api_key: int,
    request: Any,
    context: RequestContext,
    refuse: Callable[[ErrorCode, str | None], Answer],
) -> Answer:
    """The controller's answer; where it has none, what `refuse` makes of an error code (retriable for
    clients) and a message.
    """
    try:
        answer: Answer = await broker.forward(api_key, request, context)
    except KafkaError as error:
        return refuse(error.code, error.message)
    except ConnectionError:
        return refuse(ErrorCode.NOT_CONTROLLER, _UNREACHABLE)
    return answer
