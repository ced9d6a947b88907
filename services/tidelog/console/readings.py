"""The values that the pages show, and why a part of them may be missing: a broker did not answer lately, or
the user has no ACL for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from tidelog.client.admin.brokers import Quorum
from tidelog.client.admin.groups import Group, ListedGroup
from tidelog.client.admin.topics import ConfigEntry
from tidelog.client.cluster import Broker
from tidelog.client.errors import NoAnswerError, UnreachableError
from tidelog.console.core.isr_history import Change, IsrSample, Row
from tidelog.kernel.instants import MonotonicMs
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.observe.cluster_reader import OpenTransaction
from tidelog.observe.lag import Forecast, Observation, urgency
from tidelog.observe.rates import PartitionFacts

_NEEDED: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (
        "Describe for the topic, DescribeConfigs for its settings, and Read for its records"
    ),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Describe for the group",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Describe and DescribeConfigs for the cluster",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Describe for the transactional id",
}
"""The operations that the pages need, by the error that a cluster returns without them."""

_NOT_FOUND: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.INVALID_GROUP_ID,
    }
)

T = TypeVar("T")
SILENT_MS: Final = 15_000
"""The time in which a broker that did not answer is not asked again."""
MAX_ASKED: Final = 2
"""The most brokers that are asked in turn for one answer, because each of them can take the whole timeout."""


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
    problems: tuple[PartitionFacts, ...]
    more_problems: int
    unreachable: str = ""


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
    partitions: tuple[PartitionFacts, ...]
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


def is_denial(error: Exception | None) -> bool:
    """Says whether the cluster refused something because the user has no ACL for it."""
    return isinstance(error, KafkaError) and error.code in _NEEDED


def is_not_found(error: Exception | None) -> bool:
    """Says whether the cluster has nothing with a name, or cannot have it."""
    return isinstance(error, KafkaError) and error.code in _NOT_FOUND


def denial_text(error: KafkaError, user: str) -> str:
    """Returns one sentence, without its period, that says what was refused and which ACLs allow it.

    `user` is empty if the console itself does not know the name.
    """
    who = f"user {user}" if user else "this user"
    subject = str(error).partition(": ")[0].partition(" is not accessible")[0]
    return f"The cluster does not show {subject} to {who}. ACLs with {_NEEDED[error.code]} allow it"


def unless_denied(read: Callable[[], T], denied: list[KafkaError]) -> T | None:
    """Returns what `read` returns, or None if the user has no ACL for it. The error then joins `denied`."""
    try:
        return read()
    except KafkaError as error:
        if not is_denial(error):
            raise
        denied.append(error)
        return None


class SilentBrokers:
    """The brokers that the pages of a user leave out for a while. All pages of a user wait in one thread, so
    that a frozen broker would otherwise delay each of them by its timeout. Searches wait in other threads.
    """

    def __init__(self, monotonic: Callable[[], MonotonicMs]) -> None:
        self._monotonic = monotonic
        self._until_ms: dict[int, MonotonicMs] = {}
        self._lock = threading.Lock()

    @contextmanager
    def asking(self) -> Iterator[set[int]]:
        """Yields a set of the brokers not to ask. Those that the caller adds are left out for SILENT_MS."""
        with self._lock:
            now_ms = self._monotonic()
            self._until_ms = {each: until for each, until in self._until_ms.items() if now_ms < until}
            before = frozenset(self._until_ms)
        silent = set(before)
        try:
            yield silent
        finally:
            with self._lock:
                until_ms = MonotonicMs(self._monotonic() + SILENT_MS)
                self._until_ms.update(dict.fromkeys(silent - before, until_ms))


def ask_one(broker_ids: Collection[int], silent: set[int], ask: Callable[[int], T]) -> tuple[int, T]:
    """Returns the first of these brokers that answers, and its answer. Brokers in `silent` are not asked, and
    those that do not answer join them.

    Raises what `ask` raises, and NoAnswerError if no broker may be asked.
    """
    asked = [each for each in broker_ids if each not in silent][:MAX_ASKED]
    for number, broker_id in enumerate(asked, 1):
        try:
            return broker_id, ask(broker_id)
        except (NoAnswerError, UnreachableError):
            silent.add(broker_id)
            if number == len(asked):
                raise
    brokers = ", ".join(map(str, broker_ids))
    raise NoAnswerError(
        f"no answer from {'broker' if len(broker_ids) == 1 else 'the brokers'} {brokers} lately"
    )
