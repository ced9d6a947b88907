"""How a message's layout is written down beside its dataclass: one `F` for each field, with the version
ranges Kafka gives it.

A generated dataclass has `FIELDS` (in wire order, which is also the order of its attributes). A top-level one
also has `VERSIONS` and `FLEXIBLE_FROM`. Version ranges are written as in Kafka's definitions: "3+", "0-2",
"4".
"""

from __future__ import annotations

from collections.abc import Sized
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias
from uuid import UUID

Buffer: TypeAlias = bytes | bytearray | memoryview
"""What messages are decoded from, and what `bytes` fields hold: a view into the frame after decoding."""
Records: TypeAlias = Sized
"""What a response's `records` may be: bytes, or anything with a length that the sender knows how to send (a
range of a file).
"""

LAST_VERSION = 32767
NOT_FLEXIBLE = LAST_VERSION + 1
"""The `flexible_from` of messages that have no flexible version."""
ZERO_UUID = UUID(int=0)
"""Kafka's null for uuid fields."""

FIXED_SIZE_FORMATS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
"""Types of a fixed size and their letter in a `struct` format."""
FIXED_SIZE_BYTES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "float64": 8,
    "uuid": 16,
}

FieldType: TypeAlias = "str | type[Struct] | tuple[str] | tuple[type[Struct]]"


class F(NamedTuple):
    """One field: `kind` is a primitive's name, a struct's class, or a tuple with one of them (an array).

    `nullable` and `tagged` are the versions in which the field may be null, or is sent in the tagged section
    under `tag`.
    """

    name: str
    kind: FieldType
    versions: str
    nullable: str = ""
    tagged: str = ""
    tag: int = -1

    def is_in(self, version: int) -> bool:
        return _covers(self.versions, version)

    def is_nullable_in(self, version: int) -> bool:
        return _covers(self.nullable, version)

    def is_tagged_in(self, version: int) -> bool:
        return _covers(self.tagged, version)


Fields: TypeAlias = tuple[F, ...]


class Struct(Protocol):
    """Any generated dataclass."""

    FIELDS: ClassVar[Fields]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...


class Message(Struct, Protocol):
    """A generated dataclass that is sent by itself. All versions in `VERSIONS` (first, last) can be coded."""

    VERSIONS: ClassVar[tuple[int, int]]
    FLEXIBLE_FROM: ClassVar[int]


def _covers(versions: str, version: int) -> bool:
    first, last = parse_versions(versions)
    return first <= version <= last


@lru_cache(maxsize=1024)
def parse_versions(versions: str) -> tuple[int, int]:
    """First and last version of a range as Kafka writes it; an empty string or "none" covers nothing."""
    if versions in ("", "none"):
        return 0, -1
    if versions.endswith("+"):
        return int(versions[:-1]), LAST_VERSION
    first, _, last = versions.partition("-")
    return int(first), int(last or first)
