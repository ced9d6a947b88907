"""Attacks that fill one of the limits of docs/security.md with ordinary requests, in each of three forms:
from one client, over 600 connections of one address, and from one user with 200 addresses. The bystander uses
the same limit, and the metrics of the broker show how full it gets.

The requests are sent at a rate that takes up to a third of a core, because a limit of what clients hold does
not limit the work that they cause. Quotas do that. The time in which the broker waits for a CPU does not
count, so that a busy machine does not turn this rate into a backlog.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import time
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from attack.attacks import LEFT_OUT, NOT_FILLED, TARGET, Attack, Target, compact, unsigned_varint
from attack.bystander import time_without_cpu_s
from attack.filling import (
    ATTACK_S,
    CHART_LIMIT_MB,
    MAX_CONNECTIONS,
    budget_metric,
    connect,
    held,
    log_in,
    source_addresses,
)
from attack.work import CLIENT_ID, metrics_of, open_connection, topic_id
from brokerlab.raw_client import frame, request_header
from tidelog.records.compression import Compression, compress

MAX_IN_FLIGHT: Final = 64
"""The default of `tidelog.connection.max.in.flight.requests`."""
FOR_EVER_MS: Final = 2**31 - 1
FILLED: Final = 0.85
"""The part of a limit that one client must fill at least. The last eighth is left to others."""
SAMPLE_S: Final = 5.0
PUSHES_S: Final = 2.0
"""The time in which the bystander pushes again."""
FETCH, SHARE_FETCH, GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY = 1, 78, 71, 72
ZSTD: Final = 4
WIDE: Final = 500
"""The partitions of TARGET."""


class Form(NamedTuple):
    """The connections over which a limit is filled."""

    name: str
    title: str
    connections: int
    addresses: int = 1
    logs_in: bool = False


FORMS: Final = (
    Form("1", "by a client with 16 connections", 16),
    Form("600", "over 600 connections", MAX_CONNECTIONS),
    Form("user", "by a user with 200 addresses", 200, addresses=200, logs_in=True),
)


class Limit(NamedTuple):
    """A limit, and how to fill it with `requests`, of which `per_s` are sent in a second. `totals` are the
    limits of what these metrics show. `prepare` returns the n-th request. `follow` returns the request after
    an answer, empty if there is none.
    """

    name: str
    title: str
    totals: Mapping[str, int]
    requests: int
    per_s: float
    prepare: Callable[[Target], Callable[[int], bytes]]
    follow: Callable[[bytes], bytes] = lambda answer: b""
    settings: Mapping[str, str] = {}
    bystander_options: tuple[str, ...] = ()


class Peer:
    """A connection, and the number of its requests that are not answered."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.in_flight = 0
        self._received = bytearray()

    def send(self, request: bytes) -> None:
        self.connection.sendall(request)
        self.in_flight += 1

    def answers(self) -> list[bytes]:
        """Returns the answers that have arrived. Raises OSError if the broker has closed the connection."""
        data = self.connection.recv(1 << 20)
        if not data:
            raise ConnectionResetError
        self._received += data
        found = []
        while len(self._received) >= 4:
            (size,) = struct.unpack_from(">i", self._received)
            if len(self._received) < 4 + size:
                break
            found.append(bytes(self._received[4 : 4 + size]))
            del self._received[: 4 + size]
        self.in_flight -= len(found)
        return found


def fill(target: Target, limit: Limit, form: Form) -> str:
    """Fills a limit and goes on. Returns how full it got."""
    request, pid = limit.prepare(target), target.broker.pid

    def clock() -> float:
        return time.monotonic() - time_without_cpu_s(pid)

    host, port = (target.sasl_address if form.logs_in else target.broker.bootstrap).rsplit(":", 1)
    sources = source_addresses(form.addresses)
    count = target.count(form.connections) if form.connections > 16 else form.connections
    fullest = dict.fromkeys(limit.totals, 0.0)
    sent = closed = 0
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        peers = []
        for number in range(count):
            connection = stack.enter_context(connect((host, int(port)), sources[number % len(sources)]))
            if form.logs_in:
                log_in(connection)
            peers.append(Peer(connection))
            selector.register(connection, selectors.EVENT_READ, peers[-1])
        next_s = clock()
        sampled = time.monotonic()
        until = next_s + 1.2 * limit.requests / limit.per_s + max(ATTACK_S * target.scale, 5)
        while (now := clock()) < until and peers:
            if now >= next_s:
                next_s = max(next_s + 1 / limit.per_s, now)  # without making up for what is late
                peer = peers[sent % len(peers)]
                if peer.in_flight < MAX_IN_FLIGHT:
                    peer.send(request(sent))
                sent += 1
            for key, _ in selector.select(max(next_s - now, 0.001)):
                peer = key.data
                try:
                    for answer in peer.answers():
                        if following := limit.follow(answer):
                            peer.send(following)
                except OSError:
                    closed += 1
                    selector.unregister(peer.connection)
                    peers.remove(peer)
            if time.monotonic() - sampled >= SAMPLE_S:
                sampled = time.monotonic()
                fullest = _fuller(target, fullest)
        fullest = _fuller(target, fullest)
        state = LEFT_OUT if limit.settings is PUSHES and not _shows_new_clients(target) else ""
    parts = ", ".join(f"{fullest[name]:,.0f} of {total:,}" for name, total in limit.totals.items())
    if any(fullest[name] < FILLED * total for name, total in limit.totals.items()):
        state += NOT_FILLED
    return f"{state}{parts} held; {sent:,} requests, {closed:,} connections closed"


def _fuller(target: Target, fullest: Mapping[str, float]) -> dict[str, float]:
    """Returns the larger values of what was seen and what the metrics show now."""
    shown = held(target.metrics_address, fullest)
    return {name: max(value, shown[name]) for name, value in fullest.items()}


def _shows_new_clients(target: Target) -> bool:
    """Returns whether what the bystander pushes is shown. The answer to a push does not say so."""
    counts = []
    for _ in range(2):
        with urllib.request.urlopen(f"http://{target.metrics_address}/metrics", timeout=30) as answer:
            counts.append(answer.read().count(f'client_id="{CLIENT_ID}"'.encode()))
        time.sleep(PUSHES_S)
    return counts[0] < counts[1]


# -- the limits


def _fetch_body(partitions: range, wait_ms: int, session_epoch: int) -> bytes:
    """Returns the body of a Fetch v7 at the end of empty partitions."""
    positions = b"".join(struct.pack(">iqqi", number, 0, -1, 1024) for number in partitions)
    return (
        struct.pack(">iiiibii", -1, wait_ms, 1, 1 << 20, 0, 0, session_epoch)
        + struct.pack(f">ih{len(TARGET)}si", 1, len(TARGET), TARGET.encode(), len(partitions))
        + positions
        + struct.pack(">i", 0)
    )


def waiting_fetches(target: Target) -> Callable[[int], bytes]:
    """Returns fetches of all partitions that wait for weeks, without a session."""
    request = frame(request_header(FETCH, 7, 1, False) + _fetch_body(range(WIDE), FOR_EVER_MS, -1))
    return lambda number: request


def fetch_sessions(target: Target) -> Callable[[int], bytes]:
    """Returns fetches that open a session of 200 partitions each."""
    request = frame(request_header(FETCH, 7, 1, False) + _fetch_body(range(200), 0, 0))
    return lambda number: request


def share_sessions(target: Target) -> Callable[[int], bytes]:
    """Returns fetches that open a share session of 25 partitions each. No two sessions share a partition."""
    with open_connection(target.broker.bootstrap) as connection:
        wide = topic_id(connection, TARGET).bytes

    def request(number: int) -> bytes:
        group, part = divmod(number, WIDE // 25)
        partitions = b"".join(
            struct.pack(">i", index) + b"\1\0" for index in range(part * 25, part * 25 + 25)
        )
        body = compact(f"group-{group}") + compact(str(uuid.uuid4()))
        body += struct.pack(">iiiiii", 0, 0, 1, 1 << 20, 1, 1)
        body += b"\2" + wide + unsigned_varint(25 + 1) + partitions + b"\0" + b"\1" + b"\0"
        return frame(request_header(SHARE_FETCH, 1, 1, True) + body)

    return request


PUSHES: Final = {"tidelog.client.metrics.enable": "true"}
SERIES: Final = bytes(
    compress(
        Compression.ZSTD,
        metrics_of([f"{number:0200}" for number in range(500)], {"a": "a" * 200, "b": "b" * 77}),
    )
)
"""A push of so large series that they fill the limits of the number and of the memory together."""


def new_client_instances(target: Target) -> Callable[[int], bytes]:
    """Returns requests of a new client instance each, which asks which metrics to push."""
    request = frame(request_header(GET_TELEMETRY_SUBSCRIPTIONS, 0, 1, True) + bytes(16) + b"\0")
    return lambda number: request


def push_after(answer: bytes) -> bytes:
    """Returns the push of 500 series after the answer with the ids of a client instance."""
    if len(answer) < 4 + 1 + 4 + 2 + 16 + 4:
        return b""  # the answer to a push
    ids = answer[4 + 1 + 4 + 2 :][: 16 + 4]
    body = ids + b"\0" + bytes([ZSTD]) + unsigned_varint(len(SERIES) + 1) + SERIES + b"\0"
    return frame(request_header(PUSH_TELEMETRY, 0, 2, True) + body)


LIMITS: Final = (
    Limit(
        "watched",
        f"waiting fetches of {WIDE:,} partitions",
        {budget_metric("watched_partitions"): 500_000},
        1_000,
        25,
        waiting_fetches,
    ),
    Limit(
        "sessions",
        "fetch sessions of 200 partitions",
        {budget_metric("fetch_sessions"): 1_000, budget_metric("fetch_session_partitions"): 200_000},
        1_000,
        100,
        fetch_sessions,
    ),
    Limit(
        "share-sessions",
        "share sessions of 25 partitions",
        {budget_metric("share_sessions"): 2_000, budget_metric("share_session_partitions"): 50_000},
        2_000,
        50,
        share_sessions,
    ),
    Limit(
        "client-metrics",
        "clients that push 500 series each",
        {budget_metric("client_metrics_series"): 20_000, budget_metric("client_metrics_bytes"): 16 << 20},
        40,
        5,
        new_client_instances,
        push_after,
        PUSHES,
        ("--pushes",),
    ),
    Limit(
        "client-places",
        "clients that ask which metrics to push",
        {budget_metric("client_metrics_clients"): 16_384},
        16_384,
        500,
        new_client_instances,
        settings=PUSHES,
        bystander_options=("--pushes",),
    ),
)


def _attack(limit: Limit, form: Form) -> Attack:
    return Attack(
        f"{limit.name}-{form.name}",
        f"{limit.title} {form.title}",
        lambda target: fill(target, limit, form),
        bound_mb=CHART_LIMIT_MB - 256,
        fills=True,
        settings=limit.settings,
        partitions=WIDE,
        bystander_options=limit.bystander_options,
    )


LIMIT_ATTACKS: Final = tuple(_attack(limit, form) for limit in LIMITS for form in FORMS)
