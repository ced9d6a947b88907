"""Delivery of commands to brokers: in order to each broker, to all brokers in parallel.

The queue of each broker is bounded. If a broker is registered but does not accept commands, its queue is
replaced by a full LeaderAndIsr and a full UpdateMetadata.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import structlog

from tidelog.controller.core.commands import Command
from tidelog.model.brokers import BrokerRegistration
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.rpc.broker_commands import (
    BrokerChannels,
    BrokerCommands,
    CommandResult,
    LeaderAndIsr,
    StopReplica,
    UpdateMetadata,
)

RETRY_MS: Final = 100
# A longer queue is replaced by a full LeaderAndIsr and a full UpdateMetadata.
MAX_QUEUED_COMMANDS: Final = 100

FAILED_COMMAND_PAUSE_MS: Final = 2_000
"""After a command failed, the broker receives the full state, so that the content of that command is not
lost. This is the pause before that.
"""

# `Delivered` is a broker id and a future that is done once the broker has answered the command.
OnTaken = Callable[[BrokerRegistration, LeaderAndIsr, CommandResult], None]
Delivered = tuple[int, "asyncio.Future[None]"]

_log = structlog.get_logger(__name__)


class _Order(NamedTuple):
    command: Command
    delivered: asyncio.Future[None]


class BrokerPushes:
    """The outboxes of one term.

    `on_stale` is called when a broker knows a newer controller. `on_taken` receives a broker's result of a
    LeaderAndIsr. `everything_for` makes the full commands for a broker, from the state at the moment when it
    returns.
    """

    def __init__(
        self,
        channels: BrokerChannels,
        *,
        on_stale: Callable[[], None],
        on_taken: OnTaken,
        everything_for: Callable[[int], Awaitable[Sequence[Command]]],
    ) -> None:
        self._channels = channels
        self._on_stale = on_stale
        self._on_taken = on_taken
        self._everything_for = everything_for
        self._outboxes: dict[int, _Outbox] = {}
        self._is_closed = False

    @property
    def longest_queue(self) -> int:
        return max((outbox.length for outbox in self._outboxes.values()), default=0)

    def queue_lengths(self) -> dict[int, int]:
        """Returns the length of each broker's queue. Any thread may call it."""
        return {broker_id: outbox.length for broker_id, outbox in list(self._outboxes.items())}

    def keep_to(self, brokers: Mapping[int, BrokerRegistration]) -> None:
        """Closes the outboxes of registrations that ended. Their commands are void and count as delivered."""
        for broker_id, outbox in list(self._outboxes.items()):
            broker = brokers.get(broker_id)
            if broker is None or broker.broker_epoch != outbox.broker.broker_epoch:
                outbox.close()
                del self._outboxes[broker_id]

    def send(
        self, brokers: Mapping[int, BrokerRegistration], commands: Mapping[int, Sequence[Command]]
    ) -> list[Delivered]:
        """Queues the commands. Each future is done when the broker has answered the command."""
        delivered: list[Delivered] = []
        if self._is_closed:
            return delivered
        for broker_id, orders in commands.items():
            outbox = self._outboxes.get(broker_id)
            if outbox is None:
                outbox = _Outbox(
                    self._channels,
                    brokers[broker_id],
                    self._end,
                    self._on_taken,
                    partial(self._everything_for, broker_id),
                )
                self._outboxes[broker_id] = outbox
            if outbox.length + len(orders) > MAX_QUEUED_COMMANDS:
                _log.warning("broker is slow; the full state replaces its queue", broker_id=broker_id)
                delivered.append((broker_id, outbox.replace_all()))
            else:
                delivered += [(broker_id, outbox.put(command)) for command in orders]
        return delivered

    def close(self) -> None:
        self._is_closed = True
        self.keep_to({})

    def _end(self) -> None:
        self.close()
        self._on_stale()


class _Outbox:
    """The commands for one registration of one broker."""

    def __init__(
        self,
        channels: BrokerChannels,
        broker: BrokerRegistration,
        on_stale: Callable[[], None],
        on_taken: OnTaken,
        everything: Callable[[], Awaitable[Sequence[Command]]],
    ) -> None:
        self.broker = broker
        self._channels = channels
        self._on_stale = on_stale
        self._on_taken = on_taken
        self._everything = everything
        self._has_failed = False
        self._replaced: asyncio.Future[None] | None = None
        """Set if the full commands are due. It is done when they are delivered."""
        self._is_reached = True
        self._orders: deque[_Order] = deque()
        self._arrived = asyncio.Event()
        self._task = asyncio.create_task(self._deliver_all(), name=f"controller-to-broker-{broker.broker_id}")
        self._task.add_done_callback(self._on_done)

    def put(self, command: Command) -> asyncio.Future[None]:
        order = _Order(command, asyncio.get_running_loop().create_future())
        self._orders.append(order)
        self._arrived.set()
        return order.delivered

    def replace_all(self) -> asyncio.Future[None]:
        """Drops the queued commands. The full commands take their place, and are made when the broker accepts
        commands again.
        """
        self.clear()
        if self._replaced is None:
            self._replaced = asyncio.get_running_loop().create_future()
        self._arrived.set()
        return self._replaced

    @property
    def length(self) -> int:
        return len(self._orders)

    def clear(self) -> None:
        """Drops the queued commands, which then count as delivered. The current command continues."""
        for order in self._orders:
            if not order.delivered.done():
                order.delivered.set_result(None)
        self._orders.clear()

    def close(self) -> None:
        self._task.cancel()
        self.clear()
        if self._replaced is not None and not self._replaced.done():
            self._replaced.set_result(None)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            _log.error("command delivery failed", broker_id=self.broker.broker_id, exc_info=task.exception())
            self.close()

    async def _deliver_all(self) -> None:
        while True:
            while not self._orders and self._replaced is None:
                self._arrived.clear()
                await self._arrived.wait()
            if self._replaced is not None:
                await self._put_everything(self._replaced)
            order = self._orders.popleft()
            try:
                await self._deliver(order.command)
            finally:
                if not order.delivered.done():
                    order.delivered.set_result(None)
            if self._has_failed:
                await asyncio.sleep(FAILED_COMMAND_PAUSE_MS / 1000)
                self._has_failed = False
                self.replace_all()

    async def _put_everything(self, replaced: asyncio.Future[None]) -> None:
        commands = await self._everything()
        # The commands that were queued meanwhile came from the same state or an earlier one.
        waiting = [replaced, *(order.delivered for order in self._orders)]
        self._orders.clear()
        self._replaced = None

        def answer(_: asyncio.Future[None]) -> None:
            for delivered in waiting:
                if not delivered.done():
                    delivered.set_result(None)

        *_, last = [self.put(command) for command in commands]
        last.add_done_callback(answer)

    async def _deliver(self, command: Command) -> None:
        while True:
            try:
                result = await _call(self._channels.channel(self.broker), command)
            except ConnectionError as error:
                self._note_reached(reason=str(error))
                await asyncio.sleep(RETRY_MS / 1000)
            except (KafkaError, OSError) as error:
                _log.error(
                    "command failed",
                    broker_id=self.broker.broker_id,
                    command=type(command).__name__,
                    reason=str(error),
                )
                self._has_failed = True
                return
            else:
                self._note_reached()
                self._take_answer(command, result)
                return

    def _take_answer(self, command: Command, result: CommandResult) -> None:
        if result.error is ErrorCode.STALE_CONTROLLER_EPOCH:
            _log.warning("a broker knows a newer controller", broker_id=self.broker.broker_id)
            self._on_stale()
        elif isinstance(command, LeaderAndIsr):
            self._on_taken(self.broker, command, result)
        for partition, code in result.partition_errors.items():
            _log.warning(
                "broker refused a command for a partition",
                broker_id=self.broker.broker_id,
                command=type(command).__name__,
                partition=str(partition),
                error=code.name,
            )

    def _note_reached(self, *, reason: str = "") -> None:
        """Logs when the broker becomes unreachable or reachable, but not each attempt."""
        if self._is_reached and reason:
            _log.info("broker unreachable", broker_id=self.broker.broker_id, reason=reason)
        elif not self._is_reached and not reason:
            _log.info("broker reachable again", broker_id=self.broker.broker_id)
        self._is_reached = not reason


async def _call(channel: BrokerCommands, command: Command) -> CommandResult:
    match command:
        case LeaderAndIsr():
            return await channel.leader_and_isr(command)
        case UpdateMetadata():
            return await channel.update_metadata(command)
        case StopReplica():
            return await channel.stop_replica(command)
