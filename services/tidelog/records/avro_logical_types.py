"""Removes logical types of Avro schemas that the specification tells readers to ignore."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

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
