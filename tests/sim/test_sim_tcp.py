"""Simulated connections keep the order of bytes, and both ends learn of their end."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from sim import tcp
from sim.loop import SimLoop, SimProcess
from sim.network import Network
from sim.trace import Trace

LONG_S = 20.0


class Receiver(asyncio.BufferedProtocol):
    """A protocol with a small buffer, which keeps what it receives."""

    def __init__(self) -> None:
        self.received = b""
        self.is_lost = False
        self.end: Any = None
        self._buffer = bytearray(3)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.end = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]


class Pair:
    """A client and a broker with a connection between them."""

    def __init__(self) -> None:
        self.loop = SimLoop(random.Random(1))
        self.network = Network(self.loop, Trace(), random.Random(1))
        self.near, self.far = Receiver(), Receiver()
        self.client, self.broker = (self._process(name) for name in ("client", "broker"))
        self.broker.service = SimpleNamespace(listener=SimpleNamespace(accept=lambda: self.far))
        connecting = self.client.spawn(tcp.connect(self.near, "broker"))
        self.loop.run_until(connecting.done)

    def _process(self, name: str) -> SimProcess:
        process = SimProcess(self.loop, name)
        process.network = self.network
        self.network.processes[name] = process
        return process

    def wait(self) -> None:
        until = self.loop.now + LONG_S
        self.loop.call_at(until, lambda: None)
        self.loop.run_until(lambda: self.loop.now >= until)

    def send(self, *texts: bytes) -> None:
        for text in texts:
            self.near.end.writelines([b"\0" * 4 + b"\0\0", text])


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_bytes_arrive_in_order(pair: Pair) -> None:
    pair.send(*(b"%d" % number for number in range(10)))
    pair.far.end.pause_reading()
    pair.wait()
    assert not pair.far.received
    pair.far.end.resume_reading()
    pair.wait()
    assert pair.far.received.replace(b"\0", b"") == b"0123456789"


def test_the_death_of_a_process_resets_its_connections(pair: Pair) -> None:
    pair.broker.kill()
    pair.wait()
    assert pair.near.is_lost
    assert not pair.far.is_lost


def test_a_lost_message_ends_the_connection_at_both_ends(pair: Pair) -> None:
    pair.network.blocked.add(("client", "broker"))
    pair.send(b"lost")
    pair.network.blocked.clear()
    pair.send(b"later")
    pair.wait()
    assert pair.near.is_lost
    assert pair.far.is_lost
    assert not pair.far.received


def test_a_later_life_of_a_process_receives_nothing(pair: Pair) -> None:
    pair.network.processes["broker"] = SimProcess(pair.loop, "broker")
    pair.send(b"for another life")
    pair.wait()
    assert pair.near.is_lost
    assert not pair.far.received
