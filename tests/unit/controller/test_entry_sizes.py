"""Every broker receives all security entries and settings in one message, so they have a limit in bytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterlab.controllers import Cluster
from tidelog.controller import office
from tidelog.controller.core.state import ChangeSet, ClusterState
from tidelog.kernel.steps import all_at_once
from tidelog.metadata.entries import (
    BrokerConfigEntry,
    ClientMetricsEntry,
    ClientQuotaEntry,
    DelegationTokenEntry,
    Entry,
    GroupConfigEntry,
    PartitionStateEntry,
    QuotaEntity,
    ScramCredentialEntry,
    TopicConfigEntry,
)
from tidelog.model.acl import user_principal
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.sasl.scram import ScramCredential
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

_ALICE = user_principal("alice")
_SET, _DELETE = 0, 1
_TOPIC, _GROUP = 2, 32

_names = st.sampled_from(["a", "b", "ü/"])
_configs = st.dictionaries(_names, st.text(max_size=20), min_size=1, max_size=2)
_counted: st.SearchStrategy[Entry] = st.one_of(
    st.builds(TopicConfigEntry, st.sampled_from(["t", "u"]), _configs),
    st.builds(BrokerConfigEntry, st.sampled_from(["", "1"]), _configs),
    st.builds(GroupConfigEntry, _names, _configs),
    st.builds(ClientMetricsEntry, _names, _configs),
    st.builds(
        lambda user, rate: ClientQuotaEntry(QuotaEntity((("user", user),)), {"producer_byte_rate": rate}),
        _names,
        st.sampled_from([1.0, 1e9]),
    ),
    st.builds(
        lambda user, salt: ScramCredentialEntry(
            user, "SCRAM-SHA-256", ScramCredential(salt, b"k" * 32, b"k" * 32, 4096)
        ),
        _names,
        st.binary(min_size=1, max_size=20),
    ),
    st.builds(
        lambda token_id, renewers: DelegationTokenEntry(
            token_id, _ALICE, _ALICE, (_ALICE,) * renewers, 1, 2, 3
        ),
        st.sampled_from(["x", "y"]),
        st.integers(0, 3),
    ),
)
_uncounted = st.builds(
    PartitionStateEntry, st.just("t"), st.integers(0, 1), st.just(1), st.just(1), st.just((1,)), st.just(1)
)


@given(st.lists(st.tuples(st.booleans(), st.one_of(_counted, _uncounted), st.integers(1, 20)), max_size=30))
def test_the_sizes_are_those_of_the_entries_that_exist(changes: list[tuple[bool, Entry, int]]) -> None:
    state = ClusterState()
    known: dict[str, tuple[int, Entry | None]] = {}
    for is_removal, entry, revision in changes:
        before = known.get(entry.key, (0, None))[0]
        if is_removal:
            state.apply_removal(entry.key, revision, ChangeSet())
        else:
            state.apply(entry, revision, revision, ChangeSet())
        if revision > before:
            known[entry.key] = revision, None if is_removal else entry
    there = [
        entry
        for _, entry in known.values()
        if entry is not None and not isinstance(entry, PartitionStateEntry)
    ]
    total = sum(len(entry.key) + len(entry.encode()) for entry in there)
    assert state.entry_sizes.total_bytes == total
    loaded = ClusterState()
    all_at_once(loaded.load((entry.key, entry.encode(), 1, 1) for entry in there))
    assert loaded.entry_sizes.total_bytes == total


RunCluster = Callable[..., None]


def _alteration(kind: int, name: str, timeout: str | None, setting: str) -> AlterConfigsResource:
    operation = _DELETE if timeout is None else _SET
    return AlterConfigsResource(kind, name, [AlterableConfig(setting, operation, timeout)])


def _groups(timeout: str | None, *group_ids: str) -> IncrementalAlterConfigsRequest:
    return IncrementalAlterConfigsRequest(
        [_alteration(_GROUP, group_id, timeout, "consumer.session.timeout.ms") for group_id in group_ids]
    )


def test_entries_beyond_the_limit_are_refused_and_the_term_continues(
    run_cluster: RunCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(cluster: Cluster) -> None:
        async def refused(call: Awaitable[object]) -> None:
            with pytest.raises(KafkaError) as raised:
                await call
            assert raised.value.code is ErrorCode.POLICY_VIOLATION

        def alter(request: IncrementalAlterConfigsRequest) -> Awaitable[object]:
            return cluster.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, request)

        await cluster.birth(1)
        epoch = cluster.controller.controller_epoch
        await alter(_groups("50000", "a", "b", "c"))
        stored = (await cluster.store.list_prefix("/config/")).items
        used = sum(len(item.key) + len(item.value) for item in stored)
        monkeypatch.setattr(office, "MAX_SIZED_BYTES", used)

        await refused(alter(_groups("50000", "d")))
        configs = [CreatableTopicConfig("retention.ms", "1000")]
        topic = CreateTopicsRequest([CreatableTopic("t", 1, 1, [], configs)])
        await refused(cluster.call(ApiKey.CREATE_TOPICS, topic))
        assert len((await cluster.store.list_prefix("/config/")).items) == 3, "nothing was written"
        reply = await cluster.call(ApiKey.CREATE_TOPICS, CreateTopicsRequest([CreatableTopic("t", 1, 1)]))
        assert reply.topics[0].error_code == ErrorCode.NONE, "what has no settings needs no room"
        await refused(alter(IncrementalAlterConfigsRequest([_alteration(_TOPIC, "t", "1", "retention.ms")])))
        await alter(_groups("51000", "a"))
        # One request may remove an entry and write another one in its place.
        changed = [*_groups(None, "b").resources, *_groups("50000", "e").resources]
        await alter(IncrementalAlterConfigsRequest(changed))

        monkeypatch.setattr(office, "MAX_SIZED_BYTES", used // 3)
        await alter(_groups("52000", "a"))
        await refused(alter(_groups("50000", "d")))
        await alter(_groups(None, "a", "c"))
        await refused(alter(_groups("50000", "d")))
        await alter(_groups(None, "e"))
        await alter(_groups("50000", "d"))
        assert cluster.controller.controller_epoch == epoch

    run_cluster(scenario)
