"""What a follower says in its next Fetch to one leader (KIP-227, the asking side).

The leader remembers what is fetched and from where, so a request names only what changed since the last one:
a partition that got records, that was added, that is left out now. A cluster where nothing happens costs two
empty requests a second, however many partitions it has.

Requests are numbered from 1. A partition takes the answers of requests from `valid_from` on: earlier ones
were asked before it was added or moved. Pure: no I/O, no clock. Source: Kafka's `FetchSessionHandler`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tidelog.broker.replication.fetch_wire import PartitionKey, Position

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
MAX_EPOCH: Final = 2**31 - 1


class FetchPosition(Position):
    """Where one partition is fetched from, changed in place. Subclassed by who keeps more of a partition."""

    __slots__ = ("is_fetched", "valid_from")

    def __init__(
        self,
        topic_id: bytes,
        index: int,
        current_leader_epoch: int = -1,
        fetch_offset: int = 0,
        last_fetched_epoch: int = -1,
        log_start_offset: int = -1,
        max_bytes: int = 0,
    ) -> None:
        super().__init__(
            topic_id,
            index,
            current_leader_epoch,
            fetch_offset,
            last_fetched_epoch,
            log_start_offset,
            max_bytes,
        )
        self.is_fetched = False
        """Whether it is in the session now."""
        self.valid_from = 0


class FollowerSession:
    """The positions to be fetched, and how much of them the leader knows."""

    __slots__ = (
        "_changed",
        "_epoch",
        "_forgotten",
        "_positions",
        "_session_id",
        "first_valid_request",
        "is_without",
        "last_request",
    )

    def __init__(self) -> None:
        self._session_id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        self._positions: dict[PartitionKey, FetchPosition] = {}
        self._changed: dict[PartitionKey, FetchPosition] = {}
        self._forgotten: dict[PartitionKey, None] = {}
        self.last_request = 0
        """Number of the last request made."""
        self.is_without = False
        """The leader gave none: it does not know this broker just now, and answers each request in full."""
        self.first_valid_request = 1
        """Answers to requests before it are of a session that is no more."""

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def is_empty(self) -> bool:
        """Nothing to fetch, and nothing to tell the leader either."""
        return not self._positions and (self.is_opening or not self._forgotten)

    @property
    def has_news(self) -> bool:
        """Whether the next request tells the leader anything."""
        return bool(self._changed or self._forgotten)

    def positions(self) -> Iterator[FetchPosition]:
        yield from self._positions.values()

    def position_of(self, topic_id: bytes, index: int) -> FetchPosition | None:
        """None if it is not fetched now."""
        return self._positions.get((topic_id, index))

    # -- what is fetched

    def add(self, position: FetchPosition) -> None:
        """Fetch it from now on. Another of the same partition is replaced."""
        key = position.key
        self._positions[key] = position
        self._forgotten.pop(key, None)  # the entry that the leader has is overwritten
        position.is_fetched = True
        self.moved(position)

    def moved(self, position: FetchPosition) -> None:
        """It was changed: the leader is told; what it was asked before is not answered for this."""
        self._changed[position.topic_id, position.index] = position
        position.valid_from = self.last_request + 1

    def remove(self, position: FetchPosition) -> None:
        """Fetch it no longer."""
        if not position.is_fetched:
            return
        position.is_fetched = False
        key = position.key
        del self._positions[key]
        self._changed.pop(key, None)
        self._forgotten[key] = None

    # -- requests and answers

    def next_request(self) -> tuple[int, int, list[Position], list[PartitionKey]]:
        """(session id, session epoch, positions, forgotten) of the request that is sent now."""
        self.last_request += 1
        session_id, epoch = self._session_id, self._epoch
        if epoch == INITIAL_EPOCH:
            positions: list[Position] = list(self._positions.values())
            forgotten: list[PartitionKey] = []
        else:
            positions = list(self._changed.values())
            forgotten = list(self._forgotten)
            self._epoch = 1 if epoch == MAX_EPOCH else epoch + 1
        self._changed.clear()
        self._forgotten.clear()
        return session_id, epoch, positions, forgotten

    def answered(self, session_id: int) -> None:
        """A request was answered without an error: the session that the leader has now, 0 if it has none."""
        self.is_without = session_id == NO_SESSION
        if self.is_without:
            self._session_id, self._epoch = NO_SESSION, INITIAL_EPOCH
        elif self._epoch == INITIAL_EPOCH:
            self._session_id, self._epoch = session_id, INITIAL_EPOCH + 1

    @property
    def is_opening(self) -> bool:
        """A full request is next, or under way; only once it is answered there can be another."""
        return self._epoch == INITIAL_EPOCH

    def restart(self) -> None:
        """The leader knows the session no more, or the connection is gone and with it what it was told: the
        next request is a full one, and answers to those before it are void. It names the old session's id,
        so that the leader can drop that.
        """
        self._epoch = INITIAL_EPOCH
        self._changed.clear()
        self._forgotten.clear()
        self.first_valid_request = self.last_request + 1
        for position in self.positions():
            position.valid_from = self.first_valid_request
