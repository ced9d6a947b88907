"""A partition that this broker follows: the position from which it is fetched, and its failures."""

from __future__ import annotations

from typing import Final, NamedTuple

from tidelog.broker.cluster.current_settings import CurrentSettings
from tidelog.broker.cluster.metadata_view import BrokerIdentity, MetadataView
from tidelog.broker.hosting.replica import Replica
from tidelog.broker.partition.roles import FetchState
from tidelog.broker.replication.leader_fetch_session import LeaderFetchPosition
from tidelog.broker.replication.throttle import is_throttled
from tidelog.kernel.clock import Clock
from tidelog.kernel.instants import Backoff
from tidelog.kernel.timer import Timer
from tidelog.model.errors import ErrorCode

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
