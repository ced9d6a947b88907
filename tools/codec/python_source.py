"""Writes the dataclasses of one definition as Python source."""

from __future__ import annotations

import keyword
import re
from typing import Any

LINE_LENGTH = 110
LAST_VERSION = 32767

PYTHON_TYPES = {
    "bool": "bool",
    "int8": "int",
    "int16": "int",
    "uint16": "int",
    "int32": "int",
    "uint32": "int",
    "int64": "int",
    "float64": "float",
    "string": "str",
    "bytes": "Buffer",
    "uuid": "UUID",
}
IMPLICIT_DEFAULTS = {"bool": "False", "float64": "0.0", "string": '""', "bytes": 'b""', "uuid": "ZERO_UUID"}


def snake(name: str) -> str:
    """Returns a name in snake case: `TopicData` -> topic_data, `Enable2Pc` -> enable2_pc."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return parted.lower()


def versions(text: str | None) -> tuple[int, int]:
    """Returns the first and last version of a range in Kafka's notation, (0, -1) for "none"."""
    if not text or text == "none":
        return 0, -1
    if text.endswith("+"):
        return int(text[:-1]), LAST_VERSION
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def valid_versions(definition: dict[str, Any]) -> tuple[int, int]:
    """Returns the versions of a definition, without a latest version that Kafka calls unstable."""
    first, last = versions(definition["validVersions"])
    return first, last - (1 if definition.get("latestVersionUnstable") else 0)


class MessageSource:
    """The classes of one definition in the order of use: inner structs come first."""

    def __init__(self, definition: dict[str, Any], unstable: bool) -> None:
        self.definition = definition
        first, last = versions(definition["validVersions"])
        self.valid = (first, last - (1 if unstable else 0))
        self.structs: dict[str, list[dict[str, Any]]] = {}
        """Returns the inner structs by their name in the definition."""
        self._common = {struct["name"]: struct["fields"] for struct in definition.get("commonStructs", ())}
        self._collect(definition["fields"])

    def _collect(self, fields: list[dict[str, Any]]) -> None:
        for field in self._living(fields):
            name = struct_name(field)
            if name is None:
                continue
            inner = field.get("fields") or self._common[name]
            self._collect(inner)
            known = self.structs.setdefault(name, inner)
            if known is not inner and shape(known) != shape(inner):
                raise SystemExit(f"{self.definition['name']}: two structs {name}")

    def _living(self, fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the fields that some valid version has."""
        first, last = self.valid
        kept = []
        for field in fields:
            covered = versions(field.get("versions") or field["taggedVersions"])
            if covered[0] <= last and covered[1] >= first:
                kept.append(field)
        return kept

    def write_struct(self, name: str, renamed: dict[str, str]) -> list[str]:
        """Returns the lines of an inner struct's class. `renamed` maps names of structs to names of classes
        where they differ.
        """
        return self._write_class(renamed.get(name, name), self.structs[name], renamed, [])

    def write_message(self, renamed: dict[str, str]) -> list[str]:
        definition = self.definition
        flexible_from = versions(definition["flexibleVersions"])
        attributes = [f"VERSIONS: ClassVar[tuple[int, int]] = ({self.valid[0]}, {self.valid[1]})"]
        attributes.append(
            f"FLEXIBLE_FROM: ClassVar[int] = {'NOT_FLEXIBLE' if flexible_from[1] < 0 else flexible_from[0]}"
        )
        if "apiKey" in definition:
            attributes.insert(0, f"API_KEY: ClassVar[int] = {definition['apiKey']}")
        return self._write_class(definition["name"], definition["fields"], renamed, attributes)

    def _write_class(
        self, name: str, fields: list[dict[str, Any]], renamed: dict[str, str], attributes: list[str]
    ) -> list[str]:
        living = self._living(fields)
        lines = ["@dataclass(slots=True)", f"class {name}:"]
        lines += [f"    {self._attribute(field, renamed)}" for field in living]
        if living:
            lines.append("")
        lines += [f"    {attribute}" for attribute in attributes]
        entries = [self._table_entry(field, renamed) for field in living]
        if not entries:
            lines.append("    FIELDS: ClassVar[Fields] = ()")
        else:
            lines.append("    FIELDS: ClassVar[Fields] = (")
            lines += [f"        {entry}," for entry in entries]
            lines.append("    )")
        too_long = [line for line in lines if len(line) > LINE_LENGTH]
        if too_long:
            raise SystemExit(f"a line is too long: {too_long[0]}")
        return lines

    def _attribute(self, field: dict[str, Any], renamed: dict[str, str]) -> str:
        name, kind = attribute_name(field), field["type"]
        is_struct = struct_name(field) is not None and not kind.startswith("[]")
        nullable = "nullableVersions" in field or (is_struct and "tag" in field)
        default = field.get("default") or ""  # for Kafka's generator, a JSON null is no default
        is_null = default == "null"
        if kind == "records":
            kind_of_records = "Records" if self.definition["type"] == "response" else "Buffer"
            return f"{name}: {kind_of_records} | None = None"
        if kind.startswith("[]"):
            element = kind[2:]
            annotation = f"list[{PYTHON_TYPES.get(element) or renamed.get(element, element)}]"
            value = "field(default_factory=list)"
        elif is_struct:
            annotation = renamed.get(kind, kind)
            unsent_is_none = "tag" in field and "nullableVersions" not in field
            value = "None" if unsent_is_none else f"field(default_factory={annotation})"
        else:
            annotation = PYTHON_TYPES[kind]
            value = "None" if is_null else _literal(kind, default)
        return f"{name}: {annotation}{' | None' if nullable else ''} = {'None' if is_null else value}"

    def _table_entry(self, field: dict[str, Any], renamed: dict[str, str]) -> str:
        kind = field["type"]
        is_array = kind.startswith("[]")
        element = kind[2:] if is_array else kind
        struct = struct_name(field)
        code = renamed.get(struct, struct) if struct else f'"{element}"'
        parts = [f'"{attribute_name(field)}"', f"({code},)" if is_array else code]
        parts.append(f'"{field.get("versions") or field["taggedVersions"]}"')
        if "nullableVersions" in field:
            parts.append(f'nullable="{field["nullableVersions"]}"')
        if "tag" in field:
            parts.append(f'tagged="{field["taggedVersions"]}"')
            parts.append(f"tag={field['tag']}")
        return f"F({', '.join(parts)})"


def attribute_name(field: dict[str, Any]) -> str:
    name = snake(field["name"])
    if keyword.iskeyword(name):
        raise SystemExit(f"a field is called {name}")
    return name


def struct_name(field: dict[str, Any]) -> str | None:
    """Returns the struct that a field contains, one or an array of them."""
    kind: str = field["type"].removeprefix("[]")
    return None if kind in PYTHON_TYPES or kind == "records" else kind


def shape(fields: list[dict[str, Any]]) -> Any:
    """Returns a key that is equal for equal struct definitions."""
    kept = ("name", "type", "versions", "nullableVersions", "tag", "taggedVersions", "default")
    return [([field.get(key) for key in kept], shape(field.get("fields", []))) for field in fields]


def _literal(kind: str, default: Any) -> str:
    text = str(default)
    if not text:
        return IMPLICIT_DEFAULTS.get(kind, "0")
    if kind == "bool":
        return text.lower().capitalize()
    if kind == "string":
        return f'"{text}"'
    if kind == "float64":
        return repr(float(text))
    return str(int(text, 0))
