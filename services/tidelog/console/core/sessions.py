"""The sessions of a console whose users log in."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from tidelog.model.instants import MonotonicMs

MAX_SESSIONS: Final = 32
MAX_SESSIONS_OF_A_USER: Final = 4
IDLE_MS: Final = 30 * 60_000
"""The time without a request after which a session ends. Live updates do not count as requests."""
LIFETIME_MS: Final = 12 * 60 * 60_000
"""The time after which a session ends in any case."""

T = TypeVar("T")


class TooManySessionsError(Exception):
    """All sessions are in use."""


@dataclass(slots=True)
class Session(Generic[T]):
    """A session of a user. It ends at `ends_ms` even if it is used. `value` is an object of the caller's,
    such as the access to the cluster.
    """

    user: str
    value: T
    ends_ms: MonotonicMs
    used_ms: MonotonicMs

    def has_expired(self, now_ms: MonotonicMs) -> bool:
        return now_ms - self.used_ms >= IDLE_MS or now_ms >= self.ends_ms


class Sessions(Generic[T]):
    """The sessions by token.

    It keeps only the hashes of tokens. A search in a dictionary may take longer for a token that is almost
    right, but it compares hashes, from which nobody can guess the token byte by byte.
    """

    def __init__(self) -> None:
        self._sessions: dict[bytes, Session[T]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self, token: str, user: str, value: T, now_ms: MonotonicMs, lasts_ms: int = LIFETIME_MS
    ) -> list[T]:
        """Adds a session, which lasts no longer than `lasts_ms` and LIFETIME_MS. Returns the values of the
        sessions that end: expired ones, and the oldest one of a user who has too many. Raises
        TooManySessionsError, with which nothing changes.
        """
        expired = [key for key, each in self._sessions.items() if each.has_expired(now_ms)]
        own = [key for key, each in self._sessions.items() if each.user == user and key not in expired]
        surplus = own[: max(0, len(own) - MAX_SESSIONS_OF_A_USER + 1)]  # in the order in which they began
        if len(self._sessions) - len(expired) - len(surplus) >= MAX_SESSIONS:
            raise TooManySessionsError
        ended = [self._sessions.pop(key).value for key in (*expired, *surplus)]
        ends_ms = MonotonicMs(now_ms + min(lasts_ms, LIFETIME_MS))
        self._sessions[_key_of(token)] = Session(user, value, ends_ms, now_ms)
        return ended

    def find(self, token: str, now_ms: MonotonicMs, *, is_use: bool) -> Session[T] | None:
        """Returns the session of a token, None if there is none or it has expired. With `is_use`, its idle
        time begins again.
        """
        session = self._sessions.get(_key_of(token))
        if session is None or session.has_expired(now_ms):
            return None
        if is_use:
            session.used_ms = now_ms
        return session

    def end(self, token: str) -> T | None:
        """Ends the session of a token and returns its value."""
        session = self._sessions.pop(_key_of(token), None)
        return None if session is None else session.value

    def end_expired(self, now_ms: MonotonicMs) -> list[T]:
        """Ends the sessions that have expired and returns their values."""
        expired = [key for key, each in self._sessions.items() if each.has_expired(now_ms)]
        return [self._sessions.pop(key).value for key in expired]

    def next_end_ms(self) -> MonotonicMs | None:
        """Returns the time at which the next session ends even if it is used, None without sessions."""
        return min((each.ends_ms for each in self._sessions.values()), default=None)

    def end_all(self) -> list[T]:
        values = [each.value for each in self._sessions.values()]
        self._sessions.clear()
        return values


def _key_of(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
