"""TLS among the services: both sides of a call or session show a certificate of the same authority.

Whoever calls checks that the certificate is for `server_name`, whatever the address: pods are called by
addresses that no certificate could name. The files are looked at for each new connection and read again when
they changed, as they do where cert-manager or a mounted Secret renews them. What is then half-written or
doesn't belong together is left alone, with a warning: the ones before go on being used. Connections that are
open stay open.
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
    """What the files held, in PEM; and as contexts, for those who don't use gRPC."""

    ca: bytes
    cert: bytes
    key: bytes
    server_context: ssl.SSLContext
    client_context: ssl.SSLContext


class PeerTls:
    """Raises OSError, in one sentence, if the files aren't there or don't make sense. Any thread may ask."""

    def __init__(
        self, ca_file: str, cert_file: str, key_file: str, *, server_name: str = DEFAULT_SERVER_NAME
    ) -> None:
        self.server_name = server_name
        self._paths = (Path(ca_file), Path(cert_file), Path(key_file))
        self._lock = threading.Lock()
        self._signature = self._looked_at()
        self._refused: _Signature | None = None
        self._identity = self._read()

    def identity(self) -> Identity:
        """The latest that makes sense. The same object as long as nothing changed."""
        with self._lock:
            signature: _Signature = ()
            try:
                signature = self._looked_at()
                if signature in (self._signature, self._refused):
                    return self._identity
                identity = self._read()
                if self._looked_at() != signature:
                    return self._identity  # they are being changed at this moment
            except OSError as error:
                if self._refused != signature:
                    _log.warning("renewed certificates can't be used, the old ones are", reason=str(error))
                self._refused = signature
                return self._identity
            self._identity, self._signature = identity, signature
        _log.info("certificates between the services are renewed", file=str(self._paths[1]))
        return self._identity

    def _looked_at(self) -> _Signature:
        stats = [path.stat() for path in self._paths]
        return tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats)

    def _read(self) -> Identity:
        ca, cert, key = (path.read_bytes() for path in self._paths)
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        server.verify_mode = ssl.CERT_REQUIRED
        for context in (server, client):
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            try:
                context.load_verify_locations(cadata=ca.decode("ascii", errors="replace"))
            except (ssl.SSLError, ValueError) as error:
                raise OSError(f"{self._paths[0]} holds no certificates in PEM") from error
            try:
                context.load_cert_chain(self._paths[1], self._paths[2])
            except ssl.SSLError as error:
                reason = error.reason or "not PEM"
                raise OSError(f"{self._paths[1]} and {self._paths[2]} are no pair: {reason}") from error
        return Identity(ca, cert, key, server, client)
