"""Loads schemas of topics from local files: Avro (`TOPIC-value.avsc`) and Protobuf's descriptor sets
(`TOPIC-value.desc`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelog.console.core.avro_reader import AvroReader
from tidelog.console.core.decoded import SchemaError
from tidelog.console.core.protobuf_reader import ProtobufReader

AVRO_SUFFIX: Final = ".avsc"
DESCRIPTOR_SUFFIXES: Final = (".desc", ".binpb", ".pb", ".protoset")
"""The endings that protoc's and buf's documentation use for a FileDescriptorSet."""
SIDES: Final = ("-key", "-value")
MAX_SCHEMA_BYTES: Final = 1024 * 1024
MAX_FILES: Final = 1_000


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
