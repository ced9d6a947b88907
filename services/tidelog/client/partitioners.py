"""Partitioners of producers: functions that choose the partition of a record.

Any callable with the parameters of `Partitioner` will do.
"""

from __future__ import annotations

import itertools
from typing import Final, Protocol

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_SHIFT: Final = 24
_MASK32: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF


def murmur2(data: bytes) -> int:
    """Returns the unsigned 32-bit hash of Kafka's clients: Austin Appleby's MurmurHash2 with Kafka's seed."""
    length = len(data)
    state = _SEED ^ length
    whole = length & ~3
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little") * _MULTIPLIER & _MASK32
        word ^= word >> _SHIFT
        state = (state * _MULTIPLIER & _MASK32) ^ (word * _MULTIPLIER & _MASK32)
    rest = data[whole:]
    if rest:
        state = (state ^ int.from_bytes(rest, "little")) * _MULTIPLIER & _MASK32
    state ^= state >> 13
    state = state * _MULTIPLIER & _MASK32
    return state ^ (state >> 15)


def partition_for_key(key: bytes, num_partitions: int) -> int:
    return (murmur2(key) & _POSITIVE) % num_partitions


class Partitioner(Protocol):
    """Returns the partition of a record with this serialized key and value.

    None means the partition to which records without a key go at present. It changes with each batch, so
    that batches are large and partitions get equal shares (KIP-480).
    """

    def __call__(
        self, topic: str, key: bytes | None, value: bytes | None, num_partitions: int, /
    ) -> int | None: ...


def by_key(topic: str, key: bytes | None, value: bytes | None, num_partitions: int, /) -> int | None:
    """Kafka's default: murmur2 of the key, or the sticky partition for a record without a key."""
    return None if key is None else partition_for_key(key, num_partitions)


def sticky(topic: str, key: bytes | None, value: bytes | None, num_partitions: int, /) -> int | None:
    """Ignores keys."""
    return None


class RoundRobin:
    """Takes the partitions of each topic in turn, whatever the key. Batches stay small."""

    def __init__(self) -> None:
        self._turns: dict[str, itertools.count[int]] = {}

    def __call__(
        self, topic: str, key: bytes | None, value: bytes | None, num_partitions: int, /
    ) -> int | None:
        turn = self._turns.get(topic)
        if turn is None:
            turn = self._turns[topic] = itertools.count()
        return next(turn) % num_partitions


class HotDataPartitioner:
    """Sends keys that contain a mark to the last partition, and other keys to the others by murmur2.

    It is an example of a partitioner that keeps a busy key away from all other keys.
    """

    MARK: Final = b"hot_data"

    def __call__(
        self, topic: str, key: bytes | None, value: bytes | None, num_partitions: int, /
    ) -> int | None:
        if key is not None and self.MARK in key:
            return num_partitions - 1
        if key is None or num_partitions == 1:
            return None
        return partition_for_key(key, num_partitions - 1)
