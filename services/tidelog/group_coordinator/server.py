"""The group coordinator as a service: groups and transactions, of the shards that it claims.

Registered at `/coordinators/<kind>/ids/<id>` under a lease, which its claims of shards live by, too.
"""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import Callable
from typing import Final

import structlog

from tidelog.group_coordinator.groups.group_core import GroupCore
from tidelog.group_coordinator.shard_core import ShardCore
from tidelog.group_coordinator.shards.lag import LagReporter
from tidelog.group_coordinator.shards.runner import CoordinatorRuntime
from tidelog.group_coordinator.transactions.transaction_core import TransactionCore
from tidelog.metadata.coordinators import GROUP, CoordinatorEntry
from tidelog.metadata.session import Claim, KeyHeldError, Session
from tidelog.metadata.store import MetadataStore, StoreError
from tidelog.model.coordinator_shards import ShardId, ShardKind
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.rpc.coordinator_session import SessionConnector
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.timing.clock import Clock, SystemClock
from tidelog.timing.timer import LoopTimer

GRACE_MS: Final = 5_000
"""How much longer than a session's time-out a start waits for an id that another process holds."""

_log = structlog.get_logger(__name__)


class GroupCoordinator:
    """`await GroupCoordinator.start(store, settings, connector)`, then `await stop()`."""

    def __init__(self, session: Session, runtime: CoordinatorRuntime, timer: LoopTimer) -> None:
        self.runtime = runtime
        self.lag = LagReporter(runtime)
        """What metrics show of this coordinator."""
        self._session = session
        self._timer = timer

    @classmethod
    async def start(
        cls,
        store: MetadataStore,
        settings: BrokerSettings,
        connector: SessionConnector,
        *,
        clock: Clock | None = None,
        on_failed: Callable[[StoreError], None] | None = None,
    ) -> GroupCoordinator:
        """`on_failed` is called with what keeps it from staying registered: another process took its id.

        Raises KafkaError(DUPLICATE_BROKER_REGISTRATION) if another live coordinator has this node.id,
        StoreUnavailableError.
        """
        loop = asyncio.get_running_loop()
        timer = LoopTimer(loop)
        runtime = CoordinatorRuntime(
            store,
            connector,
            settings.node_id,
            core_factories(settings),
            clock=clock or SystemClock(),
            timer=timer,
            call_soon=loop.call_soon,
        )
        entry = CoordinatorEntry(GROUP, settings.node_id)
        session = Session(
            store,
            Claim(entry.key, lambda is_first: entry.encode()),
            ttl_ms=settings.broker_session_timeout_ms,
            interval_ms=settings.broker_heartbeat_interval_ms,
            max_wait_ms=settings.broker_session_timeout_ms + GRACE_MS,
            on_lease=runtime.lease_taken,
            on_failed=on_failed,
        )
        try:
            await runtime.start()
            await session.start()
        except KeyHeldError as error:
            await runtime.stop()
            raise KafkaError(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"node.id: group coordinator {settings.node_id} is another process that is alive; "
                "give this one another node.id",
            ) from error
        except BaseException:
            await runtime.stop()
            raise
        _log.info("registered as group coordinator", coordinator_id=settings.node_id, key=entry.key)
        coordinator = cls(session, runtime, timer)
        if settings.tidelog_metrics_listener:
            coordinator.lag.start()
        return coordinator

    def why_not_ready(self) -> str | None:
        """None once it is registered and has claimed its share of shards."""
        return self.runtime.claims.why_incomplete()

    @property
    def lease_renewed_s(self) -> float | None:
        """When the lease was last renewed, by the monotonic clock. Any thread, as the next."""
        return self._session.lease_renewed_s

    @property
    def leases_lost(self) -> int:
        return self._session.leases_lost

    async def stop(self) -> None:
        """Hand the shards over, give up the registration."""
        self.lag.stop()
        await self.runtime.stop()
        await self._session.stop()
        self._timer.close()


def core_factories(settings: BrokerSettings) -> dict[ShardKind, Callable[[ShardId, int], ShardCore]]:
    """How the core of a shard is made, given its number and epoch."""
    return {
        ShardKind.GROUP: lambda shard, epoch: GroupCore(settings, new_member_uuid),
        ShardKind.TRANSACTION: lambda shard, epoch: TransactionCore(epoch, settings),
    }


def new_member_uuid() -> str:
    """As Kafka's `Uuid.randomUuid().toString()`: 22 characters, the first not a dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text
