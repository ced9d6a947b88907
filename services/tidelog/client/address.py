"""Parses bootstrap addresses in the format of Kafka's tools: `HOST:PORT,...`, with IPv6 in brackets."""

from __future__ import annotations

import socket
import ssl
import struct
from typing import Final, NamedTuple

from tidelog.client.errors import (
    BadAddressError,
    ClientError,
    ConnectionLostError,
    NotKafkaError,
    NotTrustedError,
)
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


PROBE_TIMEOUT_S: Final = 2.0
_API_VERSIONS_0: Final = bytes.fromhex("0000000a 0012 0000 54494445 ffff")
"""A request of ApiVersions version 0 without a client id. Its correlation id spells `TIDE`."""
_ANSWER_HEADER: Final = struct.Struct(">i4s")


def explained(error: ClientError, address: Address, *, has_tls: bool) -> ClientError:
    """Returns the error of a connection that failed before its first answer, or a clearer one in its place.

    It connects once more, in the other way, and sends nothing that needs trust. It blocks for at most two
    seconds for each step.
    """
    if (
        has_tls
        and isinstance(error, (NotTrustedError, ConnectionLostError))
        and _answers_without_tls(address)
    ):
        return NotTrustedError(
            f"{address} does not use TLS, but the client does: set security.protocol to PLAINTEXT or "
            "SASL_PLAINTEXT, or choose a port with TLS"
        )
    if not has_tls and isinstance(error, (ConnectionLostError, NotKafkaError)) and _speaks_tls(address):
        return NotKafkaError(
            f"{address} uses TLS, but the client does not: set security.protocol to SSL or SASL_SSL"
        )
    return error


def _speaks_tls(address: Address) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # it asks only whether there is TLS, and sends nothing
    try:
        with socket.create_connection(address, PROBE_TIMEOUT_S) as connection:
            context.wrap_socket(connection, server_hostname=address.host).close()
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")  # the server understood the hello, and refuses it
    except (OSError, ValueError):
        return False
    return True


def _answers_without_tls(address: Address) -> bool:
    try:
        with socket.create_connection(address, PROBE_TIMEOUT_S) as connection:
            connection.sendall(_API_VERSIONS_0)
            answer = connection.recv(_ANSWER_HEADER.size, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(answer) == _ANSWER_HEADER.size and answer[4:] == _API_VERSIONS_0[8:12]
