"""A broker's life as the cluster sees it: the broker registers under a lease, registers again after it lost
the lease, hands over its leaderships and gives up the registration at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog

from tidelog.broker.log.previous_life import UNKNOWN_BOOT, Life, life_of, read_boot_id
from tidelog.metadata.entries import CLUSTER_ID_KEY, BrokerEntry, InvalidEntryError, decode_entry
from tidelog.metadata.session import Claim, KeyHeldError, OtherStoreError, Session
from tidelog.metadata.store import Compare, KeyValue, MetadataStore, StoreError
from tidelog.model.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from tidelog.broker.cluster.controller_connection import ControllerConnection
    from tidelog.broker.cluster.view import BrokerIdentity, CurrentSettings
    from tidelog.broker.log.log_directory import LogDirectory

GRACE_MS: Final = 5_000
"""A start waits this long, and the session's time-out, for another process to release the broker id and the
data directory.
"""

_log = structlog.get_logger(__name__)


class BrokerLife:
    """Registers the broker. Call `begin(entry)`, then `hand_over()` and `end()`.

    The lease, the epoch and the boot of the machine are stored in `meta.properties`, so that the next start
    can end this life's lease at once even if this process was killed, and knows whether the machine crashed.
    """

    def __init__(
        self,
        identity: BrokerIdentity,
        settings: CurrentSettings,
        log_directory: LogDirectory,
        controller: ControllerConnection,
        store: MetadataStore,
    ) -> None:
        self._identity = identity
        self._settings = settings
        self._log_directory = log_directory
        self._controller = controller
        self._store = store
        self._on_epoch: Callable[[int], None] | None = None
        self._session: Session | None = None
        self._one_note_at_a_time = asyncio.Lock()

    @property
    def lease_renewed_s(self) -> float | None:
        """The time of the last renewal of the lease, in seconds of the monotonic clock. Any thread may read
        it.
        """
        return None if self._session is None else self._session.lease_renewed_s

    @property
    def leases_lost(self) -> int:
        """The number of leases that were lost. Any thread may read it."""
        return 0 if self._session is None else self._session.leases_lost

    async def begin(
        self,
        entry: BrokerEntry,
        on_epoch: Callable[[int], None] | None = None,
        *,
        on_failed: Callable[[Exception], None],
    ) -> None:
        """Registers the broker. `entry` tells the controller in which state the start found the logs; each
        registration repeats that until the controller has acted on it (`logs_are_known`). `on_epoch` is
        called with the broker epoch of each registration, and `on_failed` with the reason if the broker can't
        stay registered, because another broker took its id.

        Raises KafkaError(DUPLICATE_BROKER_REGISTRATION) if another broker holds the id and keeps it,
        StoreUnavailableError, OSError.
        """
        settings = self._settings.broker
        self._on_epoch = on_epoch
        known = entry._replace(is_log_suspect=False, suspect_partitions=())
        self._log_directory.has_untold_damage |= entry != known
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
            on_lease=self._remember_lease,
            on_taken=self._take_epoch,
            on_failed=lambda error: on_failed(self._explain(error)),
        )
        try:
            await session.start(life_of(self._log_directory.meta).lease)
        except KeyHeldError as error:
            raise self._explain(error) from error
        self._session = session

    async def logs_are_known(self) -> None:
        """Call this after the first commands of the controller, which has then acted on the state of the
        logs in the registration. The state must not be forgotten earlier: if this process ended before the
        controller saw its registration, the next one on the same boot of the machine would seem sound.
        """
        if not self._log_directory.has_untold_damage:
            return
        self._log_directory.has_untold_damage = False
        await self._remember(lambda life: life._replace(boot_id=read_boot_id(), lost_tails=()))

    async def hand_over(self) -> None:
        """Has the controller move leadership away before the broker stops. This takes at most the session's
        time-out, after which the controller would act by itself.
        """
        settings = self._settings.broker
        if self._session is None or not settings.controlled_shutdown_enable:
            return
        try:
            async with asyncio.timeout(settings.broker_session_timeout_ms / 1000):
                await self._ask_controller()
        except TimeoutError:
            _log.warning(
                "no controller answered in time, so this broker stops as a leader",
                broker_id=self._identity.broker_id,
            )

    async def _ask_controller(self) -> None:
        settings = self._settings.broker
        for tries_left in range(settings.controlled_shutdown_max_retries, -1, -1):
            try:
                kept = await self._controller.controlled_shutdown()
            except KafkaError as error:
                # The call itself has already waited for a controller, so a retry would only delay the stop.
                is_absent = error.code in (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT)
                is_last = not tries_left or not error.is_retriable or is_absent
                _log.warning("leadership could not be handed over", reason=str(error), is_last_try=is_last)
                if is_last:
                    return
                await asyncio.sleep(settings.controlled_shutdown_retry_backoff_ms / 1000)
                continue
            if kept:
                _log.info(
                    "this broker still leads partitions that have no other replica in sync",
                    partitions=len(kept),
                )
            return

    async def end(self) -> None:
        """Gives up the registration."""
        session, self._session = self._session, None
        if session is not None:
            await session.stop()

    async def _guards(self) -> tuple[Compare, ...]:
        """Returns the conditions of a registration. The broker does not register in an etcd that was emptied
        meanwhile: a controller that knows no topics would have all partitions set aside.
        """
        cluster = await self._store.get(CLUSTER_ID_KEY)
        return () if cluster is None else (Compare.create_revision(cluster.key, cluster.create_revision),)

    # -- called by the session

    async def _remember_lease(self, lease: int) -> None:
        boot_id = UNKNOWN_BOOT if self._log_directory.has_untold_damage else read_boot_id()
        await self._remember(lambda life: life._replace(lease=lease, boot_id=boot_id))

    async def _take_epoch(self, epoch: int) -> None:
        self._identity.broker_epoch = epoch
        if self._on_epoch is not None:
            self._on_epoch(epoch)
        await self._remember(lambda life: life._replace(broker_epoch=epoch))

    async def _remember(self, change: Callable[[Life], Life]) -> None:
        async with self._one_note_at_a_time:
            directory = self._log_directory
            await asyncio.to_thread(directory.remember, change(life_of(directory.meta)))

    def _explain(self, error: StoreError) -> Exception:
        if isinstance(error, OtherStoreError):
            return StoreError(
                "etcd no longer holds this cluster; it may have been emptied or restored. Stop all brokers "
                "and controllers, then 'tidelog cluster recover' rebuilds it from their directories"
            )
        if not isinstance(error, KeyHeldError):
            return error
        broker_id = self._identity.broker_id
        return KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"node.id: broker id {broker_id} is held by another broker that is alive"
            f"{_where(error.holder)}; give this broker another id, or stop the other one",
        )


def _where(holder: KeyValue) -> str:
    try:
        entry = decode_entry(holder.key, holder.value)
    except InvalidEntryError:
        return ""
    if not isinstance(entry, BrokerEntry) or not entry.endpoints:
        return ""
    return f" at {entry.endpoints[0].address}"
