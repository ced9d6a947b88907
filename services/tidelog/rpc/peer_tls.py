"""TLS between the services: the certificates of both sides, and the calls that each of them permits.

Both sides of a connection show a certificate of the same authority. The client checks that the certificate is
for the role that it calls, or without roles for `server_name`, whatever the address, because pods have
addresses that no certificate can contain. Each new connection checks the files and reads them again if they
have changed, for example after cert-manager has renewed a mounted Secret. If the new files are incomplete or
do not match each other, the earlier certificates remain in use, and a warning is logged. Open connections are
not affected.

A certificate names the role of its service in a DNS name before the common name of all services, such as
`broker.tidelog`. If it also contains a name with an id, such as `broker-1.tidelog`, its holder may speak only
for that broker. A certificate may contain several roles.
"""

from __future__ import annotations

import inspect
import re
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import grpc
import grpc.aio
import structlog

from tidelog.model.errors import ErrorCode, KafkaError

DEFAULT_SERVER_NAME: Final = "tidelog"


_Signature = tuple[tuple[int, int, int], ...]
_ROLE_NAME: Final = re.compile(r"(broker|controller|group-coordinator)(?:-(0|[1-9][0-9]{0,9}))?")
_NAMES_PROPERTY: Final = "x509_subject_alternative_name"

_log = structlog.get_logger(__name__)


class Identity(NamedTuple):
    """The contents of the files, in PEM."""

    ca: bytes
    cert: bytes
    key: bytes


class PeerTls:
    """The certificates for connections between services. It is safe for use by several threads.

    With `checks_roles`, the certificate at the other end must name the role of its service.

    Raises OSError with a one-sentence message if the files are missing or invalid.
    """

    def __init__(
        self,
        ca_file: str,
        cert_file: str,
        key_file: str,
        *,
        server_name: str = DEFAULT_SERVER_NAME,
        checks_roles: bool = True,
    ) -> None:
        self.server_name = server_name
        self.checks_roles = checks_roles
        self._paths = (Path(ca_file), Path(cert_file), Path(key_file))
        self._lock = threading.Lock()
        self._signature = self._file_signature()
        self._refused: _Signature | None = None
        self._identity = self._read()

    def identity(self) -> Identity:
        """Returns the latest valid certificates. It is the same object until the files change."""
        with self._lock:
            signature: _Signature = ()
            try:
                signature = self._file_signature()
                if signature in (self._signature, self._refused):
                    return self._identity
                identity = self._read()
                if self._file_signature() != signature:
                    return self._identity  # the files are being replaced right now
            except OSError as error:
                if self._refused != signature:
                    _log.warning(
                        "can't use the renewed certificates; keeping the earlier ones", reason=str(error)
                    )
                self._refused = signature
                return self._identity
            self._identity, self._signature = identity, signature
        _log.info("using renewed certificates for connections between services", file=str(self._paths[1]))
        return self._identity

    def _file_signature(self) -> _Signature:
        stats = [path.stat() for path in self._paths]
        return tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats)

    def _read(self) -> Identity:
        ca, cert, key = (path.read_bytes() for path in self._paths)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(cadata=ca.decode("ascii", errors="replace"))
        except (ssl.SSLError, ValueError) as error:
            raise OSError(f"{self._paths[0]} contains no certificates in PEM") from error
        try:
            context.load_cert_chain(self._paths[1], self._paths[2])
        except ssl.SSLError as error:
            reason = error.reason or "the files are not PEM"
            raise OSError(f"{self._paths[1]} and {self._paths[2]} do not match: {reason}") from error
        return Identity(ca, cert, key)


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
