"""One application with tidelog's Python client: its real shells and cores over simulated sockets and clocks.

Each application is a process, which faults kill, pause and cut off. A killed application starts again as
another life of it, with nothing but what the cluster knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import uuid
import weakref
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from sim.broker_node import PORT, broker_name
from sim.loop import PROCESS, SimClock, SimProcess
from tidelog.client.errors import ClientError, UnreachableError
from tidelog.client.shell import network
from tidelog.client.shell import tasks as core_tasks
from tidelog.client.shell.connection import AsyncConnection
from tidelog.client.shell.consuming import consumer as consumer_shell
from tidelog.client.shell.consuming import group_calls, share_calls
from tidelog.client.shell.consuming import share_consumer as share_consumer_shell
from tidelog.client.shell.producing import accumulator
from tidelog.client.shell.producing import producer as producer_shell
from tidelog.model.errors import KafkaError
from tidelog.model.topics import TopicPartition

if TYPE_CHECKING:
    from sim.world import World

RESTART_S: Final = 0.3
LEAST_PROGRESS: Final = 5
"""The records in each partition, transactions, or deliveries that must succeed after the faults."""
CONNECTIONS: Final = {
    "request.timeout.ms": 1_500,
    "socket.connection.setup.timeout.ms": 1_500,
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 300,
    "reconnect.backoff.max.ms": 300,
    "metadata.max.age.ms": 5_000,
}
_NS_PER_MS: Final = 1_000_000


class Application:
    """One application. `run` is the work of one life of its process."""

    def __init__(self, name: str, world: World, chance: random.Random) -> None:
        self.name = name
        self.is_stopped = False
        self.is_idle = False
        self.last_error = ""
        self.lives = 0
        self.done: Counter[int] = Counter()
        """The successes since the faults have ended: records by partition, or transactions."""
        self.world = world
        self.chance = chance
        brokers = list(world.plan.brokers)
        chance.shuffle(brokers)
        self.bootstrap = ",".join(f"{broker_name(broker_id)}:{PORT}" for broker_id in brokers)

    @property
    def partitions(self) -> list[TopicPartition]:
        return self.world.data_partitions

    def next_life(self) -> str:
        """Returns the name of the next client that the application makes."""
        self.lives += 1
        return f"{self.name}.{self.lives}"

    def has_gone_on(self) -> bool:
        """Returns whether the application succeeds after the faults have ended."""
        return all(self.done[place.partition] >= LEAST_PROGRESS for place in self.partitions)

    async def run(self) -> None:
        """Lives until the application is stopped and idle, with a new client after each failure."""
        while not self.is_idle:
            try:
                await self.live()
            except (ClientError, KafkaError) as error:
                self.note(error)
            if not self.is_idle:
                await asyncio.sleep(RESTART_S * (0.5 + self.chance.random()))

    async def live(self) -> None:
        """Works with one client, and sets `is_idle` at the end. Raises ClientError, KafkaError."""
        raise NotImplementedError

    def note(self, error: object) -> None:
        self.last_error = f"{type(error).__name__}: {error}"


class _Time:
    """Replaces the module `time` in the client: the clocks of the process that asks."""

    @staticmethod
    def _clock() -> SimClock:
        process = PROCESS.get()
        assert process is not None
        return SimClock(process)

    def monotonic(self) -> float:
        process: SimProcess | None = PROCESS.get()
        assert process is not None
        return process.loop.now

    def monotonic_ns(self) -> int:
        return int(self.monotonic() * 1000 * _NS_PER_MS)

    def time_ns(self) -> int:
        return self._clock().wall_ms() * _NS_PER_MS


class _Notes(logging.Handler):
    """Turns the log lines of the client into events. An exception that nobody expects is a failure."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        world = self._world
        if world.is_over:
            return
        text = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        world.trace.add(world.loop.now, "client", PROCESS.get(), record.levelname, text, repr(error or ""))
        if error is not None:
            world.invariants.fail("nothing crashes", f"{PROCESS.get()} logged {text!r}: {error!r}")


async def _connect(connection: AsyncConnection, deadline_s: float) -> None:
    """Replaces `AsyncConnection._connect`, which makes a socket first. Raises UnreachableError."""
    address = connection.address
    try:
        async with asyncio.timeout_at(deadline_s):
            await asyncio.get_running_loop().create_connection(lambda: connection, address.host, address.port)
    except OSError as error:
        raise UnreachableError(f"no connection to {address}: {error}") from error


@contextlib.contextmanager
def installed(world: World) -> Iterator[None]:
    """Gives the client the simulated clocks, and randomness that follows from the seed."""
    chance = random.Random(world.seed)
    ids: Any = SimpleNamespace(uuid4=lambda: uuid.UUID(int=chance.getrandbits(128)), UUID=uuid.UUID)
    logger, handler = logging.getLogger("tidelog.client"), _Notes(world)
    producers: weakref.WeakSet[producer_shell.Producer[Any, Any]] = weakref.WeakSet()
    before = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        with contextlib.ExitStack() as stack:
            for module in (core_tasks, accumulator):
                stack.enter_context(patch.object(module, "time", _Time()))
            for module in (producer_shell, consumer_shell, share_consumer_shell, network, group_calls):
                stack.enter_context(patch.object(module, "random", chance))
            for module in (group_calls, share_calls):
                stack.enter_context(patch.object(module, "uuid", ids))
            stack.enter_context(patch.object(producer_shell, "_open_producers", producers))
            stack.enter_context(patch.object(AsyncConnection, "_connect", _connect))
            yield
    finally:
        for producer in producers:
            producer.after_fork()  # what the garbage collector finds of killed processes says nothing
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
