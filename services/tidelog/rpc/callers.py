"""The services that may make each call, and the check of the caller's certificate.

A certificate names the role of its service in a DNS name before the common name of all services, such as
`broker.tidelog`. If it also contains a name with an id, such as `broker-1.tidelog`, its holder may speak only
for that broker. A certificate may contain several roles.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from enum import Enum
from typing import Any, Final, NamedTuple, cast

import grpc
import grpc.aio
import structlog

from tidelog.model.errors import ErrorCode, KafkaError

_log = structlog.get_logger(__name__)


class ServiceRole(Enum):
    """The kinds of services. The value is the first part of the role's DNS name."""

    BROKER = "broker"
    CONTROLLER = "controller"
    GROUP_COORDINATOR = "group-coordinator"


PermittedCallers = Mapping[str, frozenset[ServiceRole]]

PERMITTED_CALLERS: Final[PermittedCallers] = {
    "/tidelog.rpc.v1.BrokerCommands/Commands": frozenset({ServiceRole.CONTROLLER}),
    "/tidelog.rpc.v1.ControllerApi/Handle": frozenset({ServiceRole.BROKER}),
    "/tidelog.rpc.v1.ControllerApi/AllocateProducerIds": frozenset({ServiceRole.BROKER}),
    "/tidelog.rpc.v1.ControllerApi/ControlledShutdown": frozenset({ServiceRole.BROKER}),
    "/tidelog.rpc.v1.CoordinatorSessions/Session": frozenset({ServiceRole.GROUP_COORDINATOR}),
}
"""The roles that may make each call. A call that is not in this table is refused to everyone."""

_ROLE_NAME: Final = re.compile(r"(broker|controller|group-coordinator)(?:-(0|[1-9][0-9]{0,9}))?")
_NAMES_PROPERTY: Final = "x509_subject_alternative_name"


def role_name(role: ServiceRole, server_name: str) -> str:
    """Returns the DNS name of a role. `server_name` is the name that all certificates contain."""
    return f"{role.value}.{server_name}"


def certificate_names(role: ServiceRole, service_id: int, server_name: str) -> tuple[str, ...]:
    """Returns the names that the certificate of one service must contain."""
    return (server_name, role_name(role, server_name), f"{role.value}-{service_id}.{server_name}")


class Caller(NamedTuple):
    """The service at the other end of a call, according to its certificate."""

    roles: frozenset[ServiceRole]
    ids: frozenset[tuple[ServiceRole, int]]
    """The ids for which the caller may speak; any id of a role that is not here."""

    def may_speak_for(self, role: ServiceRole, service_id: int) -> bool:
        if role not in self.roles:
            return False
        ids = {known_id for known_role, known_id in self.ids if known_role is role}
        return not ids or service_id in ids

    def __str__(self) -> str:
        named = sorted({role for role, _ in self.ids}, key=lambda role: role.value)
        names = [f"{role.value} {service_id}" for role, service_id in self.ids]
        names += [role.value for role in self.roles if role not in named]
        return " and ".join(sorted(names)) or "a service without a role"


UNCHECKED_CALLER: Final = Caller(frozenset(ServiceRole), frozenset())
"""The caller in a connection without certificates, and in one process."""

_caller: ContextVar[Caller] = ContextVar("caller", default=UNCHECKED_CALLER)


def caller_named(names: Iterable[str], server_name: str) -> Caller:
    """Returns the caller whose certificate contains these DNS names."""
    roles: set[ServiceRole] = set()
    ids: set[tuple[ServiceRole, int]] = set()
    for name in names:
        label, _, rest = name.partition(".")
        match = _ROLE_NAME.fullmatch(label) if rest == server_name else None
        if match is None:
            continue
        role = ServiceRole(match[1])
        roles.add(role)
        if match[2] is not None:
            ids.add((role, int(match[2])))
    return Caller(frozenset(roles), frozenset(ids))


def check_speaks_for(role: ServiceRole, service_id: int) -> None:
    """Checks that the caller of the current call may speak for this service.

    Raises KafkaError(CLUSTER_AUTHORIZATION_FAILED).
    """
    caller = _caller.get()
    if not caller.may_speak_for(role, service_id):
        _log.warning("a call names another service than its certificate", caller=str(caller), id=service_id)
        raise KafkaError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            f"The certificate is of {caller} and must not be used for {role.value} {service_id}.",
        )


class CallerCheck(grpc.aio.ServerInterceptor):
    """Refuses calls with PERMISSION_DENIED unless the caller's certificate has a permitted role.

    The types of requests and responses differ from method to method, hence Any.
    """

    def __init__(self, permitted: PermittedCallers, server_name: str) -> None:
        self._permitted = permitted
        self._server_name = server_name
        self._checked: dict[str, tuple[Any, Any]] = {}
        """For each method, the service's handler and the one that checks the caller first."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None  # gRPC answers UNIMPLEMENTED
        method = details.method
        known = self._checked.get(method)
        if known is None or known[0] is not handler:
            # Only methods that the server has reach this line, so the dictionary does not grow further.
            known = self._checked[method] = (handler, self._with_check(method, handler))
        return known[1]

    def _with_check(self, method: str, handler: Any) -> Any:
        """Returns a handler that checks the caller and then calls `handler`."""
        inner = handler.unary_unary or handler.stream_stream
        assert inner is not None, f"{method} has a kind of stream that no service uses"
        admit = self._admission(method)
        serialization = handler.request_deserializer, handler.response_serializer
        if handler.unary_unary is not None:

            async def unary(request: Any, context: Any) -> Any:
                await admit(context)
                return await inner(request, context)

            return grpc.unary_unary_rpc_method_handler(unary, *serialization)
        if not inspect.isasyncgenfunction(inner):

            async def stream(requests: Any, context: Any) -> None:
                await admit(context)
                await inner(requests, context)

            return grpc.stream_stream_rpc_method_handler(cast("Any", stream), *serialization)

        async def answers(requests: Any, context: Any) -> AsyncIterator[Any]:
            await admit(context)
            async for answer in inner(requests, context):
                yield answer

        return grpc.stream_stream_rpc_method_handler(cast("Any", answers), *serialization)

    def _admission(self, method: str) -> Callable[[Any], Awaitable[None]]:
        roles = self._permitted.get(method, frozenset())

        async def admit(context: Any) -> None:
            caller = caller_named(_names_of(context), self._server_name)
            if not roles & caller.roles:
                _log.warning("a call is refused", method=method, caller=str(caller), peer=context.peer())
                await context.abort(
                    grpc.StatusCode.PERMISSION_DENIED, f"{caller} is not permitted to call {method}"
                )
            _caller.set(caller)

        return admit


def _names_of(context: Any) -> list[str]:
    names: list[bytes] = context.auth_context().get(_NAMES_PROPERTY, [])
    return [name.decode("ascii", "replace") for name in names]
