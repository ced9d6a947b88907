"""Roles of the services in etcd (ADR 0065): each kind of service reaches only the keys that it needs.

The controller reads and writes all keys. Brokers and group coordinators cannot read credentials, delegation
tokens, ACLs or quotas there: brokers receive them from the controller. etcd grants ranges of keys and no
patterns, so a broker may write all keys below /brokers/topics, although it only changes partition states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tidelog.metadata.coordinators import COORDINATORS
from tidelog.metadata.entries import (
    ALL_KEYS_PREFIX,
    BROKER_CONFIG_PREFIX,
    BROKER_PREFIX,
    BROKERS_AND_TOPICS_PREFIX,
    CLUSTER_ID_KEY,
    CONTROLLER_KEY,
    GROUP_CONFIG_PREFIX,
    SCHEMA_VERSION_KEY,
    TOPIC_PREFIX,
)
from tidelog.metadata.etcd.users import EtcdUser, KeyRange, Role
from tidelog.rpc.callers import ServiceRole, role_name
from tidelog.rpc.peer_tls import DEFAULT_SERVER_NAME

ISR_CHANGES: Final = "/isr_change_notification/"
_READ: Final[Mapping[ServiceRole, tuple[str, ...]]] = {
    ServiceRole.BROKER: (CONTROLLER_KEY,),
    ServiceRole.CONTROLLER: (),
    ServiceRole.GROUP_COORDINATOR: (
        BROKERS_AND_TOPICS_PREFIX,
        BROKER_CONFIG_PREFIX,
        GROUP_CONFIG_PREFIX,
    ),
}
"""The prefixes of the keys that each kind of service reads, without those that it also writes."""
_WRITTEN: Final[Mapping[ServiceRole, tuple[str, ...]]] = {
    ServiceRole.BROKER: (BROKER_PREFIX, TOPIC_PREFIX, ISR_CHANGES),
    ServiceRole.CONTROLLER: (ALL_KEYS_PREFIX,),
    ServiceRole.GROUP_COORDINATOR: (COORDINATORS,),
}
"""The prefixes of the keys that each kind of service reads and writes."""
_FIRST_KEYS: Final = (CLUSTER_ID_KEY, SCHEMA_VERSION_KEY)
"""The keys that the first controller of a cluster writes, and that all services read."""


def etcd_role(kind: ServiceRole) -> Role:
    """Returns the role of a kind of service. Its user has the same name, such as `broker.tidelog`."""
    read = (
        *(KeyRange(prefix) for prefix in _READ[kind]),
        *(KeyRange(key, is_prefix=False) for key in _FIRST_KEYS),
    )
    written = tuple(KeyRange(prefix) for prefix in _WRITTEN[kind])
    return Role(role_name(kind, DEFAULT_SERVER_NAME), read, written)


def service_users(password_of: Callable[[ServiceRole], str]) -> list[EtcdUser]:
    """Returns the users of all kinds of services. An empty password stands for a certificate's name."""
    roles = ((kind, etcd_role(kind)) for kind in ServiceRole)
    return [EtcdUser(role.name, role, password_of(kind)) for kind, role in roles]
