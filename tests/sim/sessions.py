"""Sessions of coordinators with brokers over the simulated network. They are streams, so everything arrives
in order and once, or the session ends, which each side learns at its own time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sim.broker_node import broker_name
from sim.histories import ShardWriters
from sim.loop import SimLoop, SimProcess
from sim.network import Network
from tidelog.model.brokers import BrokerRegistration
from tidelog.rpc.coordinator_session import AppendToShard, AttachShard, Item, SessionEnd, SessionLine

KEEPALIVE_S: Final = 1.0
MOST_SILENT_KEEPALIVES: Final = 4
RESET_WITHIN_S: Final = 0.1
"""The time until the connections of a dead process are reset."""
LOST_WITHIN_S: Final = 5.0
"""The time until keepalives detect a line that lost a message."""


class SimSessionConnector:
    """The `SessionConnector` of a coordinator's process."""

    def __init__(self, process: SimProcess, network: Network, writers: ShardWriters) -> None:
        self._process = process
        self._network = network
        self._writers = writers

    def connect(self, broker: BrokerRegistration, end: SessionEnd) -> SessionLine:
        session = _Session(self._network, self._process, broker_name(broker.broker_id), end)
        return _WatchedLine(session.near, self._writers)


class _WatchedLine:
    """A coordinator's line, which records the batches that the coordinator asked to write."""

    unsent_bytes = 0

    def __init__(self, line: _Line, writers: ShardWriters) -> None:
        self._line = line
        self._writers = writers
        self._attached: dict[int, AttachShard] = {}

    def send(self, item: Item) -> None:
        if type(item) is AttachShard:
            self._attached[item.attachment] = item
        elif type(item) is AppendToShard:
            attached = self._attached[item.attachment]
            self._writers.will_write(attached.shard.topic_partition, item.batches, attached.shard_epoch)
        self._line.send(item)

    def close(self) -> None:
        self._line.close()


class _Session:
    """Both ends of a session, and the messages between them."""

    def __init__(self, network: Network, process: SimProcess, broker: str, end: SessionEnd) -> None:
        self.network = network
        self.loop: SimLoop = process.loop
        self.near = _Line(self, process, broker)
        self.near.end = end
        self.far: _Line | None = None
        self.is_broken = False
        self._broker = broker
        self._silent = 0
        network.send(
            process, broker, self._accept, "session", stream=self, repeatable=False, on_lost=self.lose
        )
        self.loop.call_outside(KEEPALIVE_S, self._check)

    def _accept(self, process: SimProcess) -> None:
        """Runs at the broker."""
        node = process.service
        acceptor = None if node is None else node.session_acceptor
        if acceptor is None or self.is_broken:
            self.break_off(RESET_WITHIN_S)
            return
        self.far = _Line(self, process, self.near.process.name)
        self.far.end = acceptor.accept(self.far)

    def other(self, line: _Line) -> _Line | None:
        return self.far if line is self.near else self.near

    def transmit(self, line: _Line, arrived: Callable[[_Line], None], what: str) -> None:
        if self.is_broken:
            return

        def arrive(process: SimProcess) -> None:
            other = self.other(line)
            if self.is_broken:
                return
            if other is None or other.process is not process:
                self.break_off(RESET_WITHIN_S)  # another life, which knows no such connection
            else:
                arrived(other)

        self.network.send(
            line.process, line.peer, arrive, what, stream=self, repeatable=False, on_lost=self.lose
        )

    def lose(self) -> None:
        self.break_off(LOST_WITHIN_S)

    def break_off(self, within_s: float) -> None:
        """Breaks the session. Nothing arrives any more, and each side learns it after some time."""
        if self.is_broken:
            return
        self.is_broken = True
        for line in (self.near, self.far):
            if line is not None:
                self.loop.call_outside(self.network.some_seconds(within_s), self._tell, line)

    def _tell(self, line: _Line) -> None:
        self.loop.call_soon(line.lost, context=line.process.context)

    def _check(self) -> None:
        """Simulates the keepalives of both sides."""
        near, far = self.near, self.far
        if self.is_broken or (near.is_over and (far is None or far.is_over)):
            return
        if not near.process.is_alive or (far is not None and not far.process.is_alive):
            self.break_off(RESET_WITHIN_S)
            return
        network = self.network
        is_cut = network.is_cut(near.process.name, self._broker) or network.is_cut(
            self._broker, near.process.name
        )
        self._silent = self._silent + 1 if is_cut else 0
        if self._silent > MOST_SILENT_KEEPALIVES:
            self.break_off(RESET_WITHIN_S)
            return
        self.loop.call_outside(KEEPALIVE_S, self._check)


class _Line:
    """The `SessionLine` of one side."""

    unsent_bytes = 0

    def __init__(self, session: _Session, process: SimProcess, peer: str) -> None:
        self.process = process
        self.peer = peer
        self.end: Any = None
        self.is_over = False
        self._session = session
        self._unsent: list[Item] = []

    def send(self, item: Item) -> None:
        if self.is_over:
            return
        if not self._unsent:
            self._session.loop.call_soon(self._flush)
        self._unsent.append(item)

    def close(self) -> None:
        if not self.is_over:
            self._flush()
            self.is_over = True
            self._session.transmit(self, _Line.lost, "session closed")

    def lost(self) -> None:
        """Called when the other side or the network lost the session."""
        if not self.is_over:
            self.is_over = True
            self.end.closed()

    def _flush(self) -> None:
        items, self._unsent = self._unsent, []
        if items and not self.is_over:
            what = ",".join(dict.fromkeys(type(item).__name__ for item in items))
            self._session.transmit(self, lambda other: other.take(items), what)

    def take(self, items: list[Item]) -> None:
        if not self.is_over:
            self.end.received(items)
