"""Assembles the answers of a watch into whole revisions. It does no I/O, so that tests can cut the stream
anywhere.

etcd sends events in the order of revisions, and the events of a revision in one answer. An answer that is too
large arrives in fragments, which may split a revision. After a reconnect some events arrive again.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog.metadata.etcd.generated import kv_pb2, rpc_pb2
from tidelog.metadata.store import CompactedError, Event, StoreError, WatchBatch


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

    def take(self, answer: rpc_pb2.WatchResponse) -> list[WatchBatch]:
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
