"""Renews leases with blocking calls, for a thread that must not depend on the event loop."""

from __future__ import annotations

import time
from typing import Final

import grpc

from tidelog.metadata.etcd.connection import EtcdOptions, call_metadata, channel_options, read_credentials
from tidelog.metadata.etcd.generated import rpc_pb2 as pb
from tidelog.metadata.etcd.generated import rpc_pb2_grpc as stubs
from tidelog.metadata.etcd.messages import CallFailedError, CallFault, failed_call
from tidelog.metadata.store import LeaseNotFoundError, StoreUnavailableError

# Pause between attempts when an endpoint refuses at once.
RETRY_MS: Final = 100


class EtcdLeaseRenewer:
    """A LeaseRenewer for one thread at a time. It moves to the next endpoint when an endpoint fails."""

    def __init__(self, options: EtcdOptions) -> None:
        """Raises EtcdAddressError."""
        self._options = options
        self._endpoints = options.parsed_endpoints()
        self._next = 0
        self._channel: grpc.Channel | None = None
        self._token: str | None = None

    def renew(self, lease: int, timeout_ms: int) -> int:
        """Renews a lease and returns the remaining time in ms.

        Raises LeaseNotFoundError, and StoreUnavailableError if no endpoint answers within `timeout_ms`.
        """
        deadline_s = time.monotonic() + timeout_ms / 1000
        while True:
            left_s = deadline_s - time.monotonic()
            try:
                ttl_s = self._try(lease, max(0.001, min(left_s, self._options.attempt_timeout_ms / 1000)))
            except (CallFailedError, OSError) as error:
                if isinstance(error, CallFailedError) and self._lacks_token(error):
                    self._token = None
                else:
                    self._leave_endpoint()
                if time.monotonic() + RETRY_MS / 1000 >= deadline_s:
                    raise StoreUnavailableError(f"etcd: {error}") from error
                time.sleep(RETRY_MS / 1000)
                continue
            if ttl_s <= 0:
                raise LeaseNotFoundError(f"lease {lease:x} does not exist")
            return ttl_s * 1000

    def close(self) -> None:
        """Closes the connection; a call in progress fails. Any thread may call this."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _try(self, lease: int, timeout_s: float) -> int:
        if self._channel is None:
            self._channel = self._open()
        channel = self._channel
        try:
            if self._options.username and self._token is None:
                self._token = self._authenticate(channel, timeout_s)
            answers = stubs.LeaseStub(channel).LeaseKeepAlive(
                iter([pb.LeaseKeepAliveRequest(ID=lease)]),
                timeout=timeout_s,
                metadata=call_metadata(self._token or None),
            )
            for answer in answers:
                answers.cancel()
                return answer.TTL
        except grpc.RpcError as error:
            raise failed_call(error) from error
        except ValueError as error:  # grpc raises it for a closed channel
            raise CallFailedError(CallFault.UNKNOWN, str(error)) from error
        raise CallFailedError(CallFault.UNKNOWN, "etcd did not answer a renewal")

    def _lacks_token(self, error: CallFailedError) -> bool:
        """Returns whether another token may help, as `EtcdConnections.lacks_token` does."""
        return error.fault is CallFault.TOKEN or (error.fault is CallFault.REFUSED and self._token == "")

    def _authenticate(self, channel: grpc.Channel, timeout_s: float) -> str:
        """Returns a token, or "" if authentication is not enabled in etcd."""
        request = pb.AuthenticateRequest(name=self._options.username, password=self._options.password)
        try:
            return stubs.AuthStub(channel).Authenticate(request, timeout=timeout_s).token
        except grpc.RpcError as error:
            failed = failed_call(error)
            if failed.fault is CallFault.AUTH_NOT_ENABLED:
                return ""
            raise failed from error

    def _open(self) -> grpc.Channel:
        endpoint = self._endpoints[self._next]
        if endpoint.is_tls:
            return grpc.secure_channel(endpoint.target, read_credentials(self._options), channel_options())
        return grpc.insecure_channel(endpoint.target, channel_options())

    def _leave_endpoint(self) -> None:
        self.close()
        self._token = None  # as in `EtcdConnections.retire`
        self._next = (self._next + 1) % len(self._endpoints)
