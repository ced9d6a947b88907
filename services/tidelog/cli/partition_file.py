"""Reads the JSON files that Kafka's tools use to name partitions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tidelog.cli.tool_command import ToolError
from tidelog.model.topics import TopicPartition

MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""The size of the longest file that is read."""
_VERSION: Final = 1


def read_text_file(option: str, path: Path) -> str:
    """Raises ToolError if the file can't be read."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ToolError(f"{option} {path}: the file is longer than {MAX_FILE_BYTES} bytes")
        return path.read_text("utf-8")
    except OSError as error:
        raise ToolError(f"{option} {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ToolError(f"{option} {path}: the file is not UTF-8 text") from None


def parse_partition_rows(
    text: str, source: str, numbers: tuple[str, ...] = ()
) -> dict[TopicPartition, Mapping[str, Any]]:  # `Any`: parsed JSON
    """Returns the rows of `{"version": 1, "partitions": [{"topic": ..., "partition": ...}]}`.

    Each row has the integers that `numbers` names. `source` names the file in errors. Raises ToolError.
    """
    rows: dict[TopicPartition, Mapping[str, Any]] = {}
    for row in parse_rows(text, source, "partitions"):
        place = TopicPartition(_text(row, "topic", source), _number(row, "partition", source))
        for name in numbers:
            _number(row, name, source)
        if place in rows:
            raise ToolError(f"{source} contains {place} twice")
        rows[place] = row
    if not rows:
        raise ToolError(f"{source} contains no partitions")
    return rows


def parse_rows(text: str, source: str, key: str) -> Iterator[Mapping[str, Any]]:
    """Yields the objects of the list `key` in a file of version 1. Raises ToolError."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ToolError(f"{source} is not JSON: {error}") from None
    rows = document.get(key) if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise ToolError(f'{source} has no list "{key}"')
    if document.get("version", _VERSION) != _VERSION:
        raise ToolError(f"{source} has version {document['version']}, but only version 1 is known")
    for row in rows:
        if not isinstance(row, dict):
            raise ToolError(f'{source}: {json.dumps(row)} in "{key}" is not an object')
        yield row


def _text(row: Mapping[str, Any], name: str, source: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value:
        raise ToolError(f'{source}: {json.dumps(row)} has no text "{name}"')
    return value


def _number(row: Mapping[str, Any], name: str, source: str) -> int:
    value = row.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ToolError(f'{source}: {json.dumps(row)} has no number "{name}"')
    return value
