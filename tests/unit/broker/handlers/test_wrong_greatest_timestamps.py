"""A partition stores the right greatest timestamp, whatever a client sent."""

from __future__ import annotations

import pytest

from brokerlab.in_memory_broker import InMemoryBroker
from tidelog.records.batch import assemble_batch, crc_matches, parse_header
from tidelog.records.builder import build_batch
from tidelog.records.record import Record


@pytest.mark.parametrize("wrong", [-1, 0])
def test_records_of_a_client_that_sends_no_greatest_timestamp_are_found_and_kept(
    lab: InMemoryBroker, wrong: int
) -> None:
    lab.add_topic("t")
    now_ms = lab.clock.wall_ms()
    replica = lab.broker.hosted.leader_replica("t", 0)
    batch = build_batch([Record(0, now_ms, b"k", b"v")])
    sent = assemble_batch(parse_header(batch)._replace(max_timestamp=wrong), batch[61:])
    appended = replica.append(memoryview(sent), 1, 9, now_ms)
    assert appended.base_offset == 0
    place = replica.log.read(0, 1_000, 1)
    try:
        stored = place.read()
    finally:
        place.release()
    header = parse_header(stored)
    assert header.max_timestamp == now_ms
    assert crc_matches(header, stored)
    found = replica.log.offset_for_timestamp(now_ms)
    assert found is not None
    assert found.offset == 0
    assert replica.log.offset_for_timestamp(now_ms + 1) is None
    lab.clock.advance(3_600_000)
    lab.runner.run(lab.broker.housekeeping.apply_retention())
    assert replica.core.log_start_offset == 0
