"""Reads Protobuf messages as values that JSON can represent.

protobuf's parser limits the depth to 100 and needs memory in proportion to the bytes. Names are those of the
fields, and numbers are numbers, so that filters can compare both. Fields that the schema does not know are
left out.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

from google.protobuf import (
    any_pb2,
    api_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    json_format,
    message_factory,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.message import DecodeError

from tidelog.console.core.decoded import MAX_NAME_CHARS, Allowance, MisfitError, SchemaError
from tidelog.records.schemas import message_indexes

_Message: TypeAlias = Any
"""A message of a class that is made from a descriptor at run time."""
_WELL_KNOWN: Final[dict[str, FileDescriptor]] = {
    module.DESCRIPTOR.name: module.DESCRIPTOR
    for module in (
        any_pb2,
        api_pb2,
        descriptor_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        source_context_pb2,
        struct_pb2,
        timestamp_pb2,
        type_pb2,
        wrappers_pb2,
    )
}
_WRAPPERS: Final = frozenset(wrappers_pb2.DESCRIPTOR.message_types_by_name)
_AS_TEXT: Final = frozenset(f"google.protobuf.{name}" for name in ("Timestamp", "Duration", "FieldMask"))
_NAMES_SHOWN: Final = 20


class ProtobufReader:
    """The reader of the messages of one file."""

    def __init__(self, files: Iterable[tuple[str | None, bytes]], message: str | None = None) -> None:
        """`files` are serialized FileDescriptorProtos with the name by which others import them, None for the
        name that they contain. The last one has the messages, and those before it are imported; the files of
        Protobuf's own types may be missing. `message` is a full name. By default the indexes before a value
        choose the message, or else it is the first one of the file. Raises SchemaError.
        """
        pool = descriptor_pool.DescriptorPool()
        known: set[str] = set()
        name = ""
        try:
            for given_name, data in files:
                file = descriptor_pb2.FileDescriptorProto.FromString(data)
                if given_name is not None:
                    file.name = given_name
                for needed in file.dependency:
                    _add_well_known(pool, needed, known)
                if file.name not in known:
                    pool.Add(file)
                    known.add(file.name)
                name = file.name
            self._file = pool.FindFileByName(name)
            self._fixed = None if message is None else pool.FindMessageTypeByName(message)
            first = next(iter(self._file.message_types_by_name.values()), None)
        except (DecodeError, TypeError, ValueError) as error:
            problem = " ".join(str(error).split())[:MAX_NAME_CHARS]
            raise SchemaError(
                f"it is not a Protobuf descriptor set: {problem}. Was protoc given --include_imports?"
            ) from None
        except KeyError:
            names = ", ".join(sorted(self._file.message_types_by_name)[:_NAMES_SHOWN]) if name else "no file"
            raise SchemaError(f"it has no message {message}; it has {names}") from None
        if first is None and self._fixed is None:
            raise SchemaError("it has no message")
        self._first = first

    @classmethod
    def of_set(cls, data: bytes, message: str | None = None) -> ProtobufReader:
        """Returns the reader of a serialized FileDescriptorSet, as `protoc -o` writes it. Raises
        SchemaError.
        """
        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(data).file
        except DecodeError as error:
            raise SchemaError(f"it is not a Protobuf descriptor set: {error}") from None
        if not files:
            raise SchemaError("it is an empty Protobuf descriptor set")
        return cls(((None, file.SerializeToString()) for file in files), message)

    def read(self, data: bytes) -> tuple[str, object]:
        """Returns the name of the message and its value. Raises MisfitError."""
        descriptor = self._fixed or self._first
        assert descriptor is not None
        return self._parsed(descriptor, data)

    def read_framed(self, data: bytes) -> tuple[str, object]:
        """Reads a message behind a schema id and the message's indexes. Raises MisfitError."""
        try:
            indexes, at = message_indexes(data)
        except ValueError as error:
            raise MisfitError(str(error)) from None
        return self._parsed(self._fixed or self._at(indexes), data[at:])

    def _at(self, indexes: Sequence[int]) -> Descriptor:
        choices = list(self._file.message_types_by_name.values())
        for index in indexes:
            if index >= len(choices):
                raise MisfitError(f"the schema has no message with the index {'.'.join(map(str, indexes))}")
            found = choices[index]
            choices = list(found.nested_types)
        return found

    @staticmethod
    def _parsed(descriptor: Descriptor, data: bytes) -> tuple[str, object]:
        message = message_factory.GetMessageClass(descriptor)()
        try:
            message.ParseFromString(data)
        except DecodeError:
            raise MisfitError(f"it is not a message {descriptor.full_name}") from None
        return descriptor.full_name, _message(message, descriptor, Allowance())


def _add_well_known(pool: descriptor_pool.DescriptorPool, name: str, known: set[str]) -> None:
    """Adds a file of Protobuf's own types and what it imports."""
    file = _WELL_KNOWN.get(name)
    if file is None or name in known:
        return
    known.add(name)
    for needed in file.dependencies:
        _add_well_known(pool, needed.name, known)
    pool.AddSerializedFile(file.serialized_pb)


def _message(message: _Message, descriptor: Descriptor, allowance: Allowance) -> object:
    name = descriptor.full_name
    if name.startswith("google.protobuf."):
        if name in _AS_TEXT:
            try:
                return json_format.MessageToDict(message)
            except (OverflowError, ValueError):
                pass  # a time outside the calendar: its fields are shown
        elif name == "google.protobuf.Value":
            kind = message.WhichOneof("kind")
            if kind in (None, "null_value"):
                return None
            return _one(getattr(message, kind), descriptor.fields_by_name[kind], allowance)
        elif name == "google.protobuf.Struct":
            return _field(message, descriptor.fields_by_name["fields"], allowance)
        elif name == "google.protobuf.ListValue":
            return _field(message, descriptor.fields_by_name["values"], allowance)
        elif descriptor.name in _WRAPPERS:
            return _one(message.value, descriptor.fields_by_name["value"], allowance)
    allowance.spend(len(descriptor.fields))
    allowance.enter()
    found = {
        field.name: _field(message, field, allowance)
        for field in descriptor.fields
        if not field.has_presence or message.HasField(field.name)
    }
    allowance.depth -= 1
    return found


def _field(message: _Message, field: FieldDescriptor, allowance: Allowance) -> object:
    value = getattr(message, field.name)
    if not field.is_repeated:
        return _one(value, field, allowance)
    allowance.spend(len(value))
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        item = kind.fields_by_name["value"]
        allowance.enter()
        entries = {_key_text(key): _one(value[key], item, allowance) for key in value}
        allowance.depth -= 1
        return entries
    allowance.enter()
    items = [_one(each, field, allowance) for each in value]
    allowance.depth -= 1
    return items


def _key_text(key: object) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _one(value: Any, field: FieldDescriptor, allowance: Allowance) -> object:
    if field.message_type is not None:
        return _message(value, field.message_type, allowance)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    return base64.b64encode(value).decode() if field.type == FieldDescriptor.TYPE_BYTES else value
