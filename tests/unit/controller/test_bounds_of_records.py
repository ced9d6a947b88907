"""No request ends the controller's term with records that the metadata store cannot take."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterlab.controllers import Cluster, acl_entry
from tidelog.controller import office
from tidelog.controller.core.decision import Record, Write
from tidelog.controller.core.state import ClusterState
from tidelog.controller.office import MAX_BATCH_BYTES, pack_records
from tidelog.controller.server import Controller
from tidelog.kernel.steps import all_at_once
from tidelog.metadata.entries import (
    ACL_PREFIX,
    CLIENT_QUOTA_PREFIX,
    CONTROLLER_KEY,
    DELEGATION_TOKEN_PREFIX,
    GROUP_CONFIG_PREFIX,
    GroupConfigEntry,
)
from tidelog.metadata.file_store import FileMetadataStore
from tidelog.metadata.store import Compare, Get, InvalidTxnError, Operation, TxnResult, check_txn
from tidelog.model.acl import AclOperation, PatternType, PermissionType, ResourceType, user_principal
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    OpData,
    RequestEntryData,
)
from tidelog.wire.messages.create_acls import AclCreation, CreateAclsRequest
from tidelog.wire.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

RunCluster = Callable[..., None]
GROUP = 32
LONGEST_NAME = "n" * 1024


def _token(owner: str | None = None, *renewers: str) -> CreateDelegationTokenRequest:
    return CreateDelegationTokenRequest(
        "User" if owner else None,
        owner,
        renewers=[CreatableRenewers("User", name) for name in renewers],
        max_lifetime_ms=60_000,
    )


def _groups(*group_ids: str) -> IncrementalAlterConfigsRequest:
    setting = AlterableConfig("consumer.session.timeout.ms", 0, "50000")
    return IncrementalAlterConfigsRequest(
        [AlterConfigsResource(GROUP, group_id, [setting]) for group_id in group_ids]
    )


def _quotas(*users: str) -> AlterClientQuotasRequest:
    return AlterClientQuotasRequest(
        [
            RequestEntryData([EntityData("user", user)], [OpData("producer_byte_rate", 1e6, False)])
            for user in users
        ],
        False,
    )


def _acls(*topics: str) -> CreateAclsRequest:
    return CreateAclsRequest(
        [
            AclCreation(
                ResourceType.TOPIC,
                topic,
                PatternType.LITERAL,
                user_principal("alice"),
                "*",
                AclOperation.READ,
                PermissionType.ALLOW,
            )
            for topic in topics
        ]
    )


async def _stored(cluster: Cluster, prefix: str) -> int:
    return len((await cluster.store.list_prefix(prefix)).items)


def _in_one_term(
    run_cluster: RunCluster, scenario: Callable[[Cluster], Awaitable[None]], **settings: str
) -> None:
    """Runs the scenario and checks that the controller served a further request in the same term."""

    async def checked(cluster: Cluster) -> None:
        await cluster.birth(1)
        epoch = cluster.controller.controller_epoch
        await scenario(cluster)
        reply = await cluster.call(ApiKey.CREATE_ACLS, _acls("afterwards"))
        assert reply.results[0].error_code == ErrorCode.NONE
        assert cluster.controller.controller_epoch == epoch, "the controller was active all the time"

    run_cluster(checked, **settings)


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(_token(None, *["r" * 32_000] * 100), id="renewers"),
        pytest.param(_token(None, LONGEST_NAME + "n"), id="renewer"),
        pytest.param(_token("o" * 1025), id="owner"),
    ],
)
def test_long_names_of_a_delegation_token_are_refused(
    run_cluster: RunCluster, request_: CreateDelegationTokenRequest
) -> None:
    async def scenario(cluster: Cluster) -> None:
        reply = await cluster.call(ApiKey.CREATE_DELEGATION_TOKEN, request_)
        assert reply.error_code == ErrorCode.INVALID_REQUEST
        reply = await cluster.call(
            ApiKey.CREATE_DELEGATION_TOKEN, _token(LONGEST_NAME, *[LONGEST_NAME] * 100)
        )
        assert reply.error_code == ErrorCode.NONE
        assert await _stored(cluster, DELEGATION_TOKEN_PREFIX) == 1

    _in_one_term(run_cluster, scenario, delegation_token_secret_key="key")


def test_long_ids_of_groups_with_settings_are_refused(run_cluster: RunCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        long_ids = [f"{number:02d}" + "g" * 30_000 for number in range(30)]
        reply = await cluster.call(
            ApiKey.INCREMENTAL_ALTER_CONFIGS, _groups(*long_ids, "ü" * 513, LONGEST_NAME)
        )
        codes = [response.error_code for response in reply.responses]
        assert codes == [ErrorCode.INVALID_REQUEST] * 31 + [ErrorCode.NONE]
        assert await _stored(cluster, GROUP_CONFIG_PREFIX) == 1

    _in_one_term(run_cluster, scenario)


def test_long_names_of_quota_entities_are_refused(run_cluster: RunCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        reply = await cluster.call(ApiKey.ALTER_CLIENT_QUOTAS, _quotas(LONGEST_NAME + "n", LONGEST_NAME))
        assert [entry.error_code for entry in reply.entries] == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
        assert await _stored(cluster, CLIENT_QUOTA_PREFIX) == 1

    _in_one_term(run_cluster, scenario)


def test_many_acls_of_long_names_are_created(run_cluster: RunCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        names = [f"{number:03d}" + "t" * 4_000 for number in range(100)]
        reply = await cluster.call(ApiKey.CREATE_ACLS, _acls(*names))
        assert {result.error_code for result in reply.results} == {ErrorCode.NONE}
        assert await _stored(cluster, ACL_PREFIX) == 100

    _in_one_term(run_cluster, scenario)


def test_an_entry_that_fits_into_no_transaction_fails_its_request_and_nothing_is_written(
    run_cluster: RunCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(office, "MAX_BATCH_BYTES", 2_000)

    async def scenario(cluster: Cluster) -> None:
        with pytest.raises(KafkaError) as raised:
            await cluster.call(ApiKey.CREATE_ACLS, _acls("small", "t" * 1_000))
        assert raised.value.code is ErrorCode.POLICY_VIOLATION
        message = raised.value.message or ""
        assert message.startswith("The entry /acls/TOPIC/LITERAL/ttt")
        assert len(message) < 500
        assert await _stored(cluster, ACL_PREFIX) == 0

    _in_one_term(run_cluster, scenario)


class FaultyStore:
    """A proxy of a real store. Before or after the next transactions of clients, it raises `error`."""

    def __init__(self, store: FileMetadataStore) -> None:
        self._store = store
        self.error: Exception | None = None
        self.is_written = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def txn(
        self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()
    ) -> TxnResult:
        if self.error is None or not success[0].key.startswith(ACL_PREFIX):
            return await self._store.txn(compares, success, failure)
        if self.is_written:
            await self._store.txn(compares, success, failure)
        error, self.error = self.error, None
        raise error


@pytest.mark.parametrize("error", [InvalidTxnError("too large"), RuntimeError("a fault"), ValueError("no")])
def test_an_unexpected_error_of_a_write_fails_its_request(run_cluster: RunCluster, error: Exception) -> None:
    async def scenario(cluster: Cluster) -> None:
        epoch = await _with_faulty_store(cluster, error)
        with pytest.raises(KafkaError) as raised:
            await cluster.call(ApiKey.CREATE_ACLS, _acls("t"))
        assert raised.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
        reply = await cluster.call(ApiKey.CREATE_ACLS, _acls("t"))
        assert reply.results[0].error_code == ErrorCode.NONE
        assert cluster.controller.controller_epoch == epoch

    run_cluster(scenario)


def test_a_write_that_took_effect_in_spite_of_an_error_is_answered(run_cluster: RunCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        epoch = await _with_faulty_store(cluster, RuntimeError("a fault"), is_written=True)
        reply = await cluster.call(ApiKey.CREATE_ACLS, _acls("t"))
        assert reply.results[0].error_code == ErrorCode.NONE
        assert await _stored(cluster, ACL_PREFIX) == 2
        assert cluster.controller.controller_epoch == epoch

    run_cluster(scenario)


async def _with_faulty_store(cluster: Cluster, error: Exception, *, is_written: bool = False) -> int:
    """Restarts the controller over a store with a fault. Returns the controller's epoch."""
    await cluster.controller.stop()
    store = FaultyStore(cluster.store)
    cluster.controller = await Controller.start(
        store,  # type: ignore[arg-type]  # it passes on all other methods
        cluster.channels,
        cluster.settings,
        randomness=random.Random(3),
    )
    await cluster.call(ApiKey.CREATE_ACLS, _acls("before"))
    store.error, store.is_written = error, is_written
    await cluster.call(ApiKey.ALTER_CLIENT_QUOTAS, _quotas("alice"))
    epoch = cluster.controller.controller_epoch
    assert epoch is not None
    return epoch


_texts = st.builds(lambda letter, count: letter * count, st.sampled_from("aé/"), st.integers(1, 30_000))


_entries = st.one_of(
    st.builds(acl_entry, _texts, _texts),
    st.builds(lambda group, value: GroupConfigEntry(group, {"name": value}), _texts, _texts),
)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.builds(Write, _entries, st.sampled_from([None, 0, 7])), max_size=40))
def test_every_transaction_is_one_that_stores_accept(records: list[Record]) -> None:
    distinct = {record.entry.key: record for record in records if isinstance(record, Write)}
    try:
        groups = all_at_once(pack_records(distinct.values(), ClusterState()))
    except KafkaError as error:
        assert error.code is ErrorCode.POLICY_VIOLATION
        assert max(len(key.encode()) for key in distinct) > MAX_BATCH_BYTES / 4
        return
    for batch in (batch for group in groups for batch in group):
        guard = Compare.mod_revision(CONTROLLER_KEY, 1)
        check_txn([guard, *batch.compares.values()], batch.operations, [Get(CONTROLLER_KEY), *batch.reads])
    assert sum(len(batch.records) for group in groups for batch in group) == len(distinct)
