"""Decodes keys and values of topics with schemas of files and of a registry.

The files are Avro (`TOPIC-value.avsc`) and Protobuf's descriptor sets (`TOPIC-value.desc`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelog.console.core.avro_reader import AvroReader
from tidelog.console.core.decoded import MAX_DECODED_BYTES, Decode, Decoded, MisfitError, SchemaError
from tidelog.console.core.protobuf_reader import ProtobufReader
from tidelog.console.schema_registry import RegistryError, SchemaRegistry
from tidelog.records.schemas import SCHEMA_ID_BYTES, SINGLE_OBJECT_BYTES, schema_id_of

AVRO_SUFFIX: Final = ".avsc"
DESCRIPTOR_SUFFIXES: Final = (".desc", ".binpb", ".pb", ".protoset")
"""The endings that protoc's and buf's documentation use for a FileDescriptorSet."""
SIDES: Final = ("-key", "-value")
MAX_SCHEMA_BYTES: Final = 1024 * 1024
MAX_FILES: Final = 1_000
MAX_LOOKUPS: Final = 20
"""The most schemas for which one search asks the registry. Records can name any number of ids."""


@dataclass(frozen=True, slots=True)
class FileSchema:
    """The reader of a file, and the file's name."""

    name: str
    reader: AvroReader | ProtobufReader


def load_schemas(directory: Path, assignments: Iterable[str] = ()) -> Mapping[str, FileSchema]:
    """Returns the schemas of a directory by `TOPIC-key` or `TOPIC-value`. Files with other names are not
    read.

    `assignments` are `TOPIC-value=FILE` or `TOPIC-value=FILE:MESSAGE`, with a file of the directory, and
    precede names. Raises SchemaError, whose message names the file.
    """
    chosen: dict[str, tuple[Path, str | None]] = {}
    for text in assignments:
        subject, equals, file = text.partition("=")
        name, _, message = file.partition(":")
        if not equals or not name or not subject.endswith(SIDES):
            raise SchemaError(
                f"{text} is not TOPIC-key=FILE or TOPIC-value=FILE, such as "
                "orders-value=orders.desc:shop.Order"
            )
        chosen[subject] = directory / name, message or None
    assigned = set(chosen)
    try:
        files = sorted(directory.iterdir())
    except OSError as error:
        raise SchemaError(f"{directory}: {error.strerror}") from None
    for path in files:
        if path.suffix == ".proto" and path.stem.endswith(SIDES):
            raise SchemaError(
                f"{path.name} is source text. Compile it: "
                f"protoc --include_imports -o {path.stem}.desc {path.name}"
            )
        if path.suffix not in (AVRO_SUFFIX, *DESCRIPTOR_SUFFIXES) or not path.stem.endswith(SIDES):
            continue
        if path.stem in assigned:
            continue
        if path.stem in chosen:
            raise SchemaError(
                f"{path.name} and {chosen[path.stem][0].name} are for the same bytes: remove one"
            )
        chosen[path.stem] = path, None
    if len(chosen) > MAX_FILES:
        raise SchemaError(f"{directory} has more than {MAX_FILES} schemas")
    return {subject: _load(path, message) for subject, (path, message) in chosen.items()}


def _load(path: Path, message: str | None) -> FileSchema:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_SCHEMA_BYTES + 1)
    except OSError as error:
        raise SchemaError(f"{path.name}: {error.strerror}") from None
    if len(content) > MAX_SCHEMA_BYTES:
        raise SchemaError(f"{path.name} is larger than {MAX_SCHEMA_BYTES // 1024} KiB")
    try:
        if path.suffix != AVRO_SUFFIX:
            return FileSchema(path.name, ProtobufReader.of_set(content, message))
        if message is not None:
            raise SchemaError("an Avro schema has no message to choose")
        return FileSchema(path.name, AvroReader(content.decode()))
    except UnicodeDecodeError:
        raise SchemaError(f"{path.name}: it is not UTF-8 text") from None
    except SchemaError as error:
        raise SchemaError(f"{path.name}: {error}") from None


class RecordDecoder:
    """The schemas of a console."""

    def __init__(self, files: Mapping[str, FileSchema], registry: SchemaRegistry | None) -> None:
        """`files` maps `TOPIC-key` and `TOPIC-value` to schemas."""
        self._files = files
        self._registry = registry

    def of_topic(self, topic: str) -> Decode | None:
        """Returns what decodes the records of a topic in one search, None if no schema can belong to them."""
        files = {
            is_key: self._files.get(f"{topic}-{'key' if is_key else 'value'}") for is_key in (True, False)
        }
        if self._registry is None and not any(files.values()):
            return None
        return _TopicDecoder(files, self._registry)


NO_SCHEMAS: Final = RecordDecoder({}, None)


class _TopicDecoder:
    def __init__(self, files: Mapping[bool, FileSchema | None], registry: SchemaRegistry | None) -> None:
        self._files = files
        self._registry = registry
        self._lookups_left = MAX_LOOKUPS

    def __call__(self, is_key: bool, data: bytes) -> Decoded | None:
        """Decodes by the schema id of the registry, or else by the file of the topic."""
        schema_id = schema_id_of(data)
        file = self._files[is_key]
        asks = self._registry is not None and schema_id is not None
        if file is None and not asks:
            return None
        if len(data) > MAX_DECODED_BYTES:
            size = MAX_DECODED_BYTES // 1024
            return Decoded(None, None, f"The console decodes at most {size:,} KiB.")
        problem: Decoded | None = None
        if self._registry is not None and schema_id is not None:
            try:
                return self._by_id(self._registry, schema_id, data)
            except RegistryError as error:
                problem = Decoded(None, None, str(error))
        return problem if file is None else _by_file(file, schema_id is not None, data)

    def _by_id(self, registry: SchemaRegistry, schema_id: int, data: bytes) -> Decoded | None:
        """Raises RegistryError."""
        if not registry.knows(schema_id):
            if not self._lookups_left:
                raise RegistryError(
                    f"The console did not look up schema {schema_id}, because a search looks up at most "
                    f"{MAX_LOOKUPS} schemas."
                )
            self._lookups_left -= 1
        reader = registry.reader(schema_id)
        try:
            if isinstance(reader, AvroReader):
                value = reader.read(data, SCHEMA_ID_BYTES)
                return Decoded("avro", value, f"The schema has the id {schema_id}.")
            if isinstance(reader, ProtobufReader):
                name, value = reader.read_framed(data)
                return Decoded(
                    "protobuf", value, f"The message is {name} of the schema with the id {schema_id}."
                )
        except MisfitError as error:
            return Decoded(None, None, f"It does not fit schema {schema_id}: {error}.")
        return None


def _by_file(file: FileSchema, may_be_framed: bool, data: bytes) -> Decoded:
    try:
        if isinstance(file.reader, AvroReader):
            value = _read_avro(file.reader, may_be_framed, data)
            return Decoded("avro", value, f"The schema is {file.name}.")
        # No field has the number 0, so that a message does not begin with a zero byte.
        name, value = file.reader.read_framed(data) if may_be_framed else file.reader.read(data)
        return Decoded("protobuf", value, f"The message is {name} of {file.name}.")
    except MisfitError as error:
        return Decoded(None, None, f"It does not fit {file.name}: {error}.")


def _read_avro(reader: AvroReader, may_be_framed: bool, data: bytes) -> object:
    """Reads a value that may have a schema id or a fingerprint before it: Avro's values can begin with any
    byte, but only the right position leaves no bytes over. Raises MisfitError.
    """
    if reader.begins_single_object(data):
        return reader.read(data, SINGLE_OBJECT_BYTES)
    if may_be_framed:
        try:
            return reader.read(data, SCHEMA_ID_BYTES)
        except MisfitError as framed:
            try:
                return reader.read(data)
            except MisfitError:
                raise framed from None
    return reader.read(data)
