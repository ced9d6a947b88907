"""A partition that this broker follows: the position from which it is fetched, and its failures.

`LeaderFetchSession` is the follower's half of an incremental fetch session (KIP-227): the contents of the
next Fetch to one leader. The leader remembers which partitions are fetched and from which offsets. So a
request names only what changed since the last one: a partition that received records, was added or was
removed. An idle cluster costs two empty requests per second, however many partitions it has. Requests are
numbered from 1. A partition accepts the responses to requests from `valid_from` on; earlier requests were
sent before it was added or moved. Source: Kafka's `FetchSessionHandler`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from tidelog.broker.cluster.view import BrokerIdentity, CurrentSettings, MetadataView
from tidelog.broker.hosting.replica import Replica
from tidelog.broker.partition.roles import FetchState
from tidelog.broker.replication.fetch_wire import FetchPosition, FetchPositionKey
from tidelog.broker.replication.throttle import is_throttled
from tidelog.kernel.clock import Clock
from tidelog.kernel.instants import Backoff
from tidelog.kernel.timer import Timer
from tidelog.model.errors import ErrorCode
from tidelog.model.protocol_values import FIRST_INCREMENTAL_EPOCH, INITIAL_EPOCH, NO_SESSION, next_epoch

UNKNOWN_LAG: Final = -1
FIRST_BACKOFF_MS: Final = 50
"""The pause after the first failure in a row. It doubles up to `replica.fetch.backoff.ms`. It is short
because a new leader may not have received its role yet.
"""
FAILURES_EXPECTED: Final = 10
"""The failures in a row that are normal while roles change."""
EXPECTED_WHILE_ROLES_CHANGE: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""The errors of a leader or follower that has not received its new role yet."""


class FollowerContext:
    """The parts of the broker that every class on the follower's side uses."""

    __slots__ = ("clock", "identity", "metadata", "settings", "timer")

    def __init__(
        self,
        identity: BrokerIdentity,
        settings: CurrentSettings,
        metadata: MetadataView,
        clock: Clock,
        timer: Timer,
    ) -> None:
        self.identity = identity
        self.settings = settings
        self.metadata = metadata
        self.clock = clock
        self.timer = timer


class FetcherKey(NamedTuple):
    """Identifies one of the fetchers from a leader; `num.replica.fetchers` is their number."""

    leader_id: int
    shard: int


class LeaderFetchPosition(FetchPosition):
    """The position from which one partition is fetched. It changes in place. `FollowedPartition` derives from
    it.
    """

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
        """Whether the session contains it now."""
        self.valid_from = 0


class LeaderFetchSession:
    """The positions to fetch from one leader, and the part of them that the leader knows."""

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
        self._positions: dict[FetchPositionKey, LeaderFetchPosition] = {}
        self._changed: dict[FetchPositionKey, LeaderFetchPosition] = {}
        self._forgotten: dict[FetchPositionKey, None] = {}
        self.last_request = 0
        """The number of the last request."""
        self.is_without = False
        """Whether the leader gave no session, because it does not know this broker yet. It then answers each
        request in full.
        """
        self.first_valid_request = 1
        """Responses to earlier requests belong to a session that no longer exists."""

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to fetch and nothing to report to the leader."""
        return not self._positions and (self.is_opening or not self._forgotten)

    def positions(self) -> Iterator[LeaderFetchPosition]:
        """Yields the positions that are fetched now."""
        yield from self._positions.values()

    def position_of(self, topic_id: bytes, index: int) -> LeaderFetchPosition | None:
        """Returns the position of a partition, None if it is not fetched now."""
        return self._positions.get((topic_id, index))

    def add(self, position: LeaderFetchPosition) -> None:
        """Starts to fetch the partition. Replaces another position of the same partition."""
        key = position.key
        self._positions[key] = position
        self._forgotten.pop(key, None)  # the leader's entry is overwritten
        position.is_fetched = True
        self.moved(position)

    def moved(self, position: LeaderFetchPosition) -> None:
        """Has the next request report a changed position. Responses to earlier requests no longer count for
        it.
        """
        self._changed[position.topic_id, position.index] = position
        position.valid_from = self.last_request + 1

    def remove(self, position: LeaderFetchPosition) -> None:
        """Stops fetching the partition."""
        if not position.is_fetched:
            return
        position.is_fetched = False
        key = position.key
        del self._positions[key]
        self._changed.pop(key, None)
        self._forgotten[key] = None

    def next_request(self) -> tuple[int, int, list[FetchPosition], list[FetchPositionKey]]:
        """Returns the session id, session epoch, positions and forgotten partitions of the request that is
        sent now.
        """
        self.last_request += 1
        session_id, epoch = self._session_id, self._epoch
        if epoch == INITIAL_EPOCH:
            positions: list[FetchPosition] = list(self._positions.values())
            forgotten: list[FetchPositionKey] = []
        else:
            positions = list(self._changed.values())
            forgotten = list(self._forgotten)
            self._epoch = next_epoch(epoch)
        self._changed.clear()
        self._forgotten.clear()
        return session_id, epoch, positions, forgotten

    def answered(self, session_id: int) -> None:
        """Takes the session id of a response without an error; NO_SESSION means that the leader keeps no
        session.
        """
        self.is_without = session_id == NO_SESSION
        if self.is_without:
            self._session_id, self._epoch = NO_SESSION, INITIAL_EPOCH
        elif self._epoch == INITIAL_EPOCH:
            self._session_id, self._epoch = session_id, FIRST_INCREMENTAL_EPOCH

    @property
    def is_opening(self) -> bool:
        """Whether a full request is next or in flight. No other request can follow before its response."""
        return self._epoch == INITIAL_EPOCH

    def restart(self) -> None:
        """Starts again with a full request, because the leader lost the session or the connection broke.
        Responses to earlier requests are void. The full request names the old session's id, so that the
        leader can drop it.
        """
        self._epoch = INITIAL_EPOCH
        self._changed.clear()
        self._forgotten.clear()
        self.first_valid_request = self.last_request + 1
        for position in self.positions():
            position.valid_from = self.first_valid_request


class FollowedPartition(LeaderFetchPosition):
    """A followed partition during one leader epoch. Another epoch, or a log that is opened again, is another
    object.
    """

    __slots__ = (
        "failures",
        "fetcher_key",
        "is_flushing",
        "is_stopped",
        "lag",
        "leader_epoch",
        "leader_id",
        "replica",
    )

    def __init__(self, replica: Replica, fetcher_key: FetcherKey, max_bytes: int) -> None:
        core = replica.core
        super().__init__(
            replica.topic_id.bytes,
            replica.topic_partition.partition,
            current_leader_epoch=core.leader_epoch,
            max_bytes=max_bytes,
        )
        self.replica = replica
        self.fetcher_key = fetcher_key
        self.leader_id = core.leader
        self.leader_epoch = core.leader_epoch
        self.is_stopped = False
        self.is_flushing = False
        self.failures = 0
        """The failures in a row."""
        self.lag = UNKNOWN_LAG
        """The records between this log's end and the leader's high watermark, as of the last response."""

    @property
    def may_fetch(self) -> bool:
        """Whether the replica is in a state in which it fetches."""
        core = self.replica.core
        return (
            not self.is_stopped
            and core.leader_epoch == self.leader_epoch
            and core.leader == self.leader_id
            and core.fetch_state is FetchState.FETCHING
        )

    def refresh(self) -> bool:
        """Takes the position from the log. Returns whether the leader has to learn that it changed."""
        core = self.replica.core
        end, start, epoch = core.fetch_offset, core.log_start_offset, core.last_fetched_epoch
        if self.fetch_offset == end and self.log_start_offset == start and self.last_fetched_epoch == epoch:
            return False
        self.fetch_offset, self.log_start_offset, self.last_fetched_epoch = end, start, epoch
        return True

    def backoff_ms(self, longest_ms: int) -> int:
        """Counts a failure. Returns the pause after it."""
        self.failures += 1
        return Backoff(FIRST_BACKOFF_MS, longest_ms).delay_ms(self.failures)

    @property
    def is_failing(self) -> bool:
        """Whether it has failed for longer than a role change takes to reach all brokers."""
        return self.failures >= FAILURES_EXPECTED

    @property
    def is_throttled(self) -> bool:
        """Whether the topic's settings limit the rate at which it is fetched (KIP-73)."""
        replica = self.replica
        return is_throttled(
            replica.settings.follower_replication_throttled_replicas,
            self.index,
            replica.core.broker_id,
        )
