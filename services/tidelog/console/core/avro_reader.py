"""Reads Avro values as values that JSON can represent.

fastavro checks the schemas and resolves their names. It does not read the values: its reader has no limit of
depth, so that a few thousand bytes of a nested record overflow the C stack and end the process. An array of
nulls can claim any number of items in a few bytes, too (ADR 0064).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias
from uuid import UUID

import fastavro

from tidelog.console.core.decoded import MAX_DEPTH, Allowance, MisfitError, SchemaError
from tidelog.records.schemas import SINGLE_OBJECT_MARK, without_invalid_logical_types
from tidelog.records.varint import CorruptVarintError, read_varint

AvroSchema: TypeAlias = Any
"""A parsed schema, as fastavro returns it: a name, a union's list, or a mapping. fastavro has no types."""
_MAX_DECIMAL_BYTES: Final = 1_024
_MAX_SCALE: Final = 1_000
_MAX_PROBLEM_CHARS: Final = 200
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_US: Final = 86_400_000_000
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")


class _Source(Allowance):
    """The bytes of one value, and the position in them."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes, at: int) -> None:
        super().__init__()
        self.data = data
        self.at = at


_Read: TypeAlias = Callable[[_Source], Any]


def _parsed(text: str) -> AvroSchema:
    return without_invalid_logical_types(json.loads(text))


class AvroReader:
    """The reader of one writer schema."""

    def __init__(self, text: str, references: Sequence[str] = ()) -> None:
        """`references` are the texts of schemas whose names this one uses; each may use those before it.
        Raises SchemaError.
        """
        named: dict[str, AvroSchema] = {}
        try:
            for reference in references:
                fastavro.parse_schema(_parsed(reference), named_schemas=named)
            schema = fastavro.parse_schema(_parsed(text), named_schemas=named)
            canonical = fastavro.schema.to_parsing_canonical_form(schema)
            fingerprint = fastavro.schema.fingerprint(canonical, "CRC-64-AVRO")
            self._read = _Compiler(named).reader(schema, 0)
        except SchemaError:
            raise
        except fastavro.schema.UnknownType as error:
            raise SchemaError(f"it has no type {str(error.name)[:_MAX_PROBLEM_CHARS]}") from None
        except RecursionError:
            raise SchemaError("it is nested too deep") from None
        except (
            fastavro.schema.SchemaParseException,
            ArithmeticError,
            LookupError,
            TypeError,
            ValueError,
        ) as error:
            problem = " ".join(str(error).split()) or type(error).__name__
            raise SchemaError(f"it is not an Avro schema: {problem[:_MAX_PROBLEM_CHARS]}") from None
        self._single_object = SINGLE_OBJECT_MARK + bytes.fromhex(fingerprint)

    def begins_single_object(self, data: bytes) -> bool:
        """Returns whether the data begins with the mark and with the fingerprint of this schema."""
        return data.startswith(self._single_object)

    def read(self, data: bytes, at: int = 0) -> object:
        """Returns the value that begins at a position and ends with the data. Raises MisfitError."""
        source = _Source(data, at)
        try:
            found: object = self._read(source)
        except (IndexError, struct.error, CorruptVarintError):
            raise MisfitError("it ends too early, or has a number longer than 64 bits") from None
        except UnicodeDecodeError:
            raise MisfitError("a string is not UTF-8") from None
        if source.at != len(data):
            raise MisfitError(f"{len(data) - source.at} bytes are left over")
        return found


class _Compiler:
    """Makes functions of schemas. Named types are compiled once, so that they may contain themselves."""

    def __init__(self, named: Mapping[str, AvroSchema]) -> None:
        self._named = named
        self._readers: dict[str, _Read] = {}
        self._begun: set[str] = set()
        """The names whose readers are made, or are complete."""

    def reader(self, schema: AvroSchema, depth: int) -> _Read:
        """Raises SchemaError, and LookupError and TypeError for what fastavro let pass."""
        if depth > MAX_DEPTH:
            raise SchemaError(f"it is nested more than {MAX_DEPTH} deep")
        if isinstance(schema, list):
            if any(isinstance(branch, list) for branch in schema):
                raise SchemaError("a union contains a union")
            return _union([self.reader(branch, depth) for branch in schema])
        if isinstance(schema, str):
            return _PRIMITIVES[schema] if schema in _PRIMITIVES else self._of_name(schema, depth)
        kind = schema["type"]
        if kind in ("record", "error", "enum", "fixed"):
            return self._of_name(schema["name"], depth)
        if kind == "array":
            return _array(self.reader(schema["items"], depth + 1))
        if kind == "map":
            return _map(self.reader(schema["values"], depth + 1))
        return _logical(schema, self.reader(kind, depth))

    def _of_name(self, name: str, depth: int) -> _Read:
        if name in self._readers:
            return self._readers[name]
        if name in self._begun:  # the schema contains itself, so its reader is complete only later

            def read_later(source: _Source) -> object:
                return self._readers[name](source)

            return read_later
        self._begun.add(name)
        schema = self._named[name]
        made: _Read
        if schema["type"] == "enum":
            made = _enum(schema["symbols"])
        elif schema["type"] == "fixed":
            made = _logical(schema, _fixed(schema["size"]))
        else:
            fields = [(field["name"], self.reader(field["type"], depth + 1)) for field in schema["fields"]]
            made = _record(fields)
        self._readers[name] = made
        return made


def _null(source: _Source) -> None:
    return None


def _long(source: _Source) -> int:
    value, source.at = read_varint(source.data, source.at)
    return value


def _boolean(source: _Source) -> bool:
    byte = source.data[source.at]
    source.at += 1
    if byte > 1:
        raise MisfitError(f"a boolean is {byte}")
    return byte == 1


def _float(source: _Source) -> float:
    (value,) = _FLOAT.unpack_from(source.data, source.at)
    source.at += _FLOAT.size
    return float(value)


def _double(source: _Source) -> float:
    (value,) = _DOUBLE.unpack_from(source.data, source.at)
    source.at += _DOUBLE.size
    return float(value)


def _take(source: _Source, size: int) -> bytes:
    start = source.at
    if not 0 <= size <= len(source.data) - start:
        raise MisfitError(f"a length of {size} exceeds the bytes that are left")
    source.at = start + size
    return source.data[start : source.at]


def _bytes(source: _Source) -> str:
    """Returns bytes as Avro's JSON encoding does: each byte is the character with its number."""
    return _take(source, _long(source)).decode("iso-8859-1")


def _string(source: _Source) -> str:
    return _take(source, _long(source)).decode()


_PRIMITIVES: Final[Mapping[str, _Read]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _long,
    "long": _long,
    "float": _float,
    "double": _double,
    "bytes": _bytes,
    "string": _string,
}


def _fixed(size: object) -> _Read:
    if not isinstance(size, int) or size < 0:
        raise SchemaError(f"a fixed type has no size {str(size)[:_MAX_PROBLEM_CHARS]}")
    return lambda source: _take(source, size).decode("iso-8859-1")


def _enum(symbols: object) -> _Read:
    if not isinstance(symbols, list):
        raise SchemaError("the symbols of an enum are no list")

    def read(source: _Source) -> str:
        index = _long(source)
        if not 0 <= index < len(symbols):
            raise MisfitError(f"an enum of {len(symbols)} symbols has no symbol {index}")
        return str(symbols[index])

    return read


def _union(branches: Sequence[_Read]) -> _Read:
    def read(source: _Source) -> object:
        index = _long(source)
        if not 0 <= index < len(branches):
            raise MisfitError(f"a union of {len(branches)} types has no type {index}")
        return branches[index](source)

    return read


def _record(fields: Sequence[tuple[str, _Read]]) -> _Read:
    def read(source: _Source) -> dict[str, object]:
        source.enter()
        source.spend(len(fields))
        found = {name: read_field(source) for name, read_field in fields}
        source.depth -= 1
        return found

    return read


def _array(read_item: _Read) -> _Read:
    def read(source: _Source) -> list[object]:
        source.enter()
        found: list[object] = []
        while count := _block(source):
            found += [read_item(source) for _ in range(count)]
        source.depth -= 1
        return found

    return read


def _map(read_value: _Read) -> _Read:
    def read(source: _Source) -> dict[str, object]:
        source.enter()
        found: dict[str, object] = {}
        while count := _block(source):
            for _ in range(count):
                name = _string(source)
                found[name] = read_value(source)
        source.depth -= 1
        return found

    return read


def _block(source: _Source) -> int:
    """Returns the number of items of the next block of an array or map, 0 at its end. A negative number is
    followed by the size of the block in bytes.
    """
    count = _long(source)
    if count < 0:
        count = -count
        _long(source)
    source.spend(count)
    return count


def _logical(schema: Mapping[str, Any], read: _Read) -> _Read:
    """Returns a reader that represents a logical type. Types that are not known are those without."""
    kind, plain = schema.get("logicalType"), schema["type"]
    if not isinstance(kind, str):
        return read
    if kind == "decimal" and plain in ("bytes", "fixed"):
        scale = schema.get("scale", 0)
        if isinstance(scale, int) and 0 <= scale <= _MAX_SCALE:
            return lambda source: _decimal(read(source), scale)
    if kind == "uuid" and plain == "fixed" and schema["size"] == 16:
        return lambda source: str(UUID(bytes=read(source).encode("iso-8859-1")))
    if kind == "date" and plain == "int":
        return lambda source: _time_text(read(source), _DAY_US, "", length=len("1970-01-01"))
    if kind in _TIMES and plain == _TIMES[kind][0]:
        _, unit_us, suffix, start = _TIMES[kind]
        return lambda source: _time_text(read(source), unit_us, suffix, start)
    return read


_TIMES: Final[Mapping[str, tuple[str, int, str, int]]] = {
    # the type, microseconds in one unit, what follows the text, and where the text of the time begins
    "time-millis": ("int", 1_000, "", 11),
    "time-micros": ("long", 1, "", 11),
    "timestamp-millis": ("long", 1_000, "Z", 0),
    "timestamp-micros": ("long", 1, "Z", 0),
    "local-timestamp-millis": ("long", 1_000, "", 0),
    "local-timestamp-micros": ("long", 1, "", 0),
}


def _time_text(number: int, unit_us: int, suffix: str, start: int = 0, length: int | None = None) -> object:
    """Returns a date or time as in ISO 8601, or the number if the calendar does not reach it."""
    if start and not 0 <= number * unit_us < _DAY_US:
        return number
    try:
        at = _EPOCH + timedelta(microseconds=number * unit_us)
    except OverflowError:
        return number
    precision = "milliseconds" if unit_us >= 1_000 else "microseconds"
    text = at.replace(tzinfo=None).isoformat(timespec=precision)
    return text[start:length] + suffix


def _decimal(text: str, scale: int) -> str:
    data = text.encode("iso-8859-1")
    if len(data) > _MAX_DECIMAL_BYTES:
        raise MisfitError(f"a decimal has more than {_MAX_DECIMAL_BYTES} bytes")
    unscaled = int.from_bytes(data, signed=True)
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    whole = f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits
    return f"-{whole}" if unscaled < 0 else whole
