"""The metadata store on etcd (3.4 and later)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Final, TypeVar

from tidelog.metadata.etcd.connection import EtcdConnection, EtcdOptions, Metadata, answer_of
from tidelog.metadata.etcd.failover import EtcdConnections
from tidelog.metadata.etcd.generated import rpc_pb2 as pb
from tidelog.metadata.etcd.lease_renewer import EtcdLeaseRenewer
from tidelog.metadata.etcd.messages import CallFailedError, CallFault, KeyNames
from tidelog.metadata.etcd.watching import watch_range
from tidelog.metadata.store import (
    Compare,
    KeyValue,
    LeaseNotFoundError,
    Listing,
    Operation,
    StoreUnavailableError,
    TxnResult,
    WatchBatch,
    check_txn,
)

# Number of keys in one page of a listing. It is halved while an answer is too large (values have up to 1.5
# MiB).
PAGE_KEYS: Final = 2000

T = TypeVar("T")


class EtcdMetadataStore:
    """A MetadataStore on an etcd cluster. It belongs to the event loop that first uses it, and connects by
    itself.

    Reads are linearizable. A read or a renewal that fails is repeated at the next endpoint, within
    `operation_timeout_ms`. A transaction is repeated only if etcd certainly did not execute it.
    StoreRefusedError, a StoreUnavailableError, means that etcd answers but rejects the user.
    """

    def __init__(self, options: EtcdOptions) -> None:
        """Raises EtcdAddressError."""
        self._options = options
        self._names = KeyNames(options.prefix)
        self._connections = EtcdConnections(options)

    async def get(self, key: str) -> KeyValue | None:
        request = pb.RangeRequest(key=self._names.encode(key))
        answer = await self._repeatable(lambda c, t, m: c.kv.Range(request, timeout=t, metadata=m))
        return self._names.key_value(answer.kvs[0]) if answer.kvs else None

    async def list_prefix(self, prefix: str) -> Listing:
        first, end = self._names.range_of(prefix)
        page_keys, revision, start = PAGE_KEYS, 0, first
        items: list[KeyValue] = []
        while True:
            request = pb.RangeRequest(key=start, range_end=end, limit=page_keys, revision=revision)
            try:
                answer = await self._call_page(request)
            except CallFailedError as error:
                if error.fault is CallFault.TOO_LARGE_ANSWER and page_keys > 1:
                    page_keys //= 2
                    continue
                if error.fault is not CallFault.COMPACTED:
                    raise error.for_caller() from error
                # etcd compacted the revision between two pages, so the listing starts again.
                items, revision, start = [], 0, first
                continue
            revision = revision or answer.header.revision
            items += [self._names.key_value(kv) for kv in answer.kvs]
            if not answer.more:
                return Listing(revision, tuple(items))
            start = answer.kvs[-1].key + b"\0"

    async def txn(
        self,
        compares: Sequence[Compare],
        success: Sequence[Operation],
        failure: Sequence[Operation] = (),
    ) -> TxnResult:
        check_txn(compares, success, failure)
        request = self._names.txn_request(compares, success, failure)
        answer = await self._call(lambda c, t, m: c.kv.Txn(request, timeout=t, metadata=m), may_repeat=False)
        return self._names.txn_result(answer)

    def watch(self, prefix: str, start_revision: int) -> AsyncGenerator[WatchBatch, None]:
        key_range = self._names.range_of(prefix)
        return watch_range(self._connections, self._options, key_range, start_revision, self._names.decode)

    async def grant_lease(self, ttl_ms: int) -> int:
        """Grants a lease. The TTL is rounded up to whole seconds, and etcd has a minimum (by default 2 s)."""
        if ttl_ms <= 0:
            raise ValueError(f"the TTL of a lease must be positive, not {ttl_ms} ms")
        request = pb.LeaseGrantRequest(TTL=-(-ttl_ms // 1000))
        # The call is repeatable, because a lease that was granted without an answer expires by itself.
        answer = await self._repeatable(lambda c, t, m: c.lease.LeaseGrant(request, timeout=t, metadata=m))
        return answer.ID

    async def keep_alive(self, lease: int) -> int:
        async def renew(connection: EtcdConnection, timeout_s: float, metadata: Metadata) -> int:
            requests = iter([pb.LeaseKeepAliveRequest(ID=lease)])
            call = connection.lease.LeaseKeepAlive(requests, timeout=timeout_s, metadata=metadata)
            try:
                return (await answer_of(anext(aiter(call)))).TTL
            except StopAsyncIteration as error:
                raise CallFailedError(CallFault.UNKNOWN, "etcd did not answer a renewal") from error
            finally:
                call.cancel()

        ttl_s = await self._final(self._connections.call(renew, may_repeat=True))
        if ttl_s <= 0:
            raise LeaseNotFoundError(f"lease {lease:x} does not exist")
        return ttl_s * 1000

    async def revoke_lease(self, lease: int) -> None:
        request = pb.LeaseRevokeRequest(ID=lease)
        tries = 0

        async def revoke(connection: EtcdConnection, timeout_s: float, metadata: Metadata) -> None:
            nonlocal tries
            tries += 1
            call = connection.lease.LeaseRevoke(request, timeout=timeout_s, metadata=metadata)
            await answer_of(call)

        try:
            await self._final(self._connections.call(revoke, may_repeat=True))
        except LeaseNotFoundError:
            if tries == 1:
                raise
            # An earlier attempt without an answer has revoked the lease.

    def lease_renewer(self) -> EtcdLeaseRenewer:
        """Returns a renewer for a thread, with its own connection."""
        return EtcdLeaseRenewer(self._options)

    async def close(self) -> None:
        """Closes the connections. Active watches and calls get StoreUnavailableError. A second call does
        nothing.
        """
        await self._connections.close()

    async def _call_page(self, request: pb.RangeRequest) -> pb.RangeResponse:
        async def read(connection: EtcdConnection, timeout_s: float, metadata: Metadata) -> pb.RangeResponse:
            return await answer_of(connection.kv.Range(request, timeout=timeout_s, metadata=metadata))

        return await self._connections.call(read, may_repeat=True)

    async def _repeatable(self, make: Callable[[EtcdConnection, float, Metadata], Awaitable[T]]) -> T:
        return await self._call(make, may_repeat=True)

    async def _call(
        self, make: Callable[[EtcdConnection, float, Metadata], Awaitable[T]], *, may_repeat: bool
    ) -> T:
        async def invoke(connection: EtcdConnection, timeout_s: float, metadata: Metadata) -> T:
            return await answer_of(make(connection, timeout_s, metadata))

        return await self._final(self._connections.call(invoke, may_repeat=may_repeat))

    async def _final(self, called: Awaitable[T]) -> T:
        try:
            return await called
        except StoreUnavailableError:
            raise
        except CallFailedError as error:
            raise error.for_caller() from error
