"""Finds out whether a failed connection failed because only one of its two sides uses TLS.

Neither side says so itself: a broker closes a connection whose first bytes it does not understand.
"""

from __future__ import annotations

import socket
import ssl
import struct
from typing import Final

from tidelog.client.address import Address
from tidelog.client.errors import ClientError, ConnectionLostError, NotKafkaError, NotTrustedError

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
