"""The settings of a service: its gRPC server, its user and role in etcd, and its password."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

import pytest

from tidelog.cli.services.etcd import etcd_role
from tidelog.cli.services.service_options import etcd_options, is_loopback
from tidelog.cli.services.service_process import open_rpc_door
from tidelog.metadata.etcd.users import KeyRange
from tidelog.rpc.peer_tls import ServiceRole
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.setting import SettingError


def options_of(endpoints: str, **others: str) -> tuple[str, ...]:
    given = {"tidelog.etcd.endpoints": endpoints, "tidelog.etcd.username": "root", **others}
    return etcd_options(BrokerSettings.parse(given)).endpoints


@pytest.mark.parametrize(
    "endpoints",
    [
        "http://etcd:2379",
        "etcd:2379",
        "10.1.2.3",
        "http://localhost.evil:2379",
        "http://127.0.0.1:2379,http://[fe80::1]:2379",
        "https://a:2379,http://b:2379",
    ],
)
def test_a_password_in_plaintext_is_refused(endpoints: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options_of(endpoints, **{"tidelog.etcd.password": "secret"})
    said = capsys.readouterr().err
    assert said.startswith("tidelog: tidelog.etcd.endpoints: ")
    assert "is not encrypted" in said
    assert "secret" not in said
    allowed = {"tidelog.etcd.password": "secret", "tidelog.etcd.allow.plaintext": "true"}
    assert options_of(endpoints, **allowed)
    assert options_of(endpoints), "without a password, there is nothing to read"


@pytest.mark.parametrize(
    "endpoints", ["https://etcd:2379", "http://127.0.0.1:2379,localhost:2379", "http://[::1]:2379"]
)
def test_a_password_is_sent_over_tls_and_to_this_machine(endpoints: str) -> None:
    assert options_of(endpoints, **{"tidelog.etcd.password": "secret"})


def test_endpoints_without_a_scheme_are_encrypted_if_there_is_an_authority() -> None:
    given = {"tidelog.etcd.password": "secret", "tidelog.etcd.tls.ca.file": "ca.pem"}
    assert options_of("etcd:2379", **given)


BROKER, CONTROLLER, COORDINATOR = ServiceRole


def _contains(ranges: Iterable[KeyRange], key: str) -> bool:
    return any(key.startswith(r.key) if r.is_prefix else key == r.key for r in ranges)


@pytest.mark.parametrize(
    ("key", "readers", "writers"),
    [
        ("/brokers/ids/1", {BROKER, COORDINATOR}, {BROKER}),
        ("/brokers/topics/t/partitions/0/state", {BROKER, COORDINATOR}, {BROKER}),
        ("/isr_change_notification/counter", {BROKER}, {BROKER}),
        ("/coordinators/group/shards/0/owner", {COORDINATOR}, {COORDINATOR}),
        ("/cluster/id", {BROKER, COORDINATOR}, set()),
        ("/tidelog/schema_version", {BROKER, COORDINATOR}, set()),
        ("/controller", {BROKER}, set()),
        ("/controller_epoch", {BROKER}, set()),
        ("/config/brokers/<default>", {COORDINATOR}, set()),
        ("/config/groups/g", {COORDINATOR}, set()),
        ("/acls/topic/literal/t", set(), set()),
        ("/config/scram/SCRAM-SHA-512/admin", set(), set()),
        ("/config/delegation_tokens/t", set(), set()),
        ("/config/topics/t", set(), set()),
        ("/latest_producer_id_block", set(), set()),
    ],
)
def test_only_the_controller_reaches_all_keys(
    key: str, readers: set[ServiceRole], writers: set[ServiceRole]
) -> None:
    roles = {kind: etcd_role(kind) for kind in ServiceRole}
    found_writers = {kind for kind, role in roles.items() if _contains(role.writes, key)}
    found_readers = {kind for kind, role in roles.items() if _contains((*role.reads, *role.writes), key)}
    assert found_writers == {*writers, CONTROLLER}
    assert found_readers == {*readers, CONTROLLER}


def open_at(listener: str, **others: str) -> str:
    given = {"tidelog.rpc.listener": listener, "tidelog.rpc.advertised.address": "127.0.0.1:0", **others}
    settings = BrokerSettings.parse(given)

    async def opened() -> str:
        async with contextlib.AsyncExitStack() as stack:
            return await open_rpc_door(settings, stack, tls=None)

    return asyncio.run(opened())


@pytest.mark.parametrize("listener", ["0.0.0.0:0", "[::]:0", "10.1.2.3:0", "example.invalid:0"])
def test_plaintext_on_another_address_is_refused(listener: str) -> None:
    with pytest.raises(SettingError, match=r"tidelog\.rpc\.listener: .* is not a loopback address"):
        open_at(listener)


def test_plaintext_is_accepted_on_a_loopback_address() -> None:
    assert open_at("127.0.0.1:0").startswith("127.0.0.1:")


def test_plaintext_is_accepted_if_it_is_allowed() -> None:
    assert open_at("0.0.0.0:0", **{"tidelog.rpc.allow.plaintext": "true"})


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("localhost.evil:1", False),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("192.168.0.1:1", False),
    ],
)
def test_loopback_addresses(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected
