"""The parts of a producer or consumer that tests drive or replace.

A client shows its application neither its core nor its connections. Tests of its shell need both, and take
them from here, so that no test names a private member of a client.
"""

from __future__ import annotations

from typing import Any  # Any: tests replace parts by objects that have only some of their methods


class ClientParts:
    """The parts of one producer, consumer or share consumer."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.driver: Any = client._sender if hasattr(client, "_sender") else client._driver
        """The part that drives the core. A producer calls it its sender."""

    @property
    def core(self) -> Any:
        return self.driver.core

    @property
    def tasks(self) -> Any:
        return self.driver.tasks

    @property
    def network(self) -> Any:
        return self._client._network

    @property
    def calls(self) -> Any:
        return self.driver.calls

    @calls.setter
    def calls(self, calls: object) -> None:
        self.driver.calls = calls

    @property
    def transaction(self) -> Any:
        return self._client._transaction

    @property
    def transaction_calls(self) -> Any:
        return self.transaction.calls

    @transaction_calls.setter
    def transaction_calls(self, calls: object) -> None:
        self.transaction.calls = calls

    def guard_with(self, lock: object) -> None:
        """Replaces the lock that is held while the core works."""
        self.driver.lock = lock

    def step(self, event: object) -> None:
        """Lets the core handle an event, and the shell the effects."""
        self.driver.step(event)

    def perform(self, effects: object) -> None:
        self.driver.perform(effects)

    def pump(self) -> None:
        """Sends what the core has to send now."""
        self.driver.pump()

    def stop_pump(self) -> None:
        """Keeps the pump from running, as if it were scheduled already."""
        self.driver.is_pump_scheduled = True

    def write(self, request: object, connection: object) -> None:
        self.driver._write(request, connection)

    async def fetch(self, request: object) -> None:
        await self.driver._fetch(request)

    async def commit(self, offsets: object) -> None:
        await self.driver.commit(offsets)
