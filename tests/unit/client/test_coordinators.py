"""The decoding of classic members' assignments."""

from __future__ import annotations

import struct

from tidelog.client.coordinators import assigned_partitions
from tidelog.model.topics import TopicPartition


def assignment(*topics: tuple[str, tuple[int, ...]], user_data: bytes = b"") -> bytes:
    """Kafka's ConsumerProtocolAssignment, version 1."""
    encoded = struct.pack(">hi", 1, len(topics))
    for name, partitions in topics:
        encoded += struct.pack(">h", len(name.encode())) + name.encode()
        encoded += struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return encoded + struct.pack(">i", len(user_data)) + user_data


def test_partitions_of_all_topics_are_read() -> None:
    encoded = assignment(("a", (0, 7)), ("tøpic", ()), ("b", (3,)), user_data=b"sticky")
    assert assigned_partitions(encoded) == (
        TopicPartition("a", 0),
        TopicPartition("a", 7),
        TopicPartition("b", 3),
    )


def test_a_malformed_assignment_has_no_partitions() -> None:
    whole = assignment(("a", (0, 7)))
    assert assigned_partitions(b"") == ()
    assert assigned_partitions(whole[:-8]) == ()
    assert assigned_partitions(b"\x00\x01\x00\x00\x00\x01\x00\x02\xff\xfe") == ()
