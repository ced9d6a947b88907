"""A service does not send its password for etcd over the network without encryption."""

from __future__ import annotations

import pytest

from tidelog.cli.service_options import etcd_options
from tidelog.settings.broker_settings import BrokerSettings


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
