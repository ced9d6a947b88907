"""The schemas of keys and values: what serializers write to name a schema, and the logical types of Avro.
Brokers read neither.

Confluent's serializers write a zero byte and the schema's id in a registry, and for Protobuf the indexes of
the message in its file. Avro's single-object encoding writes C3 01 and the schema's fingerprint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tidelog.records.varint import CorruptVarintError, read_varint

SCHEMA_ID_BYTES: Final = 5
"""The zero byte and the id."""
SINGLE_OBJECT_MARK: Final = b"\xc3\x01"
SINGLE_OBJECT_BYTES: Final = 10
"""The mark and the fingerprint."""
MAX_MESSAGE_INDEXES: Final = 100


def schema_id_of(data: bytes) -> int | None:
    """Returns the schema id with which the data begins, or None if the data does not begin with a zero byte
    and four more.
    """
    if len(data) < SCHEMA_ID_BYTES or data[0]:
        return None
    return int.from_bytes(data[1:SCHEMA_ID_BYTES])


def message_indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """Returns the indexes of a Protobuf message after the schema id, and the position of the message. The
    first index counts the messages of the file, and each further one those within the message before.

    Raises ValueError.
    """
    try:
        count, at = read_varint(data, SCHEMA_ID_BYTES)
        if not 0 <= count <= MAX_MESSAGE_INDEXES:
            raise ValueError("the message's index is malformed")
        indexes = []
        for _ in range(count):
            index, at = read_varint(data, at)
            if index < 0:
                raise ValueError("the message's index is malformed")
            indexes.append(index)
    except CorruptVarintError:
        raise ValueError("the message's index is malformed") from None
    return tuple(indexes) or (0,), at  # the writers shorten the index 0 to no index


_UNDERLYING: Final[Mapping[str, tuple[str, ...]]] = {
    "date": ("int",),
    "time-millis": ("int",),
    "time-micros": ("long",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "uuid": ("string", "fixed"),
}
_INNER: Final = ("type", "fields", "items", "values")


def without_invalid_logical_types(schema: Any) -> Any:
    """Returns a schema (as `json.loads` returns it) in which values of invalid logical types have only their
    underlying types.

    The specification demands that, for example for a decimal with a scale above its precision. Parsers such
    as fastavro refuse the whole schema instead, or expect other values.
    """
    if isinstance(schema, list):
        return [without_invalid_logical_types(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        name: without_invalid_logical_types(value) if name in _INNER else value
        for name, value in schema.items()
    }
    logical = kept.get("logicalType")
    if logical == "decimal":
        is_valid = _is_valid_decimal(kept)
    else:
        types = _UNDERLYING.get(logical) if isinstance(logical, str) else None
        is_valid = types is None or kept.get("type") in types
    if not is_valid:
        del kept["logicalType"]
    return kept


def _is_valid_decimal(schema: Mapping[str, Any]) -> bool:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or not precision:
        return False
    if schema.get("type") != "fixed":
        return schema.get("type") == "bytes"
    size = schema.get("size")
    return type(size) is int and size > 0 and precision <= len(str(2 ** (8 * min(size, 1_000) - 1) - 1)) - 1
