"""Derives malformed requests from the bytes of a valid one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

from tidelog.wire import codec

TRAILING = b"\x07\x07"
TRAILING_NAME = "trailing bytes"


class Malformed(NamedTuple):
    """A kind of malformed body."""

    name: str
    body: bytes


def malformed_bodies(request: Any, version: int) -> Iterator[Malformed]:
    """Yields bodies that end too early or have arrays of impossible lengths. `request` is valid."""
    body = encoded(request, version)
    if body:
        yield Malformed("truncated by one byte", body[:-1])
        yield Malformed("empty body", b"")
        half = body[: len(body) // 2]
        if half:
            yield Malformed("half a body", half)
    yield from _bad_arrays(request, version, body)


def encoded(request: Any, version: int) -> bytes:
    return b"".join(map(bytes, codec.request_encoder(request.API_KEY, version)(request)))


def _bad_arrays(request: Any, version: int, body: bytes) -> Iterator[Malformed]:
    """The place of an array's length is the first byte that changes when its last element is repeated."""
    for field in dataclasses.fields(request):
        value = getattr(request, field.name)
        if not isinstance(value, list) or not value:
            continue
        longer = encoded(dataclasses.replace(request, **{field.name: [*value, value[-1]]}), version)
        if longer == body:
            continue  # the version does not have the field
        at = next(index for index, (one, two) in enumerate(zip(body, longer, strict=False)) if one != two)
        if body[at] == len(value) + 1:
            lengths = {"null array": b"\x00", "huge array": b"\xff\xff\xff\xff\x07"}
            begin, end = at, at + 1
        else:
            lengths = {
                "null array": b"\xff\xff\xff\xff",
                "negative array length": b"\xff\xff\xff\xfe",
                "huge array": b"\x7f\xff\xff\xff",
            }
            begin, end = at - 3, at + 1
        for name, length in lengths.items():
            yield Malformed(f"{name} of {field.name}", body[:begin] + length + body[end:])
