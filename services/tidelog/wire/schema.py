"""The description of a message's layout, which is part of its dataclass: one `F` for each field, with Kafka's
version ranges.

A generated dataclass has `FIELDS`, in the order on the wire, which is also the order of its attributes. A
top-level message also has `VERSIONS` and `FLEXIBLE_FROM`. Version ranges are written as in Kafka's
definitions: "3+", "0-2", "4".
"""

from __future__ import annotations

from collections.abc import Sized
from functools import lru_cache
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeAlias
from uuid import UUID

Buffer: TypeAlias = bytes | bytearray | memoryview
"""The type of the input of decoders and of the values of `bytes` fields, which are views into the frame after
decoding.
"""
Records: TypeAlias = Sized
"""The type of `records` in responses: bytes, or another object with a length that the sender can send, such
as a range of a file.
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
"""The `struct` format letters of the types of a fixed size."""
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


FIRST_OWN_TAG: Final = 1000
"""The tags from here on are those of fields that tidelog adds (tools/codec/own_fields.py)."""


class F(NamedTuple):
    """A field of a message. `kind` is the name of a primitive type, the class of a struct, or a tuple with
    one of these for an array.

    `nullable` contains the versions in which the field may be null, and `tagged` the versions in which it is
    in the tagged section under `tag`.
    """

    name: str
    kind: FieldType
    versions: str
    nullable: str = ""
    tagged: str = ""
    tag: int = -1

    @property
    def is_own(self) -> bool:
        """Whether Kafka does not know the field. Such a field is always tagged."""
        return self.tag >= FIRST_OWN_TAG

    def is_in(self, version: int) -> bool:
        return _covers(self.versions, version)

    def is_nullable_in(self, version: int) -> bool:
        return _covers(self.nullable, version)

    def is_tagged_in(self, version: int) -> bool:
        return _covers(self.tagged, version)


Fields: TypeAlias = tuple[F, ...]


class Struct(Protocol):
    """A generated dataclass."""

    FIELDS: ClassVar[Fields]
    __dataclass_fields__: ClassVar[dict[str, Any]]  # the type in typeshed

    def __init__(self, *args: object, **kwargs: object) -> None: ...


class Message(Struct, Protocol):
    """A generated dataclass that is sent by itself. `VERSIONS` contains the first and last version that can
    be encoded and decoded.
    """

    VERSIONS: ClassVar[tuple[int, int]]
    FLEXIBLE_FROM: ClassVar[int]


def _covers(versions: str, version: int) -> bool:
    first, last = parse_versions(versions)
    return first <= version <= last


@lru_cache(maxsize=1024)
def parse_versions(versions: str) -> tuple[int, int]:
    """Returns the first and last version of a range in Kafka's notation. An empty string or "none" contains
    no version.
    """
    if versions in ("", "none"):
        return 0, -1
    if versions.endswith("+"):
        return int(versions[:-1]), LAST_VERSION
    first, _, last = versions.partition("-")
    return int(first), int(last or first)
