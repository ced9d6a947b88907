"""The lines of `tidelog produce`: how they become records, and the error of the first one that is refused."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.cli.data.produce import LineFormat, LineSender, LineSplitter
from tidelog.cli.tool_command import ToolError
from tidelog.client.cluster import Cluster as Client
from tidelog.client.partitioners import partition_for_key
from tidelog.client.threads.topic_reader import batch_producer_of
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.records.record import Record
from tidelog.testing import Cluster


def test_a_line_is_a_value() -> None:
    assert LineFormat().record_of(b"a\tb", 7, 1) == Record(0, 7, None, b"a\tb")


def test_key_value_and_headers() -> None:
    line_format = LineFormat(
        parses_key=True, parses_headers=True, key_separator="::", headers=(("all", b"1"),)
    )
    record = line_format.record_of(b"h:x,i:y:z\tk::v::w", 7, 1)
    assert record == Record(0, 7, b"k", b"v::w", (("all", b"1"), ("h", b"x"), ("i", b"y:z")))
    assert line_format.record_of(b"\t::", 7, 1) == Record(0, 7, b"", b"", (("all", b"1"),))


def test_the_null_marker() -> None:
    line_format = LineFormat(parses_key=True, parses_headers=True, null_marker="NULL")
    assert line_format.record_of(b"NULL\tNULL\tNULL", 7, 1) == Record(0, 7, None, None)
    assert line_format.record_of(b"h:NULL\tk\tNULLS", 7, 1) == Record(0, 7, b"k", b"NULLS", (("h", None),))


@pytest.mark.parametrize(
    ("line", "part"),
    [(b"k v", "has no headers"), (b"h:1\tv", "has no key"), (b"h\tk\tv", "has no header value")],
)
def test_an_incomplete_line_is_named(line: bytes, part: str) -> None:
    with pytest.raises(ToolError, match=f"line 12 {part}"):
        LineFormat(parses_key=True, parses_headers=True).record_of(line, 7, 12)


@given(st.lists(st.binary(max_size=8).filter(lambda b: b"\n" not in b and not b.endswith(b"\r"))), st.data())
def test_lines_are_complete_for_any_division_of_the_input(lines: list[bytes], data: st.DataObject) -> None:
    text = b"".join(line + data.draw(st.sampled_from([b"\n", b"\r\n"])) for line in lines)
    splitter = LineSplitter(1 << 20)
    found: list[bytes] = []
    while text:
        size = data.draw(st.integers(1, len(text)))
        found += splitter.lines(text[:size])
        text = text[size:]
    found += splitter.lines(b"")
    assert found == lines


def test_a_last_line_without_end_counts() -> None:
    splitter = LineSplitter(100)
    assert splitter.lines(b"a\nb") + splitter.lines(b"") + splitter.lines(b"") == [b"a", b"b"]


def test_the_time_for_a_long_line_is_proportional_to_its_length() -> None:
    """Each chunk of 64 KiB copied the whole line before it, so a line of 60 MB took minutes."""
    splitter = LineSplitter(1 << 22)
    chunk = b"x" * 1024
    began_s = time.process_time()
    for _ in range(1 << 12):
        assert splitter.lines(chunk) == []
    assert splitter.lines(b"\n") == [chunk * (1 << 12)]
    assert time.process_time() - began_s < 1


def test_an_endless_line_is_refused() -> None:
    splitter = LineSplitter(10)
    assert splitter.lines(b"a\nb\n" + b"x" * 11) == [b"a", b"b"], "the lines before it are lost"
    with pytest.raises(ToolError, match="line 3 is longer than 10 bytes"):
        splitter.lines(b"")


NOW_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


def test_keys_headers_and_the_time_arrive(cluster: Cluster) -> None:
    cluster.create_topic("keyed", 3)
    records = [
        Record(0, NOW_MS, b"k%d" % number, b"v%d" % number, (("h", b"%d" % number),) if number % 2 else ())
        for number in range(20)
    ]
    with Client(cluster.bootstrap) as client, batch_producer_of(client) as producer:
        sender = LineSender(producer, "keyed")
        sender.send(records[:7], NOW_MS)
        sender.send(records[7:], NOW_MS)
        sender.flush()
    assert sender.sent_records == 20
    found = {record.key: record for record in cluster.records("keyed")}
    for record in records:
        stored = found[record.key]
        assert (stored.value, stored.headers, stored.timestamp_ms) == (
            record.value,
            record.headers,
            NOW_MS,
        )
        assert stored.partition == partition_for_key(record.key or b"", 3)


def test_a_given_partition_gets_every_record(cluster: Cluster) -> None:
    cluster.create_topic("fixed", 3)
    with Client(cluster.bootstrap) as client, batch_producer_of(client) as producer:
        sender = LineSender(producer, "fixed", partition=2)
        sender.send([Record(0, NOW_MS, None, b"a"), Record(0, NOW_MS, b"k", None)], NOW_MS)
        sender.flush()
    assert [(record.partition, record.key, record.value) for record in cluster.records("fixed")] == [
        (2, None, b"a"),
        (2, b"k", None),
    ]


def test_a_refused_record_is_an_error_and_is_not_counted(cluster: Cluster) -> None:
    cluster.create_topic("small", configs={"max.message.bytes": "2000"})
    with Client(cluster.bootstrap) as client, batch_producer_of(client) as producer:
        sender = LineSender(producer, "small")
        sender.send([Record(0, NOW_MS, None, b"a")], NOW_MS)
        sender.flush()
        with pytest.raises(KafkaError) as raised:
            for _ in range(100_000):  # more than the buffer holds, so that it waits for the first answers
                sender.send([Record(0, NOW_MS, None, b"x" * 3_000)], NOW_MS)
    assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert sender.sent_records == 1
