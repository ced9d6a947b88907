"""A broker's life as the cluster sees it: registered under a lease, registered anew after the lease was lost,
handed over and given up at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog
from tidelog.broker.log.previous_life import NO_LEASE, UNKNOWN_BOOT, Life, life_of, read_boot_id
from tidelog.metadata import keys
from tidelog.metadata.entries import BrokerEntry, InvalidEntryError, decode_entry
from tidelog.metadata.session import Claim, KeyHeldError, OtherStoreError, Session
from tidelog.metadata.store import Compare, KeyValue, MetadataStore, StoreError
from tidelog.model.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.log.log_directory import LogDirectory

GRACE_MS: Final = 5_000
"""How much longer than a session's time-out a start waits for what another process still holds: the broker
id, the data directory.
"""

_log = structlog.get_logger(__name__)


class BrokerLife:
    """`await begin(entry)`, then `await hand_over()` and `await end()`.

    With `remembers`, lease and epoch are kept in `meta.properties`, so that the next start can end this
    life's lease at once, whatever became of this process. `on_failed` is called with what keeps the broker
    from living on: another one took its id.
    """

    def __init__(
        self,
        broker: Broker,
        store: MetadataStore,
        *,
        remembers: bool,
        on_failed: Callable[[Exception], None],
    ) -> None:
        self._broker = broker
        self._store = store
        self._remembers = remembers
        self._on_epoch: Callable[[int], None] | None = None
        self._on_failed = on_failed
        self._session: Session | None = None
        self._one_note_at_a_time = asyncio.Lock()

    @property
    def lease_renewed_s(self) -> float | None:
        """When the lease was last renewed, by the monotonic clock. Any thread, as the next."""
        return None if self._session is None else self._session.lease_renewed_s

    @property
    def leases_lost(self) -> int:
        return 0 if self._session is None else self._session.leases_lost

    async def begin(self, entry: BrokerEntry, on_epoch: Callable[[int], None] | None = None) -> None:
        """Register. `entry` says of the logs what the start found, in each life until the controller acted
        on it (`logs_are_known`). `on_epoch` is called with the epoch of each.

        Raises KafkaError(DUPLICATE_BROKER_REGISTRATION) if another broker holds the id and keeps it,
        StoreUnavailableError, OSError.
        """
        settings = self._broker.settings
        self._on_epoch = on_epoch
        known = entry._replace(is_log_suspect=False, suspect_partitions=())
        self._log_directory.has_untold_damage = self._remembers and entry != known
        session = Session(
            self._store,
            Claim(
                entry.key,
                lambda _: (entry if self._log_directory.has_untold_damage else known).encode(),
                await self._guards(),
            ),
            ttl_ms=settings.broker_session_timeout_ms,
            interval_ms=settings.broker_heartbeat_interval_ms,
            max_wait_ms=settings.broker_session_timeout_ms + GRACE_MS,
            on_lease=self._remember_lease if self._remembers else None,
            on_taken=self._take_epoch,
            on_failed=lambda error: self._on_failed(self._explain(error)),
        )
        previous = life_of(self._log_directory.meta).lease if self._remembers else NO_LEASE
        try:
            await session.start(previous)
        except KeyHeldError as error:
            raise self._explain(error) from error
        self._session = session

    async def logs_are_known(self) -> None:
        """The controller has told this life what it hosts, so it has acted on what the registration said of
        the logs. Only now that may be forgotten: a life that ended before nobody took notice of must not
        make the next one, on the same boot of the machine, look sound.
        """
        if not self._log_directory.has_untold_damage:
            return
        self._log_directory.has_untold_damage = False
        await self._remember(lambda life: life._replace(boot_id=read_boot_id(), lost_tails=()))

    async def hand_over(self) -> None:
        """Before a stop: have the controller move what this broker leads. Bounded by the session's time-out,
        after which the controller would act by itself.
        """
        settings = self._broker.settings
        if self._session is None or not settings.controlled_shutdown_enable:
            return
        try:
            async with asyncio.timeout(settings.broker_session_timeout_ms / 1000):
                await self._ask_controller()
        except TimeoutError:
            _log.warning("no controller took over in time, leaders stay", broker_id=self._broker.broker_id)

    async def _ask_controller(self) -> None:
        broker, settings = self._broker, self._broker.settings
        for tries_left in range(settings.controlled_shutdown_max_retries, -1, -1):
            try:
                kept = await broker.controller.controlled_shutdown(broker.broker_id, broker.broker_epoch)
            except KafkaError as error:
                # Without a controller it was waited for one already; whoever stops has better to do.
                is_absent = error.code in (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT)
                is_last = not tries_left or not error.is_retriable or is_absent
                _log.warning("leaders could not be handed over", reason=str(error), is_last_try=is_last)
                if is_last:
                    return
                await asyncio.sleep(settings.controlled_shutdown_retry_backoff_ms / 1000)
                continue
            if kept:
                _log.info("partitions without another replica in sync stay here", partitions=len(kept))
            return

    async def end(self) -> None:
        """Give up the registration."""
        session, self._session = self._session, None
        if session is not None:
            await session.stop()

    async def _guards(self) -> tuple[Compare, ...]:
        """An etcd that was emptied meanwhile is not registered in: a controller that knows no topics would
        have all partitions set aside.
        """
        if not self._remembers:
            return ()
        cluster = await self._store.get(keys.CLUSTER_ID)
        return () if cluster is None else (Compare.create_revision(cluster.key, cluster.create_revision),)

    # -- below: what the session tells

    async def _remember_lease(self, lease: int) -> None:
        boot_id = UNKNOWN_BOOT if self._log_directory.has_untold_damage else read_boot_id()
        await self._remember(lambda life: life._replace(lease=lease, boot_id=boot_id))

    async def _take_epoch(self, epoch: int) -> None:
        self._broker.broker_epoch = epoch
        if self._on_epoch is not None:
            self._on_epoch(epoch)
        if self._remembers:
            await self._remember(lambda life: life._replace(broker_epoch=epoch))

    async def _remember(self, change: Callable[[Life], Life]) -> None:
        async with self._one_note_at_a_time:
            directory = self._log_directory
            await asyncio.to_thread(directory.remember, change(life_of(directory.meta)))

    @property
    def _log_directory(self) -> LogDirectory:
        return self._broker.log_directory

    def _explain(self, error: StoreError) -> Exception:
        if isinstance(error, OtherStoreError):
            return StoreError(
                "etcd no longer holds this cluster: was it emptied, or restored? Stop all brokers and "
                "controllers, then 'tidelog cluster recover' rebuilds it from their directories"
            )
        if not isinstance(error, KeyHeldError):
            return error
        broker_id = self._broker.broker_id
        return KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"node.id: broker id {broker_id} is held by another broker that is alive"
            f"{_where(error.holder)}; give this one another id, or stop that one",
        )


def _where(holder: KeyValue) -> str:
    try:
        entry = decode_entry(holder.key, holder.value)
    except InvalidEntryError:
        return ""
    if not isinstance(entry, BrokerEntry) or not entry.endpoints:
        return ""
    return f" at {entry.endpoints[0].host}:{entry.endpoints[0].port}"
