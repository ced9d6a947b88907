"""Reads Avro values: finds the writer schema, then returns the fields as Python values. The module does no
I/O.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import fastavro
import pyarrow as pa

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.formats.avro_types import AvroSchema, Reshape, UnusableSchemaError, column_of
from tidelog.pipeline.formats.columns import Fields, folded, is_kept, merged
from tidelog.pipeline.formats.fitting import Misfit
from tidelog.pipeline.formats.value_format import Framing, NamedSchema, ValueFormat
from tidelog.records.avro_logical_types import without_invalid_logical_types
from tidelog.records.schema_framing import (
    SCHEMA_ID_BYTES,
    SINGLE_OBJECT_BYTES,
    SINGLE_OBJECT_MARK,
    schema_id_of,
)

_FINGERPRINT: Final = "CRC-64-AVRO"
_MAX_PROBLEM_CHARACTERS: Final = 200


@dataclass(frozen=True, slots=True)
class _Writer:
    name: str
    schema: AvroSchema
    kind: pa.DataType
    reshape: Reshape | None


class AvroReader:
    """`kind` is a record type with the fields of all writer schemas. Raises PipelineError."""

    def __init__(self, value_format: ValueFormat) -> None:
        writers = [(given, _writer_of(given)) for given in value_format.avro_schemas]
        self.kind = writers[0][1].kind
        for _, writer in writers[1:]:
            self.kind = merged(self.kind, writer.kind)
        if value_format.framing is Framing.CONFLUENT:
            by_id = {given.schema_id: writer for given, writer in writers}
            self._split: Callable[[bytes], tuple[_Writer, int]] = lambda value: _by_schema_id(value, by_id)
        elif value_format.framing is Framing.SINGLE_OBJECT:
            by_print = {fingerprint_of(given): writer for given, writer in writers}
            self._split = lambda value: _by_fingerprint(value, by_print)
        else:
            only = writers[0][1]
            self._split = lambda _value: (only, 0)

    def read(self, value: bytes) -> Fields:
        """Returns the fields of a value. Raises Misfit."""
        writer, begin = self._split(value)
        body = io.BytesIO(value)
        body.seek(begin)
        try:
            found = fastavro.schemaless_reader(
                body, writer.schema, None, return_record_name=True, return_record_name_override=True
            )
        except (
            ArithmeticError,
            EOFError,
            LookupError,
            OSError,
            TypeError,
            ValueError,
            RecursionError,
        ) as error:
            raise Misfit(f"is not Avro of schema {writer.name}: {_problem_of(error)}") from None
        left = len(value) - body.tell()
        if left:
            raise Misfit(f"is not Avro of schema {writer.name}: {left} bytes are left over")
        return found if writer.reshape is None else writer.reshape(found)  # type: ignore[no-any-return]


def fingerprint_of(given: NamedSchema) -> bytes:
    """Returns the fingerprint that single-object encoding carries."""
    plain = without_invalid_logical_types(json.loads(given.text))
    canonical = fastavro.schema.to_parsing_canonical_form(plain)
    return bytes.fromhex(fastavro.schema.fingerprint(canonical, _FINGERPRINT))


def _writer_of(given: NamedSchema) -> _Writer:
    named: dict[str, AvroSchema] = {}
    try:
        plain = without_invalid_logical_types(json.loads(given.text))
        schema = fastavro.parse_schema(plain, named_schemas=named)
    except (fastavro.schema.SchemaParseException, LookupError, TypeError, ValueError) as error:
        raise PipelineError(f"Avro schema {given.name}: {_problem_of(error)}") from error
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise PipelineError(f"Avro schema {given.name}: it is not a record, so it has no columns")
    try:
        column = column_of(schema, named)
    except UnusableSchemaError as error:
        raise PipelineError(f"Avro schema {given.name}: {error}") from error
    assert column is not None
    for field in column.kind:
        if is_kept(folded(field.name)):
            raise PipelineError(
                f"Avro schema {given.name}: the name of field {field.name} is reserved for the archive's "
                "columns"
            )
    return _Writer(given.name, schema, column.kind, column.reshape)


def _by_schema_id(value: bytes, writers: dict[int | None, _Writer]) -> tuple[_Writer, int]:
    schema_id = schema_id_of(value)
    if schema_id is None:
        raise Misfit("is not Avro in Confluent's framing: it does not begin with 0 and a schema id")
    writer = writers.get(schema_id)
    if writer is None:
        raise Misfit(f"is Avro of the schema with id {schema_id}, which was not given")
    return writer, SCHEMA_ID_BYTES


def _by_fingerprint(value: bytes, writers: dict[bytes, _Writer]) -> tuple[_Writer, int]:
    if len(value) < SINGLE_OBJECT_BYTES or not value.startswith(SINGLE_OBJECT_MARK):
        raise Misfit("is not Avro in single-object encoding: it does not begin with C3 01 and a fingerprint")
    found = value[len(SINGLE_OBJECT_MARK) : SINGLE_OBJECT_BYTES]
    writer = writers.get(found)
    if writer is None:
        raise Misfit(f"is Avro of the schema with fingerprint {found.hex()}, which was not given")
    return writer, SINGLE_OBJECT_BYTES


def _problem_of(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:_MAX_PROBLEM_CHARACTERS]
