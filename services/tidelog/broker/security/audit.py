"""The audit log: one line for each login, each denied access and each call that changes something as an
administrator does.

The lines are written by the logger `tidelog.audit`, as JSON unless `tidelog.log.format` asks for text. They
name the principal, the host, the API, the resources and the outcome, and never a secret. Their rate is
bounded, because clients cause them: beyond the bound lines are left out, and the next line states how many.
Each event has a bound of its own, and so has its failure. Otherwise, a client whose logins fail could keep
the calls of administrators out of the log.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Coroutine, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from tidelog.model.errors import ErrorCode
from tidelog.process.structured_log import BoundedLog

if TYPE_CHECKING:
    from tidelog.broker.requests.request import Answer, Handling, Reply, RequestContext
    from tidelog.kernel.steps import Steps
    from tidelog.model.acl import AclOperation, Principal, ResourceType

MAX_LINES_PER_SECOND: Final = 100
"""The lines of one event with success, or without."""
MAX_NAMES: Final = 10
"""The names of resources in one line."""
MAX_NAME_CHARS: Final = 249
_SUCCESS: Final = ErrorCode.NONE.name
_MAX_DEPTH: Final = 4
"""The levels of a response in which its error is looked for."""
_NAME_FIELDS: Final = ("name", "resource_name", "topic", "group_id", "principal", "entity_name")


class AuditLog:
    """The audit log of one process."""

    def __init__(self, monotonic_s: Callable[[], float] = monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._logs: dict[tuple[str, bool], BoundedLog] = {}
        """By event and success."""

    def login(self, principal: Principal, host: str, mechanism: str, failure: str | None) -> None:
        """Writes a login. `failure` is the reason why it failed, None if it succeeded."""
        if failure is None:
            self._write("login", principal, host, mechanism=mechanism, outcome=_SUCCESS)
        else:
            self._write(
                "login",
                principal,
                host,
                mechanism=mechanism,
                outcome=ErrorCode.SASL_AUTHENTICATION_FAILED.name,
                reason=failure,
            )

    def denied(
        self, context: RequestContext, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> None:
        """Writes an access that a client asked for and did not get."""
        self._write(
            "access denied",
            context.principal,
            context.host,
            api=context.route.api_key.name_in_kafka,
            operation=operation.name,
            resource_type=resource_type.name,
            resource=name[:MAX_NAME_CHARS],
            outcome="DENIED",
        )

    def called(self, context: RequestContext, resources: list[str], outcome: ErrorCode) -> None:
        """Writes a call of an administrator."""
        self._write(
            "admin call",
            context.principal,
            context.host,
            api=context.route.api_key.name_in_kafka,
            resources=resources,
            outcome=outcome.name,
        )

    def _write(self, event: str, principal: Principal, host: str, *, outcome: str, **fields: object) -> None:
        kind = event, outcome == _SUCCESS
        log = self._logs.get(kind)
        if log is None:
            log = self._logs[kind] = BoundedLog("tidelog.audit", MAX_LINES_PER_SECOND, self._monotonic_s)
        log.info(event, principal=principal, host=host, **fields, outcome=outcome)


AUDIT: Final = AuditLog()
"""The log of this process. All listeners share it, so that the bound holds for the process."""


def audited(handling: Handling) -> Handling:
    """Returns a handling that also writes each call and its outcome."""
    handle = handling.handle

    def handle_audited(request: Any, context: RequestContext) -> Answer:  # Any: the request of the API
        names = _names(getattr(request, "message", request))
        answer = handle(request, context)
        if isinstance(answer, Coroutine):  # the gate may add its edit after slices of judging
            return audited_later(answer, names, context)
        audit_answer(names, context)
        return answer

    async def audited_later(
        answering: Coroutine[object, None, Reply], names: list[str], context: RequestContext
    ) -> Reply:
        answer = await answering
        audit_answer(names, context)
        return answer

    def audit_answer(names: list[str], context: RequestContext) -> None:
        edit_before = context.edit

        def edit(response: Any) -> Steps[None]:
            if edit_before is not None:
                yield from edit_before(response)
            AUDIT.called(context, names, _outcome(response))

        context.edit = edit

    return handling._replace(handle=handle_audited)


def _names(message: Any) -> list[str]:
    """Returns the first names of resources in a request."""
    found: dict[str, None] = {}
    for name in _all_names(message):
        found[name[:MAX_NAME_CHARS]] = None
        if len(found) == MAX_NAMES:
            break
    return list(found)


def _all_names(message: Any) -> Iterator[str]:
    if isinstance(message, str):
        yield message
        return
    for field in _NAME_FIELDS:
        name = getattr(message, field, None)
        if isinstance(name, str) and name:
            yield name
    if dataclasses.is_dataclass(message):
        for part in dataclasses.fields(message):
            items = getattr(message, part.name)
            if isinstance(items, list) and part.name not in ("configs", "ops"):
                for item in items:
                    yield from _all_names(item)


def _outcome(response: Any, depth: int = _MAX_DEPTH) -> ErrorCode:
    """Returns the first error in a response, or NONE."""
    for field in ("error_code", "partition_error_code"):
        code = getattr(response, field, 0)
        if code:
            return ErrorCode(code)
    if depth and dataclasses.is_dataclass(response):
        for part in dataclasses.fields(response):
            items = getattr(response, part.name)
            for item in items if isinstance(items, list) and part.name != "configs" else ():
                found = _outcome(item, depth - 1)
                if found:
                    return found
    return ErrorCode.NONE
