"""The limit of the names of principals, groups and other entities that every broker keeps."""

from __future__ import annotations

from typing import Final

MAX_NAME_BYTES: Final = 1024
"""Every broker keeps these names in memory, and each is a part of a key of the metadata store."""


def is_too_long(name: str) -> bool:
    return len(name.encode()) > MAX_NAME_BYTES
