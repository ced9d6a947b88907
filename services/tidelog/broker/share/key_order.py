"""The order of records with equal keys: one record of a key at a time, in the order of their offsets."""

from __future__ import annotations

from collections import deque


class KeyOrder:
    """The unfinished records of a share partition by their keys. The first one of each key may be delivered,
    and the others wait until it is finished: accepted, given up, or no more in the log.

    A key is a number, a hash of the bytes. Keys with equal hashes wait for each other, which does no harm.
    """

    __slots__ = ("_keys", "_queues")

    def __init__(self) -> None:
        self._keys: dict[int, int] = {}
        """The key of each unfinished record, by its offset."""
        self._queues: dict[int, deque[int]] = {}
        """The offsets of each key in order. Those behind the first may be finished already."""

    def __len__(self) -> int:
        """Returns the number of unfinished records."""
        return len(self._keys)

    def add(self, offset: int, key: int) -> None:
        """Adds a record behind all others of its key."""
        self._keys[offset] = key
        self._queues.setdefault(key, deque()).append(offset)

    def is_first(self, offset: int) -> bool:
        """Returns whether a record may be delivered. A record without a key always may."""
        key = self._keys.get(offset)
        return key is None or self._queues[key][0] == offset

    def finish(self, first: int, last: int) -> list[int]:
        """Removes the records from `first` to `last`. Returns those that may be delivered from now on."""
        is_long = last - first >= len(self._keys)
        offsets = [at for at in self._keys if first <= at <= last] if is_long else range(first, last + 1)
        changed = {key for at in offsets if (key := self._keys.pop(at, None)) is not None}
        firsts = []
        for key in changed:
            queue = self._queues[key]
            was_first = queue[0]
            while queue and queue[0] not in self._keys:
                queue.popleft()
            if not queue:
                del self._queues[key]
            elif queue[0] != was_first:
                firsts.append(queue[0])
        return firsts
