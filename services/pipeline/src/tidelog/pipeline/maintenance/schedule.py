"""When a table is maintained, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DEFAULT_TARGET_FILE_BYTES: Final = 128 << 20
DEFAULT_KEEP_HOURS: Final = 168.0


@dataclass(frozen=True, slots=True)
class MaintenanceSettings:
    """`keep_hours`: files that no version since then needs are removed; slower readers would fail."""

    target_file_bytes: int = DEFAULT_TARGET_FILE_BYTES
    keep_hours: float = DEFAULT_KEEP_HOURS
    optimizes: bool = True
    vacuums: bool = True


@dataclass(frozen=True, slots=True)
class MaintenanceSchedule:
    """`every_s` since the end of the run before; 0: only when asked for."""

    every_s: float = 3600.0
    settings: MaintenanceSettings = MaintenanceSettings()


class MaintenanceClock:
    """Says when a run is due; the first is `every_s` after the start."""

    def __init__(self, schedule: MaintenanceSchedule, now_s: float) -> None:
        self._every_s = schedule.every_s
        self._last_s = now_s

    def is_due(self, now_s: float) -> bool:
        return self._every_s > 0 and now_s - self._last_s >= self._every_s

    def ran(self, now_s: float) -> None:
        self._last_s = now_s
