"""The format of an archived topic's values, as plain data that is sent to the executors, and how it is built
from command-line options: kind, files, options.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from tidelog.pipeline.errors import PipelineError


class ValueKind(StrEnum):
    RAW = "raw"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class Framing(StrEnum):
    """The bytes that precede a value's own bytes."""

    PLAIN = "plain"
    SINGLE_OBJECT = "single-object"
    """Avro's single-object encoding: C3 01 and the schema's fingerprint."""
    CONFLUENT = "confluent"
    """Byte 0 and a schema id of 4 bytes, and for Protobuf the message's index."""


class NewFields(StrEnum):
    """The treatment of a JSON field that has no column."""

    ADD = "add"
    IGNORE = "ignore"
    QUARANTINE = "quarantine"


@dataclass(frozen=True, slots=True)
class NamedSchema:
    """An Avro writer schema. `schema_id` is the registry's id, or None if the framing does not need one."""

    name: str
    text: str
    schema_id: int | None = None


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """The format contains the schemas, not their file names, because executors may not see the files.
    `formats.load` builds it.
    """

    kind: ValueKind = ValueKind.RAW
    framing: Framing = Framing.PLAIN
    json_schema: str | None = None
    """The columns in SQL (`carrier STRING, delay INT`) or in Spark's JSON form, or None to infer them."""
    avro_schemas: tuple[NamedSchema, ...] = ()
    descriptor_set: bytes = b""
    message: str = ""
    new_fields: NewFields = NewFields.ADD

    @property
    def keeps_raw_value(self) -> bool:
        """Returns True if tables have the column kafka_value instead of decoded columns."""
        return self.kind is ValueKind.RAW


RAW = ValueFormat()


MAX_SCHEMA_BYTES: Final = 16 << 20
_LEADING_ID: Final = re.compile(r"(\d+)(?:\D|$)")
_EXPLICIT_ID: Final = re.compile(r"(\d+)=(.+)", re.DOTALL)


def load_value_format(
    kind: str,
    *,
    schema_files: Sequence[str] = (),
    message: str = "",
    framing: str = Framing.PLAIN,
    new_fields: str = NewFields.ADD,
) -> ValueFormat:
    """Loads the schemas of a value format from `schema_files`. JSON takes none or one. Avro takes one or
    more; with Confluent framing, the schema's id precedes the path (`17=flight.avsc`) or begins the file name
    (`17-flight.avsc`). Protobuf takes a FileDescriptorSet.

    Raises PipelineError.
    """
    chosen = ValueKind(kind)
    chosen_framing = Framing(framing)
    if chosen in (ValueKind.RAW, ValueKind.JSON) and chosen_framing is not Framing.PLAIN:
        raise PipelineError(f"{chosen} values have no framing: omit {chosen_framing}")
    if message and chosen is not ValueKind.PROTOBUF:
        raise PipelineError(f"{chosen} values have no message name; only Protobuf values have one")
    if chosen is ValueKind.RAW:
        if schema_files:
            raise PipelineError("raw values have no schema: name the format, or omit the schema")
        return ValueFormat()
    if chosen is ValueKind.JSON:
        if len(schema_files) > 1:
            raise PipelineError("JSON values have at most one schema; new fields are added to it")
        text = _text_of(Path(schema_files[0])) if schema_files else None
        return ValueFormat(chosen, json_schema=text, new_fields=NewFields(new_fields))
    if chosen is ValueKind.AVRO:
        return ValueFormat(chosen, chosen_framing, avro_schemas=_avro_schemas(schema_files, chosen_framing))
    return _protobuf(schema_files, message, chosen_framing)


def _avro_schemas(schema_files: Sequence[str], framing: Framing) -> tuple[NamedSchema, ...]:
    if not schema_files:
        raise PipelineError("Avro values need the schema that they were written with: name its file (.avsc)")
    if framing is Framing.PLAIN and len(schema_files) > 1:
        raise PipelineError(
            "plain Avro values do not name their schema: give exactly one file, "
            "or the framing (single-object or confluent)"
        )
    schemas = tuple(_avro_schema(given, framing) for given in schema_files)
    ids = [schema.schema_id for schema in schemas]
    if framing is Framing.CONFLUENT and len(set(ids)) < len(ids):
        twice = next(number for number in ids if ids.count(number) > 1)
        raise PipelineError(f"two Avro schemas have the id {twice}; each id must belong to one schema")
    return schemas


def _avro_schema(given: str, framing: Framing) -> NamedSchema:
    explicit = _EXPLICIT_ID.fullmatch(given)
    path = Path(explicit[2] if explicit else given)
    schema_id = int(explicit[1]) if explicit else None
    if schema_id is None and (leading := _LEADING_ID.match(path.name)):
        schema_id = int(leading[1])
    if schema_id is None and framing is Framing.CONFLUENT:
        raise PipelineError(
            f"the schema {path.name} has no id: write ID={path}, or begin the file name with the id"
        )
    return NamedSchema(path.name, _text_of(path), schema_id)


def _protobuf(schema_files: Sequence[str], message: str, framing: Framing) -> ValueFormat:
    if framing is Framing.SINGLE_OBJECT:
        raise PipelineError("single-object framing is for Avro; Protobuf has plain and confluent")
    if len(schema_files) != 1 or not message:
        raise PipelineError(
            "Protobuf values need a file with the FileDescriptorSet (protoc --include_imports "
            "--descriptor_set_out=FILE) and the message's full name"
        )
    return ValueFormat(
        ValueKind.PROTOBUF, framing, descriptor_set=_bytes_of(Path(schema_files[0])), message=message
    )


def _text_of(path: Path) -> str:
    try:
        return _bytes_of(path).decode()
    except UnicodeDecodeError as error:
        raise PipelineError(f"schema {path} is not UTF-8 text") from error


def _bytes_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_SCHEMA_BYTES + 1)
    except OSError as error:
        raise PipelineError(f"schema {path}: {error.strerror}") from error
    if len(content) > MAX_SCHEMA_BYTES:
        raise PipelineError(f"schema {path} is larger than {MAX_SCHEMA_BYTES} bytes")
    return content
