"""Batches that real clients sent to Apache Kafka 4.3.1, one for each client and codec.

`client_batches.json` has them as Kafka stored them, with twelve records each (see `_record`).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidelog.records.batch import crc_matches, iterate_headers
from tidelog.records.compression import Compression
from tidelog.records.record import Record, iterate_records

BATCHES: dict[str, str] = json.loads((Path(__file__).parent / "client_batches.json").read_text())
FIRST_TIMESTAMP = 1_700_000_000_000


def _record(number: int, client: str) -> Record:
    key = b"k%d" % number if number % 5 else None
    value = None if number == 7 else b"value %d " % number * 6
    headers: tuple[tuple[str, bytes | None], ...] = ()
    if number % 6 == 0:
        # kafka-python does not support null header values
        headers = (("h", b"x%d" % number), ("n", None))[: 1 if client == "kafka-python" else 2]
    return Record(number, FIRST_TIMESTAMP + number, key, value, headers)


@pytest.mark.parametrize("name", BATCHES)
def test_batch_of_a_real_client(name: str) -> None:
    client, codec = name.split()
    stored = bytes.fromhex(BATCHES[name])
    records = []
    for position, header in iterate_headers(stored):
        assert crc_matches(header, stored, position)
        assert Compression(header.compression).name.lower() == codec
        records += iterate_records(stored, position)
    expected = [_record(number, client) for number in range(12)]
    if client == "java":  # Kafka's console producer sets the timestamp itself
        expected = [
            record._replace(timestamp=read.timestamp) for record, read in zip(expected, records, strict=True)
        ]
    assert records == expected


def test_there_is_a_batch_of_every_codec() -> None:
    for client in ("librdkafka", "java", "aiokafka"):
        assert {name.split()[1] for name in BATCHES if name.startswith(client)} == {
            c.name.lower() for c in Compression
        }
