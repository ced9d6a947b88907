"""Decodes zigzag varints at many positions at once."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np

_MAX_BITS: Final = 70
_ONE: Final = np.uint64(1)
_LOW_BITS: Final = np.uint64(0x7F)

# These are NDArray[np.int64] and NDArray[np.uint8]. The aliases let mypy check the code without NumPy.
Integers: TypeAlias = Any
Octets: TypeAlias = Any


class UnreadableVarintError(ValueError):
    """A varint has more than 10 bytes."""


def read_varints(data: Octets, positions: Integers) -> tuple[Integers, Integers]:
    """Returns (values, positions after them) of the varints at `positions`.

    The caller checks the bounds. Beyond the end of `data`, the last byte is read repeatedly. Raises
    UnreadableVarintError.
    """
    octets = data.take(positions, mode="clip")
    zigzag = octets.astype(np.uint64)
    behind = positions + 1
    rest = np.flatnonzero(octets > 0x7F)
    if rest.size:
        zigzag &= _LOW_BITS
        shift = 7
        whole = rest.size == octets.size
        while rest.size:
            if shift >= _MAX_BITS:
                raise UnreadableVarintError("a varint is longer than 64 bits")
            # In the common case, all varints have two bytes, and the rest need not be gathered.
            octets = data.take(behind if whole else behind[rest], mode="clip")
            part = (octets & 0x7F).astype(np.uint64) << np.uint64(shift)
            if whole:
                zigzag |= part
                behind += 1
            else:
                zigzag[rest] |= part
                behind[rest] += 1
            more = octets > 0x7F
            whole = whole and bool(more.all())
            rest = rest[more]
            shift += 7
    values = (zigzag >> _ONE) ^ (np.uint64(0) - (zigzag & _ONE))
    return values.view(np.int64), behind
