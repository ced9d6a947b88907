"""The headers of dead letters: reading them, and removing them from records that are sent back."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.cli.admin.dlq import age
from tidelog.client.admin import dead_letters
from tidelog.client.admin.dead_letters import MAX_EMPTY_POLLS, parse, without_own_headers
from tidelog.model.dead_letters import HEADERS
from tidelog.model.topics import TopicPartition
from tidelog.records.record import Header, Record

NAMES = st.sampled_from(["own", "other", *HEADERS])
OWN: tuple[Header, ...] = tuple(zip(HEADERS, (b"orders", b"3", b"17", b"sharers", b"2", b"why"), strict=True))


@given(st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=3)), max_size=12).map(tuple))
def test_the_headers_of_the_record_come_back(original: tuple[Header, ...]) -> None:
    """Also of a record that was a dead letter already."""
    assert without_own_headers((*original, *OWN)) == original


@given(st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=3)), max_size=12))
def test_any_headers_are_read(headers: list[Header]) -> None:
    found = parse(Record(0, 0, None, None, tuple(headers)))
    assert found is None or (found.source.partition >= 0 and found.source_offset >= 0)


def test_a_dead_letter_is_read() -> None:
    record = Record(5, 0, None, b"v", (("__dlq.errors.topic", b"earlier"), *OWN))
    found = parse(record)
    assert found is not None
    assert found[1:] == ("sharers", TopicPartition("orders", 3), 17, 2, "why")
    assert found.has_copy
    assert parse(record._replace(headers=OWN[1:])) is None


def test_ages_have_one_unit() -> None:
    ages = [age(1_000 * seconds) for seconds in (-5, 0, 119, 120, 7_199, 7_200, 172_799, 172_800)]
    assert ages == ["0 s", "0 s", "119 s", "2 min", "119 min", "2 h", "47 h", "2 d"]


def test_a_partition_whose_leader_is_away_does_not_count_as_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its dead letters would be left out, or records that are there would count as gone."""
    record = Record(0, 0, None, b"v", ())

    class Reader:
        """A reader whose leader is away for twice as many polls as an empty partition gets."""

        polls = 0
        is_failing = False

        def positions(self) -> dict[int, int]:
            return {0: 0 if self.is_failing or not self.polls else 1}

        def poll(self) -> object:
            self.polls += 1
            self.is_failing = self.polls <= 2 * MAX_EMPTY_POLLS
            return None if self.is_failing else object()

    monkeypatch.setattr(dead_letters, "reading", lambda *arguments: contextlib.nullcontext(Reader()))
    monkeypatch.setattr(dead_letters, "sound_records", lambda batch: [record])
    monkeypatch.setattr(dead_letters, "plain_record", lambda found: found)
    topic: Any = SimpleNamespace(name="dlq.t")
    nothing: Any = None
    assert list(dead_letters._records(nothing, topic, {0: (0, 1)})) == [(0, record)]
