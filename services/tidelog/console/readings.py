"""The values that the pages show."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.client.admin.brokers import Quorum
from tidelog.client.admin.groups import Group, ListedGroup, Transaction
from tidelog.client.admin.topics import ConfigEntry
from tidelog.client.cluster import Broker, Partition
from tidelog.console.core.isr_history import Change, IsrSample, Row
from tidelog.model.errors import KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.observe.lag import Forecast, Observation, urgency


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """A broker with its numbers of leaders and replicas. The address and rack of a broker that is down are
    those that were seen last, and None if none were.
    """

    broker_id: int
    broker: Broker | None
    is_up: bool
    leader_count: int
    replica_count: int


@dataclass(frozen=True, slots=True)
class Overview:
    """The cluster. If no broker could be reached, `unreachable` states the reason, and the numbers of topics
    and partitions are those that were read last.
    """

    cluster_id: str
    sample: IsrSample
    quorum: Quorum
    topic_count: int
    partition_count: int
    brokers: tuple[BrokerLoad, ...]
    timeline: tuple[Row, ...]
    changes: tuple[Change, ...]
    problems: tuple[PartitionRow, ...]
    more_problems: int
    unreachable: str = ""


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition of a topic. What its leader did not answer is None."""

    topic: str
    partition: Partition
    log_start_offset: int | None = None
    high_watermark: int | None = None
    last_stable_offset: int | None = None
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic. `size_bytes` counts all replicas, and `offset_count` the offsets from start to end."""

    name: str
    is_internal: bool
    partition_count: int
    replication_factor: int
    under_replicated: int
    offline: int
    offset_count: int | None
    size_bytes: int | None
    rate: float | None


@dataclass(frozen=True, slots=True)
class TopicList:
    """All topics. In this and the following classes, `silent` holds the brokers that did not answer, and
    `denied` the errors of what the user has no ACL for.
    """

    rows: tuple[TopicRow, ...]
    silent: tuple[int, ...]
    denied: tuple[KafkaError, ...]


@dataclass(frozen=True, slots=True)
class TopicReading:
    row: TopicRow
    topic_id: str
    partitions: tuple[PartitionRow, ...]
    settings: tuple[ConfigEntry, ...]
    silent: tuple[int, ...]
    denied: tuple[KafkaError, ...]


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group in the list. The lags are sums over its partitions, and None if they were not read.

    A share group has only one lag, which is in `lag_uncommitted`. `uncommitted_count` is the number of
    partitions of its topics without a committed offset, and `beyond_end_count` of those whose committed
    offset is beyond the end of the log. Neither is in the lags.
    """

    group: ListedGroup
    lag_uncommitted: int | None
    lag_committed: int | None
    uncommitted_count: int = 0
    beyond_end_count: int = 0


@dataclass(frozen=True, slots=True)
class GroupList:
    groups: tuple[GroupRow, ...]
    more_groups: int
    without_lag: int
    silent: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """A group in a partition. `observation` is None if the leader did not answer or nothing is committed. For
    a share group, `committed` is the start offset, and `share_lag` the lag that the coordinator states.
    """

    partition: TopicPartition
    committed: int | None
    observation: Observation | None
    forecast: Forecast | None
    owner: str
    share_lag: int | None = None

    @property
    def urgency(self) -> str:
        """The nearness of a loss of records: `bad`, `warn` or nothing."""
        if self.forecast is None or self.observation is None:
            return ""
        return urgency(self.forecast, self.observation)


@dataclass(frozen=True, slots=True)
class GroupReading:
    group: Group
    partitions: tuple[GroupPartition, ...]
    more_partitions: int
    silent: tuple[int, ...]
    denied: tuple[KafkaError, ...]
    uncommitted_count: int = 0
    """The partitions of its topics without a committed offset."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """An open transaction and its age in milliseconds, None if it is not known."""

    transaction: Transaction
    age_ms: int | None


@dataclass(frozen=True, slots=True)
class TransactionList:
    transactions: tuple[OpenTransaction, ...]
    more_transactions: int
    silent: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SettingsReading:
    broker_ids: tuple[int, ...]
    broker_id: int
    settings: tuple[ConfigEntry, ...]
    silent: tuple[int, ...]
