"""Channels between services in one process (`tidelog dev`), which pass the objects themselves."""

from __future__ import annotations

import asyncio

from tidelog.model.brokers import BrokerRegistration
from tidelog.rpc.broker_commands import BrokerCommands
from tidelog.rpc.coordinator_session import Item, SessionAcceptor, SessionEnd, SessionLine


class InProcessBrokerChannels:
    """The brokers of this process by id. A broker attaches before it registers in the metadata store."""

    def __init__(self) -> None:
        self._brokers: dict[int, BrokerCommands] = {}

    def attach(self, broker_id: int, commands: BrokerCommands) -> None:
        self._brokers[broker_id] = commands

    def detach(self, broker_id: int) -> None:
        """Removes a broker that has stopped."""
        self._brokers.pop(broker_id, None)

    def channel(self, broker: BrokerRegistration) -> BrokerCommands:
        commands = self._brokers.get(broker.broker_id)
        if commands is None:
            raise ConnectionError(f"broker {broker.broker_id} is not in this process")
        return commands


class InProcessSessionConnector:
    """Sessions between the coordinator and the brokers of this process.

    Items are delivered in the next turn of the event loop, so that neither side is called while it sends.
    """

    def __init__(self) -> None:
        self._acceptors: dict[int, SessionAcceptor] = {}

    def attach(self, broker_id: int, acceptor: SessionAcceptor) -> None:
        self._acceptors[broker_id] = acceptor

    def detach(self, broker_id: int) -> None:
        """Removes a broker that has stopped."""
        self._acceptors.pop(broker_id, None)

    def connect(self, broker: BrokerRegistration, end: SessionEnd) -> SessionLine:
        near, far = _InProcessLine(), _InProcessLine()
        near.other, far.other = far, near
        near.end = end
        asyncio.get_running_loop().call_soon(self._accept, broker.broker_id, far)
        return near

    def _accept(self, broker_id: int, far: _InProcessLine) -> None:
        acceptor = self._acceptors.get(broker_id)
        if far.is_over:
            return
        if acceptor is None:
            far.close()
        else:
            far.end = acceptor.accept(far)


class _InProcessLine:
    """The line of one side, which delivers items to the end of the other side."""

    other: _InProcessLine
    unsent_bytes = 0

    def __init__(self) -> None:
        self.end: SessionEnd | None = None
        self.is_over = False
        self._unsent: list[Item] = []

    def send(self, item: Item) -> None:
        if self.is_over:
            return
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._deliver)
        self._unsent.append(item)

    def close(self) -> None:
        if not self.is_over:
            self.is_over = True
            asyncio.get_running_loop().call_soon(self._end)

    def _deliver(self) -> None:
        """Delivers the items of a turn together. Items sent before `close` still arrive, as over a
        connection.
        """
        items, self._unsent = self._unsent, []
        if not self.other.is_over and self.other.end is not None:
            self.other.end.received(items)

    def _end(self) -> None:
        other = self.other
        if not other.is_over:
            other.is_over = True
            if other.end is not None:
                other.end.closed()
