"""Reads the facts about a cluster over Kafka's protocol. A fact that cannot be read is an `Unseen`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from tidelog.cli.doctor.cluster_checks import hanging_transactions
from tidelog.cli.doctor.facts import (
    ClusterFacts,
    EtcdMember,
    Registrations,
    ServiceMetrics,
    Unseen,
)
from tidelog.cli.doctor.service_facts import (
    ETCD_ENDPOINTS,
    certificate_expiries,
    expiry_of,
    read_etcd,
    read_metrics,
    read_registrations,
    refusing_etcd,
)
from tidelog.cli.local_cluster.cluster import LocalCluster
from tidelog.client.admin.brokers import LogDir, describe_log_dirs
from tidelog.client.admin.groups import (
    SHARE,
    ListedGroup,
    list_groups,
)
from tidelog.client.admin.topics import (
    ConfigResource,
    describe_configs,
    unconfirmed_topics,
)
from tidelog.client.admin.transactions import PartitionProducer, describe_producers, judged, transactions_of
from tidelog.client.cluster import Broker, Cluster, Topic
from tidelog.client.errors import ClientError, UnsupportedApiError
from tidelog.kernel.instants import WallMs
from tidelog.model.configs import ConfigResourceType
from tidelog.model.errors import KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.observe.availability import named
from tidelog.observe.cluster_reader import ClusterReader, OpenTransaction, next_offsets
from tidelog.observe.lag import LogOffsets
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.listeners import is_loopback_host

MAX_GROUPS: Final = 1_000
MAX_TRANSACTIONS: Final = 1_000
"""The groups and the open transactions that are examined, each with a request of its own."""
MAX_UNSEEN_GROUPS: Final = 3
"""The groups that may fail before the others are left out: each failure takes the whole timeout."""
NOT_SET: Final = ("", *BrokerSettings().tidelog_etcd_endpoints)
"""The endpoint of etcd that a broker describes if it uses none: that of Kafka, and that of `tidelog dev`."""
_UNLIMITED: Final = -1
T = TypeVar("T")


@dataclass(slots=True)
class FactReader:
    """Reads the facts. `local` is the local cluster that the facts are about, if it is one.

    `tell` is called with the name of the part that is read next.
    """

    cluster: Cluster
    timeout_s: float
    local: LocalCluster | None
    etcd_addresses: Sequence[str]
    tell: Callable[[str], None]

    def read(self, now_ms: WallMs) -> ClusterFacts:
        """Returns the facts. Raises KafkaError, ClientError if the cluster does not answer at all."""
        self.tell("brokers")
        brokers = self.cluster.describe().brokers
        live = frozenset(broker.broker_id for broker in brokers)
        self.tell("partitions")
        topics: dict[str, Topic] = self.cluster.topics()
        silent: dict[int, str] = {}
        views = self._of_each(brokers, silent, lambda broker_id: self.cluster.topics(seen_by=broker_id))
        partitions = _seen(lambda: ClusterReader(self.cluster).partitions_of(list(views.values())))
        self.tell("settings")
        settings = self._of_each(brokers, silent, self._settings)
        unconfirmed = _seen(lambda: unconfirmed_topics(self.cluster, topics))
        self.tell("data directories")
        directories = self._of_each(brokers, silent, self._directories)
        self.tell("offsets")
        offsets = _seen(lambda: ClusterReader(self.cluster).log_offsets(topics, now_ms, silent))
        self.tell("groups")
        unseen_groups: dict[str, str] = {}
        group_types: dict[str, str] = {}
        committed = _seen(lambda: self._committed(unseen_groups, group_types))
        self.tell("transactions")
        transactions, hanging = self._transactions(offsets, now_ms)
        self.tell("metrics")
        metrics: dict[int, ServiceMetrics | Unseen] = {
            broker.broker_id: read_metrics(broker, settings.get(broker.broker_id), self.timeout_s)
            for broker in brokers
        }
        self.tell("etcd and certificates")
        return ClusterFacts(
            live=live,
            silent=silent,
            partitions=partitions,
            settings=settings,
            unconfirmed=unconfirmed,
            log_directories=[directory for held in directories.values() for directory in held],
            offsets=offsets,
            committed=committed,
            unseen_groups=unseen_groups,
            group_types=group_types,
            transactions=transactions,
            hanging=hanging,
            metrics=metrics,
            certificate_expiry_s=self._certificates(live - silent.keys()),
            etcd=self._etcd(brokers, settings),
            registrations=self._registrations(),
        )

    def _of_each(
        self, brokers: Sequence[Broker], silent: dict[int, str], read: Callable[[int], T]
    ) -> dict[int, T]:
        """Reads from each broker that answers. The others are added to `silent`, and asked only once."""
        found: dict[int, T] = {}
        for broker_id in [broker.broker_id for broker in brokers if broker.broker_id not in silent]:
            try:
                found[broker_id] = read(broker_id)
            except (ClientError, KafkaError) as error:
                silent[broker_id] = str(error)
        return found

    def _directories(self, broker_id: int) -> list[LogDir]:
        return describe_log_dirs(self.cluster, [broker_id])

    def _settings(self, broker_id: int) -> dict[str, str]:
        entries = describe_configs(self.cluster, ConfigResource(ConfigResourceType.BROKER, str(broker_id)))
        return {e.name: e.value for e in entries if e.value is not None and not e.is_sensitive}

    def _committed(
        self, unseen: dict[str, str], types: dict[str, str]
    ) -> dict[str, dict[TopicPartition, int]]:
        """Returns the next offsets of groups. Groups that fail are added to `unseen`, and all to `types`."""
        groups = list_groups(self.cluster, [], [])
        types |= {group.group_id: group.group_type for group in groups}
        found: dict[str, dict[TopicPartition, int]] = {}
        failures = 0
        for group in groups:
            if len(found) >= MAX_GROUPS:
                unseen[group.group_id] = f"only {MAX_GROUPS} groups are examined"
                continue
            if failures >= MAX_UNSEEN_GROUPS:
                unseen[group.group_id] = "not examined, because other groups do not answer"
                continue
            try:
                found[group.group_id] = self._next_offsets(group)
            except UnsupportedApiError as error:  # Kafka 4.0 and share groups; this takes no time
                unseen[group.group_id] = str(error)
            except (ClientError, KafkaError) as error:
                unseen[group.group_id] = str(error)
                failures += 1
        return found

    def _next_offsets(self, group: ListedGroup) -> dict[TopicPartition, int]:
        return next_offsets(self.cluster, group.group_id, is_share=group.group_type == SHARE)

    def _transactions(
        self, offsets: Mapping[TopicPartition, LogOffsets] | Unseen, now_ms: WallMs
    ) -> tuple[list[OpenTransaction] | Unseen, list[PartitionProducer] | Unseen]:
        """Returns the open transactions of the coordinators, and those that only the partitions know."""
        places: list[TopicPartition] | Unseen = offsets if isinstance(offsets, Unseen) else _waiting(offsets)
        before = self._producers(places)
        found = _seen(lambda: ClusterReader(self.cluster).open_transactions(now_ms, MAX_TRANSACTIONS)[0])
        if isinstance(found, Unseen):
            return found, found
        return found, before if isinstance(before, Unseen) else self._hanging(before)

    def _hanging(self, before: Sequence[PartitionProducer]) -> list[PartitionProducer] | Unseen:
        """Returns the producers whose transaction no coordinator knows, of those with an open one."""
        producer_ids = {producer.producer_id for producer in before}
        if len(producer_ids) > MAX_TRANSACTIONS:
            return Unseen(
                f"{len(producer_ids)} producers have open transactions, more than {MAX_TRANSACTIONS}"
            )
        if not before:
            return []
        asked = _seen(lambda: transactions_of(self.cluster, producer_ids))
        if isinstance(asked, Unseen):
            return asked
        after = self._producers({producer.place for producer in before})
        if isinstance(after, Unseen):
            return after
        found = judged(hanging_transactions(before, asked.known, after), asked)
        if found.unjudged:
            return Unseen(
                f"no coordinator of {named(found.unread_shards)} could be asked",
                "'tidelog transactions find-hanging' shows the transactions that they may know",
            )
        return list(found.hanging)

    def _producers(self, places: Collection[TopicPartition] | Unseen) -> list[PartitionProducer] | Unseen:
        """Returns the producers in a transaction that the leaders of partitions remember."""
        if isinstance(places, Unseen):
            return places
        return _seen(
            lambda: [row for row in describe_producers(self.cluster, places) if row.is_in_transaction]
        )

    def _certificates(self, brokers: Collection[int]) -> dict[str, float] | Unseen:
        """Returns when the certificates of listeners, and those of a local cluster's files, expire."""
        found: dict[str, float] = {}
        for broker_id in sorted(brokers):
            try:
                certificate = self.cluster.broker(broker_id).peer_certificate
                if certificate is not None:
                    found[f"broker {broker_id}'s listener"] = expiry_of(certificate)
            except (ClientError, KafkaError, ValueError) as error:
                return Unseen(f"broker {broker_id}: {error}")
        if self.local is not None:
            of_files = certificate_expiries(self.local)
            if isinstance(of_files, Unseen):
                return of_files
            found |= of_files
        return found or Unseen(
            "the connection is not encrypted, and brokers' metrics do not name a certificate",
            "set tidelog.metrics.listener, or give --data-dir of a local cluster",
        )

    def _etcd(
        self, brokers: Sequence[Broker], settings: Mapping[int, Mapping[str, str]]
    ) -> list[EtcdMember] | Unseen:
        addresses = list(self.etcd_addresses)
        if self.local is not None:
            addresses.append(self.local.plan.etcd_metrics_address)
        if not addresses:
            named_by_brokers = {
                endpoint
                for values in settings.values()
                for endpoint in values.get(ETCD_ENDPOINTS, "").split(",")
                if endpoint not in NOT_SET
            }
            are_here = all(is_loopback_host(broker.address.host) for broker in brokers)
            return refusing_etcd(sorted(named_by_brokers), self.timeout_s, are_here=are_here)
        return [read_etcd(address, self.timeout_s) for address in addresses]

    def _registrations(self) -> Registrations | Unseen:
        if self.local is None:
            return Unseen("only the files of a local cluster state which services should run")
        return read_registrations(self.local)


def _waiting(offsets: Mapping[TopicPartition, LogOffsets]) -> list[TopicPartition]:
    """Returns the partitions whose readers of committed records wait for a transaction."""
    return [place for place, log in offsets.items() if log.last_stable_offset < log.log_end_offset]


def _seen(read: Callable[[], T]) -> T | Unseen:
    try:
        return read()
    except (ClientError, KafkaError) as error:
        return Unseen(str(error))
