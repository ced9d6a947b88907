"""`.kafka_cleanshutdown`: left by a broker that flushed and closed all its logs, so that the next start need
not recover them.

JSON as Kafka's `CleanShutdownFileHandler` writes it; it names the broker epoch of the run that ended.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from tidelog.broker.log.checkpoint_file import write_atomically

CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"
UNKNOWN_BROKER_EPOCH: Final = -1
_VERSION: Final = 0


def take_clean_shutdown_marker(directory: Path) -> int | None:
    """The broker epoch in the marker (-1 if it says none), None without one. The marker is gone then: from
    now on logs may change.

    A marker of unknown contents counts as none. Raises OSError.
    """
    path = directory / CLEAN_SHUTDOWN_FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    path.unlink()
    if not content:
        return UNKNOWN_BROKER_EPOCH  # Kafka before 3.7 left it empty
    try:
        marker = json.loads(content)
    except ValueError:
        return None
    epoch = marker.get("brokerEpoch", UNKNOWN_BROKER_EPOCH) if isinstance(marker, dict) else None
    return epoch if isinstance(epoch, int) else None


def write_clean_shutdown_marker(directory: Path, broker_epoch: int) -> None:
    """Only after everything was flushed. Raises OSError."""
    marker = {"version": _VERSION, "brokerEpoch": broker_epoch}
    write_atomically(directory / CLEAN_SHUTDOWN_FILE, json.dumps(marker, separators=(",", ":")).encode())
