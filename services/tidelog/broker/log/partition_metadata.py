"""`partition.metadata`: the topic id of a partition's directory. Source: Kafka's `PartitionMetadataFile`."""

from __future__ import annotations

import base64
import binascii
import uuid
from pathlib import Path

from tidelog.broker.log.checkpoint_file import write_atomically
from tidelog.broker.log.errors import CorruptFileError
from tidelog.broker.log.partition_directory import PARTITION_METADATA_FILE


def encode_uuid(value: uuid.UUID) -> str:
    """Kafka's text form of a UUID: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode("ascii")


def decode_uuid(text: str) -> uuid.UUID:
    """Raises ValueError."""
    try:
        return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except binascii.Error as error:
        raise ValueError(f"{text!r} is no base64 UUID") from error


def read_topic_id(directory: Path) -> uuid.UUID | None:
    """None if there is no such file, or an empty one: the machine went down soon after it was made.

    Raises CorruptFileError, OSError.
    """
    path = directory / PARTITION_METADATA_FILE
    try:
        lines = path.read_text("ascii", errors="replace").splitlines()
    except FileNotFoundError:
        return None
    if not lines:
        return None
    fields = dict(line.split(": ", 1) for line in lines if ": " in line)
    try:
        if fields.get("version") == "0":
            return decode_uuid(fields.get("topic_id", ""))
    except ValueError:
        pass
    raise CorruptFileError(f"{path}: `version: 0` and `topic_id: ...` expected")


def write_topic_id(directory: Path, topic_id: uuid.UUID) -> None:
    """The log's first flush makes it durable. Raises OSError."""
    content = f"version: 0\ntopic_id: {encode_uuid(topic_id)}\n".encode("ascii")
    write_atomically(directory / PARTITION_METADATA_FILE, content, syncs=False)
