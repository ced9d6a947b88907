"""The history of the store in memory, from which watches catch up."""

from __future__ import annotations

import pytest

from tidelog.metadata.store import CompactedError, KeySpace, Put, TxnResult

MB = 1024 * 1000


def put(space: KeySpace, value: bytes) -> TxnResult:
    return space.transact((), (Put("/key", value),), (), lambda lease: True).result


def test_the_history_keeps_a_bounded_number_of_bytes() -> None:
    space = KeySpace()
    for number in range(100):
        assert put(space, bytes([number]) * MB).succeeded
    with pytest.raises(CompactedError):
        space.batches_from("/", space.revision - 99, space.revision)
    oldest = space.compact_revision + 1
    kept = space.batches_from("/", oldest, space.revision)
    values = [event.value or b"" for batch in kept for event in batch.events]
    assert 60 * MB < sum(map(len, values)) <= 64 * 1024 * 1024
    assert values[-1] == bytes([99]) * MB, "the newest is kept"
    for _ in range(len(kept)):
        put(space, b"small")
    assert space.compact_revision + 1 == oldest, "small events take no room of others"
