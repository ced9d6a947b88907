"""A follower's log equals its leader's byte for byte, however the batches are divided among fetches."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerlab.logs import OwnedLog, append, files, make_batch, make_marker, open_log, read_all
from tidelog.broker.log.directory_files import LogStorageError
from tidelog.broker.log.log_config import LogConfig
from tidelog.broker.partition.batch_validation import control_markers, received_headers

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=150, segment_ms=10_000, segment_index_bytes=100)


def receive(log: OwnedLog, data: bytes, now_ms: int = 0) -> None:
    """Appends batches and updates the producer state, as `Replica` does. Rolls full segments."""
    records = memoryview(data)
    headers = received_headers(records, log.log_end_offset)
    while headers:
        count = log.append_received(records, headers, now_ms)
        markers = control_markers(records, headers[:count])
        for header in headers[:count]:
            if header.producer_id >= 0:
                marker = markers.get(header.base_offset)
                ended = log.producer_state.update(header, header.max_timestamp, marker)
                if ended is not None and ended.is_aborted:
                    log.index_aborted(ended)
        records = records[sum(header.size_bytes for header in headers[:count]) :]
        headers = headers[count:]


@st.composite
def histories(draw: st.DrawFn) -> list[bytes]:
    """Batches of a leader's log with gaps in the offsets, some with timestamps, producers or transactions."""
    made, offset, sequence = [], 0, 0
    in_transaction: dict[int, int] = {}
    for _ in range(draw(st.integers(1, 25))):
        count = draw(st.integers(1, 3))
        offset += draw(st.sampled_from([0, 0, 0, 5]))
        transactional = draw(st.sampled_from([None, None, 11, 12]))
        if transactional is not None and transactional in in_transaction and draw(st.booleans()):
            made.append(make_marker(offset, is_commit=draw(st.booleans()), producer_id=transactional))
            offset += 1
            continue
        if transactional is not None:
            first = in_transaction.get(transactional, 0)
            made.append(
                make_batch(
                    offset,
                    count,
                    producer_id=transactional,
                    producer_epoch=0,
                    base_sequence=first,
                    is_transactional=True,
                )
            )
            in_transaction[transactional] = first + count
            offset += count
            continue
        has_producer = draw(st.booleans())
        made.append(
            make_batch(
                offset,
                count,
                value_bytes=draw(st.sampled_from([1, 40, 250])),
                timestamp=draw(st.sampled_from([-1, 1000, 2000, 9000, 15_000, 40_000])),
                producer_id=7 if has_producer else -1,
                producer_epoch=0 if has_producer else -1,
                base_sequence=sequence if has_producer else -1,
            )
        )
        offset += count
        sequence += count if has_producer else 0
    return made


@settings(max_examples=150, deadline=None)
@given(histories(), st.data())
def test_batches_received_in_pieces_equal_single_appends(made: list[bytes], data: st.DataObject) -> None:
    with TemporaryDirectory() as directory:
        leader, follower = (open_log(Path(directory) / name, SMALL) for name in ("leader", "follower"))
        for batch in made:
            append(leader, batch)
        left = list(made)
        while left:
            count = data.draw(st.integers(1, len(left)))
            receive(follower, b"".join(left[:count]))
            left = left[count:]
        assert read_all(follower) == made
        assert follower.log_end_offset == leader.log_end_offset
        assert follower.producer_state.snapshot() == leader.producer_state.snapshot()
        for log in (leader, follower):
            log.close()
        for suffix in (".log", ".index", ".timeindex", ".snapshot", ".txnindex"):
            copies = [files(Path(directory) / name, suffix) for name in ("leader", "follower")]
            assert [p.name for p in copies[0]] == [p.name for p in copies[1]]
            assert [p.read_bytes() for p in copies[0]] == [p.read_bytes() for p in copies[1]]


def test_a_batch_above_segment_bytes_gets_a_segment_of_its_own(tmp_path: Path) -> None:
    log = open_log(tmp_path, SMALL)
    batches = [make_batch(0), make_batch(1, value_bytes=3000), make_batch(2)]
    receive(log, b"".join(batches))
    assert read_all(log) == batches
    assert [segment.base_offset for segment in log.segments] == [0, 1, 2]


def test_a_failed_write_leaves_the_log_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path)
    receive(log, make_batch(0))
    data = make_batch(1) + make_batch(2)
    with monkeypatch.context() as patch:
        patch.setattr("tidelog.broker.log.segmented_log.os.pwrite", lambda fd, batch, position: 10)
        with pytest.raises(LogStorageError):
            receive(log, data)
    assert log.log_end_offset == 1
    receive(log, data)
    assert log.log_end_offset == 3
    assert len(read_all(log)) == 3
