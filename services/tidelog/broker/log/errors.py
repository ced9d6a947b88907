"""What can go wrong between the log and the disk."""

from __future__ import annotations

from tidelog.model.errors import ErrorCode, KafkaError


class LogStorageError(KafkaError):
    """The disk refused (full, read-only, failing). Clients are told KAFKA_STORAGE_ERROR and retry; nothing
    was acknowledged.
    """

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, message)


class TornLogError(ValueError):
    """From `position` on a segment holds no whole sound batch: the place where recovery cuts it.

    `is_cut_off`: the file ends within the batch, as the death of the writer leaves it; anything else is
    damage.
    """

    def __init__(self, position: int, reason: str, *, is_cut_off: bool = False) -> None:
        super().__init__(f"position {position}: {reason}")
        self.position = position
        self.reason = reason
        self.is_cut_off = is_cut_off


class CorruptFileError(ValueError):
    """A checkpoint, marker or properties file that can't be read; the message names file and line."""


class LogDirectoryInUseError(RuntimeError):
    """Another process holds the data directory's lock."""
