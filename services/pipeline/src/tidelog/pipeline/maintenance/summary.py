"""What a run of maintenance did. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True)
class MaintenanceSummary:
    """`packed` small files became `made` files; `removed` files nobody needs were deleted."""

    table: str
    packed: int = 0
    made: int = 0
    removed: int = 0
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
