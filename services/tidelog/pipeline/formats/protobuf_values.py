"""Reads Protobuf values by a FileDescriptorSet and a message name. Unknown fields are ignored. The module
does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.formats.columns import MAX_DEPTH, DecodedValue, Fields, folded, is_kept
from tidelog.pipeline.formats.fitting import Misfit
from tidelog.pipeline.formats.value_format import Framing, ValueFormat
from tidelog.records.schemas import SCHEMA_ID_BYTES, message_indexes, schema_id_of

Take = Callable[[DecodedValue], DecodedValue]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_SCALARS: Final[dict[int, pa.DataType]] = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
}
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_ANY_JSON: Final = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue", "Any"))


@dataclass(frozen=True, slots=True)
class _Column:
    kind: pa.DataType
    take: Take


class ProtobufReader:
    """`kind` is a record type with the message's fields. Raises PipelineError."""

    def __init__(self, value_format: ValueFormat) -> None:
        descriptor = _descriptor_of(value_format)
        self._name = descriptor.full_name
        self._class = message_factory.GetMessageClass(descriptor)
        self._skips_frame = value_format.framing is Framing.CONFLUENT
        column = _message(descriptor, 0, descriptor.name)
        for field in column.kind:
            if is_kept(folded(field.name)):
                raise PipelineError(
                    f"Protobuf message {self._name}: the name of field {field.name} is reserved for the "
                    "archive's own columns"
                )
        self.kind = column.kind
        self._take = column.take

    def read(self, value: bytes) -> Fields:
        """Returns the fields of a value. Raises Misfit."""
        body = value[_end_of_frame(value) :] if self._skips_frame else value
        message = self._class()
        try:
            message.ParseFromString(body)
            return self._take(message)  # type: ignore[no-any-return]
        except DecodeError as error:
            raise Misfit(f"is not Protobuf of message {self._name}: {' '.join(str(error).split())}") from None
        except (OverflowError, ValueError, json_format.Error) as error:
            raise Misfit(f"is Protobuf of message {self._name} that a table cannot hold: {error}") from None


def _descriptor_of(value_format: ValueFormat) -> Descriptor:
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet()
    try:
        files.ParseFromString(value_format.descriptor_set)
        for file in files.file:
            pool.AddSerializedFile(file.SerializeToString())
    except (DecodeError, TypeError, ValueError) as error:
        raise PipelineError(
            f"the Protobuf descriptor set is not usable: {' '.join(str(error).split())}; "
            "was protoc given --include_imports?"
        ) from error
    try:
        return pool.FindMessageTypeByName(value_format.message)
    except KeyError:
        names = sorted(
            f"{file.package}.{m.name}".lstrip(".") for file in files.file for m in file.message_type
        )
        raise PipelineError(
            f"the Protobuf descriptor set has no message {value_format.message}; it has "
            f"{', '.join(names[:20])}"
        ) from None


def _message(descriptor: Descriptor, depth: int, where: str) -> _Column:
    if depth > MAX_DEPTH:
        raise PipelineError(
            f"Protobuf message {where.split('.')[0]}: {descriptor.name} is nested more than {MAX_DEPTH} "
            "deep, or within itself, which columns cannot represent"
        )
    columns: list[tuple[str, bool, _Column]] = []
    for field in descriptor.fields:
        column = _field(field, depth, where)
        if column is not None:
            columns.append((field.name, field.has_presence, column))

    def take(message: DecodedValue) -> Fields:
        return {
            name: column.take(getattr(message, name))
            for name, may_be_absent, column in columns
            if not may_be_absent or message.HasField(name)
        }

    return _Column(pa.struct([(name, column.kind) for name, _, column in columns]), take)


def _field(field: FieldDescriptor, depth: int, where: str) -> _Column | None:
    """Returns the column of a field, or None for a message without fields, which no column can represent."""
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        key = _one(message.fields_by_name["key"], depth, where)
        item = _one(message.fields_by_name["value"], depth, where)
        if key is None or item is None:
            return None
        take_key, take_item = key.take, item.take
        return _Column(
            pa.map_(key.kind, item.kind),
            lambda value: {take_key(name): take_item(value[name]) for name in value},
        )
    one = _one(field, depth, where)
    if one is None or not field.is_repeated:
        return one
    take = one.take
    return _Column(pa.list_(one.kind), lambda value: [take(each) for each in value])


def _one(field: FieldDescriptor, depth: int, where: str) -> _Column | None:
    if field.message_type is not None:
        return _nested(field.message_type, depth, f"{where}.{field.name}")
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        assert field.enum_type is not None
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return _Column(pa.string(), lambda value: names.get(value, str(value)))
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        is_bytes = field.type == FieldDescriptor.TYPE_BYTES
        return _Column(pa.binary() if is_bytes else pa.string(), _same)
    return _Column(_SCALARS[field.cpp_type], _same)


def _nested(message: Descriptor, depth: int, where: str) -> _Column | None:
    name = message.full_name
    if name == "google.protobuf.Timestamp":
        return _Column(pa.timestamp("us", tz="UTC"), _timestamp)
    if name in _WRAPPERS:
        one = _one(message.fields_by_name["value"], depth, where)
        assert one is not None
        take = one.take
        return _Column(one.kind, lambda value: take(value.value))
    if name in _ANY_JSON:
        return _Column(pa.string(), lambda value: json_format.MessageToJson(value, indent=None))
    return _message(message, depth + 1, where) if message.fields else None


def _same(value: DecodedValue) -> DecodedValue:
    return value


def _timestamp(value: DecodedValue) -> datetime:
    return _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)


def _end_of_frame(value: bytes) -> int:
    """Returns the position after 0, the schema id and the message's indexes. The schema id is not checked."""
    if schema_id_of(value) is None or len(value) == SCHEMA_ID_BYTES:
        raise Misfit("is not Protobuf in Confluent's framing: it does not begin with 0 and a schema id")
    try:
        return message_indexes(value)[1]
    except ValueError as error:
        raise Misfit(f"is not Protobuf in Confluent's framing: {error}") from None
