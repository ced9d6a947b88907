"""Services of one version and of the version before understand each other, as they must during a rolling
upgrade.

`wire_of_the_last_version.json` describes the last version: names, numbers and types of fields, values of
enumerations, and calls. All of them must remain. The other side skips additions. A release writes the file
again:

    python tests/unit/rpc/test_versions_together.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto

from tidelog.kernel.steps import all_at_once
from tidelog.model.coordinator_shards import ShardId, ShardKind
from tidelog.rpc.broker_commands import UpdateMetadata
from tidelog.rpc.command_messages import command, command_message
from tidelog.rpc.coordinator_session import ForwardedToShard, Hello, Item, ServedShard, ServeShards, Welcome
from tidelog.rpc.generated import (
    broker_commands_pb2,
    cluster_pb2,
    controller_api_pb2,
    coordinator_session_pb2,
)
from tidelog.rpc.session_messages import broker_items, broker_message, coordinator_items, coordinator_message

LAST_VERSION = Path(__file__).with_name("wire_of_the_last_version.json")
FILES = (
    broker_commands_pb2.DESCRIPTOR,
    cluster_pb2.DESCRIPTOR,
    controller_api_pb2.DESCRIPTOR,
    coordinator_session_pb2.DESCRIPTOR,
)
LATER_FIELD = b"\xfa\x7d\x05later"  # number 2015, five bytes


def wire(files: tuple[FileDescriptor, ...]) -> dict[str, Any]:
    """Returns by name the parts that must be the same on both sides."""
    found: dict[str, Any] = {}
    for file in files:
        for message in file.message_types_by_name.values():
            _add_message(found, message)
        for enum in file.enum_types_by_name.values():
            found[enum.full_name] = {value.name: value.number for value in enum.values}
        for service in file.services_by_name.values():
            for method in service.methods:
                found[method.full_name] = [method.input_type.full_name, method.output_type.full_name]
    return found


def _add_message(found: dict[str, Any], message: Descriptor) -> None:
    found[message.full_name] = {field.name: _field(field) for field in message.fields}
    for nested in message.nested_types:
        _add_message(found, nested)
    for enum in message.enum_types:
        found[enum.full_name] = {value.name: value.number for value in enum.values}


def reserved(name: str) -> set[str]:
    """Returns the names that the .proto reserves in message `name`."""
    found = DescriptorProto()
    for file in FILES:
        message = file.message_types_by_name.get(name.rpartition(".")[2])
        if message is not None and message.full_name == name:
            message.CopyToProto(found)
            numbers = sum(span.end - span.start for span in found.reserved_range)
            assert numbers == len(found.reserved_name), f"{name} reserves a name or a number alone"
    return set(found.reserved_name)


def _field(field: FieldDescriptor) -> list[Any]:
    of = field.message_type or field.enum_type
    return [field.number, field.type, field.is_repeated, of.full_name if of is not None else ""]


def test_the_messages_of_the_last_version_have_the_same_meaning() -> None:
    before, now = json.loads(LAST_VERSION.read_text()), wire(FILES)
    for name, said in before.items():
        assert name in now, f"{name} is missing, but the version before uses it"
        if isinstance(said, list):
            assert now[name] == said
            continue
        gone = reserved(name)
        for part, meaning in said.items():
            if part in gone and part not in now[name]:
                continue  # neither its name nor its number may be used again
            assert now[name].get(part) == meaning, f"{name}.{part} was {meaning}"
        taken = {str(meaning[0] if isinstance(meaning, list) else meaning) for meaning in said.values()}
        for part, meaning in now[name].items():
            number = str(meaning[0] if isinstance(meaning, list) else meaning)
            assert part in said or number not in taken, f"{name}.{part} has a number that had another meaning"


SERVED = ServeShards((ServedShard(ShardId(ShardKind.GROUP, 3), 4),))
FORWARDED = ForwardedToShard(1, ShardId(ShardKind.GROUP, 3), 11, 9, b"body", "User:a", "client", "127.0.0.1")


@pytest.mark.parametrize("item", [Hello(5), SERVED])
def test_additions_of_a_later_coordinator_are_skipped(item: Item) -> None:
    assert coordinator_items(with_later_fields(coordinator_message(item)) + LATER_FIELD) == [item]


@pytest.mark.parametrize("item", [Welcome(1, 2), FORWARDED])
def test_additions_of_a_later_broker_are_skipped(item: Item) -> None:
    assert broker_items(with_later_fields(broker_message(item)) + LATER_FIELD) == [item]


def with_later_fields(frame: bytes) -> bytes:
    """Returns a message of one item, with an additional field in the item and in its contents."""
    assert frame[0] == 0x0A and frame[1] < 0x80, "field 1, short"
    entry = frame[2:]
    length_at = next(at for at in (1, 2) if entry[at - 1] < 0x80)  # after the tag of the kind
    assert entry[length_at] < 0x60
    kind = entry[:length_at] + bytes([entry[length_at] + len(LATER_FIELD)]) + entry[length_at + 1 :]
    grown = kind + LATER_FIELD + LATER_FIELD
    return b"\x0a" + bytes([len(grown)]) + grown


def test_additions_of_a_later_controller_are_skipped() -> None:
    order = UpdateMetadata(1, 2, (), is_full=True)
    envelope = all_at_once(command_message(order))
    envelope.update_metadata.MergeFromString(LATER_FIELD)
    encoded = envelope.SerializeToString() + LATER_FIELD
    assert len(encoded) > len(all_at_once(command_message(order)).SerializeToString()) + len(LATER_FIELD)
    assert all_at_once(command(broker_commands_pb2.Command.FromString(encoded))) == order


if __name__ == "__main__":
    lines = (f"{json.dumps(name)}: {json.dumps(said)}" for name, said in sorted(wire(FILES).items()))
    LAST_VERSION.write_text("{\n" + ",\n".join(lines) + "\n}\n")
