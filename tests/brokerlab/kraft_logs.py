"""Builds metadata logs as Apache Kafka's controller writes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.wire.codec import encoder
from tidelog.wire.primitives import uvarint


def frame(message: Any, version: int = 0) -> bytes:  # any class of tidelog.wire.messages.records
    """Returns the value of a record."""
    body = b"".join(encoder(type(message), version)(message))
    return b"\x01" + uvarint(message.API_KEY) + uvarint(version) + body


def without_fields(kind: int) -> bytes:
    """Returns the value of a record of version 0 that has no fields."""
    return b"\x01" + uvarint(kind) + b"\x00\x00"


def batch(base_offset: int, values: Sequence[bytes]) -> bytes:
    records = [Record(base_offset + number, 0, None, value) for number, value in enumerate(values)]
    return bytes(
        build_batch(
            records,
            base_offset=base_offset,
            leader_epoch=1,
            compression=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            is_transactional=False,
        )
    )


def segment(directory: Path, base_offset: int, values: Sequence[bytes]) -> Path:
    """Writes a segment with one batch."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{base_offset:020d}.log"
    path.write_bytes(batch(base_offset, values))
    return path


def snapshot(directory: Path, end_offset: int, values: Sequence[bytes]) -> Path:
    """Writes a snapshot of the records below `end_offset`."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{end_offset:020d}-0000000001.checkpoint"
    path.write_bytes(batch(0, values))
    return path
