"""Builds the messages of questions from plain dictionaries, derives malformed requests from the bytes of a
valid one, and shows answers as plain values.
"""

from __future__ import annotations

import dataclasses
import json
import typing
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tidelog.wire import codec
from tidelog.wire.schema import Message

HIDDEN = frozenset(
    [
        # Texts, times, places and random numbers. Everything else is compared.
        *("error_message", "documentation", "throttle_time_ms", "host", "port", "rack", "cluster_id"),
        *("log_append_time_ms", "total_bytes", "usable_bytes", "log_dir", "partition_size", "node_endpoints"),
        *("last_timestamp", "transaction_start_time_ms", "directory_id", "replica_directory_id"),
        # What a broker serves is compared by asking for it, not by its own list.
        *("api_keys", "supported_features", "finalized_features", "finalized_features_epoch"),
        "zk_migration_ready",
    ]
)
SHOWN_AS_SET = {
    **dict.fromkeys(["member_id", "records", "leader", "controller_id"], (None, "", b"", -1, 0)),
    **dict.fromkeys(["producer_id", "base_offset"], (None, -1)),
    "session_id": (None, 0),
}
"""The fields of which only counts whether they have a value, with the values that stand for none."""
COMPARED_SETTINGS = frozenset(
    [
        *("cleanup.policy", "max.message.bytes", "segment.ms", "log.retention.hours"),
        *(
            "retention.ms",
            "log.cleaner.backoff.ms",
            "log.cleaner.threads",
            "min.insync.replicas",
            "no.such.setting",
        ),
    ]
)
"""Lists of all settings are long, and tidelog has settings of its own."""
NOT_OF_NEW_TOPICS = frozenset(["min.insync.replicas", "retention.ms"])
"""Left out of the answers to CreateTopics: Kafka keeps the first as a dynamic setting, and computes
-3600000 ms from `log.retention.hours=-1`.
"""
CREATED = ("answers-gone-", "answers-made-")
"""The beginnings of the names of topics that lists of topics leave out."""
HIDDEN_IN = {"describe_quorum": ("log_end_offset", "high_watermark", "leader_epoch")}
"""Fields that are different at each run in the messages of one module only."""
TIMES = range(10**12, 10**13)
"""The numbers that are times of the last decades, in milliseconds."""
NO_OPERATIONS = -(2**31)
"""`authorized_operations` that nobody asked for."""
TRAILING = b"\x07\x07"
TRAILING_NAME = "trailing bytes"


def build(message: type[Message], fields: Mapping[str, Any]) -> Any:
    """Returns a message with these fields; nested messages are dictionaries. Raises KeyError for a field that
    the message does not have.
    """
    hints = typing.get_type_hints(message)
    return message(**{name: _value(hints[name], value) for name, value in fields.items()})


def _value(hint: Any, value: Any) -> Any:
    inner = _message_in(hint)
    if inner is None or value is None:
        return value
    if isinstance(value, list):
        return [build(inner, item) for item in value]
    return build(inner, value)


def _message_in(hint: Any) -> Any:
    if dataclasses.is_dataclass(hint):
        return hint
    return next(filter(None, map(_message_in, typing.get_args(hint))), None)


def shown(response: Any, topic_names: Mapping[uuid.UUID, str]) -> str:
    """Returns the comparable part of a response on one line."""
    return json.dumps(_plain(response, topic_names), separators=(",", ":"), sort_keys=True)


def _plain(value: Any, names: Mapping[uuid.UUID, str]) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = {}
        hidden = HIDDEN.union(HIDDEN_IN.get(type(value).__module__.rpartition(".")[2], ()))
        for field in dataclasses.fields(value):
            given = getattr(value, field.name)
            if field.name in hidden or given == NO_OPERATIONS:
                continue
            if field.name in SHOWN_AS_SET and given not in SHOWN_AS_SET[field.name]:
                given = "set"
            plain[field.name] = _plain(given, names)
        return {name: field for name, field in plain.items() if field not in (None, "", [], {})}
    if isinstance(value, (list, tuple)):
        return sorted((_plain(item, names) for item in value if not _is_left_out(item)), key=repr)
    if isinstance(value, uuid.UUID):
        return names.get(value, "other" if value.int else None)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "bytes" if len(value) else ""
    if isinstance(value, int) and not isinstance(value, bool):
        return "time" if value in TIMES else int(value)
    return value


def _is_left_out(item: Any) -> bool:
    if hasattr(item, "config_source"):
        is_created = type(item).__name__ == "CreatableTopicConfigs"
        return item.name not in COMPARED_SETTINGS or (is_created and item.name in NOT_OF_NEW_TOPICS)
    is_listed = hasattr(item, "is_internal") or hasattr(item, "partition_result")
    return is_listed and str(getattr(item, "name", None) or getattr(item, "topic", "")).startswith(CREATED)


class Malformed(NamedTuple):
    """A kind of malformed body."""

    name: str
    body: bytes


def malformed_bodies(request: Any, version: int) -> Iterator[Malformed]:
    """Yields bodies that end too early or have arrays of impossible lengths. `request` is valid."""
    body = encoded(request, version)
    if body:
        yield Malformed("truncated by one byte", body[:-1])
        yield Malformed("empty body", b"")
        half = body[: len(body) // 2]
        if half:
            yield Malformed("half a body", half)
    yield from _bad_arrays(request, version, body)


def encoded(request: Any, version: int) -> bytes:
    return b"".join(map(bytes, codec.request_encoder(request.API_KEY, version)(request)))


def _bad_arrays(request: Any, version: int, body: bytes) -> Iterator[Malformed]:
    """The place of an array's length is the first byte that changes when its last element is repeated."""
    for field in dataclasses.fields(request):
        value = getattr(request, field.name)
        if not isinstance(value, list) or not value:
            continue
        longer = encoded(dataclasses.replace(request, **{field.name: [*value, value[-1]]}), version)
        if longer == body:
            continue  # the version does not have the field
        at = next(index for index, (one, two) in enumerate(zip(body, longer, strict=False)) if one != two)
        if body[at] == len(value) + 1:
            lengths = {"null array": b"\x00", "huge array": b"\xff\xff\xff\xff\x07"}
            begin, end = at, at + 1
        else:
            lengths = {
                "null array": b"\xff\xff\xff\xff",
                "negative array length": b"\xff\xff\xff\xfe",
                "huge array": b"\x7f\xff\xff\xff",
            }
            begin, end = at - 3, at + 1
        for name, length in lengths.items():
            yield Malformed(f"{name} of {field.name}", body[:begin] + length + body[end:])
