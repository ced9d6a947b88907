"""The sizes of the entries that every broker receives in one message, the full UpdateMetadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidelog.metadata.entries import BROKER_CONFIG_PREFIX, SECURITY_PREFIXES, TOPIC_CONFIG_PREFIX

MAX_SIZED_BYTES: Final = 32 * 1024 * 1024
"""The keys and values of all security entries and settings of topics and brokers. The full UpdateMetadata may
have 64 MiB (`MAX_MESSAGE_BYTES`); it also contains the partitions of all topics.
"""
SIZED_PREFIXES: Final = (*SECURITY_PREFIXES, TOPIC_CONFIG_PREFIX, BROKER_CONFIG_PREFIX)


class EntrySizes:
    """The bytes of the entries that exist, by key and in total."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self.total_bytes = 0

    def put(self, key: str, value_bytes: int) -> None:
        size_bytes = len(key) + value_bytes
        self.total_bytes += size_bytes - self._sizes.get(key, 0)
        self._sizes[key] = size_bytes

    def remove(self, key: str) -> None:
        self.total_bytes -= self._sizes.pop(key, 0)

    def growth(self, after: Mapping[str, int | None]) -> int:
        """Returns how many bytes more there are when each key has a value of so many bytes, or None if it is
        removed.
        """
        return sum(
            (0 if value_bytes is None else len(key) + value_bytes) - self._sizes.get(key, 0)
            for key, value_bytes in after.items()
        )
