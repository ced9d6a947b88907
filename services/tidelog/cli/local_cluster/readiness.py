"""Checks whether a process of a local cluster serves.

etcd reports that it is healthy, a service has printed `ready:` to its log, and a broker answers Metadata.
"""

from __future__ import annotations

import http.client
import json
import re
from pathlib import Path
from typing import Final

from tidelog.client.address import parse_bootstrap
from tidelog.client.connection import BrokerConnection
from tidelog.client.errors import ClientError
from tidelog.client.security import ClientSecurity
from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse

ANSWER_TIMEOUT_S: Final = 2.0
_READY: Final = re.compile(rb"^ready: ", re.MULTILINE)


def etcd_serves(address: str) -> bool:
    """Asks the etcd whose metrics are at `address` for its health."""
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        answer = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()
    return isinstance(answer, dict) and str(answer.get("health")) == "true"


def has_said_ready(log_path: Path, from_byte: int) -> bool:
    """Returns whether the log contains `ready:` at or after `from_byte`."""
    try:
        with log_path.open("rb") as log:
            log.seek(from_byte)
            return _READY.search(log.read()) is not None
    except FileNotFoundError:
        return False


def brokers_known_to(address: str, security: ClientSecurity) -> set[int]:
    """Returns the broker ids in the Metadata of the broker at `address`; empty if it does not answer."""
    (place,) = parse_bootstrap(address)
    try:
        with BrokerConnection(place, timeout_s=ANSWER_TIMEOUT_S, security=security) as connection:
            answer = connection.call(MetadataRequest(topics=[]), MetadataResponse, at_least=4)
    except ClientError:
        return set()
    return {broker.node_id for broker in answer.brokers}
