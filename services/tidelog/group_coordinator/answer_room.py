"""The bound of an answer that describes many groups or transactions.

The answer is made in steps, so that a large one does not hold up other clients. The items for which there is
no room get COORDINATOR_LOAD_IN_PROGRESS, and clients ask for them again. The first item always has room, so
each repetition makes progress.

A large answer is also freed in steps: Python takes about 50 ms to free 300,000 objects at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any, Final, TypeVar

from tidelog.kernel.steps import Steps
from tidelog.model.errors import ErrorCode
from tidelog.wire.schema import Struct

MAX_DESCRIBED_BYTES: Final = 16 * 1024 * 1024
"""About how many bytes of an answer are built before the remaining items are refused."""
FREED_AT_ONCE: Final = 100
"""The number of elements without arrays of their own that are freed in one step."""
NO_ROOM: Final = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
_NUMBER_BYTES: Final = 4
_LENGTH_BYTES: Final = 2

ItemT = TypeVar("ItemT")
DescriptionT = TypeVar("DescriptionT")
ResponseT = TypeVar("ResponseT")


class AnswerRoom:
    """The room for the descriptions of one answer. A description that begins in it may exceed it."""

    def __init__(self) -> None:
        self._left_bytes = MAX_DESCRIBED_BYTES

    @property
    def is_full(self) -> bool:
        return self._left_bytes <= 0

    def take(self, size_bytes: int) -> None:
        self._left_bytes -= size_bytes


def described_within_bound(
    items: Sequence[ItemT],
    describe: Callable[[ItemT], Steps[DescriptionT]],
    refuse: Callable[[ItemT, ErrorCode], DescriptionT],
    response: Callable[[list[DescriptionT]], ResponseT],
) -> Steps[ResponseT]:
    """Describes the items until the descriptions take MAX_DESCRIBED_BYTES, and refuses the others. Returns
    the response that consists of the descriptions.
    """
    room = AnswerRoom()
    found = []
    for item in items:
        if room.is_full:
            found.append(refuse(item, NO_ROOM))
        else:
            description = yield from describe(item)
            if len(items) > 1:
                room.take((yield from about_bytes(description)))
            found.append(description)
        yield
    return response(found)


def about_bytes(value: Any) -> Steps[int]:  # Any: the fields of any message
    """Returns about how many bytes a message or one of its fields takes on the wire."""
    if isinstance(value, str | bytes | bytearray | memoryview):  # states are members of a StrEnum
        return _LENGTH_BYTES + len(value)
    if isinstance(value, Collection):
        if not value:
            return _LENGTH_BYTES
        if isinstance(next(iter(value)), int):
            return _LENGTH_BYTES + _NUMBER_BYTES * len(value)
        size_bytes = _LENGTH_BYTES
        for element in value:
            size_bytes += yield from about_bytes(element)
            yield
        return size_bytes
    if value is None:
        return _LENGTH_BYTES
    kind: Any = type(value)
    fixed_bytes, names = _measured_fields(kind)
    for name in names:
        fixed_bytes += yield from about_bytes(getattr(value, name))
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


def freed_in_steps(message: Any) -> Steps[None]:  # Any: a message or a struct of it
    """Empties the arrays of structs in a message that is not needed anymore."""
    kind: Any = type(message)
    for name in _nested_fields(kind):
        nested = getattr(message, name)
        if not isinstance(nested, list):
            if nested is not None:
                yield from freed_in_steps(nested)
            continue
        while nested:
            kind = type(nested[-1])
            if _nested_fields(kind):
                yield from freed_in_steps(nested[-1])
                nested.pop()
            else:
                del nested[-FREED_AT_ONCE:]
            yield


@cache
def _nested_fields(kind: type[Struct]) -> tuple[str, ...]:
    """Returns the names of the fields that are structs or arrays of structs."""
    return tuple(
        field.name
        for field in kind.FIELDS
        if not isinstance(field.kind[0] if isinstance(field.kind, tuple) else field.kind, str)
    )
