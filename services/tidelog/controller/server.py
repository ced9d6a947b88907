"""The controller as a service: it takes part in the election, serves while it is the active controller, and
takes part again when its term has ended.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import structlog

from tidelog.controller.core.broker_requests import (
    allocate_producer_ids,
    controlled_shutdown,
    unregister_broker,
)
from tidelog.controller.core.client_quotas import alter_client_quotas, describe_client_quotas
from tidelog.controller.core.config_changes import alter_configs, incremental_alter_configs
from tidelog.controller.core.decision import Chance, ControllerDecision, DecisionSteps
from tidelog.controller.core.elections import elect_leaders
from tidelog.controller.core.features_and_quorum import describe_quorum, update_features
from tidelog.controller.core.reassignments import alter_partition_reassignments, list_partition_reassignments
from tidelog.controller.core.security_changes import (
    alter_user_scram_credentials,
    create_acls,
    create_delegation_token,
    delete_acls,
    expire_delegation_token,
    renew_delegation_token,
)
from tidelog.controller.core.topics import create_partitions, create_topics, delete_topics
from tidelog.controller.metrics import ControllerCounts, Overview
from tidelog.controller.office import (
    DeposedError,
    Office,
    resign,
    stand,
    take_office,
    until_office_is_vacant,
)
from tidelog.controller.term import (
    MAX_PROPAGATION_WAIT_MS,
    ControllerSurroundings,
    Decide,
    Term,
)
from tidelog.kernel.clock import Clock, SystemClock
from tidelog.metadata.session import KeptLease, start_lease_keeper
from tidelog.metadata.store import (
    KeyValue,
    LeaseNotFoundError,
    MetadataStore,
    StoreError,
    StoreUnavailableError,
)
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.model.trace_context import traced_step
from tidelog.rpc.broker_commands import BrokerChannels
from tidelog.rpc.controller_api import ForwardedRequest, ProducerIdBlock
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.schema import Message

# The message is Any, because each decision takes the message class of its API. The decisions of delegation
# tokens also take the client's principal.
DecideRequest = Callable[..., ControllerDecision[Any] | DecisionSteps[Any]]

_OF_PRINCIPALS: Final[Mapping[int, DecideRequest]] = {
    ApiKey.CREATE_DELEGATION_TOKEN: create_delegation_token,
    ApiKey.RENEW_DELEGATION_TOKEN: renew_delegation_token,
    ApiKey.EXPIRE_DELEGATION_TOKEN: expire_delegation_token,
}
_DECISIONS: Final[Mapping[int, DecideRequest]] = {
    ApiKey.CREATE_TOPICS: create_topics,
    ApiKey.DELETE_TOPICS: delete_topics,
    ApiKey.CREATE_PARTITIONS: create_partitions,
    ApiKey.ALTER_CONFIGS: alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
    ApiKey.ELECT_LEADERS: elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments,
    ApiKey.UPDATE_FEATURES: update_features,
    ApiKey.UNREGISTER_BROKER: unregister_broker,
    ApiKey.ALTER_CLIENT_QUOTAS: alter_client_quotas,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: describe_client_quotas,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: alter_user_scram_credentials,
    ApiKey.DESCRIBE_QUORUM: describe_quorum,
    ApiKey.CREATE_ACLS: create_acls,
    ApiKey.DELETE_ACLS: delete_acls,
    **_OF_PRINCIPALS,
}

# The response waits at least this long, because a topic should be usable when its creation is answered.
MIN_PROPAGATION_WAIT_MS: Final = 1000


def decision_for(api_key: int, request: ForwardedRequest) -> tuple[Decide[Message], int]:
    """Returns the decision and the time in ms that its response may wait for brokers. Raises
    KafkaError(UNSUPPORTED_VERSION).
    """
    decide = _DECISIONS.get(api_key)
    if decide is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"The controller does not serve API {api_key}.")
    timeout_ms: int = getattr(request.message, "timeout_ms", MAX_PROPAGATION_WAIT_MS)
    wait_ms = max(MIN_PROPAGATION_WAIT_MS, min(timeout_ms, MAX_PROPAGATION_WAIT_MS))
    principal = (request.principal,) if api_key in _OF_PRINCIPALS else ()
    message, version = request.message, request.api_version
    return lambda state, context: decide(state, context, message, version, *principal), wait_ms


RETRY_MS: Final = 500
# The pause after a term, so that terms that end immediately do not follow each other in a tight loop.
AFTER_OFFICE_MS: Final = 100
# The longest time that a controlled shutdown waits for other brokers, because one of them may be dead.
SHUTDOWN_WAIT_MS: Final = 2000

_log = structlog.get_logger(__name__)


class Controller:
    """`ControllerApi` over a metadata store, in one process with the broker or alone.

        controller = await Controller.start(store, channels, settings)
        reply = await controller.handle(ApiKey.CREATE_TOPICS, ForwardedRequest(7, CreateTopicsRequest(...)))
        await controller.stop()

    `start` returns when this controller is active and has read the store, or when another controller is
    active. A controller that is not active refuses every call with NOT_CONTROLLER. Brokers may register
    before or after `start`. Each broker receives a full LeaderAndIsr and a full UpdateMetadata over
    `channels.channel(registration)` as soon as its `/brokers/ids/<id>` exists, so a broker's channel must be
    attached before the broker registers.

    `settings` contain node.id (controllers are numbered independently of brokers), num.partitions,
    default.replication.factor, delete.topic.enable, leader.imbalance.*, the session's timeouts and the
    defaults of topics. `rpc_address` is the "host:port" at which brokers call the active controller, and ""
    if they are in the same process. `counts` and `overview` are for metrics.
    """

    def __init__(
        self,
        store: MetadataStore,
        channels: BrokerChannels,
        settings: BrokerSettings,
        clock: Clock,
        chance: Chance,
        rpc_address: str = "",
    ) -> None:
        self._store = store
        self._settings = settings
        self._rpc_address = rpc_address
        self.failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        """Done, with the reason, if this controller cannot continue."""
        self.counts = ControllerCounts()
        self._around = ControllerSurroundings(store, channels, settings, clock, chance, self.counts)
        self._lease: KeptLease | None = None
        self._lease_lost = asyncio.Event()
        self._leases_lost = 0
        self._term: Term | None = None
        self._term_under_way: Term | None = None
        self._decided = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        store: MetadataStore,
        channels: BrokerChannels,
        settings: BrokerSettings,
        *,
        clock: Clock | None = None,
        randomness: random.Random | None = None,
        rpc_address: str = "",
    ) -> Controller:
        """Starts a controller. Raises StoreUnavailableError and InvalidEntryError. Later, the controller
        waits for an unavailable store without a limit.
        """
        chance = Chance((randomness or random.SystemRandom()).getrandbits)
        controller = cls(store, channels, settings, clock or SystemClock(), chance, rpc_address)
        controller._task = asyncio.create_task(controller._run(), name="controller")
        controller._task.add_done_callback(controller._note_failure)
        decided = asyncio.create_task(controller._decided.wait())
        await asyncio.wait([controller._task, decided], return_when=asyncio.FIRST_COMPLETED)
        if controller._task.done():
            decided.cancel()
            task = controller._task
            # otherwise its lease would keep the key of a controller that does not serve
            await controller.stop()
            await task
        return controller

    async def stop(self) -> None:
        """Resigns and gives up the lease. Requests in progress fail with NOT_CONTROLLER. It may be called
        repeatedly.
        """
        if self._task is None:
            return
        task, self._task = self._task, None
        task.cancel()
        await asyncio.wait([task])
        if self._lease is not None:
            await self._lease.stop()

    @property
    def is_active(self) -> bool:
        """Whether this is the active controller, as far as it knows."""
        return self._term is not None

    def why_not_ready(self) -> str | None:
        """Returns the reason why this controller is not ready, or None if it is active or stands by with a
        lease.
        """
        if self.is_active:
            return None
        if self._task is None or self._lease is None or self._lease_lost.is_set():
            return "no lease"
        if self._term_under_way is not None:
            return "becoming the active controller"
        return None if self._decided.is_set() else "waiting for the first election"

    def overview(self) -> Overview:
        """Returns the cluster's numbers for metrics. Any thread may call it."""
        term = self._term
        return Overview() if term is None else term.overview()

    @property
    def lease_renewed_s(self) -> float | None:
        """The time of the lease's last renewal, in seconds of the monotonic clock. Any thread may read it."""
        lease = self._lease
        return None if lease is None else lease.renewed_s

    @property
    def leases_lost(self) -> int:
        return self._leases_lost

    @property
    def controller_epoch(self) -> int | None:
        """The epoch of the current term; None if this controller is not active."""
        return self._term.controller_epoch if self._term is not None else None

    async def handle(self, api_key: int, request: ForwardedRequest) -> Message:
        decide, wait_ms = decision_for(api_key, request)
        with traced_step("decide and write"):
            return await self._active_term().submit(decide, wait_ms)

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        decide = partial(allocate_producer_ids, broker_id=broker_id, broker_epoch=broker_epoch)
        return await self._active_term().submit(decide)

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> tuple[TopicPartition, ...]:
        decide = partial(controlled_shutdown, broker_id=broker_id, broker_epoch=broker_epoch)
        return await self._active_term().submit(decide, SHUTDOWN_WAIT_MS, not_waited_for=broker_id)

    def _active_term(self) -> Term:
        if self._term is None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "This is not the active controller.")
        return self._term

    async def _run(self) -> None:
        while True:
            try:
                await self._hold_office(await self._elected())
            except LeaseNotFoundError:
                self._lease_lost.set()
            except DeposedError as error:
                _log.warning("no longer the active controller", reason=str(error))
                await asyncio.sleep(AFTER_OFFICE_MS / 1000)
            except StoreError as error:
                if not self._decided.is_set():
                    raise
                _log.warning("the metadata store failed; the controller tries again", reason=str(error))
                await asyncio.sleep(RETRY_MS / 1000)
            except Exception:
                # This is a fault of the term. The controller resigns, because another one may do better.
                if not self._decided.is_set():
                    raise
                _log.exception("unexpected error; the controller tries again")
                await asyncio.sleep(RETRY_MS / 1000)

    async def _elected(self) -> Office:
        while True:
            if self._lease is None or self._lease_lost.is_set():
                await self._renew_lease()
            assert self._lease is not None, "just granted"
            outcome = await take_office(
                self._store, self._settings.node_id, self._lease.lease, self._rpc_address
            )
            if isinstance(outcome, Office):
                return outcome
            self._decided.set()
            await self._until_vacant_or_lease_lost(outcome)

    async def _until_vacant_or_lease_lost(self, holder: KeyValue) -> None:
        """Waits until the key of the active controller is gone or this controller's lease is lost. A
        controller that stands by must have a lease at the moment of the election.
        """
        vacant = asyncio.ensure_future(until_office_is_vacant(self._store, holder))
        lost = asyncio.ensure_future(self._lease_lost.wait())
        try:
            await asyncio.wait([vacant, lost], return_when=asyncio.FIRST_COMPLETED)
            if vacant.done():
                await vacant
        finally:
            vacant.cancel()
            lost.cancel()
            await asyncio.wait([vacant, lost])

    async def _renew_lease(self) -> None:
        if self._lease is not None:
            await self._lease.stop(revoke=False)
        self._lease_lost.clear()
        self._lease = await start_lease_keeper(
            self._store,
            ttl_ms=self._settings.broker_session_timeout_ms,
            interval_ms=self._settings.broker_heartbeat_interval_ms,
            on_lost=self._on_lease_lost,
        )
        await stand(self._store, self._settings.node_id, self._lease.lease)

    def _on_lease_lost(self) -> None:
        self._leases_lost += 1
        self._lease_lost.set()
        if self._term_under_way is not None:
            self._term_under_way.depose("the controller's lease has ended")

    async def _hold_office(self, office: Office) -> None:
        term = Term(self._around, office)
        self._term_under_way = term
        is_failed = True
        try:
            await term.begin()
            _log.info("became the active controller", controller_epoch=office.controller_epoch)
            self._term = term
            self.counts.is_active = True
            self._decided.set()
            await term.serve()
        except StoreUnavailableError:
            is_failed = False  # it is still the active controller, as far as it knows
            raise
        finally:
            self._term = self._term_under_way = None
            self.counts.is_active = False
            term.end()
            if is_failed:
                await self._resign(office)

    async def _resign(self, office: Office) -> None:
        """Gives up the key, even if it still belongs to this controller, so that the epoch of a term that
        ended is never used again.
        """
        try:
            await resign(self._store, office)
        except StoreUnavailableError as error:
            _log.warning("the key /controller could not be deleted", reason=str(error))

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        _log.error("the controller failed", exc_info=error)
        if isinstance(error, Exception) and not self.failed.done():
            self.failed.set_result(error)
