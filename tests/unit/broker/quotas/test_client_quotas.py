"""The quota of a client: its entity, its precedence, and who shares it."""

from __future__ import annotations

import itertools
import sys
from collections import UserDict
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.security import client_quotas
from tidelog.broker.security.charge import RequestQuotas
from tidelog.broker.security.client_quotas import ClientQuotas, QuotaKind, QuotaLimits, Samples
from tidelog.broker.security.security_snapshot import SecuritySnapshot
from tidelog.kernel.instants import MonotonicMs, WallMs
from tidelog.kernel.steps import all_at_once
from tidelog.metadata.entries import ClientQuotaEntry, DelegationTokenEntry, QuotaEntity
from tidelog.model.acl import user_principal
from tidelog.rpc.broker_commands import SecurityUpdate

SAMPLES = Samples(11, 1000)
NOW = MonotonicMs(0)
ALICE = user_principal("alice")
PRECEDENCE: tuple[dict[str, str | None], ...] = (
    {"user": "alice", "client-id": "app"},
    {"user": "alice", "client-id": None},
    {"user": "alice"},
    {"user": None, "client-id": "app"},
    {"user": None, "client-id": None},
    {"user": None},
    {"client-id": "app"},
    {"client-id": None},
)
"""KIP-55's order. None is the default entity."""


def entries(*quotas: tuple[dict[str, str | None], dict[str, float]]) -> dict[str, ClientQuotaEntry]:
    made = [ClientQuotaEntry(QuotaEntity(tuple(sorted(entity.items()))), values) for entity, values in quotas]
    return {entry.key: entry for entry in made}


def new_quotas(*quotas: tuple[dict[str, str | None], dict[str, float]]) -> ClientQuotas:
    made = ClientQuotas(SAMPLES, SAMPLES)
    made.update(entries(*quotas))
    return made


@pytest.mark.parametrize("chosen", [set(c) for n in (1, 2, 8) for c in itertools.combinations(range(8), n)])
def test_the_most_specific_quota_applies(chosen: set[int]) -> None:
    limits = QuotaLimits(
        entries(*((PRECEDENCE[i], {"producer_byte_rate": 1000.0 + i}) for i in sorted(chosen)))
    )
    found = limits.find(QuotaKind.PRODUCE, "alice", "app")
    assert found is not None
    assert found.limit == 1000 + min(chosen)
    entity = PRECEDENCE[min(chosen)]
    assert found.user == ("alice" if "user" in entity else "")
    assert found.client_id == ("app" if "client-id" in entity else "")
    assert limits.find(QuotaKind.FETCH, "alice", "app") is None


def test_a_client_without_an_id_has_no_quota_of_a_client_id() -> None:
    limits = QuotaLimits(entries(({"client-id": None}, {"producer_byte_rate": 1.0})))
    assert limits.find(QuotaKind.PRODUCE, "alice", "") is None


class CountedEntries(UserDict[str, ClientQuotaEntry]):
    """Counts how often someone reads all entries."""

    readings = 0

    def __iter__(self) -> Iterator[str]:
        self.readings += 1
        return super().__iter__()


def test_a_change_of_other_security_entries_reads_no_quota() -> None:
    quotas = RequestQuotas(ClientQuotas(SAMPLES, SAMPLES))
    counted = CountedEntries(entries(({"user": "alice"}, {"producer_byte_rate": 1000.0})))
    snapshot = SecuritySnapshot(quotas=counted)
    quotas.security_changed(snapshot)
    assert quotas.is_enforced
    assert counted.readings
    sensors, readings = quotas.quotas.of_client(ALICE, "app", NOW), counted.readings
    token = DelegationTokenEntry("t", ALICE, ALICE, (), WallMs(0), WallMs(1), WallMs(1))
    after = all_at_once(snapshot.updated(SecurityUpdate(2, (token,))))
    assert after.delegation_tokens
    quotas.security_changed(after)
    assert counted.readings == readings
    assert quotas.quotas.of_client(ALICE, "app", NOW) is sensors


NAMES = st.sampled_from([None, "a", "b"])
ENTITIES = st.one_of(
    st.fixed_dictionaries({"ip": NAMES}),
    st.fixed_dictionaries({"user": NAMES}),
    st.fixed_dictionaries({"client-id": NAMES}),
    st.fixed_dictionaries({"user": NAMES, "client-id": NAMES}),
)
KINDS = st.sampled_from(list(QuotaKind))
SNAPSHOTS = st.lists(
    st.tuples(ENTITIES, st.dictionaries(KINDS, st.sampled_from([1.0, 2.0]), min_size=1)), max_size=6
)


@given(st.lists(SNAPSHOTS, max_size=6))
def test_limits_after_changes_are_those_of_the_last_snapshot(
    snapshots: list[list[tuple[dict[str, str | None], dict[str, float]]]],
) -> None:
    limits, before = QuotaLimits({}), dict[str, ClientQuotaEntry]()
    for snapshot in snapshots:
        made = entries(
            *(
                (entity, {"connection_creation_rate": 3.0} if "ip" in entity else values)
                for entity, values in snapshot
            )
        )
        before = {key: before[key] if before.get(key) == entry else entry for key, entry in made.items()}
        limits.update(before)
        wanted = QuotaLimits(made)
        assert limits.is_empty == wanted.is_empty
        for user, client_id in itertools.product(("a", "b", "c"), ("a", "b", "c", "")):
            assert limits.names(client_id) == wanted.names(client_id)
            assert limits.connection_rate(user) == wanted.connection_rate(user)
            for kind in QuotaKind:
                assert limits.find(kind, user, client_id) == wanted.find(kind, user, client_id)


def test_the_clients_of_a_user_share_the_quota_of_the_user() -> None:
    quotas = new_quotas(({"user": "alice"}, {"producer_byte_rate": 1000.0}))
    one = quotas.of_client(ALICE, "one", NOW).produce
    assert one is not None
    assert one is quotas.of_client(ALICE, "two", NOW).produce
    assert quotas.of_client(user_principal("bob"), "one", NOW).produce is None


def test_a_default_quota_is_not_shared() -> None:
    quotas = new_quotas(({"user": None}, {"consumer_byte_rate": 1000.0}))
    alice, bob = (
        quotas.of_client(ALICE, "", NOW).fetch,
        quotas.of_client(user_principal("bob"), "", NOW).fetch,
    )
    assert alice is not None
    assert bob is not None
    assert alice.take(100_000, NOW) > 0
    assert bob.take(1, NOW) == 0


def test_a_changed_limit_applies_to_what_was_counted() -> None:
    quotas = new_quotas(({"user": "alice"}, {"producer_byte_rate": 1000.0}))
    sensor = quotas.of_client(ALICE, "app", NOW).produce
    assert sensor is not None
    assert sensor.take(10_000, NOW) == 0
    quotas.update(entries(({"user": "alice"}, {"producer_byte_rate": 500.0})))
    sensor = quotas.of_client(ALICE, "app", NOW).produce
    assert sensor is not None
    assert sensor.take(0, NOW) == 10_000
    quotas.update({})
    assert not quotas.is_enforced
    assert quotas.of_client(ALICE, "app", NOW) == (None, None, None, None)


def test_quotas_of_addresses_do_not_concern_requests() -> None:
    quotas = new_quotas(({"ip": None}, {"connection_creation_rate": 5.0}))
    assert not quotas.is_enforced
    assert quotas.limits.connection_rate("10.0.0.1") == 5
    quotas.update(
        entries(
            ({"ip": None}, {"connection_creation_rate": 5.0}),
            ({"ip": "::1"}, {"connection_creation_rate": 9.0}),
        )
    )
    assert quotas.limits.connection_rate("::1") == 9


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5000)), max_size=200))
def test_the_number_of_sensors_is_bounded(clients: list[tuple[int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_quotas, "MAX_SENSORS", 12)
        patch.setattr(client_quotas, "MAX_KNOWN_CLIENTS", 6)
        quotas = new_quotas(({"client-id": None}, {"producer_byte_rate": 1.0}))
        now_ms = 0
        for client, pause_ms in clients:
            now_ms += pause_ms
            sensor = quotas.of_client(ALICE, f"c{client}", MonotonicMs(now_ms)).produce
            assert sensor is not None
            sensor.take(1, MonotonicMs(now_ms))
            assert quotas.sensor_count <= 12


def test_the_sensors_of_users_remain_when_clients_choose_many_ids() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_quotas, "MAX_SENSORS", 12)
        quotas = new_quotas(
            ({"user": "alice"}, {"producer_byte_rate": 1.0}),
            ({"client-id": None}, {"producer_byte_rate": 1.0}),
        )
        alice = quotas.of_client(ALICE, "app", NOW).produce
        assert alice is not None
        alice.take(1_000_000, NOW)
        for client in range(100):
            other = quotas.of_client(user_principal("eve"), f"c{client}", NOW).produce
            assert other is not None
            other.take(1, NOW)
        assert quotas.of_client(ALICE, "app", NOW).produce is alice


def test_long_client_ids_are_not_kept() -> None:
    quotas = new_quotas(({"user": "alice", "client-id": None}, {"producer_byte_rate": 1.0}))
    first, second = (f"{'x' * 32_000}{number}" for number in range(2))
    known = [sys.getrefcount(first), sys.getrefcount(second)]
    one = quotas.of_client(ALICE, first, NOW).produce
    other = quotas.of_client(ALICE, second, NOW).produce
    assert [sys.getrefcount(first), sys.getrefcount(second)] == known
    assert one is not other, "each client id has a quota of its own"
    assert quotas.of_client(ALICE, first, NOW).produce is one
    assert all(len(usage.client_id) <= 249 for usage in quotas.busiest(2, NOW))


def test_a_quota_of_a_long_client_id_applies() -> None:
    name = "x" * 32_000
    quotas = new_quotas(({"client-id": name}, {"producer_byte_rate": 7.0}))
    found = quotas.of_client(ALICE, name, NOW).produce
    assert found is not None
    assert found.limit == 7
    assert quotas.of_client(ALICE, f"{name}y", NOW).produce is None
