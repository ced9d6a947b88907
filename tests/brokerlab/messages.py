"""All generated messages with their versions, and strategies that generate any of them from its table of
fields.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from types import ModuleType
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from tidelog.wire import codec
from tidelog.wire.api_keys import API_SPECS
from tidelog.wire.messages import records
from tidelog.wire.schema import F, FieldType, Message, Struct

LONG = 150
"""A length from which on a varint takes a second byte."""
_WIDTHS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_texts = st.text(st.characters(codec="utf-8"), max_size=5) | st.sampled_from(
    ["x" * 126, "x" * 127, "é" * LONG]
)
_blobs = st.binary(max_size=5) | st.sampled_from([bytes(127), bytes(LONG)])
WHOLE_RANGE: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "float64": st.floats(allow_nan=False),
    "uint16": st.integers(0, 0xFFFF),
    "uint32": st.integers(0, 0xFFFFFFFF),
    "uuid": st.sampled_from([UUID(int=0), UUID(int=1)]) | st.uuids(),
    "string": _texts,
    "bytes": _blobs,
    "records": _blobs,
    **{kind: st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for kind, bits in _WIDTHS.items()},
}
TAME = WHOLE_RANGE | {"int16": st.integers(-1, 100), "int64": st.integers(0, 1 << 40)}
"""Generates values that kio accepts, too, where it converts them to error codes, timestamps and durations."""


def payload_classes() -> list[type[Message]]:
    """Returns the requests and responses of all APIs."""
    return [of(key) for key in API_SPECS for of in (codec.request_class, codec.response_class)]


def record_classes() -> list[type[Message]]:
    """Returns the keys and values of internal topics and the data of the consumer protocol."""
    modules = [
        importlib.import_module(f"{records.__name__}.{m.name}")
        for m in pkgutil.iter_modules(records.__path__)
    ]
    return [found for module in modules for found in messages_in(module)]


def messages_in(module: ModuleType) -> list[type[Message]]:
    return [found for found in vars(module).values() if hasattr(found, "VERSIONS")]


def versions_of(message: type[Message]) -> range:
    first, last = message.VERSIONS
    return range(first, last + 1)


@cache
def messages_of(message: type[Message], version: int, tame: bool = False) -> st.SearchStrategy[Any]:
    """Generates messages with any value in the fields that `version` has, and with defaults in the others.
    Tame messages have only fields that Kafka knows.
    """
    return _struct(message, version, tame)


def _struct(kind: type[Struct], version: int, tame: bool) -> st.SearchStrategy[Any]:
    values = {}
    for field in kind.FIELDS:
        if field.is_in(version) and not (tame and field.is_own):
            values[field.name] = _field(field, version, tame)
    return st.builds(kind, **values)


def _field(field: F, version: int, tame: bool) -> st.SearchStrategy[Any]:
    strategy = _value(field.kind, version, tame)
    is_nullable = field.is_nullable_in(version)
    if not is_nullable and field.is_tagged_in(version) and not isinstance(field.kind, (str, tuple)):
        # None represents a struct that is not sent because all its fields have their defaults
        strategy = strategy.filter(lambda value: value != type(value)())
        is_nullable = True
    if is_nullable:
        return st.none() | strategy
    return strategy


def _value(kind: FieldType, version: int, tame: bool) -> st.SearchStrategy[Any]:
    if isinstance(kind, tuple):
        element = _value(kind[0], version, tame)
        few = st.lists(element, max_size=2)
        return few | st.integers(0, 40).flatmap(lambda n: st.just([0] * n)) if kind[0] in _WIDTHS else few
    if isinstance(kind, str):
        return (TAME if tame else WHOLE_RANGE)[kind]
    return _struct(kind, version, tame)
