"""Plans the growth of volumes: which claims grow, and which StatefulSets are created again. No I/O.

A StatefulSet's claim template can't be changed. So the claims are patched, the StatefulSet is deleted without
its pods, and Helm creates it again. Volumes never shrink: a smaller size only changes the template.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

_SUFFIXES: Final = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{
        suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)
    },
}


_QUANTITY: Final = re.compile(r"(?P<number>\d+(\.\d*)?([eE]\d{1,2})?)(?P<suffix>m|k|[MGTPE]|[KMGTPE]i|)")


@dataclass(frozen=True, slots=True)
class Claim:
    """A PersistentVolumeClaim and its requested size."""

    name: str
    size: str


@dataclass(frozen=True, slots=True)
class VolumeSet:
    """A StatefulSet, the size in its template, and its claims."""

    name: str
    template_size: str
    claims: Sequence[Claim]


@dataclass(frozen=True, slots=True)
class VolumeChanges:
    grown: tuple[Claim, ...] = ()
    """The claims to grow, with their previous sizes."""
    kept: tuple[Claim, ...] = ()
    """The claims that are larger than the new size."""
    recreated: tuple[str, ...] = ()
    """StatefulSets."""


def quantity(text: str) -> Decimal:
    """Parses a quantity of Kubernetes, such as `10Gi`, `500M` or `1e9`. Raises ValueError."""
    found = _QUANTITY.fullmatch(text)
    value = Decimal(found["number"]) * _SUFFIXES[found["suffix"]] if found else Decimal(0)
    if value <= 0:
        raise ValueError(f"{text!r} is not a size such as 10Gi")
    return value


def plan_growth(sets: Sequence[VolumeSet], size: str) -> VolumeChanges:
    """Returns the changes that give all StatefulSets volumes of `size`. Raises ValueError."""
    wanted = quantity(size)
    grown: list[Claim] = []
    kept: list[Claim] = []
    recreated: list[str] = []
    for volume_set in sets:
        grown += [claim for claim in volume_set.claims if quantity(claim.size) < wanted]
        if quantity(volume_set.template_size) != wanted:
            recreated.append(volume_set.name)
            kept += [claim for claim in volume_set.claims if quantity(claim.size) > wanted]
    return VolumeChanges(tuple(grown), tuple(kept), tuple(recreated))
