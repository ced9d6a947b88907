"""The wall clock of a real process jumps six hours forward and back while clients work.

Debian's libfaketime sets the clock of the process. LIBFAKETIME names the library if it is elsewhere.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import connection, consume_messages, create_topic, end_offset, new_producer

pytestmark = [pytest.mark.integration, pytest.mark.slow]

LIBRARY = Path(os.environ.get("LIBFAKETIME", "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"))
JUMPS = ("+6h", "+0", "-6h", "+0")
RECORDS_A_JUMP = 200
SECONDS_A_JUMP = 12.0
"""The coordinator looks for timed out transactions every 2 s, and retention runs every second."""
SETTINGS = {
    "log.retention.check.interval.ms": "1000",
    "log.initial.task.delay.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "2000",
    "offsets.retention.check.interval.ms": "2000",
    "offsets.retention.minutes": "60",
}


@pytest.fixture
def clock_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the file with the difference of the process's wall clock; processes that start now read it."""
    if not LIBRARY.exists():
        pytest.skip("libfaketime is not installed: apt-get install libfaketime, or set LIBFAKETIME")
    path = tmp_path / "clock"
    path.write_text("+0\n")
    for name, value in {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(path),
        "FAKETIME_NO_CACHE": "1",
        "DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    return path


@pytest.fixture
def broker(clock_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data", tmp_path / "log", SETTINGS)
    process.start()
    monkeypatch.delenv("LD_PRELOAD")
    yield process
    process.stop()


class Traffic:
    """A producer, a member of a group that reads its records, and a transaction that stays open."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: set[bytes] = set()
        self.read: list[bytes] = []
        self.assignments = 0
        self.producer = new_producer(bootstrap, enable_idempotence=True, linger_ms=1)
        self.transactional = Producer(
            {**connection(bootstrap), "transactional.id": "long", "transaction.timeout.ms": 600_000}
        )
        self.transactional.init_transactions(30)
        self.transactional.begin_transaction()
        self.transactional.produce("open", b"open")
        self.transactional.flush(30)
        self.member = Consumer(
            {
                **connection(bootstrap),
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6_000,
                "auto.commit.interval.ms": 500,
            }
        )
        self.member.subscribe(["kept"], on_assign=self._assigned)

    def _assigned(self, consumer: Consumer, partitions: list[object]) -> None:
        self.assignments += 1

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        self.acknowledged.add(message.value())

    def run(self, name: str) -> None:
        until_s = time.monotonic() + SECONDS_A_JUMP
        for number in range(RECORDS_A_JUMP):
            self.producer.produce("kept", b"%s-%d" % (name.encode(), number), on_delivery=self._delivered)
            self._poll(SECONDS_A_JUMP / RECORDS_A_JUMP / 2)
        self.producer.flush(30)
        while time.monotonic() < until_s or len(self.read) < len(self.acknowledged):
            assert time.monotonic() < until_s + 60, "the member reads no records"
            self._poll(0.1)

    def _poll(self, timeout_s: float) -> None:
        self.producer.poll(0)
        message = self.member.poll(timeout_s)
        if message is not None:
            assert message.error() is None, message.error()
            self.read.append(message.value())

    def end(self) -> None:
        self.transactional.commit_transaction(30)
        self.member.close()


def test_clock_jumps_of_six_hours_do_no_harm(broker: BrokerProcess, clock_file: Path) -> None:
    for topic in ("kept", "open"):
        create_topic(
            broker.bootstrap, topic, configs={"retention.ms": "3600000", "file.delete.delay.ms": "1000"}
        )
    traffic = Traffic(broker.bootstrap)
    traffic.run("before")
    for at, jump in enumerate(JUMPS):
        clock_file.write_text(jump + "\n")
        traffic.run(f"jump {at}")
    assert traffic.assignments == 1, "the member was never expelled"
    traffic.end()
    count = (len(JUMPS) + 1) * RECORDS_A_JUMP
    kept = [message.value() for message in consume_messages(broker.bootstrap, "kept", count)]
    assert len(traffic.acknowledged) == count
    assert sorted(kept) == sorted(traffic.acknowledged)
    assert sorted(traffic.read) == sorted(kept), "each record was read once"
    assert end_offset(broker.bootstrap, "open") == 2, "the record and the commit marker"
    log = broker.log_text()
    assert "the wall clock jumped" in log, "the process saw the jumps"
    assert "segments deleted by retention" not in log
