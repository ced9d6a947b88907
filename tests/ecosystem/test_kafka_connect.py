"""Kafka Connect in distributed mode: exactly-once sources under kills, and dead letters of a sink."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerlab.clients import consume_messages, create_topic, produce_values
from clusterlab.java_systems import ConnectWorker, await_true

pytestmark = [pytest.mark.integration, pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]
SOURCE = "org.apache.kafka.connect.file.FileStreamSourceConnector"
SINK = "org.apache.kafka.connect.file.FileStreamSinkConnector"
LINES = 600
HALF = LINES // 2
FAIL_OVER_S = 90.0


@pytest.fixture
def workers(jars: Path, server: str, tmp_path: Path) -> Iterator[list[ConnectWorker]]:
    started = [ConnectWorker(jars, tmp_path / "connect", server, number) for number in (1, 2)]
    try:
        started[0].start().await_ready()
        started[1].start().await_ready()
        yield started
    finally:
        for worker in started:
            worker.process.kill()


def append(path: Path, first: int, end: int) -> None:
    """Writes the lines slowly enough for several transactions."""
    with path.open("a") as file:
        for number in range(first, end):
            file.write(f"line {number}\n")
            if number % 10 == 9:
                file.flush()
                time.sleep(0.02)


def test_a_source_writes_each_line_once_though_its_worker_dies(
    workers: list[ConnectWorker], server: str, tmp_path: Path
) -> None:
    create_topic(server, "lines", 1)
    file = tmp_path / "lines.txt"
    append(file, 0, HALF)
    workers[0].create(
        "source",
        {
            "connector.class": SOURCE,
            "tasks.max": "1",
            "file": str(file),
            "topic": "lines",
            "exactly.once.support": "required",
            "transaction.boundary": "poll",
        },
    )
    processes = [worker.process for worker in workers]
    await_true(lambda: bool(workers[0].task_owner("source")), FAIL_OVER_S, "a task runs", *processes)
    consume_messages(server, "lines", 100, timeout_s=60, isolation_level="read_committed")
    owner = workers[0].task_owner("source")
    (victim,) = [worker for worker in workers if worker.worker_id == owner]
    (other,) = [worker for worker in workers if worker is not victim]
    append(file, HALF, HALF + 100)
    victim.process.kill()
    append(file, HALF + 100, LINES)
    await_true(
        lambda: other.task_owner("source") == other.worker_id,
        FAIL_OVER_S,
        "the other worker took over",
        other.process,
    )
    messages = consume_messages(server, "lines", LINES, timeout_s=60, isolation_level="read_committed")
    assert [message.value() for message in messages] == [b"line %d" % n for n in range(LINES)]


def test_records_that_a_sink_cannot_read_go_to_its_dead_letter_topic(
    workers: list[ConnectWorker], server: str, tmp_path: Path
) -> None:
    create_topic(server, "mixed", 1)
    values = [json.dumps(n).encode() if n % 4 else b"{ no JSON %d" % n for n in range(40)]
    produce_values(server, "mixed", values)
    file = tmp_path / "out.txt"
    workers[0].create(
        "sink",
        {
            "connector.class": SINK,
            "tasks.max": "1",
            "topics": "mixed",
            "file": str(file),
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "false",
            "errors.tolerance": "all",
            "errors.deadletterqueue.topic.name": "dead",
            "errors.deadletterqueue.topic.replication.factor": "1",
            "errors.deadletterqueue.context.headers.enable": "true",
        },
    )
    bad = [value for value in values if value.startswith(b"{")]
    dead = consume_messages(server, "dead", len(bad), timeout_s=90)
    assert [message.value() for message in dead] == bad
    headers = dict(dead[0].headers() or [])
    assert headers["__connect.errors.topic"] == b"mixed"
    assert headers["__connect.errors.offset"] == b"0"
    good = [value.decode() for value in values if not value.startswith(b"{")]
    await_true(
        lambda: file.exists() and file.read_text().split() == good,
        30,
        "the sink wrote the others",
        *(worker.process for worker in workers),
    )
