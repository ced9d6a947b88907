"""Reads a cluster for the pages. All calls block and belong to one thread."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, TypeVar

from tidelog.client.admin.brokers import Quorum
from tidelog.client.admin.topics import ConfigEntry, ConfigResource, describe_configs
from tidelog.client.cluster import Broker, Cluster, Topic
from tidelog.client.errors import ClientError, NoAnswerError, UnreachableError
from tidelog.console.core.isr_history import IsrHistory, IsrSample
from tidelog.console.readings import (
    BrokerLoad,
    Overview,
    SettingsReading,
    SilentBrokers,
    TopicList,
    TopicReading,
    TopicRow,
    ask_one,
    unless_denied,
)
from tidelog.kernel.instants import MonotonicMs, WallMs
from tidelog.model.errors import KafkaError
from tidelog.model.protocol_values import ConfigResourceType
from tidelog.model.topics import TopicPartition, topic_id_text
from tidelog.observe.cluster_reader import ClusterReader, ClusterState, existing_topics, leader_sizes
from tidelog.observe.rates import EndOffsets, PartitionFacts, records_per_second

MAX_PROBLEMS: Final = 100
"""The most partitions with missing replicas that the overview lists."""
MAX_REMEMBERED: Final = 256
"""The most topics and groups whose former offsets are kept for rates."""

T = TypeVar("T")
Connect = Callable[[tuple[str, ...]], Cluster]
"""Connects to the cluster. The argument holds the addresses of brokers that were seen before."""


class PageReader:
    """A reader of one cluster. It connects at the first call, and again when a connection ended."""

    def __init__(
        self,
        connect: Connect,
        wall: Callable[[], WallMs],
        monotonic: Callable[[], MonotonicMs],
        silent: SilentBrokers,
    ) -> None:
        self._connect = connect
        self._silent = silent
        self._wall = wall
        self._monotonic = monotonic
        self._cluster: Cluster | None = None
        self._known: tuple[str, ...] = ()
        self._history = IsrHistory()
        self._seen: dict[int, Broker] = {}
        """The brokers that are registered or have replicas, as they were seen last."""
        self._last: Overview | None = None
        self._ends: OrderedDict[str, EndOffsets] = OrderedDict()

    @property
    def known(self) -> tuple[str, ...]:
        """The addresses of the brokers that were seen last."""
        return self._known

    def open(self) -> None:
        """Connects, so that a wrong login is known at once. Raises ClientError."""
        self._cluster = self._connect(self._known)

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def run(self, read: Callable[[Cluster], T], silent: set[int] | None = None) -> T:
        """Runs a call, and runs it again with a new connection if the old one has ended meanwhile. Raises
        ClientError, KafkaError.

        If the first attempt cannot connect to a broker, `silent` loses the brokers that this attempt added.
        The second attempt asks them again, at the addresses that it then knows.
        """
        before = frozenset(silent or ())
        if self._cluster is not None:
            try:
                return read(self._cluster)
            except NoAnswerError:
                # The broker would not answer the second time either, and all pages wait. Its connection is
                # closed. The others are kept, because a new bootstrap could begin with this broker.
                raise
            except ClientError as error:
                if silent is not None and isinstance(error, UnreachableError):
                    silent &= before
                self.close()
        self._cluster = self._connect(self._known)
        try:
            return read(self._cluster)
        except ClientError:
            self.close()
            raise

    def overview(self) -> Overview:
        """Returns the controllers, the brokers and the health of all partitions, and adds to the history.
        If no broker can be reached any more, all of them are down. Raises KafkaError, ClientError.
        """
        try:
            self._last = self.run(self._overview)
        except UnreachableError as error:
            if self._last is None:
                raise
            self._last = self._without_brokers(self._last, str(error))
        return self._last

    def sample_health(self, interval_ms: int) -> None:
        """Adds to the history, unless a look at the overview did so in the last third of the interval. Raises
        KafkaError, ClientError.
        """
        if not self._history.has_recent(self._wall(), interval_ms // 3):
            try:
                self.run(self._read_health)
            except UnreachableError:
                self._add_unreached()
                raise

    def topics(self) -> TopicList:
        """Returns all topics with sizes and rates, in the order of their names."""
        with self._silent.asking() as silent:
            return self.run(lambda cluster: self._topics(cluster, silent), silent)

    def topic(self, name: str) -> TopicReading:
        """Returns a topic with its partitions and settings. Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION."""
        with self._silent.asking() as silent:
            return self.run(lambda cluster: self._topic(cluster, name, silent), silent)

    def settings(self, broker_id: int | None) -> SettingsReading:
        """Returns the settings of a broker, by default of the first one that answers."""
        with self._silent.asking() as silent:
            return self.run(lambda cluster: _settings(cluster, broker_id, silent), silent)

    def _overview(self, cluster: Cluster) -> Overview:
        state, sample = self._read_health(cluster)
        partitions = state.partitions
        problems = [
            row for row in partitions if row.partition.is_under_replicated or row.partition.is_offline
        ]
        leaders = Counter(row.partition.leader for row in partitions)
        replicas = Counter(broker_id for row in partitions for broker_id in row.partition.replicas)
        return Overview(
            state.view.cluster_id or "",
            sample,
            state.quorum,
            len(state.topics),
            len(partitions),
            tuple(
                BrokerLoad(
                    broker_id,
                    self._seen.get(broker_id),
                    broker_id in sample.broker_ids,
                    leaders[broker_id],
                    replicas[broker_id],
                )
                for broker_id in sorted({*sample.broker_ids, *sample.down_ids})
            ),
            tuple(self._history.timeline(sample.at_ms)),
            tuple(self._history.changes()),
            tuple(problems[:MAX_PROBLEMS]),
            max(0, len(problems) - MAX_PROBLEMS),
        )

    def _without_brokers(self, last: Overview, reason: str) -> Overview:
        sample = self._add_unreached()
        return replace(
            last,
            sample=sample,
            quorum=Quorum(unknown="no broker answers"),
            brokers=tuple(replace(each, is_up=False, leader_count=0) for each in last.brokers),
            timeline=tuple(self._history.timeline(sample.at_ms)),
            changes=tuple(self._history.changes()),
            problems=(),
            more_problems=0,
            unreachable=reason,
        )

    def _add_unreached(self) -> IsrSample:
        """Adds to the history that no broker could be reached."""
        unknown = Quorum(unknown="no broker answers").active_text
        sample = IsrSample(self._wall(), (), unknown, 0, 0, tuple(sorted(self._seen)), is_reached=False)
        self._history.add(sample)
        return sample

    def _read_health(self, cluster: Cluster) -> tuple[ClusterState, IsrSample]:
        """Reads the state of the cluster, and adds it to the history."""
        state = ClusterReader(cluster).state()
        alive, down = state.alive, state.down
        self._known = tuple(str(broker.address) for broker in alive.values())
        self._seen = {each: self._seen[each] for each in down if each in self._seen} | alive
        partitions = [row.partition for row in state.partitions]
        sample = IsrSample(
            self._wall(),
            tuple(sorted(alive)),
            state.quorum.active_text,
            sum(each.is_under_replicated for each in partitions),
            sum(each.is_offline for each in partitions),
            tuple(sorted(down)),
        )
        self._history.add(sample)
        return state, sample

    def _topics(self, cluster: Cluster, silent: set[int]) -> TopicList:
        reader = ClusterReader(cluster, silent)
        topics = cluster.topics()
        starts, ends = reader.log_starts(topics.values()), reader.high_watermarks(topics.values())
        rates = self._rates("", ends)
        sizes: dict[str, int] = {}
        denied: list[KafkaError] = []
        directories = unless_denied(reader.log_dirs, denied)
        for directory in directories or []:
            for replica in directory.current_replicas:
                name = replica.place.topic
                sizes[name] = sizes.get(name, 0) + replica.size_bytes
        rows = tuple(
            _topic_row(topic, starts, ends, sizes.get(name), rates.get(name))
            for name, topic in topics.items()
        )
        return TopicList(rows, tuple(sorted(silent)), tuple(denied))

    def _topic(self, cluster: Cluster, name: str, silent: set[int]) -> TopicReading:
        reader = ClusterReader(cluster, silent)
        topic = existing_topics(cluster, [name])[name]
        starts, (ends, stable) = reader.log_starts([topic]), reader.log_ends([topic])
        denied: list[KafkaError] = []
        directories = unless_denied(lambda: reader.log_dirs([topic]), denied) or []
        sizes = leader_sizes([topic], directories)
        held = [replica.size_bytes for directory in directories for replica in directory.current_replicas]
        total = sum(held) if held else None
        rate = self._rates(name, ends).get(name)
        rows = [
            PartitionFacts(
                name, each, starts.get(place), ends.get(place), stable.get(place), sizes.get(place)
            )
            for each in topic.partitions
            for place in (TopicPartition(name, each.index),)
        ]
        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        settings = unless_denied(lambda: describe_configs(cluster, resource), denied)
        return TopicReading(
            _topic_row(topic, starts, ends, total, rate),
            topic_id_text(topic.topic_id),
            tuple(rows),
            tuple(settings or ()),
            tuple(sorted(silent)),
            tuple(denied),
        )

    def _rates(self, subject: str, ends: Mapping[TopicPartition, int]) -> dict[str, float]:
        now = EndOffsets(self._monotonic(), ends)
        rates = records_per_second(self._ends.pop(subject, None), now)
        self._ends[subject] = now
        if len(self._ends) > MAX_REMEMBERED:
            self._ends.popitem(last=False)
        return rates


def _topic_row(
    topic: Topic,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    size_bytes: int | None,
    rate: float | None,
) -> TopicRow:
    keys = [TopicPartition(topic.name, partition.index) for partition in topic.partitions]
    is_complete = all(key in starts and key in ends for key in keys)
    return TopicRow(
        topic.name,
        topic.is_internal,
        len(topic.partitions),
        max((len(partition.replicas) for partition in topic.partitions), default=0),
        sum(partition.is_under_replicated for partition in topic.partitions),
        sum(partition.is_offline for partition in topic.partitions),
        sum(ends[key] - starts[key] for key in keys) if is_complete else None,
        size_bytes,
        rate,
    )


def _settings(cluster: Cluster, broker_id: int | None, silent: set[int]) -> SettingsReading:
    def ask(asked: int) -> list[ConfigEntry]:
        return describe_configs(cluster, ConfigResource(ConfigResourceType.BROKER, str(asked)))

    broker_ids = tuple(broker.broker_id for broker in cluster.describe().brokers)
    chosen, entries = ask_one(broker_ids if broker_id is None else (broker_id,), silent, ask)
    return SettingsReading(broker_ids, chosen, tuple(entries), tuple(sorted(silent)))
