"""Commands on their way to brokers: one after the other to each broker, to all brokers at once.

A broker that is alive for the metadata store but takes no commands gets, in place of a queue without end,
everything there is to know as soon as it can be reached.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
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
# Beyond it a broker's queue gives way to a full LeaderAndIsr and a full UpdateMetadata.
MAX_QUEUED_COMMANDS: Final = 100

FAILED_COMMAND_PAUSE_MS: Final = 2_000
"""A broker that failed at a command is told everything after it: what that one said must not be lost."""

# `Delivered`: the broker, and what is done once it has answered a command.
OnTaken = Callable[[BrokerRegistration, LeaderAndIsr, CommandResult], None]
Delivered = tuple[int, "asyncio.Future[None]"]

_log = structlog.get_logger(__name__)


class _Order(NamedTuple):
    command: Command
    delivered: asyncio.Future[None]


class BrokerPushes:
    """The outboxes of one term. `on_stale` is called when a broker has seen a newer controller, `on_taken`
    with what a broker made of a LeaderAndIsr; `everything_for` makes the commands that tell it everything.
    """

    def __init__(
        self,
        channels: BrokerChannels,
        *,
        on_stale: Callable[[], None],
        on_taken: OnTaken,
        everything_for: Callable[[int], Sequence[Command]],
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
        """By broker. Any thread."""
        return {broker_id: outbox.length for broker_id, outbox in list(self._outboxes.items())}

    def keep_to(self, brokers: Mapping[int, BrokerRegistration]) -> None:
        """Close the outboxes of lives that ended; what they held counts as delivered, it is void."""
        for broker_id, outbox in list(self._outboxes.items()):
            broker = brokers.get(broker_id)
            if broker is None or broker.broker_epoch != outbox.broker.broker_epoch:
                outbox.close()
                del self._outboxes[broker_id]

    def send(
        self, brokers: Mapping[int, BrokerRegistration], commands: Mapping[int, Sequence[Command]]
    ) -> list[Delivered]:
        """Queue them; each future is done when that command's broker has answered it."""
        delivered: list[Delivered] = []
        if self._is_closed:
            return delivered
        for broker_id, orders in commands.items():
            outbox = self._outboxes.get(broker_id)
            if outbox is None:
                outbox = _Outbox(
                    self._channels,
                    brokers[broker_id],
                    self._on_stale,
                    self._on_taken,
                    partial(self._everything_for, broker_id),
                )
                self._outboxes[broker_id] = outbox
            if outbox.length + len(orders) > MAX_QUEUED_COMMANDS:
                _log.warning("a broker lags behind and is told everything anew", broker_id=broker_id)
                outbox.clear()
                orders = self._everything_for(broker_id)
            delivered += [(broker_id, outbox.put(command)) for command in orders]
        return delivered

    def close(self) -> None:
        self._is_closed = True
        self.keep_to({})


class _Outbox:
    """One life of one broker."""

    def __init__(
        self,
        channels: BrokerChannels,
        broker: BrokerRegistration,
        on_stale: Callable[[], None],
        on_taken: OnTaken,
        everything: Callable[[], Sequence[Command]],
    ) -> None:
        self.broker = broker
        self._channels = channels
        self._on_stale = on_stale
        self._on_taken = on_taken
        self._everything = everything
        self._has_failed = False
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

    @property
    def length(self) -> int:
        return len(self._orders)

    def clear(self) -> None:
        """What is queued is void; it counts as delivered. The command under way is not held back."""
        for order in self._orders:
            if not order.delivered.done():
                order.delivered.set_result(None)
        self._orders.clear()

    def close(self) -> None:
        self._task.cancel()
        self.clear()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            _log.error("commands stop", broker_id=self.broker.broker_id, exc_info=task.exception())
            self.close()

    async def _deliver_all(self) -> None:
        while True:
            while not self._orders:
                self._arrived.clear()
                await self._arrived.wait()
            order = self._orders.popleft()
            try:
                await self._deliver(order.command)
            finally:
                if not order.delivered.done():
                    order.delivered.set_result(None)
            if self._has_failed:
                await asyncio.sleep(FAILED_COMMAND_PAUSE_MS / 1000)
                self._has_failed = False
                self.clear()
                for command in self._everything():
                    self.put(command)

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
            self._on_stale()
        elif isinstance(command, LeaderAndIsr):
            self._on_taken(self.broker, command, result)
        for partition, code in result.partition_errors.items():
            _log.warning(
                "command refused for a partition",
                broker_id=self.broker.broker_id,
                command=type(command).__name__,
                partition=str(partition),
                error=code.name,
            )

    def _note_reached(self, *, reason: str = "") -> None:
        """Told once each way, not at every attempt."""
        if self._is_reached and reason:
            _log.info("broker not reached", broker_id=self.broker.broker_id, reason=reason)
        elif not self._is_reached and not reason:
            _log.info("broker reached again", broker_id=self.broker.broker_id)
        self._is_reached = not reason


async def _call(channel: BrokerCommands, command: Command) -> CommandResult:
    match command:
        case LeaderAndIsr():
            return await channel.leader_and_isr(command)
        case UpdateMetadata():
            return await channel.update_metadata(command)
        case StopReplica():
            return await channel.stop_replica(command)
