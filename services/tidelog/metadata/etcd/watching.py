"""A watch that outlives connections and members."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import structlog

from tidelog.metadata.etcd.connection import EtcdConnection, answer_of
from tidelog.metadata.etcd.event_assembly import EventAssembly, WatchEndedError
from tidelog.metadata.etcd.failover import FIRST_PAUSE_MS, MAX_PAUSE_MS, EtcdConnections
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
    """See MetadataStore.watch. While etcd refuses the user it goes on trying, as for an etcd that is away."""
    assembly = EventAssembly(start_revision, decode_key)
    pause_ms = FIRST_PAUSE_MS
    while True:
        token = connections.token
        try:
            connection = await connections.get(None)
            token = connections.token
            stream = _stream(connections, connection, options, key_range, assembly)
            try:
                async for batches in stream:
                    pause_ms = FIRST_PAUSE_MS
                    for batch in batches:
                        yield batch
            finally:
                await stream.aclose()
        except CallFailedError as error:
            connections.check_open()
            if error.fault is CallFault.TOKEN:
                connections.forget_token(token)
            elif error.fault is CallFault.REFUSED:
                _log.warning("etcd refuses a watch, it is asked for again", reason=error.details)
            else:
                connections.retire(connection, error.details)
        except (WatchEndedError, StoreRefusedError) as error:
            connections.check_open()
            _log.warning("etcd ended a watch, it is asked for again", reason=str(error))
            # A watch under a token that has run out is refused for want of rights.
            connections.forget_token(token)
        await asyncio.sleep(pause_ms / 1000)
        pause_ms = min(MAX_PAUSE_MS, 2 * pause_ms)


async def _stream(
    connections: EtcdConnections,
    connection: EtcdConnection,
    options: EtcdOptions,
    key_range: tuple[bytes, bytes],
    assembly: EventAssembly,
) -> AsyncGenerator[list[WatchBatch], None]:
    """One stream's life; an empty list when the server has taken the watch on. Raises CallFailedError,
    WatchEndedError, CompactedError.
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

    # Not call.write(): it waits for ever in a call that is cancelled before it is on its way (grpc 1.85).
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
            raise CallFailedError(CallFault.UNKNOWN, "a watch was not taken on in time") from error
        if answer.header.revision < assembly.seen_revision:
            await _check_still_ahead(connections, connection, options, assembly.seen_revision)
        while True:
            yield assembly.take(answer)
            answer = await answer_of(anext(answers))
    except StopAsyncIteration as error:
        raise CallFailedError(CallFault.UNKNOWN, "the server ended the watch's stream") from error
    finally:
        is_over.set()
        connection.remove_watch(call)


async def _check_still_ahead(
    connections: EtcdConnections, connection: EtcdConnection, options: EtcdOptions, seen_revision: int
) -> None:
    """A member that is behind the others is no matter. But an etcd restored from an older backup would leave
    the watch waiting for revisions that now mean something else: CompactedError then.
    """
    request = pb.RangeRequest(key=b"\0", range_end=b"\0", count_only=True, limit=1)
    timeout_s = options.attempt_timeout_ms / 1000
    call = connection.kv.Range(request, timeout=timeout_s, metadata=connections.metadata)
    revision = (await answer_of(call)).header.revision
    if revision < seen_revision:
        _log.error("etcd went back, as if restored from a backup", revision=revision, seen=seen_revision)
        raise CompactedError(seen_revision)
