"""Combines `listeners`, `advertised.listeners`, `inter.broker.listener.name` and the protocol map into one
plan.

The rules are those of Kafka's `KafkaConfig` and `SocketServerConfigs`. Names are in capitals and unique.
Ports differ, unless an IPv4 and an IPv6 address share one. No advertised address is a wildcard, and brokers
use an advertised listener.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import NamedTuple

from tidelog.model.brokers import MAX_PORT, Endpoint
from tidelog.settings.network_settings import SECURITY_PROTOCOLS, NetworkSettings
from tidelog.settings.setting import MAX_INTEGER_CHARS, MAX_SHOWN_CHARS, SettingError

_ENDPOINT = re.compile(r"([^:/]+)://(?:\[([0-9A-Fa-f:.%]+)\]|([^:\[\]/]*)):([0-9]+)")
_WILDCARDS = frozenset({"0.0.0.0", "::"})


def is_loopback_host(host: str) -> bool:
    """Returns whether only this machine reaches `host`. A name other than localhost may lead anywhere."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class ListenerPlan(NamedTuple):
    """The addresses to listen on, and the addresses for clients.

    An empty host in `bind` means all interfaces; in `advertised`, it means the machine's name. With port 0 in
    `bind`, the system selects a port; port 0 in `advertised` means that selected port.
    """

    bind: tuple[Endpoint, ...]
    advertised: tuple[Endpoint, ...]
    inter_broker_listener_name: str
    other_inter_broker_listener_names: tuple[str, ...] = ()

    @property
    def replication_listener_names(self) -> tuple[str, ...]:
        """The listeners over which brokers replicate, the preferred one first."""
        return (self.inter_broker_listener_name, *self.other_inter_broker_listener_names)


def plan_listeners(settings: NetworkSettings) -> ListenerPlan:
    """Returns the plan. Raises SettingError if the settings contradict each other."""
    protocols = _protocol_map(settings.listener_security_protocol_map)
    bind = _endpoints("listeners", settings.listeners, protocols)
    _check_distinct_ports(bind)
    if settings.advertised_listeners is None:
        advertised = bind
    else:
        advertised = _endpoints("advertised.listeners", settings.advertised_listeners, protocols)
    for endpoint in advertised:
        if endpoint.host in _WILDCARDS:
            raise SettingError(
                "advertised.listeners",
                f"advertised.listeners: clients cannot connect to {endpoint.host}; "
                "set it to an address that they can reach",
            )
    bound_names = {endpoint.listener_name for endpoint in bind}
    for endpoint in advertised:
        if endpoint.listener_name not in bound_names:
            raise SettingError(
                "advertised.listeners",
                f"advertised.listeners: {endpoint.listener_name} is not among listeners "
                f"({', '.join(sorted(bound_names))})",
            )
    inter_broker = _inter_broker_listener_name(settings, advertised, protocols)
    return ListenerPlan(bind, advertised, inter_broker, _other_inter_broker_names(settings, advertised))


def _protocol_map(text: str) -> dict[str, str]:
    name = "listener.security.protocol.map"
    protocols: dict[str, str] = {}
    for entry in filter(None, re.split(r"\s*,\s*", text.strip())):
        listener_name, separator, protocol = (part.strip() for part in entry.partition(":"))
        if not separator or not listener_name or protocol.upper() not in SECURITY_PROTOCOLS:
            raise SettingError(
                name, f"{name}: {entry} does not have the form NAME:{'|'.join(SECURITY_PROTOCOLS)}"
            )
        if listener_name.upper() in protocols:
            raise SettingError(name, f"{name}: {listener_name.upper()} occurs twice")
        protocols[listener_name.upper()] = protocol.upper()
    return protocols


def _endpoints(setting_name: str, texts: Iterable[str], protocols: dict[str, str]) -> tuple[Endpoint, ...]:
    endpoints: dict[str, Endpoint] = {}
    for text in texts:
        match = _ENDPOINT.fullmatch(text)
        if match is None:
            raise SettingError(
                setting_name, f"{setting_name}: {text} does not have the form NAME://host:port"
            )
        listener_name = match[1].upper()
        if len(match[4]) > MAX_INTEGER_CHARS or int(match[4]) > MAX_PORT:
            raise SettingError(
                setting_name, f"{setting_name}: {text[:MAX_SHOWN_CHARS]} has a port above {MAX_PORT}"
            )
        port = int(match[4])
        protocol = protocols.get(listener_name)
        if protocol is None:
            raise SettingError(
                setting_name,
                f"{setting_name}: listener {listener_name} has no security protocol; "
                "add it to listener.security.protocol.map",
            )
        if listener_name in endpoints:
            raise SettingError(setting_name, f"{setting_name}: there are two listeners named {listener_name}")
        endpoints[listener_name] = Endpoint(listener_name, match[2] or match[3] or "", port, protocol)
    return tuple(endpoints.values())


def _check_distinct_ports(bind: tuple[Endpoint, ...]) -> None:
    by_port: dict[int, list[Endpoint]] = {}
    for endpoint in bind:
        if endpoint.port:
            by_port.setdefault(endpoint.port, []).append(endpoint)
    for port, endpoints in by_port.items():
        versions = [_ip_version(endpoint.host) for endpoint in endpoints]
        if len(endpoints) > 1 and sorted(version or 0 for version in versions) != [4, 6]:
            names = ", ".join(endpoint.listener_name for endpoint in endpoints)
            raise SettingError("listeners", f"listeners: {names} have the same port {port}")


def _ip_version(host: str) -> int | None:
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return None


def _inter_broker_listener_name(
    settings: NetworkSettings, advertised: tuple[Endpoint, ...], protocols: dict[str, str]
) -> str:
    name = "inter.broker.listener.name"
    chosen = settings.inter_broker_listener_name
    if chosen is None:
        wanted = settings.security_inter_broker_protocol
        name = "security.inter.broker.protocol"
    else:
        wanted = chosen.upper()
        if settings.security_inter_broker_protocol != "PLAINTEXT":
            raise SettingError(name, f"{name}: cannot be set together with security.inter.broker.protocol")
        if wanted not in protocols:
            raise SettingError(name, f"{name}: {wanted} is not in listener.security.protocol.map")
    names = [endpoint.listener_name for endpoint in advertised]
    if wanted not in names:
        raise SettingError(
            name,
            f"{name}: {wanted} is not an advertised listener (there are {', '.join(sorted(names))})",
        )
    return wanted


def _other_inter_broker_names(settings: NetworkSettings, advertised: tuple[Endpoint, ...]) -> tuple[str, ...]:
    name = "tidelog.inter.broker.other.listener.names"
    names = tuple(text.upper() for text in settings.tidelog_inter_broker_other_listener_names)
    known = {endpoint.listener_name for endpoint in advertised}
    for wanted in names:
        if wanted not in known:
            raise SettingError(
                name,
                f"{name}: {wanted} is not an advertised listener (there are {', '.join(sorted(known))})",
            )
    return names
