"""The group coordinator as a service: registered at `/coordinators/group/ids/<id>` under a lease.

That is all it does yet. Groups, offsets and transactions come with the next issue; until then brokers answer
FindCoordinator with COORDINATOR_NOT_AVAILABLE and nobody calls this process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog
from tidelog.metadata.coordinators import GROUP, CoordinatorEntry
from tidelog.metadata.session import Claim, KeyHeldError, Session
from tidelog.metadata.store import MetadataStore, StoreError
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.runtime.broker_settings import BrokerSettings

GRACE_MS: Final = 5_000
"""How much longer than a session's time-out a start waits for an id that another process holds."""

_log = structlog.get_logger(__name__)


class GroupCoordinator:
    """`await GroupCoordinator.start(store, settings)`, then `await stop()`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @classmethod
    async def start(
        cls,
        store: MetadataStore,
        settings: BrokerSettings,
        *,
        on_failed: Callable[[StoreError], None] | None = None,
    ) -> GroupCoordinator:
        """`on_failed` is called with what keeps it from staying registered: another process took its id.

        Raises KafkaError(DUPLICATE_BROKER_REGISTRATION) if another live coordinator has this node.id,
        StoreUnavailableError.
        """
        entry = CoordinatorEntry(GROUP, settings.node_id)
        session = Session(
            store,
            Claim(entry.key, lambda is_first: entry.encode()),
            ttl_ms=settings.broker_session_timeout_ms,
            interval_ms=settings.broker_heartbeat_interval_ms,
            max_wait_ms=settings.broker_session_timeout_ms + GRACE_MS,
            on_failed=on_failed,
        )
        try:
            await session.start()
        except KeyHeldError as error:
            raise KafkaError(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"node.id: group coordinator {settings.node_id} is another process that is alive; "
                "give this one another node.id",
            ) from error
        _log.info("registered as group coordinator", coordinator_id=settings.node_id, key=entry.key)
        return cls(session)

    async def stop(self) -> None:
        """Give up the registration."""
        await self._session.stop()
