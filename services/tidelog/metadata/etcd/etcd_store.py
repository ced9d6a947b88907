"""The metadata store on etcd (3.4 and later)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Final, TypeVar

from tidelog.metadata.etcd.connection import EtcdConnection, answer_of
from tidelog.metadata.etcd.failover import EtcdConnections
from tidelog.metadata.etcd.faults import CallFailedError, CallFault
from tidelog.metadata.etcd.generated import rpc_pb2 as pb
from tidelog.metadata.etcd.lease_renewer import EtcdLeaseRenewer
from tidelog.metadata.etcd.messages import KeyNames
from tidelog.metadata.etcd.options import EtcdOptions
from tidelog.metadata.etcd.transport import Metadata
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

# Keys of one answer while listing; halved while an answer is too large (values are at most 1.5 MiB).
PAGE_KEYS: Final = 2000

T = TypeVar("T")


class EtcdMetadataStore:
    """MetadataStore on an etcd cluster; belongs to the event loop it is first used on. Connects by itself, at
    the first call and whenever needed.

    Reads are linearizable. A read, or a lease's renewal, that fails is repeated with the next endpoint within
    `operation_timeout_ms`; a transaction is not, unless it surely wasn't carried out.
    StoreRefusedError (a StoreUnavailableError) says that etcd is there but refuses the user.
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
                # Compacted between two pages: what was read so far is of no use.
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
        """Rounded up to whole seconds; etcd itself may give more (2 s is its least, by default)."""
        if ttl_ms <= 0:
            raise ValueError(f"a lease of {ttl_ms} ms")
        request = pb.LeaseGrantRequest(TTL=-(-ttl_ms // 1000))
        # Repeatable: a lease that was granted unseen ends by itself.
        answer = await self._repeatable(lambda c, t, m: c.lease.LeaseGrant(request, timeout=t, metadata=m))
        return answer.ID

    async def keep_alive(self, lease: int) -> int:
        async def renew(connection: EtcdConnection, timeout_s: float, metadata: Metadata) -> int:
            requests = iter([pb.LeaseKeepAliveRequest(ID=lease)])
            call = connection.lease.LeaseKeepAlive(requests, timeout=timeout_s, metadata=metadata)
            try:
                return (await answer_of(anext(aiter(call)))).TTL
            except StopAsyncIteration as error:
                raise CallFailedError(CallFault.UNKNOWN, "a renewal was not answered") from error
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
            # An earlier try, unanswered, has done it.

    def lease_renewer(self) -> EtcdLeaseRenewer:
        """Renews leases from a thread of its own, with a connection of its own."""
        return EtcdLeaseRenewer(self._options)

    async def compact(self, revision: int) -> None:
        """Forget what was overwritten before `revision`, for every user of this etcd: watches that are behind
        it get CompactedError. etcd does this by itself if set up so; tests do it by hand.
        """
        request = pb.CompactionRequest(revision=revision, physical=True)
        await self._call(lambda c, t, m: c.kv.Compact(request, timeout=t, metadata=m), may_repeat=False)

    async def close(self) -> None:
        """Watches and calls under way get StoreUnavailableError. Safe to call twice."""
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
