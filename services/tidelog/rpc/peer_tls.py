"""TLS between the services. Both sides of a connection show a certificate of the same authority.

The client checks that the certificate is for the role that it calls, or without roles for `server_name`,
whatever the address, because pods have addresses
that no certificate can contain. Each new connection checks the files and reads them again if they have
changed, for example after cert-manager has renewed a mounted Secret. If the new files are incomplete or do
not match each other, the earlier certificates remain in use, and a warning is logged. Open connections are
not affected.
"""

from __future__ import annotations

import ssl
import threading
from pathlib import Path
from typing import Final, NamedTuple

import structlog

DEFAULT_SERVER_NAME: Final = "tidelog"

_log = structlog.get_logger(__name__)

_Signature = tuple[tuple[int, int, int], ...]


class Identity(NamedTuple):
    """The contents of the files, in PEM."""

    ca: bytes
    cert: bytes
    key: bytes


class PeerTls:
    """The certificates for connections between services. It is safe for use by several threads.

    With `checks_roles`, the certificate at the other end must name the role of its service (`callers.py`).

    Raises OSError with a one-sentence message if the files are missing or invalid.
    """

    def __init__(
        self,
        ca_file: str,
        cert_file: str,
        key_file: str,
        *,
        server_name: str = DEFAULT_SERVER_NAME,
        checks_roles: bool = True,
    ) -> None:
        self.server_name = server_name
        self.checks_roles = checks_roles
        self._paths = (Path(ca_file), Path(cert_file), Path(key_file))
        self._lock = threading.Lock()
        self._signature = self._file_signature()
        self._refused: _Signature | None = None
        self._identity = self._read()

    def identity(self) -> Identity:
        """Returns the latest valid certificates. It is the same object until the files change."""
        with self._lock:
            signature: _Signature = ()
            try:
                signature = self._file_signature()
                if signature in (self._signature, self._refused):
                    return self._identity
                identity = self._read()
                if self._file_signature() != signature:
                    return self._identity  # the files are being replaced right now
            except OSError as error:
                if self._refused != signature:
                    _log.warning(
                        "can't use the renewed certificates; keeping the earlier ones", reason=str(error)
                    )
                self._refused = signature
                return self._identity
            self._identity, self._signature = identity, signature
        _log.info("using renewed certificates for connections between services", file=str(self._paths[1]))
        return self._identity

    def _file_signature(self) -> _Signature:
        stats = [path.stat() for path in self._paths]
        return tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats)

    def _read(self) -> Identity:
        ca, cert, key = (path.read_bytes() for path in self._paths)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(cadata=ca.decode("ascii", errors="replace"))
        except (ssl.SSLError, ValueError) as error:
            raise OSError(f"{self._paths[0]} contains no certificates in PEM") from error
        try:
            context.load_cert_chain(self._paths[1], self._paths[2])
        except ssl.SSLError as error:
            reason = error.reason or "the files are not PEM"
            raise OSError(f"{self._paths[1]} and {self._paths[2]} do not match: {reason}") from error
        return Identity(ca, cert, key)
