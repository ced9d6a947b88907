"""The definition of a setting: name, type, default, accepted values, importance and update mode.

A settings class is a frozen, slotted dataclass whose fields `SettingFields`, `OptionalFields` and `like`
make. The field `log_retention_ms` *is* Kafka's `log.retention.ms`. Therefore the hot path reads plain
attributes, and the same line is the source for DescribeConfigs, validation and documentation.

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
from types import SimpleNamespace
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

from tidelog.model.errors import TidelogError

Value: TypeAlias = bool | int | float | str | tuple[str, ...] | None
T = TypeVar("T", bound=Value)
S = TypeVar("S")
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
    synonyms: tuple[str, ...] = ()
    """The broker settings that provide the default. The first one that is set takes effect."""

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


def _field(definition: Setting) -> Any:  # as dataclasses.field does
    return dataclasses.field(default=definition.default, metadata={_METADATA_KEY: definition})


class SettingFields(Generic[T]):
    """Makes the fields of one type, as in `integer(1, HIGH, "Id of the broker.", at_least(0))`."""

    def __init__(self, type_: SettingType, *rules: Rule) -> None:
        self._type = type_
        self._rules = rules

    def __call__(
        self,
        default: T,
        importance: Importance,
        doc: str,
        *rules: Rule,
        mode: UpdateMode = READ_ONLY,
        internal: bool = False,
    ) -> T:
        rules = (*self._rules, *rules)
        return cast(T, _field(Setting(self._type, default, importance, doc, rules, mode, internal)))


class OptionalFields(Generic[T]):
    """Makes the fields of one type that have no default and may be unset."""

    def __init__(self, type_: SettingType, *rules: Rule) -> None:
        self._of_type = SettingFields[T | None](type_, *rules)

    def __call__(
        self,
        importance: Importance,
        doc: str,
        *rules: Rule,
        mode: UpdateMode = READ_ONLY,
        internal: bool = False,
    ) -> T | None:
        return self._of_type(None, importance, doc, *rules, mode=mode, internal=internal)


boolean: Final = SettingFields[bool](SettingType.BOOLEAN)
integer: Final = SettingFields[int](SettingType.INT)
short: Final = SettingFields[int](SettingType.SHORT)
long: Final = SettingFields[int](SettingType.LONG)
double: Final = SettingFields[float](SettingType.DOUBLE)
string: Final = SettingFields[str](SettingType.STRING)
strings: Final = SettingFields[tuple[str, ...]](SettingType.LIST, no_empty_entries)
"""A LIST, whose entries are separated by commas."""
optional_integer: Final = OptionalFields[int](SettingType.INT)
optional_long: Final = OptionalFields[int](SettingType.LONG)
optional_string: Final = OptionalFields[str](SettingType.STRING)
optional_strings: Final = OptionalFields[tuple[str, ...]](SettingType.LIST, no_empty_entries)
optional_password: Final = OptionalFields[str](SettingType.PASSWORD)
"""Its values are of class `Password`, whose text `reveal` returns."""


def definitions(settings_class: type[S]) -> S:
    """Returns an object whose attributes are the definitions of the settings instead of their values. It has
    the type of the class, so that the type checker knows the types of fields that `like` makes.
    """
    hashable: type = settings_class
    named = {definition.attribute: definition for definition in settings_of(hashable).values()}
    return cast(S, SimpleNamespace(**named))


def definition_of(setting: object) -> Setting:
    """Returns the definition that `setting` stands for: an attribute of `definitions`, or a field in the body
    of its class.
    """
    found = setting.metadata[_METADATA_KEY] if isinstance(setting, dataclasses.Field) else setting
    assert isinstance(found, Setting)
    return found


def like(setting: T | None, **changes: Any) -> T:  # each of the type of its field in Setting
    """Makes a field with the definition of another setting (see `definition_of`), except for `changes`."""
    return cast(T, _field(dataclasses.replace(definition_of(setting), **changes)))


def default_from(*origins: T | None, **changes: Any) -> T:  # each of the type of its field in Setting
    """Makes a field of a topic or group whose default is the first of these broker settings that is set. It
    has the definition of the first one, except for `changes`.
    """
    names = tuple(definition_of(origin).name for origin in origins)
    kept = {"importance": MEDIUM, "update_mode": READ_ONLY, "synonyms": names}
    return like(origins[0], **kept | changes)
