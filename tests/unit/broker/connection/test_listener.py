"""The limits for the number, the rate and the idle time of connections, over real sockets on the production
event loop.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
from collections.abc import Iterator
from time import monotonic
from typing import Any, cast

import pytest
import uvloop

from tidelog.broker.cluster.view import CurrentSettings
from tidelog.broker.net import connection as connection_module
from tidelog.broker.net import listener as listener_module
from tidelog.broker.net.connection import Connection
from tidelog.broker.net.listener import MAX_EXCESS_S, ConnectionLimits, Listener
from tidelog.broker.requests.request import RequestContext
from tidelog.broker.security.client_quotas import ClientQuotas, Samples
from tidelog.kernel.timer import VirtualTimer
from tidelog.metadata.entries import ClientQuotaEntry, QuotaEntity
from tidelog.metrics.telemetry import Telemetry
from tidelog.model.brokers import Endpoint
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.network_settings import LEAST_CONNECTIONS
from tidelog.settings.setting import SettingError


class Echo:
    """A dispatcher that answers each request with the request's bytes; `park` waits."""

    version = 0
    may_answer_large = False

    def dispatch(self, connection: Connection, frame: memoryview) -> None:
        context = RequestContext(connection, cast(Any, self), 0, None, 0.0)
        if bytes(frame) == b"park":
            context.park()
            return
        context.answer_bytes = len(frame)
        connection.answer_now(context, [struct.pack(">i", len(frame)) + frame])


class Lab:
    def __init__(self) -> None:
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.settings = CurrentSettings(BrokerSettings.parse({}))
        self.telemetry = Telemetry()
        self.timer = VirtualTimer()
        self.quotas = ClientQuotas(Samples(11, 1000), Samples(11, 1000))
        self.limits = ConnectionLimits(self.settings, self.quotas)
        self.listeners: list[Listener] = []
        self.clients: list[socket.socket] = []

    def set(self, **changes: str) -> None:
        texts = {name.replace("_", "."): value for name, value in changes.items()}
        self.settings.replace(BrokerSettings.parse(texts))

    def listen(self, host: str = "127.0.0.1", port: int = 0, name: str = "PLAINTEXT") -> Listener:
        async def start() -> Listener:
            endpoint = Endpoint(name, host, port)
            made = Listener(endpoint, self.settings, self.telemetry, self.timer, Echo().dispatch, self.limits)
            made.bind()
            self.listeners.append(made)
            await made.serve()
            return made

        return self.runner.run(start())

    def connect(self, listener: Listener, source: str = "127.0.0.1") -> socket.socket:
        client = socket.create_connection(("127.0.0.1", listener.port), source_address=(source, 0))
        client.setblocking(False)
        self.clients.append(client)
        self.wait(0.02)
        return client

    def wait(self, seconds: float) -> None:
        self.runner.run(asyncio.sleep(seconds))

    def is_served(self, client: socket.socket) -> bool:
        try:
            client.sendall(struct.pack(">i", 4) + b"ping")
            self.wait(0.03)
            return client.recv(100) == struct.pack(">i", 4) + b"ping"
        except BlockingIOError:
            return False
        except ConnectionError:
            return False

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for listener in self.listeners:
            self.runner.run(self._close(listener))
        self.wait(0.02)
        self.runner.close()

    async def _close(self, listener: Listener) -> None:
        listener.close()


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = Lab()
    yield made
    made.close()


def test_no_more_than_max_connections_over_all_listeners(lab: Lab) -> None:
    lab.set(max_connections="10")
    listeners = [lab.listen(), lab.listen()]
    for _ in range(8):
        lab.connect(listeners[1])
    first, second, third = (lab.connect(listeners[index]) for index in (0, 1, 0))
    assert [lab.is_served(client) for client in (first, second, third)] == [True, True, False]
    first.close()
    lab.wait(0.02)
    assert lab.is_served(lab.connect(listeners[1]))
    assert lab.limits.total == 10


def test_a_listener_of_the_brokers_own_has_no_limit(lab: Lab) -> None:
    lab.set(
        listeners="CLIENTS://127.0.0.1:9092,BROKERS://127.0.0.1:9093",
        listener_security_protocol_map="CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
        inter_broker_listener_name="BROKERS",
        max_connections_per_ip="1",
        max_connection_creation_rate="1",
    )
    lab.limits = ConnectionLimits(lab.settings, lab.quotas)
    clients, brokers = lab.listen(name="CLIENTS"), lab.listen(name="BROKERS")
    assert lab.is_served(lab.connect(clients))
    assert not lab.is_served(lab.connect(clients))
    assert all(lab.is_served(lab.connect(brokers)) for _ in range(3))


def test_no_listener_of_the_brokers_has_a_limit_while_they_move_to_another(lab: Lab) -> None:
    lab.set(
        listeners="CLIENTS://127.0.0.1:9092,BROKERS://127.0.0.1:9093,PEERS://127.0.0.1:9094",
        listener_security_protocol_map="CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT,PEERS:PLAINTEXT",
        inter_broker_listener_name="PEERS",
        tidelog_inter_broker_other_listener_names="BROKERS",
        max_connections_per_ip="1",
    )
    lab.limits = ConnectionLimits(lab.settings, lab.quotas)
    clients, brokers, peers = (lab.listen(name=name) for name in ("CLIENTS", "BROKERS", "PEERS"))
    served = [lab.is_served(lab.connect(listener)) for listener in (clients, clients, brokers, peers)]
    assert served == [True, False, True, True]


def test_the_number_of_connections_has_a_lower_bound() -> None:
    with pytest.raises(SettingError, match=r"max\.connections"):
        BrokerSettings.parse({"max.connections": str(LEAST_CONNECTIONS - 1)})


def test_each_address_has_its_own_limit(lab: Lab) -> None:
    lab.set(max_connections_per_ip="1", max_connections_per_ip_overrides="127.0.0.2:2,127.0.0.3:0")
    listener = lab.listen()
    served = [
        lab.is_served(lab.connect(listener, source))
        for source in ("127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.2", "127.0.0.2", "127.0.0.3")
    ]
    assert served == [True, False, True, True, False, False]
    assert lab.limits.per_host == {"127.0.0.1": 1, "127.0.0.2": 2}


def test_limits_may_change_while_the_broker_runs(lab: Lab) -> None:
    listener = lab.listen()
    assert lab.is_served(lab.connect(listener))
    lab.set(max_connections_per_ip="1")
    assert not lab.is_served(lab.connect(listener))
    lab.set(max_connections="50", max_connections_per_ip_overrides="127.0.0.1:2")
    assert lab.is_served(lab.connect(listener))
    assert not lab.is_served(lab.connect(listener))


def test_refused_and_closed_connections_are_not_counted(lab: Lab) -> None:
    lab.set(max_connections_per_ip="3")
    listener = lab.listen()
    for _ in range(5):
        lab.connect(listener)
    for client in lab.clients:
        client.close()
    lab.wait(0.05)
    assert lab.limits.total == 0
    assert not lab.limits.per_host
    assert lab.telemetry.listeners["PLAINTEXT"].open_count == 0


def test_a_connection_that_is_reset_at_once_leaves_nothing(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    listener = lab.listen()
    for _ in range(20):
        client = socket.create_connection(("127.0.0.1", listener.port))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    lab.wait(0.05)
    assert not listener._connections
    assert lab.limits.total == 0
    assert not caplog.records
    assert lab.is_served(lab.connect(listener))


# -- rate


def test_connections_above_the_rate_are_served_later(lab: Lab) -> None:
    lab.set(max_connection_creation_rate="2")
    listener = lab.listen()
    *early, late = (lab.connect(listener) for _ in range(3))
    assert not lab.is_served(late)
    assert all(lab.is_served(client) for client in early)
    lab.wait(0.6)
    assert late.recv(100) == struct.pack(">i", 4) + b"ping"
    assert lab.is_served(late)


# -- idle


def test_silence_ends_a_connection_that_waits_for_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.set(connections_max_idle_ms="1000")
    listener = lab.listen()
    silent, talking, waiting = (lab.connect(listener) for _ in range(3))
    waiting.sendall(struct.pack(">i", 4) + b"park")
    lab.wait(0.02)
    now = listener_module.monotonic() + 1.5
    monkeypatch.setattr(listener_module, "monotonic", lambda: now)
    monkeypatch.setattr(connection_module, "monotonic", lambda: now)
    assert lab.is_served(talking)

    async def time_passes() -> None:
        lab.timer.advance(100)

    lab.runner.run(time_passes())
    lab.wait(0.02)
    assert silent.recv(1) == b""
    assert lab.is_served(talking)
    with pytest.raises(BlockingIOError):
        waiting.recv(1)


def test_a_negative_idle_time_is_for_ever(lab: Lab) -> None:
    lab.set(connections_max_idle_ms="-1")
    lab.listen()
    assert len(lab.timer) == 0


# -- addresses


def test_an_address_that_is_taken_is_named(lab: Lab) -> None:
    taken = lab.listen()
    with pytest.raises(OSError, match=f"PLAINTEXT can't listen on 127.0.0.1:{taken.port}: Address already"):
        lab.listen(port=taken.port)


def test_a_listener_that_never_served_frees_its_address(lab: Lab) -> None:
    async def bind_and_close(port: int) -> int:
        endpoint = Endpoint("PLAINTEXT", "127.0.0.1", port)
        bound = Listener(endpoint, lab.settings, lab.telemetry, lab.timer, Echo().dispatch, lab.limits)
        bound.bind()
        bound.close()
        closed.append(bound)
        return bound.port

    closed: list[Listener] = []
    port = lab.runner.run(bind_and_close(0))
    lab.runner.run(bind_and_close(port))
    assert len(closed) == 2, "the first one still exists, so nothing else than `close` frees its address"


def test_ipv6(lab: Lab) -> None:
    try:
        listener = lab.listen("::1")
    except OSError:
        pytest.skip("no IPv6 here")
    client = socket.create_connection(("::1", listener.port))
    client.setblocking(False)
    lab.clients.append(client)
    assert lab.is_served(client)
    assert lab.limits.per_host == {"::1": 1}


def test_a_quota_limits_the_rate_of_one_address(lab: Lab) -> None:
    limited = ClientQuotaEntry(QuotaEntity((("ip", "10.0.0.1"),)), {"connection_creation_rate": 10.0})
    lab.quotas.update({limited.key: limited})
    delays = [lab.limits.excess_s(100.0, "PLAINTEXT", "10.0.0.1") for _ in range(5_000)]
    assert delays[:10] == [0.0] * 10
    assert delays[10:] == pytest.approx([0.1] * 4_990), "connections that are refused do not count"
    assert [lab.limits.excess_s(100.0, "PLAINTEXT", "10.0.0.2") for _ in range(15)] == [0.0] * 15


def test_a_connection_above_the_quota_of_its_address_is_closed_after_a_moment(lab: Lab) -> None:
    """The quota permits the last connection only after 100 s, so that a slow machine changes nothing."""
    listener = lab.listen()
    for rate, count in ((100.0, 2), (0.01, 0)):
        limited = ClientQuotaEntry(QuotaEntity((("ip", "127.0.0.2"),)), {"connection_creation_rate": rate})
        lab.quotas.update({limited.key: limited})
        assert all(lab.is_served(lab.connect(listener, "127.0.0.2")) for _ in range(count))
    begun_s = monotonic()
    late = lab.connect(listener, "127.0.0.2")
    assert not lab.is_served(late)
    while lab.limits.total > 2:
        assert monotonic() - begun_s < 30, "the connection is not closed"
        lab.wait(0.02)
    assert monotonic() - begun_s > 0.9 * MAX_EXCESS_S, "the connection is closed at once"
    assert lab.is_served(lab.connect(listener)), "another address has its own quota"


def test_a_connection_that_ends_while_it_waits_is_forgotten(lab: Lab) -> None:
    """A timer kept each of them alive until its turn, and each delayed the connections after it."""
    lab.set(max_connection_creation_rate="2")
    listener = lab.listen()
    for _ in range(30):
        lab.connect(listener, "127.0.0.2").close()
    lab.wait(0.05)
    assert lab.limits.total == 0
    gc.collect()
    kept = [
        found for found in gc.get_objects() if isinstance(found, Connection) and found.listener is listener
    ]
    assert not kept
    client = lab.connect(listener)
    lab.wait(0.6)
    assert lab.is_served(client)


def test_another_address_does_not_wait_for_an_attackers(lab: Lab) -> None:
    lab.set(max_connection_creation_rate="2")
    listener = lab.listen()
    for _ in range(30):
        lab.connect(listener, "127.0.0.2")
    client = lab.connect(listener, "127.0.0.3")
    lab.wait(1.1)
    assert lab.is_served(client)


def test_the_rates_of_addresses_are_bounded(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.broker.net.listener.MAX_HOST_RATES", 8)
    every = ClientQuotaEntry(QuotaEntity((("ip", None),)), {"connection_creation_rate": 1.0})
    lab.quotas.update({every.key: every})
    for number in range(100):
        assert lab.limits.excess_s(100.0 + number / 100, "PLAINTEXT", f"10.0.0.{number}") == 0
        assert len(lab.limits._host_rates) <= 8
