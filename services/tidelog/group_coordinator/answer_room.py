"""The bound of an answer that describes many groups or transactions.

A core builds an answer at once. The items for which there is no room get COORDINATOR_LOAD_IN_PROGRESS, and
clients ask for them again. The first item always has room, so each repetition makes progress.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any, Final, TypeVar

from tidelog.model.errors import ErrorCode
from tidelog.wire.schema import Struct

MAX_DESCRIBED_BYTES: Final = 16 * 1024 * 1024
"""About how many bytes of an answer are built before the remaining items are refused."""
_NO_ROOM: Final = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
_NUMBER_BYTES: Final = 4
_LENGTH_BYTES: Final = 2

ItemT = TypeVar("ItemT")
DescriptionT = TypeVar("DescriptionT")


def described_within_bound(
    items: Sequence[ItemT],
    describe: Callable[[ItemT], DescriptionT],
    refuse: Callable[[ItemT, ErrorCode], DescriptionT],
) -> list[DescriptionT]:
    """Describes the items until the descriptions take MAX_DESCRIBED_BYTES, and refuses the others."""
    if len(items) == 1:
        return [describe(items[0])]
    left_bytes = MAX_DESCRIBED_BYTES
    found = []
    for item in items:
        if left_bytes <= 0:
            found.append(refuse(item, _NO_ROOM))
            continue
        description = describe(item)
        left_bytes -= about_bytes(description)
        found.append(description)
    return found


def about_bytes(value: Any) -> int:  # Any: the fields of any message
    """Returns about how many bytes a message or one of its fields takes on the wire."""
    if isinstance(value, str | bytes | bytearray | memoryview):  # states are members of a StrEnum
        return _LENGTH_BYTES + len(value)
    if isinstance(value, Collection):
        if not value:
            return _LENGTH_BYTES
        if isinstance(next(iter(value)), int):
            return _LENGTH_BYTES + _NUMBER_BYTES * len(value)
        return _LENGTH_BYTES + sum(map(about_bytes, value))
    if value is None:
        return _LENGTH_BYTES
    kind: Any = type(value)
    fixed_bytes, names = _measured_fields(kind)
    for name in names:
        fixed_bytes += about_bytes(getattr(value, name))
    return fixed_bytes


@cache
def _measured_fields(kind: type[Struct]) -> tuple[int, tuple[str, ...]]:
    """Returns the bytes of the fields of fixed size, and the names of the others."""
    fixed_bytes, names = 0, []
    for field in kind.FIELDS:
        if field.kind == "uuid":
            fixed_bytes += 16
        elif isinstance(field.kind, str) and field.kind not in ("string", "bytes"):
            fixed_bytes += _NUMBER_BYTES
        else:
            names.append(field.name)
    return fixed_bytes, tuple(names)
