"""Producer ids for idempotent producers, handed out from blocks that the controller gives (KIP-730)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tidelog.rpc.controller_api import ProducerIdBlock


class ProducerIds:
    """Ids are never handed out twice; those of a block not used up at a restart are lost, as in Kafka."""

    def __init__(self, allocate: Callable[[], Awaitable[ProducerIdBlock]]) -> None:
        self._allocate = allocate
        self._next = 0
        self._left = 0
        self._refill = asyncio.Lock()

    async def next_id(self) -> int:
        """Raises what the controller raises (KafkaError, ConnectionError)."""
        async with self._refill:
            if not self._left:
                block = await self._allocate()
                self._next, self._left = block.first, block.count
            producer_id = self._next
            self._next += 1
            self._left -= 1
            return producer_id
