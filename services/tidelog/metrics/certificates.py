"""The times at which a process's certificates expire, for Prometheus.

Only the dates are read from a certificate (RFC 5280, section 4.1): a library that reads everything takes
20 MB in each service.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidelog.settings.tls_settings import AUTHORITY

if TYPE_CHECKING:
    from tidelog.metrics.families import Families

MAX_FILE_BYTES: Final = 1024 * 1024
_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_EXPLICIT_VERSION: Final = 0xA0
_LONG_LENGTH: Final = 0x80
_FIRST_YEAR_OF_THE_PAST_CENTURY: Final = 50
"""A UTCTime with a year from 50 on is of the 20th century."""

CertificateFilesNow = Callable[[], Mapping[str, str]]
"""Returns the files with the certificates in use, by their use."""


class CertificateExpiry:
    """A collector of one sample for each use of certificates. Files are read again at each scrape, because
    they are replaced while the process runs.

    The first certificate of a file to expire counts. In a file of authorities it is the last one, because
    the authority before it stays there until all certificates are signed by the new one.
    """

    def __init__(self, files: CertificateFilesNow) -> None:
        self._files = files

    def collect(self, families: Families) -> None:
        """Adds the samples. A file that cannot be read has none."""
        for use, path in self._files().items():
            try:
                with Path(path).open("rb") as file:
                    ends_s = expirations_s(file.read(MAX_FILE_BYTES))
                expires_s = max(ends_s) if use.endswith(AUTHORITY) else min(ends_s)
            except (OSError, ValueError):
                continue
            families.gauge(
                "tidelog_certificate_expiration_timestamp_seconds",
                "Time at which a certificate expires, in seconds since 1970",
                expires_s,
                use=use,
            )


def first_expiration_s(pem: bytes) -> float:
    """Returns the earliest end of validity of the certificates in PEM, in seconds since 1970. Raises
    ValueError if there is none.
    """
    return min(expirations_s(pem))


def expirations_s(pem: bytes) -> list[float]:
    """Returns the ends of validity of the certificates in PEM, in seconds since 1970. Raises ValueError if
    there is none.
    """
    found = [_not_after_s(text) for text in _PEM.findall(pem)]
    if not found:
        raise ValueError("there is no certificate")
    return found


def _not_after_s(text: bytes) -> float:
    try:
        certificate = base64.b64decode(text)
        body, _ = _value(certificate, 0)
        position, _ = _value(certificate, body)
        if certificate[position] == _EXPLICIT_VERSION:
            position = _value(certificate, position)[1]
        for _ in ("serial number", "signature", "issuer"):
            position = _value(certificate, position)[1]
        not_before, _ = _value(certificate, position)
        not_after = _value(certificate, not_before)[1]
        start, end = _value(certificate, not_after)
        return _instant(certificate[not_after], certificate[start:end].decode("ascii")).timestamp()
    except (IndexError, binascii.Error) as error:
        raise ValueError("the certificate is damaged") from error


def _value(der: bytes, position: int) -> tuple[int, int]:
    """Returns the positions at which the value of an element begins and ends."""
    length, start = der[position + 1], position + 2
    if length >= _LONG_LENGTH:
        count = length - _LONG_LENGTH
        length, start = int.from_bytes(der[start : start + count], "big"), start + count
    return start, start + length


def _instant(tag: int, text: str) -> datetime.datetime:
    if tag == _UTC_TIME:
        century = "19" if int(text[:2]) >= _FIRST_YEAR_OF_THE_PAST_CENTURY else "20"
        text = century + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError("the certificate has no end of validity")
    return datetime.datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=datetime.UTC)
