"""Users and roles of a local cluster's etcd: each kind of service writes only its own keys.

The user of a connection is the common name in its certificate. All services read all keys. The controller
writes all of them, brokers write registrations, partition states and ISR changes, and coordinators write
their registrations and claims. The command line has the role root.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from tidelog.metadata.entries import (
    ALL_KEYS_PREFIX,
    BROKER_PREFIX,
    CLUSTER_ID_KEY,
    SCHEMA_VERSION_KEY,
    TOPIC_PREFIX,
)
from tidelog.metadata.etcd.options import EtcdOptions
from tidelog.model.json_object import JsonObject
from tidelog.rpc.callers import ServiceRole, role_name
from tidelog.rpc.peer_tls import DEFAULT_SERVER_NAME

ANSWER_TIMEOUT_S: Final = 10.0
ISR_CHANGES: Final = "/isr_change_notification/"
COORDINATORS: Final = "/coordinators/"
WRITABLE: Final[Mapping[ServiceRole, tuple[str, ...]]] = {
    ServiceRole.BROKER: (BROKER_PREFIX, TOPIC_PREFIX, ISR_CHANGES),
    ServiceRole.CONTROLLER: (ALL_KEYS_PREFIX,),
    ServiceRole.GROUP_COORDINATOR: (COORDINATORS,),
}
"""The prefixes of the keys that each kind of service writes."""
WRITABLE_KEYS: Final = (CLUSTER_ID_KEY, SCHEMA_VERSION_KEY)
"""The keys that the first service of a cluster writes, whatever its kind."""
_ROOT: Final = "root"
_READ, _READ_WRITE = "READ", "READWRITE"
_COMMON_NAME_REFUSED: Final = "CommonName of client"
_EXISTS: Final = "already exists"


class EtcdUsersError(OSError):
    """etcd refused a user or a role."""


class Call(NamedTuple):
    """One call of etcd's Auth service."""

    path: str
    body: JsonObject


def user_name(role: ServiceRole) -> str:
    """Returns the user of a kind of service."""
    return role_name(role, DEFAULT_SERVER_NAME)


def setup_calls(prefix: str, administrator: str) -> Iterator[Call]:
    """Yields the calls that create users and roles and require them, in their order."""
    yield Call("user/add", {"name": _ROOT, "options": {"no_password": True}})
    yield Call("user/grant", {"user": _ROOT, "role": _ROOT})
    yield Call("user/add", {"name": administrator, "options": {"no_password": True}})
    yield Call("user/grant", {"user": administrator, "role": _ROOT})
    for role, prefixes in WRITABLE.items():
        name = user_name(role)
        yield Call("role/add", {"name": name})
        yield _grant(name, _READ, prefix + ALL_KEYS_PREFIX, is_prefix=True)
        for writable in prefixes:
            yield _grant(name, _READ_WRITE, prefix + writable, is_prefix=True)
        for key in WRITABLE_KEYS:
            yield _grant(name, _READ_WRITE, prefix + key, is_prefix=False)
        yield Call("user/add", {"name": name, "options": {"no_password": True}})
        yield Call("user/grant", {"user": name, "role": name})
    yield Call("enable", {})


def ensure_users(options: EtcdOptions, administrator: str) -> None:
    """Creates users and roles in the etcd at the first endpoint, unless it requires them already. An earlier
    attempt may have done a part. Raises OSError.
    """
    (endpoint, *_) = options.parsed_endpoints()
    context = ssl.create_default_context(cafile=options.ca_file)
    context.load_cert_chain(options.cert_file, options.key_file)
    connection = http.client.HTTPSConnection(endpoint.target, timeout=ANSWER_TIMEOUT_S, context=context)
    try:
        if _are_required(connection):
            return
        for call in setup_calls(options.prefix, administrator):
            _ask(connection, call)
    except http.client.HTTPException as error:
        raise EtcdUsersError(f"etcd's answer about users is not HTTP: {error!r}") from error
    finally:
        connection.close()


def _are_required(connection: http.client.HTTPSConnection) -> bool:
    """Returns whether etcd requires users. Its JSON gateway then refuses certificates with a common name."""
    connection.request("POST", "/v3/auth/status", "{}")
    answer = connection.getresponse()
    text = answer.read().decode(errors="replace")
    if answer.status == http.client.BAD_REQUEST and _COMMON_NAME_REFUSED in text:
        return True
    if answer.status not in (http.client.OK, http.client.NOT_FOUND):  # etcd 3.4 has no such call
        raise EtcdUsersError(f"etcd does not say whether it requires users: {text.strip()}")
    return False


def _grant(role: str, kind: str, key: str, *, is_prefix: bool) -> Call:
    permission: JsonObject = {"permType": kind, "key": _encoded(key.encode())}
    if is_prefix:
        after = key.encode()
        permission["range_end"] = _encoded(after[:-1] + bytes([after[-1] + 1]))
    return Call("role/grant", {"name": role, "perm": permission})


def _encoded(key: bytes) -> str:
    return base64.b64encode(key).decode()


def _ask(connection: http.client.HTTPSConnection, call: Call) -> JsonObject:
    connection.request("POST", f"/v3/auth/{call.path}", json.dumps(call.body))
    answer = connection.getresponse()
    try:
        found: JsonObject = json.loads(answer.read())
    except ValueError as error:
        raise EtcdUsersError(f"etcd's answer to {call.path} is not JSON") from error
    reason = str(found.get("message") or found.get("error") or answer.reason)
    if answer.status != http.client.OK and _EXISTS not in reason:
        raise EtcdUsersError(f"etcd refuses {call.path}: {reason}")
    return found
