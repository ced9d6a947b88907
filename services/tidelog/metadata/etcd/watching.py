"""A watch that survives the loss of connections and members."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import structlog

from tidelog.metadata.etcd.connection import EtcdConnection, answer_of
from tidelog.metadata.etcd.event_assembly import EventAssembly, WatchEndedError
from tidelog.metadata.etcd.failover import BACKOFF, EtcdConnections
from tidelog.metadata.etcd.faults import CallFailedError, CallFault, StoreRefusedError
from tidelog.metadata.etcd.generated import rpc_pb2 as pb
from tidelog.metadata.etcd.options import EtcdOptions
from tidelog.metadata.store import CompactedError, WatchBatch

_log = structlog.get_logger(__name__)


async def watch_range(
    connections: EtcdConnections,
    options: EtcdOptions,
    key_range: tuple[bytes, bytes],
    start_revision: int,
    decode_key: Callable[[bytes], str],
) -> AsyncGenerator[WatchBatch, None]:
    """Implements MetadataStore.watch. It also retries while etcd rejects the user, as while etcd is
    unavailable.
    """
    assembly = EventAssembly(start_revision, decode_key)
    failures = 0
    while True:
        token = connections.token
        try:
            connection = await connections.get(None)
            token = connections.token
            stream = _stream(connections, connection, options, key_range, assembly)
            try:
                async for batches in stream:
                    failures = 0
                    for batch in batches:
                        yield batch
            finally:
                await stream.aclose()
        except CallFailedError as error:
            connections.check_open()
            if connections.lacks_token(error, token):
                connections.forget_token(token)
            elif error.fault is CallFault.REFUSED:
                _log.warning("etcd rejected a watch; retrying", reason=error.details)
            else:
                connections.retire(connection, error.details)
        except (WatchEndedError, StoreRefusedError) as error:
            connections.check_open()
            _log.warning("etcd ended a watch; retrying", reason=str(error))
            # etcd also rejects a watch for missing permissions if its token has expired.
            connections.forget_token(token)
        failures += 1
        await asyncio.sleep(BACKOFF.delay_ms(failures) / 1000)


async def _stream(
    connections: EtcdConnections,
    connection: EtcdConnection,
    options: EtcdOptions,
    key_range: tuple[bytes, bytes],
    assembly: EventAssembly,
) -> AsyncGenerator[list[WatchBatch], None]:
    """Yields the batches of one stream; an empty list when the server has created the watch.

    Raises CallFailedError, WatchEndedError and CompactedError.
    """
    assembly.restart()
    key, range_end = key_range
    create = pb.WatchCreateRequest(
        key=key,
        range_end=range_end,
        start_revision=assembly.revision_to_ask_for,
        progress_notify=True,
        fragment=True,
    )
    is_over = asyncio.Event()

    # call.write() waits forever in a call that is cancelled before it is sent (grpc 1.85), so it is not used.
    async def requests() -> AsyncGenerator[pb.WatchRequest, None]:
        yield pb.WatchRequest(create_request=create)
        await is_over.wait()

    call = connection.watch.Watch(requests(), metadata=connections.metadata)
    connection.add_watch(call)
    answers = aiter(call)
    try:
        try:
            async with asyncio.timeout(options.attempt_timeout_ms / 1000):
                answer = await answer_of(anext(answers))
        except TimeoutError as error:
            raise CallFailedError(CallFault.UNKNOWN, "the server did not create a watch in time") from error
        if answer.header.revision < assembly.seen_revision:
            await _check_still_ahead(connections, connection, options, key, assembly.seen_revision)
        while True:
            yield assembly.take(answer)
            answer = await answer_of(anext(answers))
    except StopAsyncIteration as error:
        raise CallFailedError(CallFault.UNKNOWN, "the server ended the stream of a watch") from error
    finally:
        is_over.set()
        connection.remove_watch(call)


async def _check_still_ahead(
    connections: EtcdConnections,
    connection: EtcdConnection,
    options: EtcdOptions,
    key: bytes,
    seen_revision: int,
) -> None:
    """Raises CompactedError if the whole etcd has an older revision than this watch has seen. `key` is one
    that the user may read.

    A single member that is behind is harmless. But if etcd was restored from an older backup, the watch would
    wait for revisions that now mean something else.
    """
    request = pb.RangeRequest(key=key, count_only=True)
    timeout_s = options.attempt_timeout_ms / 1000
    call = connection.kv.Range(request, timeout=timeout_s, metadata=connections.metadata)
    revision = (await answer_of(call)).header.revision
    if revision < seen_revision:
        _log.error(
            "etcd's revision is older than before, as after a restore from a backup",
            revision=revision,
            seen=seen_revision,
        )
        raise CompactedError(seen_revision)
