"""What the values of an archived topic are; plain data that travels to the executors."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ValueKind(StrEnum):
    RAW = "raw"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class Framing(StrEnum):
    """What stands before a value's own bytes."""

    PLAIN = "plain"
    SINGLE_OBJECT = "single-object"
    """Avro's: C3 01 and the schema's fingerprint."""
    CONFLUENT = "confluent"
    """Byte 0 and a schema id of 4 bytes (Protobuf: and the message's index)."""


class NewFields(StrEnum):
    """What becomes of a JSON field that no column has."""

    ADD = "add"
    IGNORE = "ignore"
    QUARANTINE = "quarantine"


@dataclass(frozen=True, slots=True)
class NamedSchema:
    """An Avro writer schema; `schema_id` is the registry's, None where framing doesn't need one."""

    name: str
    text: str
    schema_id: int | None = None


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """Holds the schemas themselves, not their files: executors needn't see those. Made by `formats.load`."""

    kind: ValueKind = ValueKind.RAW
    framing: Framing = Framing.PLAIN
    json_schema: str | None = None
    """Columns as SQL has them (`carrier STRING, delay INT`) or as Spark's own JSON; None: inferred."""
    avro_schemas: tuple[NamedSchema, ...] = ()
    descriptor_set: bytes = b""
    message: str = ""
    new_fields: NewFields = NewFields.ADD

    @property
    def keeps_raw_value(self) -> bool:
        """Whether tables have the column kafka_value instead of decoded ones."""
        return self.kind is ValueKind.RAW


RAW = ValueFormat()
