"""ACLs and client quotas reach brokers as snapshots, whatever the order of changes and restarts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterlab.controllers import Cluster, acl_entry
from tidelog.broker.cluster.view import MetadataView
from tidelog.broker.security.security_snapshot import SecuritySnapshot
from tidelog.controller.core.commands import commands_for, full_commands
from tidelog.controller.core.state import ChangeSet, ClusterState
from tidelog.kernel.steps import all_at_once
from tidelog.metadata.entries import BrokerEntry, ClientQuotaEntry, QuotaEntity, SecurityEntry
from tidelog.rpc.broker_commands import LeaderAndIsr, SecurityUpdate, StopReplica, UpdateMetadata
from tidelog.rpc.command_messages import command, command_message
from tidelog.rpc.generated import broker_commands_pb2 as pb
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages import alter_client_quotas as quotas


def _quota_entry(user: str, rate: float) -> ClientQuotaEntry:
    return ClientQuotaEntry(QuotaEntity((("user", user),)), {"producer_byte_rate": rate})


_names = st.sampled_from("abc")
_entries: st.SearchStrategy[SecurityEntry] = st.one_of(
    st.builds(acl_entry, _names), st.builds(_quota_entry, _names, st.sampled_from([1.0, 2.0]))
)
_changes = st.lists(st.tuples(st.booleans(), _entries), max_size=4)


@given(st.lists(_changes, max_size=6))
def test_updates_lead_to_the_snapshot_of_all_entries(rounds: list[list[tuple[bool, SecurityEntry]]]) -> None:
    state, view, revision = ClusterState(), MetadataView("c"), 1
    state.apply(BrokerEntry(1, ()), 1, 1, ChangeSet())
    expected: dict[str, SecurityEntry] = {}
    for round_changes in rounds:
        changes = ChangeSet()
        for is_removal, entry in round_changes:
            revision += 1
            if is_removal:
                state.apply_removal(entry.key, revision, changes)
                expected.pop(entry.key, None)
            else:
                state.apply(entry, revision, revision, changes)
                expected[entry.key] = entry
        before = view.security
        for sent in all_at_once(commands_for(state, changes, 1, 1)).get(1, []):
            received = all_at_once(
                command(pb.Command.FromString(all_at_once(command_message(sent)).SerializeToString()))
            )
            assert isinstance(received, UpdateMetadata)
            view.apply(received)
        assert {**view.security.acls, **view.security.quotas} == expected
        assert changes.security or view.security is before
    full = MetadataView("c")
    (*_, metadata) = all_at_once(full_commands(state, 1, 1, 1))
    assert isinstance(metadata, UpdateMetadata)
    full.apply(metadata)
    before = view.security
    view.apply(metadata)
    assert view.security is before, "a full update without a change must not end remembered decisions"
    assert (full.security.acls, full.security.quotas) == (view.security.acls, view.security.quotas)


def test_a_broker_skips_entries_that_only_a_newer_controller_knows() -> None:
    message = all_at_once(
        command_message(UpdateMetadata(1, 1, (), security=SecurityUpdate(7, (acl_entry("a"),))))
    )
    message.update_metadata.security.entries.add(key="/later/x", value=b"{}")
    received = all_at_once(command(message))
    assert isinstance(received, UpdateMetadata)
    assert received.security == SecurityUpdate(7, (acl_entry("a"),))


def test_entries_reach_brokers_after_a_restart(run_cluster: Callable[..., None]) -> None:
    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.birth(1)
        assert not _last(broker.commands).entries
        entry = quotas.RequestEntryData(
            [quotas.EntityData("user", "a")], [quotas.OpData("producer_byte_rate", 5.0, False)]
        )
        await cluster.call(ApiKey.ALTER_CLIENT_QUOTAS, quotas.AlterClientQuotasRequest([entry]))
        update = _last(broker.commands)
        assert update.entries == (_quota_entry("a", 5.0),)
        await cluster.stop()
        await cluster.start()
        assert _last(cluster.brokers[1].commands) == update

    run_cluster(scenario)


def _last(commands: list[LeaderAndIsr | UpdateMetadata | StopReplica]) -> SecurityUpdate:
    """Returns the last update that contained security entries."""
    updates = [c.security for c in commands if isinstance(c, UpdateMetadata) and c.security is not None]
    return updates[-1]


@pytest.mark.parametrize(
    "part", [f.name for f in fields(SecuritySnapshot) if f.name not in ("revision", "rules")]
)
def test_a_full_update_removes_from_every_part_what_it_does_not_name(part: str) -> None:
    """Otherwise, a deleted user or token of a later part would stay valid at this broker."""
    entry = acl_entry("a")
    before = SecuritySnapshot(**{part: {entry.key: entry}})
    after = all_at_once(before.replaced(SecurityUpdate(9)))
    assert len(getattr(before, part)) == 1
    assert len(getattr(after, part)) == 0


def test_an_older_removal_does_not_make_a_removed_entry_possible_again() -> None:
    state, entry = ClusterState(), acl_entry("alice")
    state.apply_removal(entry.key, 5, ChangeSet())
    state.apply_removal(entry.key, 3, ChangeSet())
    state.apply(entry, 4, 4, ChangeSet())
    assert not state.acls
