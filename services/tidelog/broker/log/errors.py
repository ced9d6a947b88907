"""The errors of logs and of the files in a data directory."""

from __future__ import annotations

from tidelog.model.errors import ErrorCode, KafkaError


class LogStorageError(KafkaError):
    """The disk is full, read-only or failing, so the operation was not carried out.

    Clients receive KAFKA_STORAGE_ERROR and retry. Only `str` of the error, for this broker's own log, has the
    reason, because it contains paths.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(
            ErrorCode.KAFKA_STORAGE_ERROR, "The broker cannot use its disk. Its log has the reason."
        )
        self._reason = reason

    def __str__(self) -> str:
        return self._reason


class LostRecordsError(ValueError):
    """A log ends below an offset that it has had. The message names both and the next step."""


class LogDirectoryInUseError(RuntimeError):
    """Another process has locked the data directory."""
