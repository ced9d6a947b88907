"""The authority that issues the certificates of one machine: names, validity, file modes and renewal."""

from __future__ import annotations

import datetime
import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509

from tidelog.cli.local_cluster.certificate_authority import CertificateAuthority, CertificateFiles
from tidelog.kernel.instants import WallMs
from tidelog.rpc.peer_tls import PeerTls

NOW = WallMs(1_800_000_000_000)
DAY_MS = 86_400_000
NAMES = ("tidelog", "broker.tidelog", "localhost", "127.0.0.1", "::1")


def later(days: float) -> WallMs:
    return WallMs(NOW + int(days * DAY_MS))


def certificate(files: CertificateFiles) -> x509.Certificate:
    return x509.load_pem_x509_certificate(files.certificate.read_bytes())


def test_a_certificate_has_its_names_and_is_of_the_authority(tmp_path: Path) -> None:
    authority = CertificateAuthority.open(tmp_path / "ca", now_ms=NOW)
    files = authority.issue(tmp_path / "broker", NAMES, now_ms=NOW)
    found = certificate(files)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == list(NAMES)
    found.verify_directly_issued_by(x509.load_pem_x509_certificate(files.ca.read_bytes()))
    PeerTls(*map(str, files))  # the services accept the files
    ssl.create_default_context(cafile=str(files.ca))


def test_keys_and_directories_are_private(tmp_path: Path) -> None:
    authority = CertificateAuthority.open(tmp_path / "ca", now_ms=NOW)
    files = authority.issue(tmp_path / "broker", NAMES, now_ms=NOW)
    for key in (tmp_path / "ca" / "ca.key", files.key):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700


def test_an_authority_is_created_once(tmp_path: Path) -> None:
    first = CertificateAuthority.open(tmp_path, now_ms=NOW).certificate_file.read_bytes()
    assert CertificateAuthority.open(tmp_path, now_ms=later(1)).certificate_file.read_bytes() == first


def test_an_interrupted_creation_is_repeated(tmp_path: Path) -> None:
    CertificateAuthority.open(tmp_path, now_ms=NOW)
    (tmp_path / "ca.crt").unlink()  # the key was written, and the process died
    authority = CertificateAuthority.open(tmp_path, now_ms=NOW)
    PeerTls(*map(str, authority.issue(tmp_path / "broker", NAMES, now_ms=NOW)))


@pytest.mark.parametrize("file", ["ca.crt", "ca.key"])
def test_a_broken_authority_is_named_and_kept(tmp_path: Path, file: str) -> None:
    CertificateAuthority.open(tmp_path, now_ms=NOW)
    (tmp_path / file).write_text("no PEM")
    with pytest.raises(OSError, match=f"{file} contains no "):
        CertificateAuthority.open(tmp_path, now_ms=NOW)
    assert (tmp_path / file).read_text() == "no PEM"


def test_a_key_of_another_authority_is_refused(tmp_path: Path) -> None:
    CertificateAuthority.open(tmp_path / "one", now_ms=NOW)
    CertificateAuthority.open(tmp_path / "two", now_ms=NOW)
    (tmp_path / "one" / "ca.key").replace(tmp_path / "two" / "ca.key")
    with pytest.raises(OSError, match="is not the key of"):
        CertificateAuthority.open(tmp_path / "two", now_ms=NOW)


def test_a_certificate_is_renewed_after_two_thirds_of_its_validity(tmp_path: Path) -> None:
    authority = CertificateAuthority.open(tmp_path / "ca", now_ms=NOW)
    validity = datetime.timedelta(days=90)
    files = authority.issue(tmp_path / "broker", NAMES, now_ms=NOW, validity=validity)
    first = certificate(files)
    assert not authority.renew(tmp_path / "broker", NAMES, now_ms=later(59))
    assert certificate(files) == first
    assert authority.renew(tmp_path / "broker", NAMES, now_ms=later(61))
    renewed = certificate(files)
    assert renewed.not_valid_after_utc - first.not_valid_after_utc == datetime.timedelta(days=61)
    assert not authority.renew(tmp_path / "broker", NAMES, now_ms=later(62))


def test_a_certificate_is_renewed_if_it_is_not_the_wanted_one(tmp_path: Path) -> None:
    authority = CertificateAuthority.open(tmp_path / "ca", now_ms=NOW)
    directory = tmp_path / "broker"
    assert authority.renew(directory, NAMES, now_ms=NOW)  # it is missing
    assert authority.renew(directory, ("tidelog",), now_ms=NOW)  # it has other names
    other = CertificateAuthority.open(tmp_path / "other", now_ms=NOW)
    assert other.renew(directory, ("tidelog",), now_ms=NOW)  # it is of another authority
    (directory / "tls.crt").write_text("no PEM")
    assert other.renew(directory, ("tidelog",), now_ms=NOW)
    assert not other.renew(directory, ("tidelog",), now_ms=NOW)
