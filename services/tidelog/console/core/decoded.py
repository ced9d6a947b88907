"""Keys and values that are decoded with a schema, and the limits of decoding."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from typing import Final, NamedTuple

from tidelog.records.record import Record

MAX_DECODED_BYTES: Final = 1024 * 1024
"""The size of a key or value above which it is not decoded."""
MAX_VALUES: Final = 100_000
"""The fields and items that a key or value may have. In Avro, an item of an array may have no bytes."""
MAX_DEPTH: Final = 64
"""The records, arrays and maps that may be nested in each other, in a schema and in a value."""
MAX_NAME_CHARS: Final = 200


class SchemaError(ValueError):
    """A schema cannot be used. The message is a part of a sentence that follows the schema's name and a
    colon.
    """


class MisfitError(ValueError):
    """The bytes are not those of the schema, or exceed a limit. The message is like that of SchemaError."""


class Allowance:
    """The fields and items that may still be read of one key or value, and the depth at which it is."""

    __slots__ = ("depth", "values")

    def __init__(self) -> None:
        self.values = MAX_VALUES
        self.depth = 0

    def spend(self, values: int) -> None:
        """Takes values off. Raises MisfitError if too few are left."""
        self.values -= values
        if self.values < 0:
            raise MisfitError(f"it has more than {MAX_VALUES:,} fields and items")

    def enter(self) -> None:
        """Goes a level deeper. Raises MisfitError. The caller takes the level off `depth` again."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise MisfitError(f"it is nested more than {MAX_DEPTH} deep")


class Decoded(NamedTuple):
    """A decoded key or value, which JSON can represent. `kind` is avro or protobuf, or None if the bytes
    could not be decoded. `note` is a sentence that names the schema or the reason.
    """

    kind: str | None
    value: object
    note: str


Decode = Callable[[bool, bytes], Decoded | None]
"""Decodes a key (True) or a value (False). Returns None for bytes that no schema belongs to."""


class DecodedRecord:
    """The decoded key and value of a record. Each is decoded at its first use."""

    def __init__(self, record: Record, decode: Decode | None) -> None:
        self._record = record
        self._decode = decode

    @cached_property
    def key(self) -> Decoded | None:
        return self._decoded(True, self._record.key)

    @cached_property
    def value(self) -> Decoded | None:
        return self._decoded(False, self._record.value)

    def _decoded(self, is_key: bool, data: bytes | None) -> Decoded | None:
        return None if self._decode is None or data is None else self._decode(is_key, data)


def contains_text(decoded: Decoded | None, text: str) -> bool:
    """Returns whether the JSON text of a decoded value, in one line, contains a text."""
    return (
        decoded is not None
        and decoded.kind is not None
        and text in json.dumps(decoded.value, ensure_ascii=False)
    )
