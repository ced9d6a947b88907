"""Serializers and deserializers of keys and values."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
Serializer: TypeAlias = Callable[[str, T], bytes | None]
"""Takes the topic and a key or value. None becomes a null, which deletes a key in a compacted topic."""
Deserializer: TypeAlias = Callable[[str, bytes | None], T]
"""Takes the topic and the bytes of a key or value, None for a null."""


def bytes_of(field: str, content: object, topic: str) -> bytes:
    """Returns a copy of bytes-like content for a record's `field`. Raises TypeError for anything else."""
    if isinstance(content, (bytes, bytearray, memoryview)):
        return bytes(content)
    raise TypeError(
        f"the {field} of a record for topic '{topic}' is of type {type(content).__name__}: give bytes, or "
        f"give the producer a {field}_serializer that returns bytes"
    )


def text_serializer(topic: str, text: str | None) -> bytes | None:
    """Encodes text in UTF-8."""
    return None if text is None else text.encode()


def text_deserializer(topic: str, data: bytes | None) -> str | None:
    """Decodes text in UTF-8."""
    return None if data is None else data.decode()


def json_serializer(topic: str, content: Any) -> bytes | None:
    """Writes JSON in UTF-8. None becomes a null record, not the JSON text `null`."""
    return None if content is None else json.dumps(content, separators=(",", ":")).encode()


def json_deserializer(topic: str, data: bytes | None) -> Any:
    """Reads JSON in UTF-8. A null record becomes None."""
    return None if data is None else json.loads(data)
