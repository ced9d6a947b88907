"""Leases by deadline: who is probably alive. Pure; the time is an argument."""

from __future__ import annotations

from tidelog.metadata.store import LeaseNotFoundError


class LeaseTable:
    """A handful of leases (one per service), so a scan for the earliest deadline is cheap enough."""

    def __init__(self, first_id: int) -> None:
        self._next_id = first_id + 1
        self._ttl_ms: dict[int, int] = {}
        self._deadline_ms: dict[int, int] = {}

    def grant(self, ttl_ms: int, now_ms: int) -> int:
        if ttl_ms <= 0:
            raise ValueError(f"a lease of {ttl_ms} ms")
        lease = self._next_id
        self._next_id += 1
        self._ttl_ms[lease] = ttl_ms
        self._deadline_ms[lease] = now_ms + ttl_ms
        return lease

    def exists(self, lease: int) -> bool:
        return lease in self._ttl_ms

    def renew(self, lease: int, now_ms: int) -> int:
        """Answers the ms it now lasts; raises LeaseNotFoundError."""
        ttl_ms = self._ttl_ms.get(lease)
        if ttl_ms is None:
            raise LeaseNotFoundError(f"lease {lease:x} does not exist")
        self._deadline_ms[lease] = now_ms + ttl_ms
        return ttl_ms

    def renew_all(self, now_ms: int) -> None:
        for lease in self._ttl_ms:
            self.renew(lease, now_ms)

    def remove(self, lease: int) -> None:
        """Raises LeaseNotFoundError."""
        if self._ttl_ms.pop(lease, None) is None:
            raise LeaseNotFoundError(f"lease {lease:x} does not exist")
        del self._deadline_ms[lease]

    def expired(self, now_ms: int) -> tuple[int, ...]:
        """Leases whose deadline has come, in no order."""
        return tuple(lease for lease, deadline_ms in self._deadline_ms.items() if deadline_ms <= now_ms)

    def next_deadline_ms(self) -> int | None:
        return min(self._deadline_ms.values(), default=None)
