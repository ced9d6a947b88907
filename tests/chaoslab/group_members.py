"""The members of a group in a chaos run, as threads that come and go."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Generic, TypeVar


class Member(threading.Thread):
    """One member from its start to its end. It ends soon after `is_over` is set."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.complaints: list[str] = []
        self.is_over = threading.Event()


M = TypeVar("M", bound=Member)


class GroupMembers(Generic[M]):
    """The members of a group. `replace_one` makes one leave and another join."""

    def __init__(self, name: str, topics: Iterable[str]) -> None:
        self.name = name
        self.topics = tuple(topics)
        self._joined = 0
        self._members: list[M] = []
        self._gone: list[M] = []

    def _new_member(self, name: str) -> M:
        """Returns a member that has not started."""
        raise NotImplementedError

    def join(self, count: int = 1) -> None:
        """Starts members."""
        for _ in range(count):
            self._joined += 1
            member = self._new_member(f"{self.name}.{self._joined}")
            self._members.append(member)
            member.start()

    def replace_one(self) -> None:
        oldest = self._members.pop(0)
        oldest.is_over.set()
        self._gone.append(oldest)
        self.join()

    def stop(self, timeout_s: float) -> None:
        for member in self._members:
            member.is_over.set()
        deadline_s = time.monotonic() + timeout_s
        for member in self._members:
            member.join(max(0.0, deadline_s - time.monotonic()))

    @property
    def everyone(self) -> list[M]:
        """The present members and those that have left."""
        return self._gone + self._members

    @property
    def complaints(self) -> list[str]:
        return [text for member in self.everyone for text in member.complaints]
