"""The result of a run in its last line: kills, anomalies, longest gap. All suites add to one file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass
class Outcome:
    """The longest gap is the longest time in which some partition acknowledged nothing, under a load that
    never pauses. `figures` are named measurements for comparisons of runs.
    """

    kills: int = 0
    anomalies: int = 0
    longest_gap_s: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Outcome:
        return cls(**json.loads(path.read_text())) if path.exists() else cls()

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1))

    def add(self, *, kills: int, anomalies: int, longest_gap_s: float) -> None:
        self.kills += kills
        self.anomalies += anomalies
        self.longest_gap_s = max(self.longest_gap_s, longest_gap_s)

    def line(self) -> str:
        return f"e2e: {self.kills} kills, {self.anomalies} anomalies, longest gap {self.longest_gap_s:.1f} s"
