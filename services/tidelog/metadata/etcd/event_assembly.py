"""From a watch's answers to whole revisions: pure, so that it can be tried with any cut of the stream.

etcd sends events in revision order, and a revision's events in one answer; an answer that is too large comes
in fragments, which may cut a revision. After a reconnect some events come again.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog.metadata.etcd.generated import kv_pb2, rpc_pb2
from tidelog.metadata.store import CompactedError, Event, StoreError, WatchBatch


class WatchEndedError(StoreError):
    """The server gave the watch up; it may be asked for again."""


class EventAssembly:
    """`next_revision`: everything before it was handed out, or doesn't concern the watch. `seen_revision`:
    the newest that the server has told of, 0 before it has told any.
    """

    def __init__(self, start_revision: int, decode_key: Callable[[bytes], str]) -> None:
        self.next_revision = start_revision
        self.seen_revision = 0
        self._decode_key = decode_key
        self._cut: list[Event] = []

    @property
    def revision_to_ask_for(self) -> int:
        """One earlier than needed. Many releases of etcd forget deletions made at the very revision they
        compact to, yet let watches start there (its issue 18089). So they refuse one that would miss some.
        """
        return max(1, self.next_revision - 1)

    def restart(self) -> None:
        """A new stream begins, at `revision_to_ask_for`."""
        self._cut.clear()

    def take(self, answer: rpc_pb2.WatchResponse) -> list[WatchBatch]:
        """Whole revisions that are complete now. Raises CompactedError, WatchEndedError."""
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
