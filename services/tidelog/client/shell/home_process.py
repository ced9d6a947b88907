"""The process that a client belongs to.

A forked child has a copy of the client, but neither its threads nor its event loop, and it shares the
connections with the parent. Each call would wait for ever, or send what the parent sends, too.
"""

from __future__ import annotations

import os
from typing import Final, NoReturn

from tidelog.client.core.delivery_errors import ClosedError


class HomeProcess:
    """The process that made a client."""

    def __init__(self, subject: str) -> None:
        """`subject` names the client in errors."""
        self._subject: Final = subject
        self._pid: Final = os.getpid()

    def __reduce__(self) -> NoReturn:
        """Raises TypeError, for all clients that have one."""
        raise TypeError(
            f"the {self._subject} belongs to process {self._pid} and cannot be pickled: make another one "
            "in the other process"
        )

    @property
    def is_current(self) -> bool:
        return os.getpid() == self._pid

    def check(self) -> None:
        """Raises ClosedError in a forked child."""
        if not self.is_current:
            raise self.error()

    def error(self) -> ClosedError:
        return ClosedError(
            f"the {self._subject} belongs to process {self._pid} and cannot be used in its forked child "
            f"{os.getpid()}: make another one in the child"
        )
