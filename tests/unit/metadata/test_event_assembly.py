"""A watch yields whole revisions, each exactly once, wherever etcd cuts its answers and wherever the stream
breaks.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.metadata.etcd.generated import kv_pb2, rpc_pb2
from tidelog.metadata.etcd.watching import EventAssembly, WatchEndedError
from tidelog.metadata.store import CompactedError, Event, WatchBatch

History = list[list[str]]  # keys written at revision 2, 3, ...


def _event(revision: int, key: str) -> kv_pb2.Event:
    if key.startswith("-"):
        return kv_pb2.Event(
            type=kv_pb2.Event.DELETE, kv=kv_pb2.KeyValue(key=key.encode(), mod_revision=revision)
        )
    kv = kv_pb2.KeyValue(key=key.encode(), value=b"v", mod_revision=revision, create_revision=2, version=1)
    return kv_pb2.Event(kv=kv)


def _sent_from(history: History, revision: int) -> list[kv_pb2.Event]:
    return [
        _event(number, key)
        for number, keys in enumerate(history, start=2)
        for key in keys
        if number >= revision
    ]


def _expected(history: History, start: int) -> list[WatchBatch]:
    return [
        WatchBatch(
            number,
            tuple(
                Event(key, None, number) if key.startswith("-") else Event(key, b"v", number, 2)
                for key in keys
            ),
        )
        for number, keys in enumerate(history, start=2)
        if keys and number >= start
    ]


_KEYS = st.sets(st.sampled_from(["a", "b", "c", "-d", "-e"]), max_size=4)


@given(
    history=st.lists(_KEYS.map(sorted), max_size=8),
    start=st.integers(1, 8),
    cuts=st.lists(st.tuples(st.integers(1, 6), st.booleans(), st.booleans()), max_size=20),
)
def test_revisions_are_whole_and_unique_for_any_cut_of_the_stream(
    history: History, start: int, cuts: list[tuple[int, bool, bool]]
) -> None:
    """`cuts` are the number of events in an answer, whether the stream breaks after it, and whether progress
    is reported.
    """
    assembly = EventAssembly(start, bytes.decode)
    shown: list[WatchBatch] = []
    waiting = _sent_from(history, assembly.revision_to_ask_for)
    for length, breaks, tells_progress in [*cuts, (100, False, False)]:
        answered, waiting = waiting[:length], waiting[length:]
        is_inside_revision = bool(
            answered and waiting and answered[-1].kv.mod_revision == waiting[0].kv.mod_revision
        )
        shown += assembly.take(rpc_pb2.WatchResponse(events=answered, fragment=is_inside_revision))
        if tells_progress and not waiting:
            header = rpc_pb2.ResponseHeader(revision=len(history) + 1)
            assert assembly.take(rpc_pb2.WatchResponse(header=header)) == []
        if breaks:
            assembly.restart()
            waiting = _sent_from(history, assembly.revision_to_ask_for)
    assert shown == _expected(history, start)


def test_complete_revisions_do_not_wait_for_the_last_fragment() -> None:
    assembly = EventAssembly(2, bytes.decode)
    events = [_event(2, "a"), _event(2, "b"), _event(3, "a")]
    assert [b.revision for b in assembly.take(rpc_pb2.WatchResponse(events=events, fragment=True))] == [2]
    assert assembly.next_revision == 3
    rest = assembly.take(rpc_pb2.WatchResponse(events=[_event(3, "b")]))
    assert [[event.key for event in batch.events] for batch in rest] == [["a", "b"]]


def test_progress_protects_the_watch_from_compaction() -> None:
    assembly = EventAssembly(2, bytes.decode)
    created = rpc_pb2.WatchResponse(created=True, header=rpc_pb2.ResponseHeader(revision=50))
    assert assembly.take(created) == []
    assert assembly.revision_to_ask_for == 1
    assembly.take(rpc_pb2.WatchResponse(header=rpc_pb2.ResponseHeader(revision=40)))
    assert assembly.revision_to_ask_for == 40
    assembly.take(rpc_pb2.WatchResponse(header=rpc_pb2.ResponseHeader(revision=30)))
    assert assembly.revision_to_ask_for == 40


def test_the_server_ends_the_watch() -> None:
    with pytest.raises(CompactedError) as raised:
        EventAssembly(2, bytes.decode).take(rpc_pb2.WatchResponse(canceled=True, compact_revision=7))
    assert raised.value.compact_revision == 7
    with pytest.raises(WatchEndedError, match="permission"):
        EventAssembly(2, bytes.decode).take(
            rpc_pb2.WatchResponse(canceled=True, cancel_reason="permission denied")
        )
