"""Which processes make up a local cluster, where they listen, and how each is configured. No I/O.

Ports: brokers listen for clients at `base_port`, `base_port + 1`, ...; what else is needed (etcd, the
brokers' own listener) takes ports that the caller found free. Everything stands in `cluster.json`, so that a
process comes back where it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

HOST: Final = "127.0.0.1"
PLAN_FILE: Final = "cluster.json"
CONFIG_DIRECTORY: Final = "config"
LOGS_DIRECTORY: Final = "logs"
INTER_BROKER_LISTENER: Final = "REPLICATION"
MAX_INTERNAL_REPLICATION: Final = 3
MAX_INTERNAL_MIN_ISR: Final = 2
_VERSION: Final = 1
_ESCAPES: Final[Mapping[str, str]] = {
    "\\": "\\\\",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\f": "\\f",
}


class PlanError(Exception):
    """A cluster.json that can't be read, or a name that isn't in it."""


class Member(NamedTuple):
    """One process: `broker-1`. `number` is its id among its kind."""

    kind: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.number}"


BROKER, CONTROLLER, COORDINATOR, ETCD = "broker", "controller", "coordinator", "etcd"
COMMANDS: Final[Mapping[str, str]] = {
    BROKER: "broker",
    CONTROLLER: "controller",
    COORDINATOR: "group-coordinator",
}


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """`internal_ports` holds etcd's two and then, where clients come to another port, one a broker."""

    brokers: int
    controllers: int
    coordinators: int
    base_port: int
    internal_ports: tuple[int, ...]
    first_id: int = 1
    advertised_base_port: int | None = None
    rack_prefix: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def internal_port_count(brokers: int, *, has_own_listener: bool) -> int:
        return 2 + (brokers if has_own_listener else 0)

    @property
    def members(self) -> tuple[Member, ...]:
        """In the order in which they start."""
        return (
            Member(ETCD, 1),
            *(Member(CONTROLLER, number) for number in range(1, self.controllers + 1)),
            *(Member(COORDINATOR, number) for number in range(1, self.coordinators + 1)),
            *(Member(BROKER, number) for number in self.broker_ids),
        )

    @property
    def broker_ids(self) -> range:
        return range(self.first_id, self.first_id + self.brokers)

    def member(self, name: str) -> Member:
        """Raises PlanError."""
        for member in self.members:
            if member.name == name:
                return member
        names = ", ".join(member.name for member in self.members)
        raise PlanError(f"there is no {name} in this cluster; there are {names}")

    # -- addresses

    @property
    def etcd_address(self) -> str:
        return f"{HOST}:{self.internal_ports[0]}"

    @property
    def etcd_url(self) -> str:
        return f"http://{self.etcd_address}"

    @property
    def etcd_peer_url(self) -> str:
        return f"http://{HOST}:{self.internal_ports[1]}"

    def broker_address(self, broker_id: int) -> str:
        """Where it listens for clients."""
        return f"{HOST}:{self.base_port + broker_id - self.first_id}"

    def advertised_address(self, broker_id: int) -> str:
        """Where it tells clients to come to."""
        base = self.base_port if self.advertised_base_port is None else self.advertised_base_port
        return f"{HOST}:{base + broker_id - self.first_id}"

    def address(self, member: Member) -> str:
        """Where clients of that process come to; "" where it has no fixed address."""
        if member.kind == BROKER:
            return self.broker_address(member.number)
        return self.etcd_address if member.kind == ETCD else ""

    # -- what each is told

    def etcd_arguments(self, directory: Path) -> list[str]:
        """For etcd 3.4 and later. One member; history is compacted each five minutes."""
        return [
            "--name=etcd-1",
            f"--data-dir={directory / 'etcd-1'}",
            f"--listen-client-urls={self.etcd_url}",
            f"--advertise-client-urls={self.etcd_url}",
            f"--listen-peer-urls={self.etcd_peer_url}",
            f"--initial-advertise-peer-urls={self.etcd_peer_url}",
            f"--initial-cluster=etcd-1={self.etcd_peer_url}",
            "--auto-compaction-mode=periodic",
            "--auto-compaction-retention=5m",
            "--logger=zap",
            "--log-outputs=stderr",
        ]

    def properties(self, member: Member, directory: Path) -> dict[str, str]:
        """The settings of a service's process, by name."""
        replicas = min(MAX_INTERNAL_REPLICATION, self.brokers)
        properties = {
            "node.id": str(member.number),
            "tidelog.etcd.endpoints": self.etcd_url,
            "tidelog.rpc.listener": f"{HOST}:0",
            "tidelog.session.listener": f"{HOST}:0",
            "tidelog.log.format": "text",
            "offsets.topic.replication.factor": str(replicas),
            "transaction.state.log.replication.factor": str(replicas),
            "transaction.state.log.min.isr": str(min(MAX_INTERNAL_MIN_ISR, self.brokers)),
        }
        if member.kind == BROKER:
            properties |= self._broker_properties(member.number, directory / member.name)
        return properties | dict(self.settings)

    def _broker_properties(self, broker_id: int, log_dir: Path) -> dict[str, str]:
        properties = {
            "log.dirs": str(log_dir),
            "listeners": f"PLAINTEXT://{self.broker_address(broker_id)}",
            "advertised.listeners": f"PLAINTEXT://{self.advertised_address(broker_id)}",
        }
        if self.advertised_base_port is not None:
            # What stands between clients and brokers (a proxy, say) is not between the brokers.
            own = f"{HOST}:{self.internal_ports[2 + broker_id - self.first_id]}"
            properties["listeners"] += f",{INTER_BROKER_LISTENER}://{own}"
            properties["advertised.listeners"] += f",{INTER_BROKER_LISTENER}://{own}"
            properties["listener.security.protocol.map"] = (
                f"PLAINTEXT:PLAINTEXT,{INTER_BROKER_LISTENER}:PLAINTEXT"
            )
            properties["inter.broker.listener.name"] = INTER_BROKER_LISTENER
        if self.rack_prefix is not None:
            properties["broker.rack"] = f"{self.rack_prefix}{broker_id}"
        return properties

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
                "settings": dict(self.settings),
            },
            indent=2,
        )

    @classmethod
    def decode(cls, text: str) -> ClusterPlan:
        """Raises PlanError."""
        try:
            value: dict[str, Any] = json.loads(text)
            if value.pop("version") != _VERSION:
                raise PlanError(f"{PLAN_FILE} has a version that this tidelog doesn't know")
            value["internal_ports"] = tuple(value["internal_ports"])
            return cls(**value)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PlanError(f"{PLAN_FILE} can't be read: {error!r}") from error


def encode_properties(properties: Mapping[str, str]) -> str:
    """As a properties file that reads back as it is."""
    return "".join(f"{name}={_escaped(value)}\n" for name, value in sorted(properties.items()))


def _escaped(value: str) -> str:
    text = "".join(_ESCAPES.get(character, character) for character in value)
    return "\\" + text if text.startswith(" ") else text
