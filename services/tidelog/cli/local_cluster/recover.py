"""`tidelog cluster recover`: rebuilds topics, assignments and leaders in etcd from the brokers' directories.

The replica that is furthest ahead becomes the leader, by (leader epoch of its last batch, log end offset). It
holds all committed records, because every replica that was in sync in that epoch holds them. Replicas with
the same end are in sync. The others truncate to the leader's log and catch up. The new leader epoch is
greater than all known epochs. The settings of topics come from the copies beside their partitions.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import click

from tidelog.broker.log.directory_files import BrokerSettingsCopy, read_meta_properties
from tidelog.broker.log.previous_life import DirectoryLock, LogDirectoryInUseError
from tidelog.cli.local_cluster.cluster import STOP_TIMEOUT_S, LocalCluster
from tidelog.cli.local_cluster.plan import ETCD
from tidelog.cli.output import counted, note, say
from tidelog.cli.services.service_options import command_settings, etcd_options, service_options
from tidelog.cli.tool_command import ToolCommand, ToolError
from tidelog.embedded.log_survey import (
    FoundBrokerSettings,
    FoundReplica,
    broker_settings_of,
    found_broker_settings,
    found_topic_settings,
    greatest_producer_id,
    partition_directories,
    survey,
)
from tidelog.log_format.directory import CorruptFileError, MetaProperties
from tidelog.metadata.cluster_identity import ensure_cluster_id
from tidelog.metadata.entries import (
    ALL_KEYS_PREFIX,
    CONTROLLER_EPOCH_KEY,
    Entry,
    PartitionStateEntry,
    ProducerIdBlockEntry,
    TopicConfigEntry,
    TopicEntry,
)
from tidelog.metadata.etcd.connection import EtcdOptions
from tidelog.metadata.etcd.etcd_store import EtcdMetadataStore
from tidelog.metadata.store import MAX_TXN_BYTES, MAX_TXN_OPERATIONS, Delete, MetadataStore, Put, StoreError
from tidelog.model.protocol_values import UNKNOWN_EPOCH
from tidelog.settings.topic_settings import are_confirmed

PRODUCER_IDS_SKIPPED: Final = 1_000_000
"""The number of ids above the greatest one in any producer snapshot that later batches may use."""
SURVEY_THREADS: Final = 8
UNDER_WAY: Final = "/tidelog/recovering"
"""The key that exists while the store is filled, so that an interrupted recovery can be repeated."""
_LEFTOVERS: Final = frozenset({CONTROLLER_EPOCH_KEY, UNDER_WAY})
"""The keys that an empty store may hold: an epoch that only grows."""
NO_CONTROLLER_EPOCH: Final = 0


class Survey(NamedTuple):
    """The contents of all directories."""

    cluster_id: str
    replicas: dict[int, list[FoundReplica]]
    greatest_producer_id: int
    broker_settings: FoundBrokerSettings


@click.command(
    cls=ToolCommand,
    short_help="Rebuild a lost etcd from the brokers' directories.",
    examples=(
        "tidelog cluster recover --data-dir cluster",
        "tidelog cluster recover --log-dir /data/1 --log-dir /data/2 --set tidelog.etcd.endpoints=etcd:2379",
    ),
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="The --data-dir of 'tidelog cluster up'.",
)
@click.option(
    "--log-dir",
    "log_dirs",
    multiple=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="The log.dirs of a broker of any other cluster. Repeat the option for every broker.",
)
@service_options
def recover(data_dir: Path | None, log_dirs: tuple[Path, ...]) -> None:
    """Rebuild etcd's contents from the brokers' directories.

    etcd must be empty, and brokers and controllers must be stopped. The command restores topics with their
    ids, partitions, replicas and settings; all records remain. If the copies of a topic's settings are
    missing or differ, nothing is deleted from the topic until 'tidelog topic confirm-settings' confirms its
    settings. With --log-dir, the setting tidelog.etcd.endpoints names the etcd (in --config, the
    environment or --set).
    """
    if (data_dir is None) == (not log_dirs):
        raise click.UsageError("Give either --data-dir or --log-dir.")
    with contextlib.ExitStack() as stack:
        if data_dir is not None:
            cluster = _stopped_cluster(data_dir)
            log_dirs = tuple(map(cluster.log_dir, cluster.plan.broker_ids))
            stack.enter_context(_etcd_of(cluster))
            options = cluster.etcd_options()
            next_step = f"'tidelog cluster up --data-dir {data_dir}' starts it"
        else:
            options = etcd_options(command_settings())
            next_step = "start its brokers and controllers now"
        try:
            with _locked(log_dirs):
                found = survey_directories(log_dirs)
                topics = asyncio.run(_recover(options, found))
        except (CorruptFileError, LogDirectoryInUseError, OSError, StoreError) as error:
            raise ToolError(str(error)) from error
    _tell(topics)
    unconfirmed = [topic for topic in topics if topic.config and not are_confirmed(topic.config.configs)]
    if unconfirmed:
        note(
            f"The settings of {counted(len(unconfirmed), 'topic')} are not known. Nothing is deleted from "
            "them until 'tidelog topic confirm-settings' confirms what applies."
        )
    say(f"Cluster {found.cluster_id} is restored in etcd; {next_step}.", is_one_of_many=True)


def _stopped_cluster(data_dir: Path) -> LocalCluster:
    cluster = LocalCluster.open(data_dir)
    running = [name for name in cluster.running() if not name.startswith(ETCD)]
    if running:
        raise ToolError(
            f"these processes are running: {', '.join(running)}; 'tidelog cluster down' stops them"
        )
    return cluster


@contextlib.contextmanager
def _etcd_of(cluster: LocalCluster) -> Iterator[None]:
    """Runs the cluster's etcd. Stops it at the end, unless it was running before."""
    member = cluster.member("etcd-1")
    was_running = cluster.processes.pid(member.name) is not None
    if not was_running:
        cluster.renew_certificates()
        cluster.spawn(member)
    try:
        cluster.wait_until_serving([member])
        yield
    finally:
        if not was_running:
            cluster.processes.stop([member.name], STOP_TIMEOUT_S)


@contextlib.contextmanager
def _locked(log_dirs: Sequence[Path]) -> Iterator[None]:
    """Holds the locks of the directories, so that no broker can use them."""
    with contextlib.ExitStack() as stack:
        for log_dir in log_dirs:
            if log_dir.is_dir():
                stack.callback(DirectoryLock(log_dir).release)
        yield


async def _recover(options: EtcdOptions, found: Survey) -> list[RebuiltTopic]:
    store = EtcdMetadataStore(options)
    try:
        return await rebuild(store, found)
    finally:
        await store.close()


def survey_directories(log_dirs: Sequence[Path]) -> Survey:
    """Reads all directories.

    Raises ToolError if they belong to different clusters, CorruptFileError, OSError.
    """
    metas = {log_dir: meta for log_dir in log_dirs if (meta := read_meta_properties(log_dir)) is not None}
    if not metas:
        raise ToolError(f"none of these directories exists: {', '.join(map(str, log_dirs))}")
    cluster_id = _one_cluster(metas)
    replicas: dict[int, list[FoundReplica]] = {}
    copies: dict[int, BrokerSettingsCopy | None] = {}
    greatest = -1
    with ThreadPoolExecutor(SURVEY_THREADS) as threads:
        for log_dir, meta in metas.items():
            if meta.node_id in replicas:
                raise ToolError(
                    f"{log_dir}: broker {meta.node_id} has another directory; give only one of them"
                )
            copies[meta.node_id] = broker_settings_of(log_dir)
            directories = partition_directories(log_dir)
            replicas[meta.node_id] = list(threads.map(lambda item: survey(*item), directories.items()))
            greatest = max(greatest, *threads.map(greatest_producer_id, directories.values()), -1)
    return Survey(cluster_id, replicas, greatest, found_broker_settings(copies))


def _one_cluster(metas: dict[Path, MetaProperties]) -> str:
    by_id = {meta.cluster_id: log_dir for log_dir, meta in metas.items()}
    if len(by_id) > 1:
        named = ", ".join(f"{log_dir} to {cluster_id}" for cluster_id, log_dir in by_id.items())
        raise ToolError(f"the directories belong to different clusters: {named}; give those of one cluster")
    return next(iter(by_id))


async def rebuild(store: MetadataStore, found: Survey) -> list[RebuiltTopic]:
    """Fills the store. Raises ToolError if the store is not empty, StoreError."""
    items = (await store.list_prefix(ALL_KEYS_PREFIX)).items
    is_under_way = any(item.key == UNDER_WAY for item in items)
    others = [item.key for item in items if item.key not in _LEFTOVERS]
    if others and not is_under_way:
        raise ToolError(
            f"etcd is not empty: it holds {len(others)} keys ({others[0]}, ...). Nothing was changed. "
            "If you do not need its contents, stop etcd and move its data away"
        )
    topics = rebuild_topics(
        found.replicas, new_topic_id=uuid.uuid4(), are_defaults_known=found.broker_settings.are_known
    )
    await store.txn([], [Put(UNDER_WAY, found.cluster_id.encode())])
    entries: list[Entry] = [
        ProducerIdBlockEntry(-1, found.greatest_producer_id + 1, PRODUCER_IDS_SKIPPED),
        *(state for topic in topics for state in topic.states),
        *(topic.config for topic in topics if topic.config is not None),
        *found.broker_settings.entries,
        *(topic.entry for topic in topics),
    ]
    for batch in _batches([Put(entry.key, entry.encode()) for entry in entries]):
        await store.txn([], batch)
    await ensure_cluster_id(store, found.cluster_id)
    await store.txn([], [Delete(UNDER_WAY)])
    return topics


def _batches(puts: Sequence[Put]) -> Iterator[list[Put]]:
    """Returns the puts in batches that fit into one transaction."""
    batch: list[Put] = []
    size_bytes = 0
    for put in puts:
        put_bytes = len(put.key) + len(put.value)
        if len(batch) == MAX_TXN_OPERATIONS or (batch and size_bytes + put_bytes > MAX_TXN_BYTES):
            yield batch
            batch, size_bytes = [], 0
        batch.append(put)
        size_bytes += put_bytes
    if batch:
        yield batch


def _tell(topics: Sequence[RebuiltTopic]) -> None:
    for topic in topics:
        replicas = max(map(len, topic.entry.assignments))
        say(
            f"{topic.entry.name}: {counted(len(topic.states), 'partition')}, {counted(replicas, 'replica')}",
            is_one_of_many=True,
            topic=topic.entry.name,
            partitions=len(topic.states),
            replicas=replicas,
        )
        behind = sum(
            len(state.isr) < len(assignment)
            for state, assignment in zip(topic.states, topic.entry.assignments, strict=True)
        )
        if behind:
            note(f"  {counted(behind, 'partition', 'has', 'have')} replicas that must catch up")
        for index in topic.missing:
            note(f"  partition {index} is in no directory and will be empty")
        if topic.left_out:
            note(f"  brokers {topic.left_out} hold another topic with the same name, which is ignored")


class RebuiltTopic(NamedTuple):
    """A rebuilt topic.

    `entry` must be written last. `missing` are the partitions without any replica, which will be empty.
    `left_out` are the brokers with a replica of a deleted topic of the same name.
    """

    entry: TopicEntry
    states: tuple[PartitionStateEntry, ...]
    config: TopicConfigEntry | None
    missing: tuple[int, ...]
    left_out: tuple[int, ...]


def rebuild_topics(
    found: Mapping[int, Sequence[FoundReplica]], *, new_topic_id: uuid.UUID, are_defaults_known: bool
) -> list[RebuiltTopic]:
    """Rebuilds all topics.

    `found` holds the replicas by broker id. `new_topic_id` seeds the ids of topics whose ids are on no disk.
    `are_defaults_known` says whether the settings are known that topics inherit from brokers.
    """
    by_topic: dict[str, dict[int, list[FoundReplica]]] = {}
    for broker_id, replicas in found.items():
        for replica in replicas:
            by_topic.setdefault(replica.topic_partition.topic, {}).setdefault(broker_id, []).append(replica)
    return [
        _rebuild(topic, by_broker, uuid.uuid5(new_topic_id, topic), are_defaults_known)
        for topic, by_broker in sorted(by_topic.items())
    ]


def _rebuild(
    topic: str, by_broker: Mapping[int, list[FoundReplica]], otherwise: uuid.UUID, are_defaults_known: bool
) -> RebuiltTopic:
    topic_id = _topic_id(by_broker) or otherwise
    partitions: dict[int, dict[int, FoundReplica]] = {}
    left_out: set[int] = set()
    for broker_id, replicas in by_broker.items():
        for replica in replicas:
            if replica.topic_id in (topic_id, None):
                partitions.setdefault(replica.topic_partition.partition, {})[broker_id] = replica
            else:
                left_out.add(broker_id)
    count = max(partitions) + 1
    everywhere = sorted({broker_id for replicas in partitions.values() for broker_id in replicas})
    states: list[PartitionStateEntry] = []
    assignments: list[tuple[int, ...]] = []
    for index in range(count):
        here = partitions.get(index, {})
        assignments.append(_rotated(sorted(here) or everywhere, index))
        states.append(_state(topic, index, here, assignments[-1]))
    settings = found_topic_settings(
        topic,
        [replica.settings for replicas in partitions.values() for replica in replicas.values()],
        replicas=max(map(len, assignments)),
        are_defaults_known=are_defaults_known,
    )
    return RebuiltTopic(
        TopicEntry(topic, topic_id, tuple(assignments)),
        tuple(states),
        TopicConfigEntry(topic, settings) if settings else None,
        tuple(index for index in range(count) if index not in partitions),
        tuple(sorted(left_out)),
    )


def _topic_id(by_broker: Mapping[int, list[FoundReplica]]) -> uuid.UUID | None:
    """Returns the topic id that most brokers have.

    A broker that was down while the topic was deleted and created again has the old id.
    """
    ids_of_brokers = ({replica.topic_id for replica in replicas} for replicas in by_broker.values())
    counts = Counter(topic_id for ids in ids_of_brokers for topic_id in ids if topic_id is not None)
    return max(counts, key=lambda topic_id: (counts[topic_id], topic_id.int)) if counts else None


def _rotated(broker_ids: Sequence[int], index: int) -> tuple[int, ...]:
    """Returns the replicas in rotation, because the previous preferred leader, the first one, is unknown."""
    turn = index % len(broker_ids)
    return (*broker_ids[turn:], *broker_ids[:turn])


def _state(
    topic: str, index: int, replicas: Mapping[int, FoundReplica], assignment: tuple[int, ...]
) -> PartitionStateEntry:
    latest_epoch = max((replica.latest_epoch for replica in replicas.values()), default=UNKNOWN_EPOCH)
    furthest = max((replica.end for replica in replicas.values()), default=None)
    in_sync = tuple(b for b in assignment if b not in replicas or replicas[b].end == furthest)
    return PartitionStateEntry(
        topic, index, in_sync[0], latest_epoch + 1, in_sync, NO_CONTROLLER_EPOCH, (), in_sync[0]
    )
