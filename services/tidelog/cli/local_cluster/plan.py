"""The plan of a local cluster (its processes, ports and settings), and the report of their state. No I/O.

Brokers listen for clients on `base_port`, `base_port + 1`, and so on. etcd and the brokers' own listeners use
free ports that the caller has found. `cluster.json` holds all of them, so that a process restarts with the
same ports.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from tidelog.metadata.coordinators import GROUP, CoordinatorEntry
from tidelog.metadata.entries import (
    BrokerEntry,
    ControllerEntry,
    ControllerEpochEntry,
    PartitionStateEntry,
    TopicEntry,
    decode_entry,
)
from tidelog.metadata.store import KeyValue
from tidelog.model.text import JsonObject
from tidelog.rpc.peer_tls import DEFAULT_SERVER_NAME, ServiceRole, certificate_names
from tidelog.sasl import SCRAM_SHA_512
from tidelog.settings.broker_settings import STANDARD_AUTHORIZER

HOST: Final = "127.0.0.1"
PLAN_FILE: Final = "cluster.json"
CONFIG_DIRECTORY: Final = "config"
LOGS_DIRECTORY: Final = "logs"
AUTHORITY_DIRECTORY: Final = "authority"
CERTIFICATES_DIRECTORY: Final = "certificates"
INTER_BROKER_LISTENER: Final = "REPLICATION"
ADMIN: Final = "admin"
"""The super user of a secure cluster on this machine, and of a release."""
CLIENT_PROPERTIES: Final = "client.properties"
"""The file in the directory of a secure cluster with which clients log in as its super user."""
KEYSTORE: Final = "keystore.pem"
MAX_INTERNAL_REPLICATION: Final = 3
MAX_INTERNAL_MIN_ISR: Final = 2
_VERSION: Final = 1
_ESCAPES: Final[Mapping[str, str]] = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
BROKER, CONTROLLER, COORDINATOR, ETCD = "broker", "controller", "coordinator", "etcd"
LISTENERS: Final = "listeners-of-broker"
"""The kind of the holder of the certificate of a broker's listeners, in a secure cluster."""
TOOLS: Final = "tools"
"""The kind of the holder of a certificate with which the command line reads etcd. It is no process."""
COMMANDS: Final[Mapping[str, str]] = {
    BROKER: "broker",
    CONTROLLER: "controller",
    COORDINATOR: "group-coordinator",
}
_ROLES: Final[Mapping[str, ServiceRole]] = {
    BROKER: ServiceRole.BROKER,
    CONTROLLER: ServiceRole.CONTROLLER,
    COORDINATOR: ServiceRole.GROUP_COORDINATOR,
}


class PlanError(Exception):
    """A cluster.json that can't be read, or a name that the plan does not contain."""


class Member(NamedTuple):
    """One process, such as `broker-1`. `number` is its id within its kind."""

    kind: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.number}"


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The processes, ports and settings of a cluster.

    `internal_ports` holds etcd's ports for clients and peers, one port for each broker if the brokers have a
    listener of their own, and at its end etcd's port for metrics. If the cluster is secure, clients need TLS
    and a login, and the brokers know each other by certificates.
    """

    brokers: int
    controllers: int
    coordinators: int
    base_port: int
    internal_ports: tuple[int, ...]
    first_id: int = 1
    advertised_base_port: int | None = None
    rack_prefix: str | None = None
    is_secure: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def internal_port_count(brokers: int, *, has_own_listener: bool) -> int:
        return 3 + (brokers if has_own_listener else 0)

    @property
    def members(self) -> tuple[Member, ...]:
        """The processes in the order in which they start."""
        return (
            Member(ETCD, 1),
            *(Member(CONTROLLER, number) for number in range(1, self.controllers + 1)),
            *(Member(COORDINATOR, number) for number in range(1, self.coordinators + 1)),
            *(Member(BROKER, number) for number in self.broker_ids),
        )

    @property
    def broker_ids(self) -> range:
        return range(self.first_id, self.first_id + self.brokers)

    @property
    def certificate_holders(self) -> tuple[Member, ...]:
        listeners = (Member(LISTENERS, number) for number in self.broker_ids) if self.is_secure else ()
        return (*self.members, Member(TOOLS, 1), *listeners)

    @property
    def has_own_listener(self) -> bool:
        """Whether the brokers have a listener of their own."""
        return self.is_secure or self.advertised_base_port is not None

    def member(self, name: str) -> Member:
        """Returns a process by its name. Raises PlanError."""
        for member in self.members:
            if member.name == name:
                return member
        names = ", ".join(member.name for member in self.members)
        raise PlanError(f"the cluster has no process {name}; its processes are {names}")

    # -- addresses

    @property
    def etcd_address(self) -> str:
        return f"{HOST}:{self.internal_ports[0]}"

    @property
    def etcd_url(self) -> str:
        return f"https://{self.etcd_address}"

    @property
    def etcd_peer_url(self) -> str:
        return f"https://{HOST}:{self.internal_ports[1]}"

    @property
    def etcd_metrics_address(self) -> str:
        """Returns the address at which etcd serves metrics and its health, in plaintext."""
        return f"{HOST}:{self.internal_ports[-1]}"

    def broker_address(self, broker_id: int) -> str:
        """Returns the address on which the broker listens for clients."""
        return f"{HOST}:{self.base_port + broker_id - self.first_id}"

    def advertised_address(self, broker_id: int) -> str:
        """Returns the address that the broker advertises to clients."""
        base = self.base_port if self.advertised_base_port is None else self.advertised_base_port
        return f"{HOST}:{base + broker_id - self.first_id}"

    def address(self, member: Member) -> str:
        """Returns the address of a process for its clients; empty if it has no fixed address."""
        if member.kind == BROKER:
            return self.broker_address(member.number)
        return self.etcd_address if member.kind == ETCD else ""

    # -- the configuration of each process

    def etcd_arguments(self, directory: Path) -> list[str]:
        """Returns the arguments of a single etcd (3.4 or later), which compacts every five minutes.

        It accepts only connections with a certificate of this cluster.
        """
        certificate = self.certificate_directory(Member(ETCD, 1), directory)
        return [
            "--name=etcd-1",
            f"--data-dir={directory / 'etcd-1'}",
            f"--listen-client-urls={self.etcd_url}",
            f"--advertise-client-urls={self.etcd_url}",
            f"--listen-peer-urls={self.etcd_peer_url}",
            f"--initial-advertise-peer-urls={self.etcd_peer_url}",
            f"--initial-cluster=etcd-1={self.etcd_peer_url}",
            f"--listen-metrics-urls=http://{self.etcd_metrics_address}",
            "--client-cert-auth",
            f"--trusted-ca-file={certificate / 'ca.crt'}",
            f"--cert-file={certificate / 'tls.crt'}",
            f"--key-file={certificate / 'tls.key'}",
            "--peer-client-cert-auth",
            f"--peer-trusted-ca-file={certificate / 'ca.crt'}",
            f"--peer-cert-file={certificate / 'tls.crt'}",
            f"--peer-key-file={certificate / 'tls.key'}",
            "--auto-compaction-mode=periodic",
            "--auto-compaction-retention=5m",
            "--logger=zap",
            "--log-outputs=stderr",
        ]

    def properties(self, member: Member, directory: Path) -> dict[str, str]:
        """Returns the settings of a service's process by name."""
        replicas = min(MAX_INTERNAL_REPLICATION, self.brokers)
        certificate = self.certificate_directory(member, directory)
        properties = {
            "node.id": str(member.number),
            "tidelog.etcd.endpoints": self.etcd_url,
            "tidelog.etcd.tls.ca.file": str(certificate / "ca.crt"),
            "tidelog.etcd.tls.cert.file": str(certificate / "tls.crt"),
            "tidelog.etcd.tls.key.file": str(certificate / "tls.key"),
            "tidelog.rpc.listener": f"{HOST}:0",
            "tidelog.rpc.tls.ca.file": str(certificate / "ca.crt"),
            "tidelog.rpc.tls.cert.file": str(certificate / "tls.crt"),
            "tidelog.rpc.tls.key.file": str(certificate / "tls.key"),
            "tidelog.log.format": "text",
            "offsets.topic.replication.factor": str(replicas),
            "transaction.state.log.replication.factor": str(replicas),
            "transaction.state.log.min.isr": str(min(MAX_INTERNAL_MIN_ISR, self.brokers)),
            "share.coordinator.state.topic.replication.factor": str(replicas),
            "share.coordinator.state.topic.min.isr": str(min(MAX_INTERNAL_MIN_ISR, self.brokers)),
        }
        if member.kind == BROKER:
            properties |= self._broker_properties(member.number, directory / member.name)
        return properties | dict(self.settings)

    @staticmethod
    def certificate_directory(member: Member, directory: Path) -> Path:
        return directory / CERTIFICATES_DIRECTORY / member.name

    @staticmethod
    def certificate_names(member: Member) -> tuple[str, ...]:
        """Returns the names in the certificate of a process."""
        if member.kind in (ETCD, TOOLS):
            return (member.name, HOST)
        if member.kind == LISTENERS:
            return (Member(BROKER, member.number).name, HOST, "localhost")
        server, role, own = certificate_names(_ROLES[member.kind], member.number, DEFAULT_SERVER_NAME)
        return (role, server, own)  # the first one is the user of etcd

    def _broker_properties(self, broker_id: int, log_dir: Path) -> dict[str, str]:
        name = "SASL_SSL" if self.is_secure else "PLAINTEXT"
        properties = {
            "log.dirs": str(log_dir),
            "listeners": f"{name}://{self.broker_address(broker_id)}",
            "advertised.listeners": f"{name}://{self.advertised_address(broker_id)}",
        }
        if self.has_own_listener:
            # A proxy between clients and brokers is not between the brokers.
            own = f"{HOST}:{self.internal_ports[2 + broker_id - self.first_id]}"
            properties["listeners"] += f",{INTER_BROKER_LISTENER}://{own}"
            properties["advertised.listeners"] += f",{INTER_BROKER_LISTENER}://{own}"
            own_protocol = "SSL" if self.is_secure else "PLAINTEXT"
            properties["listener.security.protocol.map"] = (
                f"{name}:{name},{INTER_BROKER_LISTENER}:{own_protocol}"
            )
            properties["inter.broker.listener.name"] = INTER_BROKER_LISTENER
        if self.is_secure:
            properties |= self._security_properties(broker_id, log_dir.parent)
        if self.rack_prefix is not None:
            properties["broker.rack"] = f"{self.rack_prefix}{broker_id}"
        return properties

    def _security_properties(self, broker_id: int, directory: Path) -> dict[str, str]:
        certificate = self.certificate_directory(Member(LISTENERS, broker_id), directory)
        brokers = (f"User:CN={Member(BROKER, number).name}" for number in self.broker_ids)
        own = f"listener.name.{INTER_BROKER_LISTENER.lower()}"
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(certificate / KEYSTORE),
            f"{own}.ssl.truststore.type": "PEM",
            f"{own}.ssl.truststore.location": str(certificate / "ca.crt"),
            f"{own}.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": SCRAM_SHA_512,
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": ";".join((f"User:{ADMIN}", *brokers)),
        }

    # -- cluster.json

    def encode(self) -> str:
        return json.dumps(
            {
                "version": _VERSION,
                "brokers": self.brokers,
                "controllers": self.controllers,
                "coordinators": self.coordinators,
                "base_port": self.base_port,
                "internal_ports": self.internal_ports,
                "first_id": self.first_id,
                "advertised_base_port": self.advertised_base_port,
                "rack_prefix": self.rack_prefix,
                "is_secure": self.is_secure,
                "settings": dict(self.settings),
            },
            indent=2,
        )

    @classmethod
    def decode(cls, text: str) -> ClusterPlan:
        """Raises PlanError."""
        try:
            value: JsonObject = json.loads(text)
            if value.pop("version") != _VERSION:
                raise PlanError(f"{PLAN_FILE} has a version that this release of tidelog does not support")
            value["internal_ports"] = tuple(value["internal_ports"])
            return cls(**value)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PlanError(f"{PLAN_FILE} can't be read: {error!r}") from error


def encode_properties(properties: Mapping[str, str]) -> str:
    """Encodes settings as a properties file that decodes to the same settings."""
    return "".join(f"{name}={_escaped(value)}\n" for name, value in sorted(properties.items()))


def _escaped(value: str) -> str:
    text = "".join(_ESCAPES.get(character, character) for character in value)
    return "\\" + text if text.startswith(" ") else text


class Trouble(NamedTuple):
    """A degraded partition. `leader` and `in_sync` contain only live brokers."""

    topic: str
    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(slots=True)
class ClusterReport:
    """The state of a cluster, as `read_metadata` returns it."""

    brokers: set[int] = field(default_factory=set)
    coordinators: set[int] = field(default_factory=set)
    controller_id: int | None = None
    controller_epoch: int = 0
    states: list[PartitionStateEntry] = field(default_factory=list)
    replicas: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)

    def role(self, member: Member) -> str:
        """Returns the member's role in the cluster, in a few words."""
        if member.kind == BROKER:
            return self._role_of_broker(member.number)
        if member.kind == CONTROLLER:
            in_office = self.controller_id == member.number
            return f"active, epoch {self.controller_epoch}" if in_office else "standby"
        if member.kind == COORDINATOR:
            return "registered" if member.number in self.coordinators else "not registered"
        return ""

    def _role_of_broker(self, broker_id: int) -> str:
        if broker_id not in self.brokers:
            return "not registered"
        counts = Counter(
            state.leader == broker_id
            for state in self.states
            if broker_id in self.replicas.get((state.topic, state.partition), ())
        )
        return f"leads {counts[True]}, follows {counts[False]}"

    def troubled_partitions(self, running: Collection[int]) -> list[Trouble]:
        """Returns the partitions without a live leader, or with replicas that are not live and in sync.

        A broker is live if it is registered and in `running`: the registration of a process that was killed
        or stopped lasts until its lease ends. If all replicas of a partition are dead, the metadata keeps the
        last leader and ISR.
        """
        live = self.brokers.intersection(running)
        found = []
        for state in self.states:
            replicas = self.replicas.get((state.topic, state.partition), ())
            leader = state.leader if state.leader in live else None
            in_sync = tuple(broker_id for broker_id in state.isr if broker_id in live)
            if leader is None or len(in_sync) < len(replicas):
                found.append(Trouble(state.topic, state.partition, leader, replicas, in_sync))
        return sorted(found)


def read_metadata(items: Iterable[KeyValue], coordinators: Iterable[CoordinatorEntry]) -> ClusterReport:
    """Returns the report of the store's contents. Raises InvalidEntryError."""
    report = ClusterReport()
    report.coordinators = {c.coordinator_id for c in coordinators if c.kind == GROUP}
    for item in items:
        match decode_entry(item.key, item.value):
            case BrokerEntry() as broker:
                report.brokers.add(broker.broker_id)
            case ControllerEntry() as controller:
                report.controller_id = controller.controller_id
            case ControllerEpochEntry() as epoch:
                report.controller_epoch = epoch.controller_epoch
            case PartitionStateEntry() as state:
                report.states.append(state)
            case TopicEntry() as topic:
                for index, replicas in enumerate(topic.assignments):
                    report.replicas[topic.name, index] = replicas
            case _:
                pass
    return report
