"""The bytes that serializers write before a key or value to name its schema. tidelog itself never reads them.

Confluent's serializers write a zero byte and the schema's id in a registry, and for Protobuf the indexes of
the message in its file. Avro's single-object encoding writes C3 01 and the schema's fingerprint.
"""

from __future__ import annotations

from typing import Final

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
