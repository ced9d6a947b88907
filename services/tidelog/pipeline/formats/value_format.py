"""The format of an archived topic's values, as plain data that is sent to the executors."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
