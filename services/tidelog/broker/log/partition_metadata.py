"""The file `partition.metadata`, which has the topic id (Kafka's `PartitionMetadataFile`)."""

from __future__ import annotations

import base64
import binascii
import uuid
from pathlib import Path

from tidelog.broker.log.checkpoint_file import write_atomically
from tidelog.broker.log.errors import CorruptFileError
from tidelog.broker.log.partition_directory import PARTITION_METADATA_FILE


def encode_uuid(value: uuid.UUID) -> str:
    """Returns Kafka's text form of a UUID: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode("ascii")


def decode_uuid(text: str) -> uuid.UUID:
    """Raises ValueError."""
    try:
        return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except binascii.Error as error:
        raise ValueError(f"{text!r} is not a base64 UUID") from error


def read_topic_id(directory: Path) -> uuid.UUID | None:
    """Returns the topic id, None if the file does not exist or is empty.

    The file is empty if the machine failed soon after the file was created. Raises CorruptFileError, OSError.
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
    raise CorruptFileError(f"{path}: expected `version: 0` and `topic_id: ...`")


def write_topic_id(directory: Path, topic_id: uuid.UUID) -> None:
    """Writes the file; the first flush of the log makes it durable. Raises OSError."""
    content = f"version: 0\ntopic_id: {encode_uuid(topic_id)}\n".encode("ascii")
    write_atomically(directory / PARTITION_METADATA_FILE, content, syncs=False)
