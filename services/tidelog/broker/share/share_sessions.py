"""Share sessions (KIP-932): the broker remembers which partitions a member fetches, so each request names
only what changed.

Pure. A session belongs to a member of a group and to the connection that opened it. The semantics are those
of Kafka's `ShareSessionCache` and `ShareRequestMetadata`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.fair_budget import ANY_TIME_S, NEVER_S, FairBudget, Holding
from tidelog.model.protocol_values import FINAL_EPOCH, FIRST_INCREMENTAL_EPOCH, INITIAL_EPOCH, next_epoch

MAX_PARTITIONS: Final = 50_000
"""The most partitions of all share sessions of a broker. One takes up to 3 KB if no
other session has it."""


class SessionKey(NamedTuple):
    """The owner of a session."""

    group_id: str
    member_id: str


class TopicIdPartition(NamedTuple):
    """A partition, by the id of its topic."""

    topic_id: uuid.UUID
    partition: int


class ShareSession:
    """The session of one member. `slot` and `room` are its parts of the budgets."""

    __slots__ = ("connection", "epoch", "key", "partitions", "room", "slot")

    def __init__(
        self,
        key: SessionKey,
        connection: object,
        partitions: Iterable[TopicIdPartition],
        evict: Callable[[], object],
    ) -> None:
        self.key = key
        self.connection = connection
        self.partitions = dict.fromkeys(partitions)
        """The partitions in the order in which they are read next."""
        self.epoch = FIRST_INCREMENTAL_EPOCH
        self.slot = Holding(evict)
        self.room = Holding(evict)

    def move_to_end(self, partition: TopicIdPartition) -> None:
        """Moves a partition that gave records behind the others, so that none starves. Does nothing if a
        later request has removed the partition.
        """
        if partition in self.partitions:
            del self.partitions[partition]
            self.partitions[partition] = None


class ShareSessions:
    """At most `slots` sessions (`group.share.max.share.sessions`) with `max_partitions` in all, which clients
    share fairly. A client that finds no place is refused. The member of a session holds records, so only
    sessions of clients above their fair share are evicted, for a client below it. `end` ends such a session.
    """

    def __init__(
        self,
        slots: Callable[[], int],
        max_partitions: int = MAX_PARTITIONS,
        end: Callable[[SessionKey], object] | None = None,
    ) -> None:
        self._slots = slots
        self._end = self.close if end is None else end
        self._sessions: dict[SessionKey, ShareSession] = {}
        self.slots = FairBudget(slots(), stalled_s=NEVER_S)
        self.room = FairBudget(max_partitions, stalled_s=NEVER_S)

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[ShareSession]:
        return iter(self._sessions.values())

    @property
    def partition_count(self) -> int:
        """The number of partitions in all sessions."""
        return self.room.held

    def open(
        self, key: SessionKey, connection: object, client: str, partitions: Iterable[TopicIdPartition]
    ) -> ShareSession:
        """Opens a session of a member that has none. `client` is the client's key in fair budgets.

        Raises KafkaError SHARE_SESSION_LIMIT_REACHED.
        """
        assert key not in self._sessions, "the member's earlier session is closed first"
        session = ShareSession(key, connection, partitions, lambda: self._end(key))
        self._sessions[key] = session
        self.slots.set_total(self._slots())
        has_place = self.slots.resize(session.slot, client, 1, ANY_TIME_S) and self.room.resize(
            session.room, client, len(session.partitions), ANY_TIME_S
        )
        if not has_place:
            self.close(key)
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        return session

    def continue_(self, key: SessionKey, epoch: int) -> ShareSession:
        """Returns the session of a request with this epoch, and advances its epoch.

        Raises KafkaError SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH.
        """
        session = self.find(key)
        if session.epoch != epoch:
            raise KafkaError(
                ErrorCode.INVALID_SHARE_SESSION_EPOCH,
                f"the next request of the session has epoch {session.epoch}, not {epoch}",
            )
        session.epoch = next_epoch(epoch)
        return session

    def is_open(self, session: ShareSession) -> bool:
        """Returns whether the session has not ended. A member may have opened another one meanwhile."""
        return self._sessions.get(session.key) is session

    def find(self, key: SessionKey) -> ShareSession:
        """Returns the session of a member. Raises KafkaError SHARE_SESSION_NOT_FOUND."""
        session = self._sessions.get(key)
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        return session

    def change(
        self,
        session: ShareSession,
        added: Iterable[TopicIdPartition],
        forgotten: Iterable[TopicIdPartition],
    ) -> list[TopicIdPartition]:
        """Adds and removes partitions. Returns those that were removed.

        Raises KafkaError SHARE_SESSION_LIMIT_REACHED, and changes nothing, if there are too many.
        """
        new = [partition for partition in dict.fromkeys(added) if partition not in session.partitions]
        gone = [partition for partition in dict.fromkeys(forgotten) if partition in session.partitions]
        size = len(session.partitions) + len(new) - len(gone)
        owner = session.slot.account
        assert owner is not None, "an open session holds a slot"
        if not self.room.resize(session.room, owner.key, size, ANY_TIME_S):
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        session.partitions.update(dict.fromkeys(new))
        for partition in gone:
            del session.partitions[partition]
        return gone

    def close(self, key: SessionKey) -> ShareSession | None:
        """Ends the session of a member and returns it, None if there is none."""
        session = self._sessions.pop(key, None)
        if session is not None:
            self.slots.forget(session.slot, ANY_TIME_S)
            self.room.forget(session.room, ANY_TIME_S)
        return session

    def of_connection(self, connection: object) -> list[ShareSession]:
        """Returns the sessions that a connection opened."""
        return [session for session in self._sessions.values() if session.connection is connection]


def is_initial(epoch: int) -> bool:
    """Returns whether a request with this epoch opens a session."""
    return epoch == INITIAL_EPOCH


def is_final(epoch: int) -> bool:
    """Returns whether a request with this epoch closes its session."""
    return epoch == FINAL_EPOCH
