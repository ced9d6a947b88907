"""A connection to one etcd member."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final, Protocol, TypeVar

import grpc
import grpc.aio

from tidelog.metadata.etcd.faults import CallFailedError, CallFault, failed_call
from tidelog.metadata.etcd.generated import rpc_pb2 as pb
from tidelog.metadata.etcd.generated import rpc_pb2_grpc as stubs
from tidelog.metadata.etcd.options import EtcdEndpoint, EtcdOptions
from tidelog.metadata.etcd.transport import channel_options, read_credentials

_REASON_TIMEOUT_S: Final = 0.2

T = TypeVar("T")


class Cancellable(Protocol):
    """A call. `cancel` does nothing if the call has ended."""

    def cancel(self) -> bool: ...


class EtcdConnection:
    """A connection to a member, created by `open`.

    It is used until a call fails in a way that blames the member. Then it is retired: its watches end at
    once, but other calls may still be answered.
    """

    def __init__(self, endpoint: EtcdEndpoint, channel: grpc.aio.Channel) -> None:
        self.endpoint = endpoint
        self.is_retired = False
        self.kv = stubs.KVStub(channel)
        self.watch = stubs.WatchStub(channel)
        self.lease = stubs.LeaseStub(channel)
        self.auth = stubs.AuthStub(channel)
        self.maintenance = stubs.MaintenanceStub(channel)
        self.cluster = stubs.ClusterStub(channel)
        self._channel = channel
        self._watches: set[Cancellable] = set()

    @classmethod
    async def open(cls, endpoint: EtcdEndpoint, options: EtcdOptions) -> EtcdConnection:
        """Connects to a member. Raises OSError (the member or a certificate file is missing) and
        TimeoutError.
        """
        if endpoint.is_tls:
            credentials = await asyncio.to_thread(read_credentials, options)
            channel = grpc.aio.secure_channel(endpoint.target, credentials, channel_options())
        else:
            channel = grpc.aio.insecure_channel(endpoint.target, channel_options())
        try:
            async with asyncio.timeout(options.connect_timeout_ms / 1000):
                await _until_ready(channel)
        except BaseException:
            await channel.close()
            raise
        return cls(endpoint, channel)

    @property
    def is_ready(self) -> bool:
        """False after the connection was lost, although gRPC reconnects by itself.

        After such a reconnect it is not known whether a call was sent before or after it.
        """
        return not self.is_retired and self._channel.get_state() is grpc.ChannelConnectivity.READY

    async def authenticate(self, options: EtcdOptions) -> str | None:
        """Returns a token, or None if authentication is not enabled in etcd. Raises CallFailedError."""
        request = pb.AuthenticateRequest(name=options.username, password=options.password)
        try:
            return (
                await answer_of(self.auth.Authenticate(request, timeout=options.attempt_timeout_ms / 1000))
            ).token
        except CallFailedError as error:
            if error.fault is CallFault.AUTH_NOT_ENABLED:
                return None
            raise

    def add_watch(self, call: Cancellable) -> None:
        self._watches.add(call)

    def remove_watch(self, call: Cancellable) -> None:
        self._watches.discard(call)
        call.cancel()

    def retire(self) -> None:
        self.is_retired = True
        for call in tuple(self._watches):
            call.cancel()

    async def close(self, grace_s: float | None = None) -> None:
        self.retire()
        await self._channel.close(grace_s)


async def answer_of(call: Awaitable[T]) -> T:
    """Returns the answer of a call. Raises CallFailedError, and CancelledError only if the caller is
    cancelled.
    """
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise failed_call(error) from error
    except asyncio.InvalidStateError as error:  # a write to a stream that has just ended
        raise CallFailedError(CallFault.UNKNOWN, "the stream has ended") from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise CallFailedError(CallFault.UNKNOWN, "the connection was retired") from error


async def _until_ready(channel: grpc.aio.Channel) -> None:
    while True:
        state = channel.get_state(try_to_connect=True)
        if state is grpc.ChannelConnectivity.READY:
            return
        if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            raise ConnectionError(await _why_not_connected(channel))
        await channel.wait_for_state_change(state)


async def _why_not_connected(channel: grpc.aio.Channel) -> str:
    """Returns why a channel is not connected. Only a call that fails on the channel has the reason."""
    try:
        await stubs.MaintenanceStub(channel).Status(pb.StatusRequest(), timeout=_REASON_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        return error.details() or "no connection"
    return "the connection was lost"
