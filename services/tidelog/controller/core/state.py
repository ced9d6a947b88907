"""The cluster as the keys in the metadata store describe it, and the changes that applying a key makes to it.

The state holds the keys' values in a form in which decisions can look things up. Only `apply` and the
functions beside it change the state: from the store's listing, its watch, and the controller's own writes.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from tidelog.controller.core.decision import SIZED_PREFIXES, EntrySizes, Steps, Write
from tidelog.metadata.entries import (
    BROKER_CONFIG_PREFIX,
    BROKER_PREFIX,
    CONTROLLER_ID_PREFIX,
    DEFAULT_ENTITY_NAME,
    FEATURES_KEY,
    SECURITY_PREFIXES,
    TOPIC_CONFIG_PREFIX,
    TOPIC_PREFIX,
    AclEntry,
    BrokerConfigEntry,
    BrokerEntry,
    CandidateEntry,
    ClientMetricsEntry,
    ClientQuotaEntry,
    ControllerEntry,
    DelegationTokenEntry,
    Entry,
    FeaturesEntry,
    GroupConfigEntry,
    IsrChangeEntry,
    PartitionStateEntry,
    ProducerIdBlockEntry,
    ScramCredentialEntry,
    SecurityEntry,
    SettledSuspectEntry,
    TopicConfigEntry,
    TopicEntry,
    decode_entry,
    parse_partition_state_key,
)
from tidelog.model.brokers import BrokerRegistration
from tidelog.model.features import DEFAULT_FEATURES, ELIGIBLE_LEADER_REPLICAS_VERSION, FinalizedFeatures
from tidelog.model.protocol_values import NO_LEADER
from tidelog.model.topics import ZERO_TOPIC_ID, TopicPartition, collision_key
from tidelog.rpc.broker_commands import PartitionState, TopicState
from tidelog.sasl.delegation_tokens import TokenSecrets


class RemovedReplica(NamedTuple):
    """A broker that is no longer assigned a replica of an existing partition."""

    topic: str
    topic_id: uuid.UUID
    partition: int
    broker_id: int


@dataclass(slots=True)
class ChangeSet:
    """The changes that `ClusterState.apply` has made. Names may be of topics that were deleted since."""

    # The topics to send in UpdateMetadata.
    topics: set[str] = field(default_factory=set)
    # The partitions to send in LeaderAndIsr.
    partitions: set[TopicPartition] = field(default_factory=set)
    new_partitions: set[TopicPartition] = field(default_factory=set)
    # The partitions whose state changed in any way, including an ISR written by its leader.
    touched_partitions: set[TopicPartition] = field(default_factory=set)
    removed_replicas: set[RemovedReplica] = field(default_factory=set)
    deleted_topics: list[TopicEntry] = field(default_factory=list)
    # A broker that registered again is both registered and unregistered. `brokers` is set if the content of
    # a registration changed.
    registered: set[int] = field(default_factory=set)
    unregistered: set[int] = field(default_factory=set)
    stopping: set[int] = field(default_factory=set)
    # Whether replicas failed or work again.
    replicas_failed: bool = False
    brokers: bool = False
    topic_configs: bool = False
    broker_configs: bool = False
    features: bool = False
    # The keys of the security entries that were written or removed.
    security: set[str] = field(default_factory=set)

    @property
    def is_empty(self) -> bool:
        """Whether no broker has to be informed."""
        return not (
            self.topics
            or self.partitions
            or self.removed_replicas
            or self.deleted_topics
            or self.registered
            or self.unregistered
            or self.brokers
            or self.broker_configs
            or self.features
            or self.security
        )

    @property
    def calls_for_a_look_at_moves(self) -> bool:
        """Whether reassignments may have begun or reached their targets."""
        return bool(self.registered or self.touched_partitions or self.topics)

    @property
    def calls_for_elections(self) -> bool:
        """Whether partitions may need another leader, ISR or ELR."""
        return bool(
            self.registered
            or self.unregistered
            or self.replicas_failed
            or self.topic_configs
            or self.broker_configs
            or self.features
        )


_NO_CONFIGS: Mapping[str, str] = {}


def written(partition: PartitionState) -> Write:
    """Returns the record that writes the state of a partition, if its key still has the mod_revision that is
    the partition epoch. A partition without a key has the epoch ABSENT.
    """
    return Write(
        PartitionStateEntry(
            partition.topic,
            partition.partition,
            partition.leader,
            partition.leader_epoch,
            partition.isr,
            partition.controller_epoch,
            partition.elr,
            partition.last_known_elr[0] if partition.last_known_elr else NO_LEADER,
        ),
        partition.partition_epoch,
    )


class ClusterState:
    """The state is loaded from a listing of the store and then updated by the controller's own writes and the
    watch.

    The same change may arrive twice and in either order: with the response of a transaction, and by the
    watch. A value that is older than the known value of its key is ignored.
    """

    def __init__(self) -> None:
        # `revisions` holds the mod_revision of each existing key, `_gone_at` the revision at which a key was
        # last known not to exist, until the watch has reached that revision.
        self.revisions: dict[str, int] = {}
        self._gone_at: dict[str, int] = {}
        self.brokers: dict[int, BrokerRegistration] = {}
        self.topics: dict[str, TopicEntry] = {}
        self.topic_names: dict[uuid.UUID, str] = {}
        # The number of partitions of all topics, and of the replicas that are assigned to each broker.
        self.partition_count = 0
        self.replica_counts: Counter[int] = Counter()
        # Each partition that has a state, with the replicas that its topic assigns. A topic that is half
        # created or deleted assigns none.
        self.partitions: dict[str, dict[int, PartitionState]] = {}
        self.topic_configs: dict[str, Mapping[str, str]] = {}
        self.broker_configs: dict[str, Mapping[str, str]] = {}
        self.acls: dict[str, AclEntry] = {}
        self.quotas: dict[str, ClientQuotaEntry] = {}
        self.group_configs: dict[str, GroupConfigEntry] = {}
        self.scram_credentials: dict[str, ScramCredentialEntry] = {}
        self.delegation_tokens: dict[str, DelegationTokenEntry] = {}
        self.token_secrets = TokenSecrets()
        self.client_metrics: dict[str, ClientMetricsEntry] = {}
        # The security entries of each class. Any, because each dict has values of its own class.
        self._security: dict[type[object], dict[str, Any]] = {
            AclEntry: self.acls,
            ClientQuotaEntry: self.quotas,
            GroupConfigEntry: self.group_configs,
            ScramCredentialEntry: self.scram_credentials,
            DelegationTokenEntry: self.delegation_tokens,
            ClientMetricsEntry: self.client_metrics,
        }
        self.entry_sizes = EntrySizes()
        # The revision of the last known change of a security entry.
        self.security_revision = 0
        self.isr_changes: dict[str, int] = {}
        self.features = DEFAULT_FEATURES
        self.next_producer_id = 0
        # The controllers that have a lease, and the one that holds the office.
        self.controllers: set[int] = set()
        self.active_controller_id = -1
        # The newest revision of any key that is known here.
        self.latest_revision = 0
        # Brokers whose registration reported lost logs, and that have not yet left the ISRs and ELRs.
        self.unsettled_suspects: set[int] = set()
        # Brokers in controlled shutdown. They keep their leaderships but are not elected.
        self.stopping: set[int] = set()
        # Replicas that a broker could not open or write. Other replicas are elected before them.
        self.failed_replicas: dict[int, frozenset[TopicPartition]] = {}
        # Topics with partitions under reassignment.
        self.reassigning: set[str] = set()
        self._settled_suspects: dict[int, int] = {}
        self._names_by_collision_key: dict[str, set[str]] = {}
        self._topic_states: dict[str, TopicState] = {}

    def topics_colliding_with(self, name: str) -> list[str]:
        """Returns the other topics, sorted, whose metrics in Kafka would have the same name as those of
        `name`, because periods and underscores are the same there.
        """
        return sorted(self._names_by_collision_key.get(collision_key(name), set()) - {name})

    def revision_of(self, key: str) -> int:
        """Returns the mod_revision of the key, 0 if it does not exist."""
        return self.revisions.get(key, 0)

    @property
    def brokers_to_place_on(self) -> list[BrokerRegistration]:
        """The brokers that are not in controlled shutdown, in the order of their ids."""
        return [self.brokers[broker_id] for broker_id in sorted(self.brokers.keys() - self.stopping)]

    @property
    def uses_elr(self) -> bool:
        """Whether replicas that left an ISR below its minimum may lead (KIP-966)."""
        return self.features.levels.get(ELIGIBLE_LEADER_REPLICAS_VERSION, 0) > 0

    def configs_of(self, topic: str) -> Mapping[str, str]:
        return self.topic_configs.get(topic, _NO_CONFIGS)

    def security_entry(self, key: str) -> SecurityEntry | None:
        return next((entries[key] for entries in self._security.values() if key in entries), None)

    def security_entries(self) -> Iterator[SecurityEntry]:
        """Yields the entries that brokers need to serve clients."""
        return chain.from_iterable(entries.values() for entries in self._security.values())

    def all_partitions(self) -> Iterator[PartitionState]:
        """Yields every partition of an existing topic that has a state."""
        for name, topic in self.topics.items():
            stored = self.partitions.get(name, {})
            for index in range(len(topic.assignments)):
                if index in stored:
                    yield stored[index]

    def partition(self, topic: str, index: int) -> PartitionState | None:
        """Returns a partition of an existing topic, or None while it has no state."""
        known = self.topics.get(topic)
        if known is None or index >= len(known.assignments):
            return None
        return self.partitions.get(topic, {}).get(index)

    def topic_state(self, name: str) -> TopicState:
        """Returns the whole topic in the form of a command. It is cached until the topic changes."""
        known = self._topic_states.get(name)
        if known is None:
            topic = self.topics[name]
            stored = self.partitions.get(name, {})
            partitions = tuple(stored[index] for index in range(len(topic.assignments)) if index in stored)
            known = self._topic_states[name] = TopicState(
                name, topic.topic_id, partitions, self.configs_of(name)
            )
        return known

    def load(self, items: Iterable[tuple[str, bytes, int, int]]) -> Steps[None]:
        """Starts from (key, value, create_revision, mod_revision) of every key."""
        ignored = ChangeSet()
        for key, value, create_revision, mod_revision in items:
            entry = decode_entry(key, value)
            if entry is not None:
                self.apply(entry, create_revision, mod_revision, ignored, value_bytes=len(value))
            yield

    def apply(
        self,
        entry: Entry,
        create_revision: int,
        mod_revision: int,
        changes: ChangeSet,
        *,
        is_own: bool = False,
        value_bytes: int | None = None,
    ) -> None:
        """Takes `entry` as the value of its key and adds the consequences to `changes`.

        `is_own` says that this controller wrote it. A partition's leader writes its ISR, too; an
        `IsrChangeEntry` says when the other brokers are to be informed of that. `value_bytes` is the size of
        the encoded entry, if the caller knows it.
        """
        key = entry.key
        self.latest_revision = max(self.latest_revision, mod_revision)
        if max(self.revisions.get(key, 0), self._gone_at.get(key, 0)) >= mod_revision:
            return
        self.revisions[key] = mod_revision
        if key.startswith(SIZED_PREFIXES):
            self.entry_sizes.put(key, len(entry.encode()) if value_bytes is None else value_bytes)
        match entry:
            case PartitionStateEntry():
                self._apply_partition(entry, mod_revision, changes, is_own=is_own)
            case TopicEntry():
                self._apply_topic(entry, changes)
            case TopicConfigEntry(topic, configs):
                self.topic_configs[topic] = configs
                changes.topic_configs = True
                self._topic_changed(topic, changes)
            case BrokerEntry():
                self._apply_broker(_registration(entry, create_revision), changes)
            case BrokerConfigEntry(entity, configs):
                self.broker_configs[entity] = configs
                changes.broker_configs = True
            case ProducerIdBlockEntry():
                self.next_producer_id = entry.first + entry.count
            case ControllerEntry(controller_id):
                self.active_controller_id = controller_id
            case CandidateEntry(controller_id):
                self.controllers.add(controller_id)
            case FeaturesEntry(levels):
                self.features = FinalizedFeatures(levels, mod_revision)
                changes.features = True
            case IsrChangeEntry(_, partitions):
                self.isr_changes[key] = mod_revision
                changes.topics.update(partition.topic for partition in partitions)
            case SettledSuspectEntry(broker_id, broker_epoch):
                self._settled_suspects[broker_id] = broker_epoch
                self._judge_suspect(broker_id)
            case _ if type(entry) in self._security:
                self._security[type(entry)][key] = entry
                if isinstance(entry, DelegationTokenEntry):
                    self.token_secrets.add(entry.token_id)
                self._security_changed(key, mod_revision, changes)
            case _:
                pass  # the keys of the controllers' election

    def apply_removal(self, key: str, revision: int, changes: ChangeSet) -> None:
        """Takes it that `key` does not exist, or did not at `revision`."""
        self.latest_revision = max(self.latest_revision, revision)
        if self.revisions.get(key, 0) >= revision:
            return
        self._gone_at[key] = max(revision, self._gone_at.get(key, 0))
        if self.revisions.pop(key, None) is None:
            return
        self.entry_sizes.remove(key)
        partition_key = parse_partition_state_key(key)
        if partition_key is not None:
            self._remove_partition(partition_key, changes)
        elif key.startswith(TOPIC_PREFIX):
            self._remove_topic(key[len(TOPIC_PREFIX) :], changes)
        elif key.startswith(TOPIC_CONFIG_PREFIX):
            topic = key[len(TOPIC_CONFIG_PREFIX) :]
            self.topic_configs.pop(topic, None)
            changes.topic_configs = True
            self._topic_changed(topic, changes)
        elif key.startswith(BROKER_PREFIX):
            self._remove_broker(int(key[len(BROKER_PREFIX) :]), changes)
        elif key.startswith(BROKER_CONFIG_PREFIX):
            entity = key[len(BROKER_CONFIG_PREFIX) :]
            self.broker_configs.pop("" if entity == DEFAULT_ENTITY_NAME else entity, None)
            changes.broker_configs = True
        elif key.startswith(CONTROLLER_ID_PREFIX):
            self.controllers.discard(int(key[len(CONTROLLER_ID_PREFIX) :]))
        elif key == FEATURES_KEY:
            self.features = DEFAULT_FEATURES
            changes.features = True
        elif key.startswith(SECURITY_PREFIXES):
            token = self.delegation_tokens.get(key)
            if token is not None:
                self.token_secrets.remove(token.token_id)
            for entries in self._security.values():
                entries.pop(key, None)
            self._security_changed(key, revision, changes)
        else:
            self.isr_changes.pop(key, None)

    def forget_gone(self, watched_revision: int) -> None:
        """Forgets deletions up to the revision that the watch has reached, because no older change can
        arrive.
        """
        for key in [key for key, revision in self._gone_at.items() if revision <= watched_revision]:
            del self._gone_at[key]

    def note_shutdown(self, broker_id: int, broker_epoch: int, changes: ChangeSet) -> None:
        broker = self.brokers.get(broker_id)
        if broker is not None and broker.broker_epoch == broker_epoch:
            self.stopping.add(broker_id)
            changes.stopping.add(broker_id)

    def note_replicas(
        self,
        broker_id: int,
        broker_epoch: int,
        failed: Collection[TopicPartition],
        served: Collection[TopicPartition],
        changes: ChangeSet,
    ) -> None:
        """Notes the replicas that a registered broker failed to open or write, and those that it serves."""
        broker = self.brokers.get(broker_id)
        if broker is None or broker.broker_epoch != broker_epoch:
            return
        before = self.failed_replicas.get(broker_id, frozenset())
        after = (before - frozenset(served)) | frozenset(failed)
        if after != before:
            self.failed_replicas[broker_id] = after
            changes.replicas_failed = True

    def _apply_partition(
        self, entry: PartitionStateEntry, mod_revision: int, changes: ChangeSet, *, is_own: bool
    ) -> None:
        stored = self.partitions.setdefault(entry.topic, {})
        before = stored.get(entry.partition)
        topic = self.topics.get(entry.topic)
        stored[entry.partition] = _with_assignment(_partition_of(entry, mod_revision), topic)
        self._topic_states.pop(entry.topic, None)
        partition = TopicPartition(entry.topic, entry.partition)
        changes.touched_partitions.add(partition)
        if not is_own and self.failed_replicas:
            known = before.isr if before is not None else ()
            self._serve_again(entry, {entry.leader, *entry.isr} - (set(known) - {entry.leader}))
        if before is None:
            changes.new_partitions.add(partition)
        elif not is_own and (before.leader, before.leader_epoch) == (entry.leader, entry.leader_epoch):
            return  # The leader publishes its own ISR change with a notification.
        changes.partitions.add(partition)
        changes.topics.add(entry.topic)

    def _serve_again(self, entry: PartitionStateEntry, broker_ids: Iterable[int]) -> None:
        """Notes that replicas work: the leader that changed the ISR, and the replicas that joined it."""
        for broker_id in broker_ids:
            failed = self.failed_replicas.get(broker_id)
            if failed is not None:
                self.failed_replicas[broker_id] = failed - {TopicPartition(entry.topic, entry.partition)}

    def _apply_topic(self, entry: TopicEntry, changes: ChangeSet) -> None:
        before = self.topics.get(entry.name)
        if before is not None and before.topic_id != entry.topic_id:
            self._remove_topic(entry.name, changes)
            before = None
        if before is None:
            self.topic_names[entry.topic_id] = entry.name
            self._names_by_collision_key.setdefault(collision_key(entry.name), set()).add(entry.name)
        else:
            for partition, replicas in enumerate(entry.assignments[: len(before.assignments)]):
                if replicas != before.assignments[partition]:
                    changes.partitions.add(TopicPartition(entry.name, partition))
                    changes.removed_replicas |= {
                        RemovedReplica(entry.name, entry.topic_id, partition, broker_id)
                        for broker_id in before.assignments[partition]
                        if broker_id not in replicas
                    }
        self._count(() if before is None else before.assignments, entry.assignments)
        self.topics[entry.name] = entry
        stored = self.partitions.get(entry.name, {})
        for index, known in stored.items():
            assigned = _with_assignment(known, entry)
            if assigned != known:
                stored[index] = assigned
        if entry.adding or entry.removing:
            self.reassigning.add(entry.name)
        else:
            self.reassigning.discard(entry.name)
        self._topic_changed(entry.name, changes)

    def _count(self, before: tuple[tuple[int, ...], ...], after: tuple[tuple[int, ...], ...]) -> None:
        """Counts the partitions and replicas of a topic that changed."""
        if before == after:
            return
        self.partition_count += len(after) - len(before)
        self.replica_counts.subtract(chain.from_iterable(before))
        self.replica_counts.update(chain.from_iterable(after))

    def _apply_broker(self, broker: BrokerRegistration, changes: ChangeSet) -> None:
        broker_id = broker.broker_id
        before = self.brokers.get(broker_id)
        self.brokers[broker_id] = broker
        if before is None:
            changes.registered.add(broker_id)
        elif before.broker_epoch != broker.broker_epoch:
            self._end_life(broker_id)
            changes.unregistered.add(broker_id)
            changes.registered.add(broker_id)
        elif before != broker:
            changes.brokers = True
        self._judge_suspect(broker_id)

    def _judge_suspect(self, broker_id: int) -> None:
        broker = self.brokers.get(broker_id)
        is_suspect = broker is not None and (broker.is_log_suspect or bool(broker.suspect_partitions))
        if is_suspect and broker is not None and self._settled_suspects.get(broker_id) != broker.broker_epoch:
            self.unsettled_suspects.add(broker_id)
        else:
            self.unsettled_suspects.discard(broker_id)

    def _remove_broker(self, broker_id: int, changes: ChangeSet) -> None:
        self._end_life(broker_id)
        if self.brokers.pop(broker_id, None) is not None:
            changes.unregistered.add(broker_id)
            changes.registered.discard(broker_id)
        self._judge_suspect(broker_id)

    def _end_life(self, broker_id: int) -> None:
        self.stopping.discard(broker_id)
        self.failed_replicas.pop(broker_id, None)

    def _remove_partition(self, partition: TopicPartition, changes: ChangeSet) -> None:
        stored = self.partitions.get(partition.topic)
        if stored is None:
            return
        stored.pop(partition.partition, None)
        if not stored:
            del self.partitions[partition.topic]
        for noted in (changes.partitions, changes.new_partitions, changes.touched_partitions):
            noted.discard(partition)
        self._topic_changed(partition.topic, changes)

    def _remove_topic(self, name: str, changes: ChangeSet) -> None:
        topic = self.topics.pop(name, None)
        if topic is None:
            return
        del self.topic_names[topic.topic_id]
        key = collision_key(name)
        self._names_by_collision_key[key].discard(name)
        if not self._names_by_collision_key[key]:
            del self._names_by_collision_key[key]
        self.reassigning.discard(name)
        self._count(topic.assignments, ())
        changes.deleted_topics.append(topic)
        self._topic_changed(name, changes)

    def _security_changed(self, key: str, revision: int, changes: ChangeSet) -> None:
        self.security_revision = max(self.security_revision, revision)
        changes.security.add(key)

    def _topic_changed(self, name: str, changes: ChangeSet) -> None:
        self._topic_states.pop(name, None)
        changes.topics.add(name)


def _partition_of(entry: PartitionStateEntry, mod_revision: int) -> PartitionState:
    """Returns the partition of a state key, without replicas."""
    return PartitionState(
        topic=entry.topic,
        topic_id=ZERO_TOPIC_ID,
        partition=entry.partition,
        leader=entry.leader,
        leader_epoch=entry.leader_epoch,
        isr=entry.isr,
        replicas=(),
        controller_epoch=entry.controller_epoch,
        partition_epoch=mod_revision,
        elr=entry.elr,
        last_known_elr=(entry.last_known_leader,) if entry.last_known_leader >= 0 else (),
    )


def _with_assignment(partition: PartitionState, topic: TopicEntry | None) -> PartitionState:
    """Returns the partition with the id of its topic and the replicas that the topic assigns to it."""
    index = partition.partition
    if topic is None or index >= len(topic.assignments):
        return partition
    return partition._replace(
        topic_id=topic.topic_id,
        replicas=topic.assignments[index],
        adding_replicas=topic.adding.get(index, ()),
        removing_replicas=topic.removing.get(index, ()),
    )


def _registration(entry: BrokerEntry, broker_epoch: int) -> BrokerRegistration:
    return BrokerRegistration(
        entry.broker_id,
        broker_epoch,
        entry.endpoints,
        entry.rack,
        entry.rpc_address,
        entry.is_log_suspect,
        entry.suspect_partitions,
    )
