"""The messages of `tidelog cluster check` if a broker returns other records than were written."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidelog.cli.cluster import check
from tidelog.cli.tool_command import ToolError
from tidelog.client.cluster import Cluster, Topic
from tidelog.client.core.cluster_view import Partition
from tidelog.client.core.connection_settings import Properties
from tidelog.client.core.consuming.consumer_batch import ConsumerBatch
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import parse_header
from tidelog.records.builder import build_batch
from tidelog.records.record import Record

TOPIC = Topic("t", uuid.uuid4(), False, (Partition(0, 1, 0, (1,), (1,), ()),))


class _Answers:
    """A reader that returns these values of partition 0, and then nothing."""

    def __init__(self, *values: bytes) -> None:
        self.values = list(values)
        self.isolation_levels: list[object] = []

    @contextlib.contextmanager
    def reading(
        self, cluster: Cluster, topic: str, positions: dict[int, int], settings: Properties
    ) -> Iterator[_Answers]:
        self.isolation_levels.append(settings["isolation.level"])
        yield self

    def poll(self) -> ConsumerBatch[bytes, bytes] | None:
        values, self.values = self.values, []
        if not values:
            return None
        raw = bytes(build_batch([Record(offset, 1, None, value) for offset, value in enumerate(values)]))
        batches = [(0, parse_header(raw))]
        return ConsumerBatch(TopicPartition("t", 0), memoryview(raw), batches, 0, len(values), len(values))


def check_of(monkeypatch: pytest.MonkeyPatch, answers: _Answers, *written: bytes) -> Any:
    monkeypatch.setattr(check, "reading", answers.reading)
    cluster = cast("Cluster", SimpleNamespace(timeout_s=0.05))
    return check._Check(cluster, TOPIC, {0: list(written)})


def test_written_records_are_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = _Answers(b"a", b"b")
    assert check_of(monkeypatch, answers, b"a", b"b").consume()
    assert answers.isolation_levels == ["read_uncommitted"]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ((b"a",), "wrote 2 records, read 1, the last records are missing"),
        ((), "wrote 2 records, read 0, the last records are missing"),
        ((b"b", b"a"), "record 0 is b'b' instead of b'a'"),
        ((b"a", b"b", b"b"), "more records than were written"),
        ((b"a", b"c", b"b"), "record 1 is b'c' instead of b'b'"),
    ],
)
def test_other_errors_are_reported(
    monkeypatch: pytest.MonkeyPatch, found: tuple[bytes, ...], said: str
) -> None:
    with pytest.raises(ToolError, match="topic 't' partition 0: .*" + said):
        check_of(monkeypatch, _Answers(*found), b"a", b"b").consume()


def test_a_visible_aborted_record_fails_the_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    class Writer:
        def __init__(self, *_: Any) -> None:
            pass

        def write(self, partition: int, records: list[Record]) -> None:
            pass

        def end(self, *, commits: bool) -> None:
            pass

    monkeypatch.setattr(check, "TransactionalWriter", Writer)
    right = _Answers(b"a", b"committed")
    assert check_of(monkeypatch, right, b"a").transaction()
    assert right.isolation_levels == ["read_committed"]
    with pytest.raises(ToolError, match="b'aborted' instead of b'committed'"):
        check_of(monkeypatch, _Answers(b"a", b"aborted", b"committed"), b"a").transaction()
