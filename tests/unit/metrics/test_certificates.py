"""The expiration of certificates is that of the library `cryptography`, and follows renewed files."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.cli.local_cluster.certificate_authority import CertificateAuthority
from tidelog.kernel.instants import WallMs
from tidelog.metrics.certificates import CertificateExpiry, first_expiration_s
from tidelog.metrics.families import Families
from tidelog.settings.broker_settings import BrokerSettings, certificate_files

NOW_MS = WallMs(1_700_000_000_000)


def samples(collector: CertificateExpiry) -> dict[str, float]:
    families = Families()
    collector.collect(families)
    return {sample.labels["use"]: sample.value for family in families for sample in family.samples}


@pytest.mark.parametrize("days", [1, 365, 3_650, 30_000])  # the last one ends after 2049
def test_each_use_has_the_end_of_its_validity(tmp_path: Path, days: int) -> None:
    authority = CertificateAuthority.open(tmp_path / "authority", now_ms=NOW_MS)
    validity = datetime.timedelta(days=days)
    files = authority.issue(tmp_path / "a", ["localhost"], now_ms=NOW_MS, validity=validity)
    missing = tmp_path / "missing"
    collector = CertificateExpiry(lambda: {"rpc": str(files.certificate), "etcd": str(missing)})
    assert samples(collector) == {"rpc": NOW_MS / 1000 + validity.total_seconds()}
    later_ms = WallMs(NOW_MS + 60_000)
    authority.issue(tmp_path / "a", ["localhost"], now_ms=later_ms, validity=validity)
    assert samples(collector) == {"rpc": later_ms / 1000 + validity.total_seconds()}


def test_the_earliest_of_a_chain_counts(tmp_path: Path) -> None:
    authority = CertificateAuthority.open(tmp_path / "authority", now_ms=NOW_MS)
    files = authority.issue(tmp_path / "a", ["a"], now_ms=NOW_MS, validity=datetime.timedelta(days=2))
    chain = files.key.read_bytes() + files.ca.read_bytes() + files.certificate.read_bytes()
    assert first_expiration_s(chain) == NOW_MS / 1000 + 2 * 86_400


def test_the_latest_of_authorities_counts(tmp_path: Path) -> None:
    old = CertificateAuthority.open(tmp_path / "old", now_ms=NOW_MS)
    later_ms = WallMs(NOW_MS + 86_400_000)
    new = CertificateAuthority.open(tmp_path / "new", now_ms=later_ms)
    both = tmp_path / "ca.crt"
    certificates = [each.issue(tmp_path / "a", ["a"], now_ms=NOW_MS).ca.read_bytes() for each in (old, new)]
    for order in (certificates, certificates[::-1]):
        both.write_bytes(b"".join(order))
        ends = samples(CertificateExpiry(lambda: {"rpc-authority": str(both), "rpc": str(both)}))
        assert ends["rpc-authority"] - ends["rpc"] == 86_400
    assert ends["rpc-authority"] == first_expiration_s(certificates[1])


def test_authorities_of_services_are_watched() -> None:
    files = certificate_files(
        BrokerSettings.parse(
            {
                "tidelog.rpc.tls.ca.file": "rpc-ca.pem",
                "tidelog.rpc.tls.cert.file": "rpc.pem",
                "tidelog.etcd.tls.ca.file": "etcd-ca.pem",
            }
        )
    )
    assert files == {"rpc": "rpc.pem", "rpc-authority": "rpc-ca.pem", "etcd-authority": "etcd-ca.pem"}


@given(st.binary(max_size=200), st.booleans())
def test_damaged_files_have_no_sample(content: bytes, is_framed: bool) -> None:
    if is_framed:
        content = b"-----BEGIN CERTIFICATE-----" + content + b"-----END CERTIFICATE-----"
    with pytest.raises(ValueError, match=r"."):
        first_expiration_s(content)
