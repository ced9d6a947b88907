"""The errors of logs and of the files in a data directory."""

from __future__ import annotations

from tidelog.model.errors import ErrorCode, KafkaError


class LogStorageError(KafkaError):
    """The disk is full, read-only or failing, so the operation was not carried out.

    Clients receive KAFKA_STORAGE_ERROR and retry.
    """

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, message)


class TornLogError(ValueError):
    """A segment has no valid batch at `position`; recovery cuts the segment there.

    If `is_cut_off`, the file ends within the batch, which is normal after the death of the writer. Otherwise
    the segment is damaged.
    """

    def __init__(self, position: int, reason: str, *, is_cut_off: bool = False) -> None:
        super().__init__(f"position {position}: {reason}")
        self.position = position
        self.reason = reason
        self.is_cut_off = is_cut_off


class LostRecordsError(ValueError):
    """A log ends below an offset that it has had. The message names both and the next step."""


class CorruptFileError(ValueError):
    """A checkpoint, marker or properties file cannot be parsed; the message names the file and the line."""


class LogDirectoryInUseError(RuntimeError):
    """Another process has locked the data directory."""
