"""Parses bootstrap addresses in the format of Kafka's tools: `HOST:PORT,...`, with IPv6 in brackets."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.client.errors import BadAddressError
from tidelog.model.brokers import MAX_PORT, host_and_port


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return host_and_port(self.host, self.port)


def parse_bootstrap(text: str) -> list[Address]:
    """Returns the addresses in `text`, in order. Raises BadAddressError that names the invalid address."""
    addresses = [_parse_address(part.strip()) for part in text.split(",") if part.strip()]
    if not addresses:
        raise BadAddressError("the broker address is empty: expected HOST:PORT, as in 127.0.0.1:9092")
    return addresses


def _parse_address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise BadAddressError(
            f"'{text}' is not a broker address: put an IPv6 address in brackets, as in [::1]:9092"
        )
    if not host or not port.isascii() or not port.isdecimal() or not 0 < int(port) <= MAX_PORT:
        raise BadAddressError(f"'{text}' is not a broker address: expected HOST:PORT, as in 127.0.0.1:9092")
    return Address(host, int(port))
