"""Fits values into column types without loss, and parses JSON text. A misfit names the field. The module does
no I/O.

One closure for each type is made once, because there are many records.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Context, Decimal, InvalidOperation
from functools import partial
from typing import Final, NamedTuple, NoReturn
from uuid import UUID

import pyarrow as pa

from tidelog.pipeline.formats.columns import DecodedValue, Fields, column_name, folded, name_problem, sql_name

Fit = Callable[[DecodedValue], DecodedValue]
_LAST_EXACT_INTEGER_OF_DOUBLE: Final = 1 << 53
_WIDE: Final = Context(prec=500)
"""The decimal precision: more digits than any column, so that nothing is rounded silently."""


class Misfit(ValueError):  # noqa: N818 - no error of the program's
    """A value does not fit its column. `path` grows outwards while the error passes through the
    containers.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path: list[str] = []

    def inside(self, name: str) -> Misfit:
        self.path.append(name or '""')
        return self

    def __str__(self) -> str:
        field = ".".join(reversed(self.path))
        return f"field {field} {self.problem}" if field else f"the value {self.problem}"


class NewFieldSighting:
    """The treatment of fields that have no column. Fields that could become a column set `seen`.

    `refusal` is the reason why such fields make a record unfit, or None. Names that no column can have make
    it unfit, too, unless `ignores`. An empty object or array is not a new field.
    """

    __slots__ = ("ignores", "refusal", "seen")

    def __init__(self, refusal: str | None = None, *, ignores: bool = False) -> None:
        self.refusal = refusal
        self.ignores = ignores
        self.seen = False


def fit_of(kind: pa.DataType, sighting: NewFieldSighting) -> Fit:
    """Returns the function that fits a record (a struct). The function raises Misfit."""
    return _struct(kind, sighting, top_level=True)


def kind_of(value: object) -> str:
    """Returns a word for the type of a decoded value, for users."""
    if value is None:
        return "null"
    return _KINDS.get(type(value), type(value).__name__)


_KINDS: Final[Mapping[type, str]] = {
    bool: "a boolean",
    int: "an integer",
    float: "a fraction",
    str: "text",
    bytes: "bytes",
    dict: "an object",
    list: "an array",
    Decimal: "a decimal",
    datetime: "a timestamp",
    date: "a date",
}


def _misfit(value: object, kind: pa.DataType) -> Misfit:
    return Misfit(f"is {kind_of(value)}, but the table has {sql_name(kind)}")


def _fit(kind: pa.DataType, sighting: NewFieldSighting) -> Fit:
    if pa.types.is_struct(kind):
        return _struct(kind, sighting, top_level=False)
    if pa.types.is_list(kind):
        return _list(kind, _fit(kind.value_type, sighting))
    if pa.types.is_map(kind):
        keys, items = (_fit(part, sighting) for part in (kind.key_type, kind.item_type))
        return _map(kind, keys, items)
    if pa.types.is_integer(kind):
        return _integer(kind)
    if pa.types.is_floating(kind):
        return _fraction(kind)
    if pa.types.is_decimal(kind):
        return _decimal(kind)
    if pa.types.is_timestamp(kind):
        return _timestamp(kind)
    for sort in _SIMPLE:
        if any(matches(kind) for matches in sort.matches):
            return _simple(kind, sort)
    raise Misfit(f"cannot fill a column of type {sql_name(kind)}")


def _struct(kind: pa.DataType, sighting: NewFieldSighting, *, top_level: bool) -> Fit:
    fits: dict[str, tuple[str, Fit]] = {}
    for field in kind:
        fits[field.name] = (field.name, _fit(field.type, sighting))
    twins = {folded(name): name for name in fits}

    def unknown(name: str) -> None:
        if sighting.ignores:
            return
        problem = name_problem(name, top_level=top_level)
        twin = twins.get(folded(column_name(name)))
        if problem is None and twin is not None:
            problem = f"differs from column {twin} only in upper and lower case"
        sighting.seen = sighting.seen or problem is None
        problem = problem or sighting.refusal
        if problem is not None:
            raise Misfit(problem).inside(name)

    def fit(value: DecodedValue) -> Fields | None:
        if value is None:
            return None
        if type(value) is not dict:
            raise Misfit(f"is {kind_of(value)} instead of an object") if top_level else _misfit(value, kind)
        row: Fields = {}
        for name, item in value.items():
            known = fits.get(name) or fits.get(column_name(name))
            if known is None:
                if not _is_empty(item):
                    unknown(name)
                continue
            if known[0] in row:
                raise Misfit(f"and another field are both the column {known[0]}").inside(name)
            try:
                row[known[0]] = known[1](item)
            except Misfit as misfit:
                raise misfit.inside(name) from None
        return row

    return fit


def _is_empty(value: DecodedValue) -> bool:
    """Returns True for values that say nothing about a type."""
    if type(value) is dict:
        return all(map(_is_empty, value.values()))
    return value is None or (type(value) is list and all(map(_is_empty, value)))


def _list(kind: pa.DataType, item_fit: Fit) -> Fit:
    def fit(value: DecodedValue) -> list[DecodedValue] | None:
        if value is None:
            return None
        if type(value) is not list:
            raise _misfit(value, kind)
        row = []
        for index, item in enumerate(value):
            try:
                row.append(item_fit(item))
            except Misfit as misfit:
                raise misfit.inside(f"[{index}]") from None
        return row

    return fit


def _map(kind: pa.DataType, key_fit: Fit, item_fit: Fit) -> Fit:
    def fit(value: DecodedValue) -> list[tuple[DecodedValue, DecodedValue]] | None:
        if value is None:
            return None
        if type(value) is not dict:
            raise _misfit(value, kind)
        pairs = []
        for key, item in value.items():
            try:
                pairs.append((key_fit(key), item_fit(item)))
            except Misfit as misfit:
                raise misfit.inside(f"[{key}]") from None
        return pairs

    return fit


def _integer(kind: pa.DataType) -> Fit:
    bits = kind.bit_width
    first, last = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def fit(value: DecodedValue) -> int | None:
        if type(value) is not int:
            if value is None:
                return None
            if (
                type(value) is not float
                or not value.is_integer()
                or abs(value) > _LAST_EXACT_INTEGER_OF_DOUBLE
            ):
                raise _misfit(value, kind)
            value = int(value)
        if first <= value <= last:
            return value  # type: ignore[no-any-return]
        raise Misfit(f"is an integer outside the range of {sql_name(kind)}")

    return fit


def _fraction(kind: pa.DataType) -> Fit:
    # Avro and Protobuf have infinities. JSON infinities are rejected when they are read.
    def fit(value: DecodedValue) -> float | None:
        if type(value) is float or value is None:
            return value
        if type(value) is int:
            if abs(value) <= _LAST_EXACT_INTEGER_OF_DOUBLE:
                return float(value)
            raise Misfit(f"is an integer that {sql_name(kind)} cannot hold exactly")
        raise _misfit(value, kind)

    return fit


def _decimal(kind: pa.DataType) -> Fit:
    smallest = Decimal(1).scaleb(-kind.scale)
    bound = Decimal(10) ** (kind.precision - kind.scale)

    def fit(value: DecodedValue) -> Decimal | None:
        if value is None:
            return None
        if type(value) not in (int, float, str, Decimal):
            raise _misfit(value, kind)
        try:
            number = value if type(value) is Decimal else Decimal(str(value))
            exponent = number.as_tuple().exponent
            if not isinstance(exponent, int) or abs(number) >= bound or exponent < -kind.scale - 400:
                raise Misfit(f"is a number that {sql_name(kind)} cannot hold")
            rounded = number.quantize(smallest, context=_WIDE)
        except InvalidOperation:
            raise _misfit(value, kind) from None
        if rounded != number:
            raise Misfit(f"is a number that {sql_name(kind)} cannot hold exactly")
        return rounded

    return fit


def _timestamp(kind: pa.DataType) -> Fit:
    def fit(value: DecodedValue) -> datetime | None:
        if value is None:
            return None
        if type(value) is str:
            try:
                value = datetime.fromisoformat(value)
            except ValueError:
                raise Misfit(
                    f"is text that is not a {sql_name(kind)} (such as 2026-11-22T15:04:05Z)"
                ) from None
        if type(value) is not datetime:
            raise _misfit(value, kind)
        if kind.tz is None:
            return value.replace(tzinfo=None)
        try:
            return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        except (OverflowError, ValueError):
            raise Misfit(f"is a time that {sql_name(kind)} cannot hold") from None

    return fit


def _simple(kind: pa.DataType, sort: _Simple) -> Fit:
    wanted, source, parse = sort.wanted, sort.source, sort.parse

    def fit(value: DecodedValue) -> DecodedValue:
        if type(value) is wanted or value is None:
            return value
        if type(value) is not source:
            raise _misfit(value, kind)
        try:
            return parse(value)
        except ValueError:
            raise Misfit(sort.problem) from None

    return fit


def finite(text: str) -> float:
    """Parses a JSON number. A number that is too large for a double would silently become infinite."""
    number = float(text)
    if math.isinf(number):
        raise ValueError("a number is too large for double")
    return number


class _Simple(NamedTuple):
    """A sort of columns whose values have the class `wanted`. `parse` makes one of a value of the class
    `source`, and a ValueError of it is the `problem`.
    """

    matches: Sequence[Callable[[pa.DataType], bool]]
    wanted: type
    source: type | None = None
    parse: Callable[[DecodedValue], DecodedValue] = str
    problem: str = ""


_SIMPLE: Final = (
    _Simple((pa.types.is_boolean,), bool),
    _Simple((pa.types.is_string, pa.types.is_large_string), str, UUID),
    _Simple(
        (pa.types.is_binary, pa.types.is_large_binary),
        bytes,
        str,
        partial(base64.b64decode, validate=True),
        "is text that is not Base64, but the table has binary",
    ),
    _Simple(
        (pa.types.is_date,),
        date,
        str,
        date.fromisoformat,
        "is text that is not a date (such as 2026-11-22)",
    ),
)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=finite)


def read_json(value: bytes) -> Fields:
    """Parses one object. Raises Misfit."""
    try:
        found = _DECODER.decode(value.decode())
    except UnicodeDecodeError as error:
        raise Misfit(f"is not JSON: invalid UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise Misfit(f"is not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise Misfit("is JSON that is too deeply nested") from None
    except ValueError as error:
        raise Misfit(f"is not JSON: {error}") from None
    if type(found) is not dict:
        raise Misfit(f"is {kind_of(found)} instead of an object")
    return found
