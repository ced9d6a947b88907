"""Facts of a process: the expiration of its certificates, as the library `cryptography` reads it, and the
memory of its control group.
"""

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
from tidelog.metrics.process_metrics import ContainerMemory, read_container_memory
from tidelog.settings.broker_settings import BrokerSettings, certificate_files

NOW_MS = WallMs(1_700_000_000_000)
GIB = 1 << 30


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


def _group(directory: Path, limit: str, usage: int, stat: str, *, is_v1: bool = False) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    limit_name, usage_name = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes") if is_v1 else ("memory.max", "memory.current")
    )
    (directory / limit_name).write_text(f"{limit}\n")
    (directory / usage_name).write_text(f"{usage}\n")
    (directory / "memory.stat").write_text(stat)


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    return tmp_path / "cgroup"


def _own(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "own"
    path.write_text(text)
    return path


def test_page_cache_is_not_used_memory(tmp_path: Path, groups: Path) -> None:
    _group(groups, str(GIB), 900, "anon 300\nactive_file 250\ninactive_file 350\n")
    found = read_container_memory(groups, _own(tmp_path, "0::/\n"))
    assert found == ContainerMemory(300, GIB)


def test_the_lowest_limit_counts(tmp_path: Path, groups: Path) -> None:
    _group(groups / "pod" / "container", str(2 * GIB), 100, "")
    _group(groups / "pod", str(GIB), 400, "")
    found = read_container_memory(groups, _own(tmp_path, "0::/pod/container\n"))
    assert found == ContainerMemory(400, GIB)


def test_version_1(tmp_path: Path, groups: Path) -> None:
    stat = "active_file 1\ntotal_active_file 250\ntotal_inactive_file 350\n"
    _group(groups / "memory", str(GIB), 900, stat, is_v1=True)
    own = _own(tmp_path, "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n0::/\n")
    assert read_container_memory(groups, own) == ContainerMemory(300, GIB)


@pytest.mark.parametrize("limit", ["max", str((1 << 63) - 4096)])
def test_without_a_limit_there_is_nothing(tmp_path: Path, groups: Path, limit: str) -> None:
    _group(groups, limit, 900, "")
    _group(groups / "memory", limit, 900, "", is_v1=True)
    assert read_container_memory(groups, _own(tmp_path, "4:memory:/\n0::/\n")) is None


def test_other_systems_have_no_groups(tmp_path: Path) -> None:
    assert read_container_memory(tmp_path, tmp_path / "missing") is None
