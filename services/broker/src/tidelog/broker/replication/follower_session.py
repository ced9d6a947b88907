"""What a follower says in its next Fetch to one leader (KIP-227, the asking side).

The leader remembers what is fetched and from where, so a request names only what changed since the last one:
a partition that got records, that was added, that is left out now. A cluster where nothing happens costs two
empty requests a second, however many partitions it has.

Requests are numbered from 1. A partition takes the answers of requests from `valid_from` on: earlier ones
were asked before it was added or moved. Pure: no I/O, no clock. Source: Kafka's `FetchSessionHandler`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from typing import Final

from tidelog.wire.messages.fetch import FetchPartition, FetchTopic, ForgottenTopic

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
MAX_EPOCH: Final = 2**31 - 1


class FetchPosition:
    """Where one partition is fetched from: the entry of the wire, changed in place. Subclassed by who keeps
    more of a partition.
    """

    __slots__ = ("is_fetched", "topic_id", "valid_from", "wire")

    def __init__(self, topic_id: uuid.UUID, wire: FetchPartition) -> None:
        self.topic_id = topic_id
        self.wire = wire
        self.is_fetched = False
        """Whether it is in the session now."""
        self.valid_from = 0

    @property
    def key(self) -> tuple[uuid.UUID, int]:
        return self.topic_id, self.wire.partition


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
        self._positions: dict[uuid.UUID, dict[int, FetchPosition]] = {}
        self._changed: dict[tuple[uuid.UUID, int], FetchPosition] = {}
        self._forgotten: dict[tuple[uuid.UUID, int], None] = {}
        self.last_request = 0
        """Number of the last request made."""
        self.is_without = False
        """The leader gave none: it does not know this broker just now, and answers each request in full."""
        self.first_valid_request = 1
        """Answers to requests before it are of a session that is no more."""

    def __len__(self) -> int:
        return sum(map(len, self._positions.values()))

    @property
    def is_empty(self) -> bool:
        """Nothing to fetch, and nothing to tell the leader either."""
        return not self._positions and (self.is_opening or not self._forgotten)

    @property
    def has_news(self) -> bool:
        """Whether the next request tells the leader anything."""
        return bool(self._changed or self._forgotten)

    def positions(self) -> Iterator[FetchPosition]:
        for partitions in self._positions.values():
            yield from partitions.values()

    def of_topic(self, topic_id: uuid.UUID) -> dict[int, FetchPosition]:
        """The fetched positions of one topic by partition, to be read only."""
        return self._positions.get(topic_id, _NONE)

    # -- what is fetched

    def add(self, position: FetchPosition) -> None:
        """Fetch it from now on. Another of the same partition is replaced."""
        key = position.key
        self._positions.setdefault(position.topic_id, {})[position.wire.partition] = position
        self._forgotten.pop(key, None)  # the entry that the leader has is overwritten
        position.is_fetched = True
        self.moved(position)

    def moved(self, position: FetchPosition) -> None:
        """Its `wire` was changed: the leader is told; what it was asked before is not answered for this."""
        self._changed[position.topic_id, position.wire.partition] = position
        position.valid_from = self.last_request + 1

    def remove(self, position: FetchPosition) -> None:
        """Fetch it no longer."""
        if not position.is_fetched:
            return
        position.is_fetched = False
        partitions = self._positions[position.topic_id]
        del partitions[position.wire.partition]
        if not partitions:
            del self._positions[position.topic_id]
        key = position.key
        self._changed.pop(key, None)
        self._forgotten[key] = None

    # -- requests and answers

    def next_request(self) -> tuple[int, int, list[FetchTopic], list[ForgottenTopic]]:
        """(session id, session epoch, topics, forgotten topics) of the request that is sent now."""
        self.last_request += 1
        session_id, epoch = self._session_id, self._epoch
        if epoch == INITIAL_EPOCH:
            topics = [
                FetchTopic(topic_id=topic_id, partitions=[position.wire for position in partitions.values()])
                for topic_id, partitions in self._positions.items()
            ]
            forgotten: list[ForgottenTopic] = []
        else:
            topics = _by_topic(self._changed.values())
            forgotten = _forgotten_topics(self._forgotten)
            self._epoch = 1 if epoch == MAX_EPOCH else epoch + 1
        self._changed.clear()
        self._forgotten.clear()
        return session_id, epoch, topics, forgotten

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


_NONE: Final[dict[int, FetchPosition]] = {}


def _by_topic(positions: Iterable[FetchPosition]) -> list[FetchTopic]:
    topics: dict[uuid.UUID, FetchTopic] = {}
    for position in positions:
        topic = topics.get(position.topic_id)
        if topic is None:
            topic = topics[position.topic_id] = FetchTopic(topic_id=position.topic_id, partitions=[])
        topic.partitions.append(position.wire)
    return list(topics.values())


def _forgotten_topics(keys: Iterable[tuple[uuid.UUID, int]]) -> list[ForgottenTopic]:
    topics: dict[uuid.UUID, ForgottenTopic] = {}
    for topic_id, partition in keys:
        topics.setdefault(topic_id, ForgottenTopic(topic_id=topic_id, partitions=[])).partitions.append(
            partition
        )
    return list(topics.values())
