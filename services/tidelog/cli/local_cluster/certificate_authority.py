"""A certificate authority in a directory, for `cluster up` and for secure listeners on one machine.

    authority = CertificateAuthority.open(data_dir / "authority", now_ms=now_ms)
    files = authority.issue(data_dir / "certificates/broker-1", names, now_ms=now_ms)
    ...
    authority.renew(data_dir / "certificates/broker-1", names, now_ms=now_ms)  # does nothing before it is due

DIR/ca.crt and DIR/ca.key belong to the authority. A directory of a certificate contains `ca.crt`, `tls.crt`
and `tls.key`, as a Secret of cert-manager does. Keys have mode 0600, and their directories have mode 0700.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tidelog.kernel.instants import WallMs

AUTHORITY_VALIDITY_DAYS: Final = 3_650
CERTIFICATE_VALIDITY_DAYS: Final = 365
CLOCK_TOLERANCE_MINUTES: Final = 5
"""The time by which a certificate is valid before it is made, for machines whose clocks are behind."""
RENEWAL_FRACTION: Final = 2 / 3
"""The part of its validity after which a certificate is renewed."""

_AUTHORITY_CERTIFICATE: Final = "ca.crt"
_AUTHORITY_KEY: Final = "ca.key"
_LOCK: Final = ".lock"
_PRIVATE_DIRECTORY: Final = 0o700
_PRIVATE_FILE: Final = 0o600
_PUBLIC_FILE: Final = 0o644


class CertificateFiles(NamedTuple):
    """The files of one certificate, in PEM."""

    ca: Path
    certificate: Path
    key: Path

    @classmethod
    def within(cls, directory: Path) -> CertificateFiles:
        return cls(directory / "ca.crt", directory / "tls.crt", directory / "tls.key")


class CertificateAuthority:
    """An authority that `open` has created or read."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, file: Path) -> None:
        self._certificate = certificate
        self._key = key
        self.certificate_file = file

    @classmethod
    def open(cls, directory: Path, *, now_ms: WallMs) -> CertificateAuthority:
        """Opens the authority in `directory`, and creates it first if the directory contains none.

        Several processes may do this at the same time. Raises OSError with one sentence if a file is missing
        or cannot be used.
        """
        _make_private(directory)
        certificate_file, key_file = directory / _AUTHORITY_CERTIFICATE, directory / _AUTHORITY_KEY
        with (directory / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not certificate_file.exists():
                # The certificate is written last, so a directory with a certificate also has the key.
                key = ec.generate_private_key(ec.SECP256R1())
                _write(key_file, _key_text(key), _PRIVATE_FILE)
                _write(certificate_file, _text(_self_signed(key, now_ms)), _PUBLIC_FILE)
            return cls._read(certificate_file, key_file)

    @classmethod
    def _read(cls, certificate_file: Path, key_file: Path) -> CertificateAuthority:
        try:
            certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
        except ValueError as error:
            raise OSError(f"{certificate_file} contains no certificate in PEM") from error
        try:
            key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
        except FileNotFoundError as error:
            raise OSError(f"{key_file} does not exist, but {certificate_file} does") from error
        except (ValueError, TypeError) as error:
            raise OSError(f"{key_file} contains no private key in PEM without a password") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise OSError(f"{key_file} is not the key of {certificate_file}")
        return cls(certificate, key, certificate_file)

    def issue(
        self,
        directory: Path,
        names: Sequence[str],
        *,
        now_ms: WallMs,
        validity: datetime.timedelta = datetime.timedelta(days=CERTIFICATE_VALIDITY_DAYS),
    ) -> CertificateFiles:
        """Writes a new key and certificate for `names`, which are DNS names and IP addresses.

        The first name also becomes the subject. The certificate serves both sides of a connection. Processes
        that use earlier files of the directory find the new ones complete or not at all matching, never
        half-written. Raises OSError.
        """
        files = CertificateFiles.within(directory)
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._signed(key.public_key(), names, now_ms, validity)
        _make_private(directory)
        _write(files.ca, _text(self._certificate), _PUBLIC_FILE)
        _write(files.key, _key_text(key), _PRIVATE_FILE)
        _write(files.certificate, _text(certificate), _PUBLIC_FILE)
        return files

    def renew(self, directory: Path, names: Sequence[str], *, now_ms: WallMs) -> bool:
        """Issues the directory's certificate again if it is due, and returns whether it was.

        A certificate is due after two thirds of its validity, and also if it is missing or unreadable, has
        other names, or is of another authority. The new one is valid for as long as the old one was.
        """
        files = CertificateFiles.within(directory)
        try:
            old = x509.load_pem_x509_certificate(files.certificate.read_bytes())
        except (FileNotFoundError, ValueError):
            self.issue(directory, names, now_ms=now_ms)
            return True
        validity = old.not_valid_after_utc - old.not_valid_before_utc
        is_old = _instant(now_ms) >= old.not_valid_before_utc + validity * RENEWAL_FRACTION
        if not is_old and _names_in(old) == tuple(names) and self._has_signed(old) and files.key.exists():
            return False
        self.issue(directory, names, now_ms=now_ms, validity=validity - _TOLERANCE)
        return True

    def _has_signed(self, certificate: x509.Certificate) -> bool:
        try:
            certificate.verify_directly_issued_by(self._certificate)
        except Exception:  # noqa: BLE001 - the library raises several unrelated classes
            return False
        return True

    def _signed(
        self,
        key: ec.EllipticCurvePublicKey,
        names: Sequence[str],
        now_ms: WallMs,
        validity: datetime.timedelta,
    ) -> x509.Certificate:
        issuer = self._certificate.subject
        builder = _certificate(_subject(names[0]), issuer, key, now_ms, validity)
        usages = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
        return (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )


_TOLERANCE: Final = datetime.timedelta(minutes=CLOCK_TOLERANCE_MINUTES)


def _self_signed(key: ec.EllipticCurvePrivateKey, now_ms: WallMs) -> x509.Certificate:
    # The serial in the name keeps the authorities of different directories apart in the logs of both sides.
    name = _subject(f"tidelog authority {os.urandom(4).hex()}")
    validity = datetime.timedelta(days=AUTHORITY_VALIDITY_DAYS)
    return (
        _certificate(name, name, key.public_key(), now_ms, validity)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now_ms: WallMs,
    validity: datetime.timedelta,
) -> x509.CertificateBuilder:
    now = _instant(now_ms)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _TOLERANCE)
        .not_valid_after(now + validity)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _names_in(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    return tuple(str(name.value) for name in found)


def _instant(now_ms: WallMs) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(now_ms // 1000, datetime.UTC)


def _text(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_text(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _make_private(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True, mode=_PRIVATE_DIRECTORY)
    directory.chmod(_PRIVATE_DIRECTORY)  # also if it existed, or if the umask is unusual


def _write(path: Path, content: bytes, mode: int) -> None:
    """Replaces a file at once. The file never has more permissions than `mode`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
