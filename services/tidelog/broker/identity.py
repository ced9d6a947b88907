"""A broker's identity in the cluster: its id, and the epoch of its current registration."""

from __future__ import annotations

from typing import Final

UNREGISTERED: Final = -1


class BrokerIdentity:
    """The id never changes. The epoch is higher after each registration; `BrokerLife` alone sets it."""

    __slots__ = ("broker_epoch", "broker_id")

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch = UNREGISTERED
