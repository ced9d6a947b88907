"""The group coordinator as a service: it owns shards and decides for the groups and transactions in them.

This module constructs all parts of the service. The coordinator is registered at
`/coordinators/<kind>/ids/<id>` under a lease, and its claims of shards have the same lease.
"""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import Callable
from typing import Final

import structlog

from tidelog.group_coordinator.groups.group_core import GroupCore
from tidelog.group_coordinator.metrics import CoordinatorMetrics
from tidelog.group_coordinator.shard_core import ShardCore
from tidelog.group_coordinator.shards.broker_calls import BrokerCalls
from tidelog.group_coordinator.shards.claims import Claims
from tidelog.group_coordinator.shards.lag import LagReporter
from tidelog.group_coordinator.shards.runner import CoordinatorRuntime, Loop, Parts
from tidelog.group_coordinator.shards.sessions import BrokerSessions, RequestTracing
from tidelog.group_coordinator.shards.store_copies import ClusterView, FollowedSettings
from tidelog.group_coordinator.share_state_core import ShareStateCore
from tidelog.group_coordinator.transactions.transaction_core import TransactionCore
from tidelog.kernel.clock import Clock, SteadyClock, SystemClock
from tidelog.kernel.timer import LoopTimer
from tidelog.metadata.coordinators import GROUP, CoordinatorEntry
from tidelog.metadata.session import Claim, KeyHeldError, Session
from tidelog.metadata.store import MetadataStore, StoreError
from tidelog.model.coordinator_shards import ShardId, ShardKind
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.trace_context import CallTracing
from tidelog.rpc.coordinator_session import SessionConnector
from tidelog.settings.broker_settings import BrokerSettings

GRACE_MS: Final = 5_000
"""The time beyond the session timeout that a start waits for an id that another process holds."""

_log = structlog.get_logger(__name__)


class GroupCoordinator:
    """A running coordinator: `await GroupCoordinator.start(...)`, then `await stop()`."""

    def __init__(
        self,
        session: Session,
        runtime: CoordinatorRuntime,
        followed: FollowedSettings,
        lag: LagReporter,
        timer: LoopTimer,
    ) -> None:
        self.runtime = runtime
        self.metrics = CoordinatorMetrics(lag)
        self._session = session
        self._followed = followed
        self._lag = lag
        self._timer = timer

    @classmethod
    async def start(
        cls,
        store: MetadataStore,
        settings: BrokerSettings,
        connector: SessionConnector,
        *,
        clock: Clock | None = None,
        tracing: CallTracing | None = None,
        on_failed: Callable[[StoreError], None] | None = None,
    ) -> GroupCoordinator:
        """Registers the coordinator and begins to claim shards.

        Calls `on_failed` with the error if another process takes the coordinator's id later. Raises
        KafkaError(DUPLICATE_BROKER_REGISTRATION) if another live coordinator has this node.id, and
        StoreUnavailableError.
        """
        running = asyncio.get_running_loop()
        timer, clock = LoopTimer(running), clock or SystemClock()
        loop = Loop(SteadyClock(clock), timer, running.call_soon)
        followed = FollowedSettings(store, settings)
        runtime = _compose(store, settings, connector, followed, loop, tracing)
        lag = LagReporter(runtime, runtime.calls.offsets, clock, timer)
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
            await followed.start()
            await runtime.start()
            await session.start()
        except KeyHeldError as error:
            await runtime.stop()
            await followed.stop()
            raise KafkaError(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"node.id: another live process is group coordinator {settings.node_id}; "
                "give this one another node.id",
            ) from error
        except BaseException:
            await runtime.stop()
            await followed.stop()
            raise
        _log.info("registered as group coordinator", coordinator_id=settings.node_id, key=entry.key)
        if settings.tidelog_metrics_listener:
            lag.start()
        return cls(session, runtime, followed, lag, timer)

    def why_not_ready(self) -> str | None:
        """Returns None if the coordinator is registered and has claimed its share of the shards."""
        return self.runtime.claims.why_incomplete()

    @property
    def lease_renewed_s(self) -> float | None:
        """The monotonic time of the lease's last renewal. Any thread may read it, and `leases_lost`, too."""
        return self._session.lease_renewed_s

    @property
    def leases_lost(self) -> int:
        return self._session.leases_lost

    async def stop(self) -> None:
        """Hands the shards over and ends the registration."""
        self._lag.stop()
        await self.runtime.stop()
        await self._followed.stop()
        await self._session.stop()
        self._timer.close()


def _compose(
    store: MetadataStore,
    settings: BrokerSettings,
    connector: SessionConnector,
    followed: FollowedSettings,
    loop: Loop,
    tracing: CallTracing | None,
) -> CoordinatorRuntime:
    view = ClusterView(store)
    claims = Claims(store, settings.node_id, shard_count=view.shard_count)
    sessions = BrokerSessions(connector, settings.node_id, view, loop.timer)
    calls = BrokerCalls(sessions.any_line, sessions.line_to_leader, view.is_topic_gone, loop.timer)
    return CoordinatorRuntime(
        settings.node_id,
        core_factories(settings, followed),
        Parts(view, claims, sessions, calls),
        loop,
        None if tracing is None else RequestTracing(tracing),
    )


def core_factories(
    settings: BrokerSettings, followed: FollowedSettings
) -> dict[ShardKind, Callable[[ShardId, int], ShardCore]]:
    """Returns for each kind of shard a function that makes a core, given the shard and its epoch."""
    return {
        ShardKind.GROUP: lambda shard, epoch: GroupCore(
            settings, new_member_uuid, followed.overrides_of, lambda: followed.current
        ),
        ShardKind.TRANSACTION: lambda shard, epoch: TransactionCore(epoch, settings),
        ShardKind.SHARE: lambda shard, epoch: ShareStateCore(settings),
    }


def new_member_uuid() -> str:
    """Returns a text in the format of Kafka's `Uuid.randomUuid`: 22 characters, the first not a dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text
