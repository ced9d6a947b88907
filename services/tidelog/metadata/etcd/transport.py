"""gRPC channels to etcd members, for the client of the event loop and for the thread that renews leases."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

import grpc

from tidelog.metadata.etcd.options import EtcdOptions

# A watch may be silent for a long time. Pings detect that its member is unreachable (power, network, a frozen
# process). etcd disconnects clients that ping more often than every 5 s (--grpc-keepalive-min-time).
PING_INTERVAL_MS: Final = 6000
PING_TIMEOUT_MS: Final = 3000
# Maximum size of an answer. Listings are read in pages and watches arrive in fragments, so only a single huge
# value could exceed it.
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
# A request contains at most one transaction: MAX_TXN_BYTES and the fields around it.
MAX_REQUEST_BYTES: Final = 2 * 1024 * 1024
_NEVER_MS: Final = 2**31 - 1

# A member that has lost its leader then rejects the call instead of keeping the caller waiting.
REQUIRE_LEADER: Final = ("hasleader", "true")

Metadata = tuple[tuple[str, str], ...]


def channel_options() -> list[tuple[str, int]]:
    return [
        ("grpc.keepalive_time_ms", PING_INTERVAL_MS),
        ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
        # grpc 1.85 uses this value (default 60 s), not the one above
        ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
        ("grpc.max_send_message_length", MAX_REQUEST_BYTES),
        ("grpc.client_idle_timeout_ms", _NEVER_MS),
        # A new channel uses a new connection, without the back-off of an earlier one.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.enable_http_proxy", 0),
    ]


def read_credentials(options: EtcdOptions) -> grpc.ChannelCredentials:
    """Reads the credentials from files; call it in a thread. Raises OSError.

    Without a CA file the client trusts the system's certificate authorities.
    """
    system_file = ssl.get_default_verify_paths().cafile or ""  # if it is missing, gRPC uses its own list
    return grpc.ssl_channel_credentials(
        root_certificates=_read(options.ca_file or system_file),
        private_key=_read(options.key_file),
        certificate_chain=_read(options.cert_file),
    )


def call_metadata(token: str | None) -> Metadata:
    return (REQUIRE_LEADER,) if token is None else (REQUIRE_LEADER, ("token", token))


def _read(path: str) -> bytes | None:
    return Path(path).read_bytes() if path else None
