"""Ledger entries survive the way through a commit."""

from __future__ import annotations

import json

import pytest

from tidelog.pipeline.tables.ledger import CommitEntry, LedgerError, RangeEntry, entry_from_json

FULL = RangeEntry("flights", "b9WzcDPYRr2", 3, 10, 30, 11, 28, 15, 2, str(2**64 - 1), "7", ((0, 10), (4, 20)))
GIVEN_UP = RangeEntry("flights", "b9WzcDPYRr2", 4, 0, 9, None, None, 0, 0, "0", "0", (), "retention")
ENTRY = CommitEntry("archive-1", 17, ("a", "kafka_offset"), (FULL, GIVEN_UP))


def test_an_entry_is_read_as_it_was_written() -> None:
    assert entry_from_json(ENTRY.to_json()) == ENTRY


def test_rows_and_holes_follow_from_the_counts() -> None:
    assert (FULL.stored, FULL.holes) == (13, 5)


@pytest.mark.parametrize("text", [None, "", "nightly load", "17", '{"job": 3}', '{"tidelog": 1}'])
def test_commits_of_other_writers_are_skipped(text: str | None) -> None:
    assert entry_from_json(text) is None


def test_a_newer_format_is_refused() -> None:
    with pytest.raises(LedgerError, match="has format 2, but this release reads 1: use the release"):
        entry_from_json(ENTRY.to_json().replace('"format":1', '"format":2'))


@pytest.mark.parametrize("field", ["columns", "ranges", "batch_id", "archive"])
def test_a_damaged_entry_is_reported_as_damaged(field: str) -> None:
    body = json.loads(ENTRY.to_json())
    del body["tidelog"][field]
    with pytest.raises(LedgerError, match=f"damaged: KeyError.*{field}"):
        entry_from_json(json.dumps(body))


def test_a_range_without_a_number_is_damaged() -> None:
    body = json.loads(ENTRY.to_json())
    body["tidelog"]["ranges"][0]["log_hash"] = "many"
    with pytest.raises(LedgerError, match="damaged"):
        entry_from_json(json.dumps(body))
