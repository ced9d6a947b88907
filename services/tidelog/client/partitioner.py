"""Selects the partition of a key in the same way as Kafka's clients."""

from __future__ import annotations

from typing import Final

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
