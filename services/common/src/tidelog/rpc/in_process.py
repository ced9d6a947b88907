"""Channels between services that run in one process (`tidelog dev`): the object itself is the channel."""

from __future__ import annotations

from tidelog.model.brokers import BrokerRegistration
from tidelog.rpc.broker_commands import BrokerCommands


class InProcessBrokerChannels:
    """The brokers of this process by id. A broker is attached before it registers in the metadata store."""

    def __init__(self) -> None:
        self._brokers: dict[int, BrokerCommands] = {}

    def attach(self, broker_id: int, commands: BrokerCommands) -> None:
        self._brokers[broker_id] = commands

    def detach(self, broker_id: int) -> None:
        self._brokers.pop(broker_id, None)

    def channel(self, broker: BrokerRegistration) -> BrokerCommands:
        commands = self._brokers.get(broker.broker_id)
        if commands is None:
            raise ConnectionError(f"broker {broker.broker_id} is not in this process")
        return commands
