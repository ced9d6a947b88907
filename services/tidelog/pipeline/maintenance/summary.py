"""The result of a maintenance run. The module does no I/O."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from tidelog.model.json_object import JsonObject


@dataclass(slots=True)
class MaintenanceSummary:
    """`packed` small files became `made` files, and `removed` unneeded files were deleted."""

    table: str
    packed: int = 0
    made: int = 0
    removed: int = 0
    seconds: float = 0.0

    def as_dict(self) -> JsonObject:
        return asdict(self)
