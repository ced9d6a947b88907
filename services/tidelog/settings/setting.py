"""The definition of a setting: name, type, default, accepted values, importance and update mode.

A settings class is a frozen, slotted dataclass whose fields are made by the functions below. The field
`log_retention_ms` *is* Kafka's `log.retention.ms`. Therefore the hot path reads plain attributes, and the
same line is the source for DescribeConfigs, validation and documentation.

Types, parsing and the text of errors follow Kafka's `ConfigDef` and `AbstractConfig`.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from enum import Enum, IntEnum
from functools import cache
from typing import Any, Final, TypeAlias, cast

from tidelog.model.errors import TidelogError

Value: TypeAlias = bool | int | float | str | tuple[str, ...] | None
Rule: TypeAlias = Callable[[Any], str | None]  # Any: each rule takes the type of its settings
"""A function that takes a parsed value and returns a sentence that states why it is invalid, or None."""

_METADATA_KEY = "setting"
MAX_INTEGER_CHARS: Final = 64
"""The most characters of an integer. Python refuses to convert thousands of digits."""
MAX_SHOWN_CHARS: Final = 200
"""The most characters of a value that an error repeats."""
# The syntax of Java's parsers: whole numbers of any Unicode decimal digits, an optional type letter after
# fractions, and ASCII white space.
_INTEGER = re.compile(r"[+-]?\d+")
_DOUBLE = re.compile(
    r"([+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|NaN|Infinity))[fFdD]?",
    re.ASCII,
)
_LIST_SEPARATOR = re.compile(r"\s*,\s*", re.ASCII)
_WHITE_SPACE = "".join(map(chr, range(33)))
_HIDDEN = "[hidden]"


_JAVA_NON_NUMBERS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class SettingType(IntEnum):
    """The types of settings, with their numbers in DescribeConfigs (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Importance(Enum):
    HIGH = "HIGH"
    MEDIUM = "MEDIUM"
    LOW = "LOW"


class UpdateMode(Enum):
    """The way in which a setting of a running broker may be changed (KIP-226)."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


HIGH, MEDIUM, LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW
READ_ONLY, PER_BROKER, CLUSTER_WIDE = UpdateMode.READ_ONLY, UpdateMode.PER_BROKER, UpdateMode.CLUSTER_WIDE

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
_INTEGER_BITS = {SettingType.INT: 32, SettingType.SHORT: 16, SettingType.LONG: 64}


class SettingError(TidelogError, ValueError):
    """The value of a setting is invalid. The message is one line that names the setting."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class Password(str):
    """A secret. Formatting or logging it does not show it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return _HIDDEN

    def __str__(self) -> str:
        return _HIDDEN

    def __format__(self, format_spec: str) -> str:
        return _HIDDEN

    def reveal(self) -> str:
        """Returns the secret itself."""
        return str.__getitem__(self, slice(None))


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """The definition of one setting."""

    type: SettingType
    default: Value
    importance: Importance
    doc: str
    rules: tuple[Rule, ...] = ()
    update_mode: UpdateMode = READ_ONLY
    is_internal: bool = False
    name: str = ""

    @property
    def attribute(self) -> str:
        return self.name.replace(".", "_")

    @property
    def is_sensitive(self) -> bool:
        return self.type is SettingType.PASSWORD

    def parse(self, text: str) -> Value:
        """Returns the value that `text` represents. Raises SettingError if it is invalid."""
        text = text.strip(_WHITE_SPACE)
        value = self._parse_type(text)
        for rule in self.rules:
            problem = rule(value)
            if problem is not None:
                shown = text if isinstance(value, tuple) else value
                raise self._refusal(shown, problem)
        return value

    def format(self, value: Value) -> str | None:
        """Returns `value` as Kafka's tools show it, or None for an unset value."""
        if value is None:
            return None
        if isinstance(value, Password):
            return value.reveal()
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        if isinstance(value, float):
            return _java_double(value)
        return str(value)

    def _parse_type(self, text: str) -> Value:
        match self.type:
            case SettingType.BOOLEAN:
                lowered = text.lower()
                if lowered not in ("true", "false"):
                    raise self._refusal(text, "Expected value to be either true or false")
                return lowered == "true"
            case SettingType.INT | SettingType.SHORT | SettingType.LONG:
                if len(text) <= MAX_INTEGER_CHARS and _INTEGER.fullmatch(text):
                    number = int(text)
                    if -(1 << _INTEGER_BITS[self.type] - 1) <= number < 1 << _INTEGER_BITS[self.type] - 1:
                        return number
                raise self._refusal(text, f"Not a number of type {self.type.name}")
            case SettingType.DOUBLE:
                match = _DOUBLE.fullmatch(text)
                if match is None:
                    raise self._refusal(text, "Not a number of type DOUBLE")
                return float(match[1])
            case SettingType.LIST:
                return tuple(dict.fromkeys(_LIST_SEPARATOR.split(text))) if text else ()
            case SettingType.PASSWORD:
                return Password(text)
            case _:
                return text

    def _refusal(self, value: object, problem: str) -> SettingError:
        shown = _HIDDEN if self.is_sensitive else str(value)
        if len(shown) > MAX_SHOWN_CHARS:
            shown = f"{shown[:MAX_SHOWN_CHARS]}..."
        return SettingError(self.name, f"Invalid value {shown} for configuration {self.name}: {problem}")


@cache
def settings_of(settings_class: type) -> Mapping[str, Setting]:
    """Returns the definitions of a settings class by Kafka's names, in the order of its fields."""
    definitions = {}
    for field in dataclasses.fields(settings_class):
        definition = field.metadata.get(_METADATA_KEY)
        if definition is not None:
            name = field.name.replace("_", ".")
            definitions[name] = dataclasses.replace(definition, name=name)
    return definitions


def _java_double(value: float) -> str:
    """Formats a number like Java's Double.toString, which uses an exponent below 0.001 and from ten million
    on.
    """
    if not math.isfinite(value):
        return _JAVA_NON_NUMBERS[repr(value)]
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    digits, _, exponent = f"{Decimal(repr(value)).normalize():E}".partition("E")
    return f"{digits if '.' in digits else digits + '.0'}E{int(exponent)}"


# --- rules ---


def at_least(least: float) -> Rule:
    def rule(value: float | None) -> str | None:
        return f"Value must be at least {least}" if value is not None and value < least else None

    return rule


def between(least: float, most: float) -> Rule:
    def rule(value: float | None) -> str | None:
        if value is not None and value < least:
            return f"Value must be at least {least}"
        return f"Value must be no more than {most}" if value is not None and value > most else None

    return rule


def between_or(least: int, most: int, other: int) -> Rule:
    def rule(value: int) -> str | None:
        accepted = value == other or least <= value <= most
        return None if accepted else f"Value must be between {least} and {most} or equal to {other}"

    return rule


def one_of(*accepted: str) -> Rule:
    """Returns the rule that a string, or each entry of a list, is one of `accepted`."""

    def rule(value: str | tuple[str, ...] | None) -> str | None:
        given = (value,) if isinstance(value, str) else value or ()
        unknown = [entry for entry in given if entry not in accepted]
        return f"String must be one of: {', '.join(accepted)}" if unknown else None

    return rule


def one_of_ignoring_case(*accepted: str) -> Rule:
    def rule(value: str) -> str | None:
        known = value.upper() in {entry.upper() for entry in accepted}
        return None if known else f"String must be one of (case insensitive): {', '.join(accepted)}"

    return rule


def not_empty(value: str | tuple[str, ...] | None) -> str | None:
    return "Value must not be empty" if value is not None and not value else None


def no_empty_entries(value: tuple[str, ...] | None) -> str | None:
    return "Values must not be empty" if value and not all(value) else None


# --- fields ---


def _field(
    type_: SettingType,
    default: Value,
    importance: Importance,
    doc: str,
    rules: tuple[Rule, ...],
    mode: UpdateMode,
    internal: bool = False,
) -> Any:  # as dataclasses.field does
    definition = Setting(type_, default, importance, doc, rules, mode, internal)
    return dataclasses.field(default=default, metadata={_METADATA_KEY: definition})


def boolean(
    default: bool,
    importance: Importance,
    doc: str,
    *,
    mode: UpdateMode = READ_ONLY,
    internal: bool = False,
) -> bool:
    return cast(bool, _field(SettingType.BOOLEAN, default, importance, doc, (), mode, internal))


def integer(
    default: int,
    importance: Importance,
    doc: str,
    *rules: Rule,
    mode: UpdateMode = READ_ONLY,
    internal: bool = False,
) -> int:
    return cast(int, _field(SettingType.INT, default, importance, doc, rules, mode, internal))


def optional_integer(
    importance: Importance, doc: str, *rules: Rule, mode: UpdateMode = READ_ONLY, internal: bool = False
) -> int | None:
    return cast("int | None", _field(SettingType.INT, None, importance, doc, rules, mode, internal))


def short(default: int, importance: Importance, doc: str, *rules: Rule, mode: UpdateMode = READ_ONLY) -> int:
    return cast(int, _field(SettingType.SHORT, default, importance, doc, rules, mode))


def long(
    default: int,
    importance: Importance,
    doc: str,
    *rules: Rule,
    mode: UpdateMode = READ_ONLY,
    internal: bool = False,
) -> int:
    return cast(int, _field(SettingType.LONG, default, importance, doc, rules, mode, internal))


def optional_long(importance: Importance, doc: str, *rules: Rule, mode: UpdateMode = READ_ONLY) -> int | None:
    return cast("int | None", _field(SettingType.LONG, None, importance, doc, rules, mode))


def double(
    default: float, importance: Importance, doc: str, *rules: Rule, mode: UpdateMode = READ_ONLY
) -> float:
    return cast(float, _field(SettingType.DOUBLE, default, importance, doc, rules, mode))


def string(default: str, importance: Importance, doc: str, *rules: Rule, mode: UpdateMode = READ_ONLY) -> str:
    return cast(str, _field(SettingType.STRING, default, importance, doc, rules, mode))


def optional_string(
    importance: Importance, doc: str, *rules: Rule, mode: UpdateMode = READ_ONLY
) -> str | None:
    return cast("str | None", _field(SettingType.STRING, None, importance, doc, rules, mode))


def optional_password(
    importance: Importance, doc: str, *rules: Rule, mode: UpdateMode = READ_ONLY
) -> str | None:
    """Defines a PASSWORD that may be unset. Its value is a `Password`, whose text `reveal` returns."""
    return cast("str | None", _field(SettingType.PASSWORD, None, importance, doc, rules, mode))


def strings(
    default: tuple[str, ...], importance: Importance, doc: str, *rules: Rule, mode: UpdateMode = READ_ONLY
) -> tuple[str, ...]:
    """Defines a LIST, whose entries are separated by commas."""
    rules = (no_empty_entries, *rules)
    return cast("tuple[str, ...]", _field(SettingType.LIST, default, importance, doc, rules, mode))


def optional_strings(
    importance: Importance, doc: str, *rules: Rule, mode: UpdateMode = READ_ONLY
) -> tuple[str, ...] | None:
    """Defines a LIST that may be unset."""
    rules = (no_empty_entries, *rules)
    return cast("tuple[str, ...] | None", _field(SettingType.LIST, None, importance, doc, rules, mode))
