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
