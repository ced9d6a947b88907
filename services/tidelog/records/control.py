"""Control records, which end transactions.

The key is `version int16, type int16` (0 is abort, 1 is commit). The value of these two is `version int16,
coordinator_epoch int32`. Source: Kafka's `ControlRecordType`, `EndTransactionMarker`; KIP-98.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

_KEY = struct.Struct(">hh")
_END_TRANSACTION_VALUE = struct.Struct(">hi")
_VERSION = 0


class ControlType(IntEnum):
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class CorruptControlRecordError(ValueError):
    """The control record cannot be parsed; the message gives the reason."""


class EndTransactionMarker(NamedTuple):
    is_commit: bool
    coordinator_epoch: int


def encode_end_transaction(marker: EndTransactionMarker) -> tuple[bytes, bytes]:
    """Returns (key, value) of the control record."""
    control_type = ControlType.COMMIT if marker.is_commit else ControlType.ABORT
    return _KEY.pack(_VERSION, control_type), _END_TRANSACTION_VALUE.pack(_VERSION, marker.coordinator_epoch)


def decode_end_transaction(key: bytes | memoryview, value: bytes | memoryview) -> EndTransactionMarker | None:
    """Returns the marker, None for another control type. Accepts the longer values of later versions."""
    if len(key) < _KEY.size:
        raise CorruptControlRecordError(
            f"control record key of {len(key)} bytes, at least {_KEY.size} expected"
        )
    control_type = _KEY.unpack_from(key)[1]
    if control_type not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    if len(value) < _END_TRANSACTION_VALUE.size:
        raise CorruptControlRecordError(
            f"end-transaction marker of {len(value)} bytes, at least {_END_TRANSACTION_VALUE.size} expected"
        )
    return EndTransactionMarker(
        control_type == ControlType.COMMIT, _END_TRANSACTION_VALUE.unpack_from(value)[1]
    )
