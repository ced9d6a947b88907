"""One partition that this broker follows: where it is fetched from and how that goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidelog.broker.partition.follower_role import FetchState
from tidelog.broker.replication.follower_session import FetchPosition
from tidelog.broker.replication.throttle import is_throttled
from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.replica import Replica
    from tidelog.broker.replication.leader_fetcher import LeaderFetcher

UNKNOWN_LAG: Final = -1
FIRST_BACKOFF_MS: Final = 50
"""After the first failure in a row; doubles up to `replica.fetch.backoff.ms`. A leader that has not heard yet
that it leads is asked again soon."""

FAILURES_EXPECTED: Final = 10
"""In a row, while roles change."""
EXPECTED_WHILE_ROLES_CHANGE: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""One side has not heard yet."""


class FollowedPartition(FetchPosition):
    """For one leader epoch: another epoch, or a log opened anew, is another object."""

    __slots__ = ("failures", "fetcher", "is_stopped", "lag", "leader_epoch", "leader_id", "replica")

    def __init__(self, replica: Replica, fetcher: LeaderFetcher, max_bytes: int) -> None:
        core = replica.core
        super().__init__(
            replica.topic_id.bytes,
            replica.topic_partition.partition,
            current_leader_epoch=core.leader_epoch,
            max_bytes=max_bytes,
        )
        self.replica = replica
        self.fetcher = fetcher
        self.leader_id = core.leader
        self.leader_epoch = core.leader_epoch
        self.is_stopped = False
        self.failures = 0
        """In a row."""
        self.lag = UNKNOWN_LAG
        """Records between this log's end and the leader's high watermark, as of the last answer."""

    @property
    def may_fetch(self) -> bool:
        core = self.replica.core
        return (
            not self.is_stopped
            and core.leader_epoch == self.leader_epoch
            and core.leader == self.leader_id
            and core.fetch_state is FetchState.FETCHING
        )

    def refresh(self) -> bool:
        """Take over where the log ends; True if the leader does not know that yet."""
        core = self.replica.core
        end, start, epoch = core.fetch_offset, core.log_start_offset, core.last_fetched_epoch
        if self.fetch_offset == end and self.log_start_offset == start and self.last_fetched_epoch == epoch:
            return False
        self.fetch_offset, self.log_start_offset, self.last_fetched_epoch = end, start, epoch
        return True

    def backoff_ms(self, longest_ms: int) -> int:
        """One more failure: how long to leave it alone."""
        self.failures += 1
        return int(min(FIRST_BACKOFF_MS << min(self.failures - 1, 10), longest_ms))

    @property
    def is_failing(self) -> bool:
        """Longer than it takes all brokers to hear of a change."""
        return self.failures >= FAILURES_EXPECTED

    @property
    def is_throttled(self) -> bool:
        """Whether its topic asks for it (KIP-73)."""
        replica = self.replica
        return is_throttled(
            replica.settings.follower_replication_throttled_replicas,
            self.index,
            replica.core.broker_id,
        )
