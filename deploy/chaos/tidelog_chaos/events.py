"""Records of actions, for reports."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

EVENTS_FILE = "TIDELOG_CHAOS_EVENTS"
Event = dict[str, Any]


def event(action: str, role: str, target: str, at_s: float | None = None, **more: Any) -> Event:
    """Records an event that happened at `at_s` (monotonic), or now."""
    now_s = time.monotonic()
    at_s = now_s if at_s is None else at_s
    found = {
        "action": action,
        "role": role,
        "target": target,
        "at_s": at_s,
        "wall_s": time.time() - (now_s - at_s),
        **more,
    }
    if path := os.environ.get(EVENTS_FILE):
        with Path(path).open("a") as file:
            file.write(json.dumps(found) + "\n")
    return found
