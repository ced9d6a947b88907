"""The quota of a client: its entity, its precedence, and who shares it."""

from __future__ import annotations

import itertools
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.quotas import client_quotas
from tidelog.broker.quotas.client_quotas import ClientQuotas, QuotaKind, QuotaLimits, Samples
from tidelog.metadata.entries import ClientQuotaEntry, QuotaEntity
from tidelog.model.instants import MonotonicMs
from tidelog.model.principal import user_principal

SAMPLES = Samples(11, 1000)
NOW = MonotonicMs(0)
ALICE = user_principal("alice")
PRECEDENCE = (
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
