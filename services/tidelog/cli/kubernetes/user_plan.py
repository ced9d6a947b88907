"""Decides which users and ACLs `tidelog kubernetes users` creates and removes. No I/O.

The chart passes what its values name, without passwords. What the command has created is recorded, so that it
removes users and ACLs that the values no longer name, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tidelog.model.acl import (
    CLUSTER_NAME,
    WILDCARD,
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    Principal,
    ResourceType,
)
from tidelog.model.text import JsonObject
from tidelog.sasl import SCRAM_SHA_512
from tidelog.sasl.jaas import quoted

ADMIN: Final = "admin"
_SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_RESOURCES: Final[Mapping[str, ResourceType]] = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactionalId": ResourceType.TRANSACTIONAL_ID,
    "cluster": ResourceType.CLUSTER,
}


class WantedUser(NamedTuple):
    """A user of the values. The command never writes a Secret that is given."""

    name: str
    secret: str
    is_given: bool
    acls: tuple[AclBinding, ...]


class Wanted(NamedTuple):
    """The users and ACLs that the values of a release name."""

    admin_secret: str
    record: str
    """The ConfigMap that records what the command has created."""
    mechanisms: tuple[str, ...]
    users: tuple[WantedUser, ...]
    has_authorizer: bool
    inside_protocol: str
    """The protocol at which the command connects to the brokers."""
    users_protocol: str
    """The protocol with which users log in."""

    @property
    def acls(self) -> frozenset[AclBinding]:
        return frozenset(binding for user in self.users for binding in user.acls)


class Record(NamedTuple):
    """The users and ACLs that the command has created."""

    users: frozenset[str] = frozenset()
    acls: frozenset[AclBinding] = frozenset()

    def encode(self) -> JsonObject:
        return {"users": sorted(self.users), "acls": sorted([*binding] for binding in self.acls)}

    @classmethod
    def decode(cls, value: JsonObject) -> Record:
        return cls(frozenset(value["users"]), frozenset(_binding(fields) for fields in value["acls"]))


def parse_wanted(value: JsonObject) -> Wanted:
    """Returns what the chart's JSON describes. Raises KeyError and ValueError if it is not the chart's."""
    return Wanted(
        value["admin"],
        value["record"],
        tuple(value["mechanisms"]),
        tuple(
            WantedUser(user["name"], user["secret"], user["isGiven"], tuple(_acls(user)))
            for user in value["users"]
        ),
        value["hasAuthorizer"],
        value["insideProtocol"],
        value["usersProtocol"],
    )


def leaving(wanted: Wanted, record: Record) -> Record:
    """Returns what the command has created and the values no longer name."""
    return Record(record.users - {user.name for user in wanted.users}, record.acls - wanted.acls)


def client_properties(protocol: str, user: str, password: str, authority: str) -> str:
    """Returns the properties with which a client of Kafka connects as this user. `authority` is the PEM of
    the certificates that signed the brokers'; without it, the client trusts the system's authorities.
    """
    lines = [f"security.protocol={protocol}"]
    if protocol.startswith("SASL_"):
        login = f"{_SCRAM_MODULE} required username={quoted(user)} password={quoted(password)};"
        lines += [f"sasl.mechanism={SCRAM_SHA_512}", f"sasl.jaas.config={_escaped(login)}"]
    if protocol.endswith("SSL") and authority:
        lines += ["ssl.truststore.type=PEM", f"ssl.truststore.certificates={_escaped(authority.strip())}"]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """Returns the text as the value of a property."""
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _acls(user: JsonObject) -> Iterable[AclBinding]:
    for acl in user["acls"]:
        (kind,) = _RESOURCES.keys() & acl.keys()
        for operation in acl["operations"]:
            yield AclBinding(
                _RESOURCES[kind],
                PatternType.PREFIXED if acl.get("prefixed") else PatternType.LITERAL,
                CLUSTER_NAME if kind == "cluster" else acl[kind],
                Principal(f"User:{user['name']}"),
                acl.get("host", WILDCARD),
                AclOperation[operation.upper().replace("-", "_")],
                PermissionType[acl.get("permission", "allow").upper()],
            )


def _binding(fields: Sequence[Any]) -> AclBinding:
    kind, pattern, name, principal, host, operation, permission = fields
    return AclBinding(
        ResourceType(kind),
        PatternType(pattern),
        name,
        Principal(principal),
        host,
        AclOperation(operation),
        PermissionType(permission),
    )
