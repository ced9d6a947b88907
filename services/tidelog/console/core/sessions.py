"""The sessions of a console whose users log in, and the limits of failed logins.

Nobody can try many passwords. Each limit is a bucket: a failed login adds one to it, and it loses one in each
interval. A full bucket refuses logins.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from tidelog.kernel.instants import MonotonicMs
from tidelog.model.fair_budget import FairBudget, Holding

Source = tuple[str, str]
"""The address from which a login comes, and the name of the user."""

MAX_OF_A_SOURCE: Final = 5
INTERVAL_OF_A_SOURCE_MS: Final = 30_000
MAX_OF_ALL: Final = 60
INTERVAL_OF_ALL_MS: Final = 1_000
MAX_SOURCES: Final = 1_024
"""The most sources that are remembered. The one that failed longest ago is forgotten first."""
MAX_SESSIONS: Final = 32
"""The sessions of all users, who share them fairly. Each has a thread and connections to brokers."""
IDLE_MS: Final = 30 * 60_000
"""The time without a request after which a session ends. Live updates do not count as requests."""
LIFETIME_MS: Final = 12 * 60 * 60_000
"""The time after which a session ends in any case."""
T = TypeVar("T")


@dataclass(slots=True)
class _Bucket:
    size: int
    interval_ms: int
    level: float = 0.0
    at_ms: int = 0

    def wait_ms(self, now_ms: MonotonicMs) -> int:
        """Returns the time until the bucket takes one more, 0 if it does now."""
        self.level = max(0.0, self.level - (now_ms - self.at_ms) / self.interval_ms)
        self.at_ms = now_ms
        return max(0, round((self.level + 1 - self.size) * self.interval_ms))


class FailedLogins:
    """The failed logins of each source and of all together."""

    def __init__(self) -> None:
        self._all = _Bucket(MAX_OF_ALL, INTERVAL_OF_ALL_MS)
        self._sources: OrderedDict[Source, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sources)

    def begin(self, source: Source, now_ms: MonotonicMs) -> int:
        """Returns 0 if a login may be tried, or the time to wait in milliseconds. A login that may be tried
        counts as failed until `did_not_fail`, so that logins at the same time are limited, too.
        """
        bucket = self._sources.get(source)
        if bucket is None:
            bucket = _Bucket(MAX_OF_A_SOURCE, INTERVAL_OF_A_SOURCE_MS)
        wait_ms = max(self._all.wait_ms(now_ms), bucket.wait_ms(now_ms))
        if wait_ms:
            return wait_ms
        self._all.level += 1
        bucket.level += 1
        self._sources[source] = bucket
        self._sources.move_to_end(source)
        if len(self._sources) > MAX_SOURCES:
            self._sources.popitem(last=False)
        return 0

    def did_not_fail(self, source: Source) -> None:
        """Takes one login back: it succeeded, or the cluster did not answer."""
        self._all.level = max(0.0, self._all.level - 1)
        bucket = self._sources.get(source)
        if bucket is not None:
            bucket.level = max(0.0, bucket.level - 1)
            if not bucket.level:
                del self._sources[source]


class TooManySessionsError(Exception):
    """The user has more than a fair share of the sessions, and there are no others."""


@dataclass(slots=True)
class Session(Generic[T]):
    """A session. It ends at `ends_ms` even if it is used. `value` is an object of the caller's, such as the
    access to the cluster. `holding` is its part of the budget.
    """

    value: T
    ends_ms: MonotonicMs
    used_ms: MonotonicMs
    holding: Holding

    def has_expired(self, now_ms: MonotonicMs) -> bool:
        return now_ms - self.used_ms >= IDLE_MS or now_ms >= self.ends_ms


class Sessions(Generic[T]):
    """The sessions by token.

    It keeps only the hashes of tokens. A search in a dictionary may take longer for a token that is almost
    right, but it compares hashes, from which nobody can guess the token byte by byte.
    """

    def __init__(self) -> None:
        self._sessions: dict[bytes, Session[T]] = {}
        self.budget = FairBudget(MAX_SESSIONS, stalled_s=IDLE_MS / 1000)

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self, token: str, user: Hashable, value: T, now_ms: MonotonicMs, lasts_ms: int = LIFETIME_MS
    ) -> list[T]:
        """Adds a session, which lasts no longer than `lasts_ms` and LIFETIME_MS. Returns the values of the
        sessions that end: expired ones and, for a user below the fair share, the oldest ones of those above
        it. Raises TooManySessionsError.

        `user` is the key in the budget. Sessions whose users are not known share a key of another kind.
        """
        ended = self.end_expired(now_ms)
        key = _key_of(token)

        def evict() -> None:
            ended.append(self._sessions.pop(key).value)

        ends_ms = MonotonicMs(now_ms + min(lasts_ms, LIFETIME_MS))
        session = Session(value, ends_ms, now_ms, Holding(evict, lambda: session.used_ms / 1000))
        if not self.budget.resize(session.holding, user, 1, now_ms / 1000):
            raise TooManySessionsError
        self._sessions[key] = session
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
        return self._end(_key_of(token))

    def end_expired(self, now_ms: MonotonicMs) -> list[T]:
        """Ends the sessions that have expired and returns their values."""
        expired = [key for key, each in self._sessions.items() if each.has_expired(now_ms)]
        return [value for key in expired if (value := self._end(key)) is not None]

    def next_end_ms(self) -> MonotonicMs | None:
        """Returns the time at which the next session ends even if it is used, None without sessions."""
        return min((each.ends_ms for each in self._sessions.values()), default=None)

    def end_all(self) -> list[T]:
        return [value for key in list(self._sessions) if (value := self._end(key)) is not None]

    def _end(self, key: bytes) -> T | None:
        session = self._sessions.pop(key, None)
        if session is None:
            return None
        self.budget.forget(session.holding, session.used_ms / 1000)
        return session.value


def _key_of(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
