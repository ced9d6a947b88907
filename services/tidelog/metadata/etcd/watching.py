"""A watch that survives the loss of connections and members.

`EventAssembly` makes whole revisions of the answers. It does no I/O, so that tests can cut the stream
anywhere. etcd sends events in the order of revisions, and the events of a revision in one answer. An answer
that is too large arrives in fragments, which may split a revision. After a reconnect some events arrive
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import structlog

from tidelog.metadata.etcd.connection import EtcdConnection, EtcdOptions, answer_of
from tidelog.metadata.etcd.failover import BACKOFF, EtcdConnections
from tidelog.metadata.etcd.generated import kv_pb2
from tidelog.metadata.etcd.generated import rpc_pb2 as pb
from tidelog.metadata.etcd.messages import CallFailedError, CallFault, StoreRefusedError
from tidelog.metadata.store import CompactedError, Event, StoreError, WatchBatch

_log = structlog.get_logger(__name__)


class WatchEndedError(StoreError):
    """The server ended the watch. The client may create it again."""


class EventAssembly:
    """The state of a watch.

    All events before `next_revision` were returned or do not match the watch. `seen_revision` is the newest
    revision that the server has reported, or 0 before its first report.
    """

    def __init__(self, start_revision: int, decode_key: Callable[[bytes], str]) -> None:
        self.next_revision = start_revision
        self.seen_revision = 0
        self._decode_key = decode_key
        self._cut: list[Event] = []

    @property
    def revision_to_ask_for(self) -> int:
        """The start revision for a new stream, one lower than needed.

        Many releases of etcd lose deletions made at the revision to which they compact, and still let watches
        start at that revision (etcd issue 18089). They reject a watch that starts one revision earlier, which
        is the safe result.
        """
        return max(1, self.next_revision - 1)

    def restart(self) -> None:
        """Prepares for a new stream, which starts at `revision_to_ask_for`."""
        self._cut.clear()

    def take(self, answer: pb.WatchResponse) -> list[WatchBatch]:
        """Takes an answer and returns the revisions that are now complete. Raises CompactedError and
        WatchEndedError.
        """
        if answer.compact_revision:
            raise CompactedError(answer.compact_revision)
        if answer.canceled:
            raise WatchEndedError(answer.cancel_reason or "the watch was cancelled")
        batches: list[WatchBatch] = []
        for sent in answer.events:
            if sent.kv.mod_revision < self.next_revision:
                continue
            if self._cut and self._cut[0].mod_revision != sent.kv.mod_revision:
                batches.append(self._complete())
            self._cut.append(self._event(sent))
        if self._cut and not answer.fragment:
            batches.append(self._complete())
        is_progress = not answer.events and not answer.created and not answer.fragment
        if is_progress and answer.header.revision >= self.next_revision:
            self.seen_revision = answer.header.revision
            self.next_revision = self.seen_revision + 1
        return batches

    def _complete(self) -> WatchBatch:
        batch = WatchBatch(self._cut[0].mod_revision, tuple(self._cut))
        self._cut.clear()
        self.seen_revision = batch.revision
        self.next_revision = batch.revision + 1
        return batch

    def _event(self, sent: kv_pb2.Event) -> Event:
        kv = sent.kv
        key = self._decode_key(kv.key)
        if sent.type == kv_pb2.Event.DELETE:
            return Event(key, None, kv.mod_revision)
        return Event(key, kv.value, kv.mod_revision, kv.create_revision, kv.lease)


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
