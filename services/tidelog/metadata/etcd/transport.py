"""gRPC channels to etcd's members: what the loop's client and the lease renewer's thread have in common."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

import grpc

from tidelog.metadata.etcd.options import EtcdOptions

# A watch may be silent for long; pings find out that its member is gone (power, network, a frozen process).
# etcd cuts off clients that ping more often than every 5 s (--grpc-keepalive-min-time).
PING_INTERVAL_MS: Final = 6000
PING_TIMEOUT_MS: Final = 3000
# Largest answer taken. Listings are read in pages and watches come in fragments, so only single huge values
# could exceed it.
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
# One request is at most one transaction: MAX_TXN_BYTES and what surrounds it.
MAX_REQUEST_BYTES: Final = 2 * 1024 * 1024
_NEVER_MS: Final = 2**31 - 1

# A member that has lost touch with the others says so instead of keeping the call waiting.
REQUIRE_LEADER: Final = ("hasleader", "true")

Metadata = tuple[tuple[str, str], ...]


def channel_options() -> list[tuple[str, int]]:
    return [
        ("grpc.keepalive_time_ms", PING_INTERVAL_MS),
        ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),  # this is what counts in grpc 1.85 (else 60 s)
        ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),  # what counts in fact; 60 s if it isn't set
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
        ("grpc.max_send_message_length", MAX_REQUEST_BYTES),
        ("grpc.client_idle_timeout_ms", _NEVER_MS),
        # A new channel means a new connection, with no back-off inherited from an earlier one.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.enable_http_proxy", 0),
    ]


def read_credentials(options: EtcdOptions) -> grpc.ChannelCredentials:
    """Without a CA file, those that the system trusts. Raises OSError. Reads files: not on the loop."""
    system_file = ssl.get_default_verify_paths().cafile or ""  # if there is none, gRPC's own list is taken
    return grpc.ssl_channel_credentials(
        root_certificates=_read(options.ca_file or system_file),
        private_key=_read(options.key_file),
        certificate_chain=_read(options.cert_file),
    )


def call_metadata(token: str | None) -> Metadata:
    return (REQUIRE_LEADER,) if token is None else (REQUIRE_LEADER, ("token", token))


def _read(path: str) -> bytes | None:
    return Path(path).read_bytes() if path else None
