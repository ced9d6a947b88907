"""The parts of a producer or consumer that tests drive or replace.

A client shows its application neither its core nor its connections. Tests of its shell need both, and take
them from here, so that no test names a private member of a client.
"""

from __future__ import annotations

from typing import Any  # Any: tests replace parts by objects that have only some of their methods


class ClientParts:
    """The parts of one producer, consumer or share consumer.

    A consumer drives its core itself, and a producer's sender drives the producer's.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self.sender: Any = getattr(client, "_sender", None)

    @property
    def core(self) -> Any:
        return self._client._core if self.sender is None else self.sender.core

    @property
    def tasks(self) -> Any:
        return self._client._tasks if self.sender is None else self.sender.tasks

    @property
    def network(self) -> Any:
        return self._client._network

    @property
    def calls(self) -> Any:
        return self._client._calls

    @calls.setter
    def calls(self, calls: object) -> None:
        self._client._calls = calls

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
        self.sender.lock = lock

    def step(self, event: object) -> None:
        """Lets the core handle an event, and the shell the effects."""
        (self._client._step if self.sender is None else self.sender.step)(event)

    def perform(self, effects: object) -> None:
        self._client._perform(effects)

    def pump(self) -> None:
        """Sends what the core has to send now."""
        self.sender.pump()

    def stop_pump(self) -> None:
        """Keeps the pump from running, as if it were scheduled already."""
        self.sender.is_pump_scheduled = True

    def write(self, request: object, connection: object) -> None:
        self.sender._write(request, connection)

    async def fetch(self, request: object) -> None:
        await self._client._fetch(request)

    async def commit(self, offsets: object) -> None:
        await self._client._commit(offsets)
