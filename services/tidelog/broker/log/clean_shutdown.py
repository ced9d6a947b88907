"""The clean-shutdown marker, the file `.kafka_cleanshutdown`.

A broker writes it after it has flushed and closed all its logs, so that the next start need not recover them.
The file is JSON in the format of Kafka's `CleanShutdownFileHandler` and has the broker epoch of that run.
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
    """Removes the marker, because logs can change from now on, and returns its broker epoch.

    Returns -1 if the marker has no broker epoch, and None if there is no marker or if it cannot be parsed.
    Raises OSError.
    """
    path = directory / CLEAN_SHUTDOWN_FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    path.unlink()
    if not content:
        return UNKNOWN_BROKER_EPOCH  # Kafka wrote an empty file before version 3.7
    try:
        marker = json.loads(content)
    except ValueError:
        return None
    epoch = marker.get("brokerEpoch", UNKNOWN_BROKER_EPOCH) if isinstance(marker, dict) else None
    return epoch if isinstance(epoch, int) else None


def write_clean_shutdown_marker(directory: Path, broker_epoch: int) -> None:
    """Writes the marker; everything must have been flushed before. Raises OSError."""
    marker = {"version": _VERSION, "brokerEpoch": broker_epoch}
    write_atomically(directory / CLEAN_SHUTDOWN_FILE, json.dumps(marker, separators=(",", ":")).encode())
