"""When and how a table is maintained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DEFAULT_TARGET_FILE_BYTES: Final = 128 << 20
DEFAULT_KEEP_HOURS: Final = 168.0


@dataclass(frozen=True, slots=True)
class MaintenanceSettings:
    """`keep_hours` is the age below which files are kept for readers of older versions. Slower readers would
    fail.
    """

    target_file_bytes: int = DEFAULT_TARGET_FILE_BYTES
    keep_hours: float = DEFAULT_KEEP_HOURS
    optimizes: bool = True
    vacuums: bool = True


@dataclass(frozen=True, slots=True)
class MaintenanceSchedule:
    """`every_s` is the time between the end of one run and the next run. 0 means on request only."""

    every_s: float = 3600.0
    settings: MaintenanceSettings = MaintenanceSettings()
