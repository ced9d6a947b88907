"""The file `.lock` of a data directory, which only one process at a time can lock, including Apache Kafka."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from tidelog.broker.log.errors import LogDirectoryInUseError

LOCK_FILE: Final = ".lock"


class DirectoryLock:
    """A lock that is held from its construction until `release` or until the process ends.

    It has two parts: the POSIX lock excludes Java processes, and the BSD lock excludes a second holder in
    this process.
    """

    def __init__(self, directory: Path) -> None:
        """Raises LogDirectoryInUseError, OSError."""
        self._fd = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            if isinstance(error, BlockingIOError | PermissionError):
                raise LogDirectoryInUseError(
                    f"The data directory {directory} is in use by another process ({LOCK_FILE} is locked)"
                ) from error
            raise

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
