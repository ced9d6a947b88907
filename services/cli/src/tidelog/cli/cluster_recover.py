"""`tidelog cluster recover`: etcd is lost for good, the brokers' logs are there. What it held is rebuilt."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import click
from tidelog.broker.log.directory_lock import DirectoryLock
from tidelog.broker.log.errors import CorruptFileError, LogDirectoryInUseError
from tidelog.broker.log.meta_properties import MetaProperties, read_meta_properties
from tidelog.cli.local_cluster.cluster import STOP_TIMEOUT_S, LocalCluster
from tidelog.cli.local_cluster.plan import BROKER, ETCD
from tidelog.cli.log_survey import FoundReplica, greatest_producer_id, partition_directories, survey
from tidelog.cli.output import note, say
from tidelog.cli.rebuilt_metadata import RebuiltTopic, rebuild_topics
from tidelog.cli.service_options import service_options, settings_from
from tidelog.cli.service_process import etcd_options
from tidelog.cli.tool_command import ToolCommand, ToolError
from tidelog.metadata import keys
from tidelog.metadata.cluster_identity import ensure_cluster_id
from tidelog.metadata.entries import Entry, ProducerIdBlockEntry
from tidelog.metadata.etcd.etcd_store import EtcdMetadataStore
from tidelog.metadata.etcd.options import EtcdOptions
from tidelog.metadata.store import MAX_TXN_BYTES, MAX_TXN_OPERATIONS, Delete, MetadataStore, Put, StoreError

PRODUCER_IDS_SKIPPED: Final = 1_000_000
"""Ids above the greatest one in any producer snapshot that may be in use by what was written since."""
SURVEY_THREADS: Final = 8
UNDER_WAY: Final = "/tidelog/recovering"
"""Stands in the store while it is being filled: a recovery that broke off may be begun again."""
_LEFTOVERS: Final = frozenset({keys.CONTROLLER_EPOCH, UNDER_WAY})
"""What a store may hold and still count as empty: an epoch that only ever grows."""


class Survey(NamedTuple):
    """What all directories hold together."""

    cluster_id: str
    replicas: dict[int, list[FoundReplica]]
    greatest_producer_id: int


@click.command(cls=ToolCommand, short_help="Rebuild a lost etcd from the brokers' directories.")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="The directory that 'tidelog cluster up' was given.",
)
@click.option(
    "--log-dir",
    "log_dirs",
    multiple=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Of any other cluster: a broker's log.dirs; once for each broker, all of them.",
)
@service_options
def command(
    data_dir: Path | None,
    log_dirs: tuple[Path, ...],
    configs: tuple[Path, ...],
    assignments: tuple[str, ...],
) -> None:
    """Rebuild etcd's contents from the brokers' directories, into an etcd that is empty.

    Brokers and controllers must be down. Topics, their ids, partitions and replicas come back, with all
    records; settings of topics and brokers stood in etcd alone and are lost. With --log-dir, etcd is the
    one that --config, environment or --set name (tidelog.etcd.endpoints).
    """
    if (data_dir is None) == (not log_dirs):
        raise click.UsageError("either --data-dir or --log-dir, please")
    with contextlib.ExitStack() as stack:
        if data_dir is not None:
            cluster = _stopped_cluster(data_dir)
            log_dirs = tuple(cluster.directory / m.name for m in cluster.plan.members if m.kind == BROKER)
            stack.enter_context(_etcd_of(cluster))
            options = cluster.etcd_options()
            next_step = f"'tidelog cluster up --data-dir {data_dir}' starts it"
        else:
            options = etcd_options(settings_from(configs, assignments))
            next_step = "now start its brokers and controllers"
        try:
            with _locked(log_dirs):
                found = survey_directories(log_dirs)
                topics = asyncio.run(_recover(options, found))
        except (CorruptFileError, LogDirectoryInUseError, OSError, StoreError) as error:
            raise ToolError(str(error)) from error
    _tell(topics)
    say(f"cluster {found.cluster_id} is back in etcd; {next_step}")


def _stopped_cluster(data_dir: Path) -> LocalCluster:
    cluster = LocalCluster.open(data_dir)
    running = [name for name in cluster.running() if not name.startswith(ETCD)]
    if running:
        raise ToolError(f"{', '.join(running)} still run; 'tidelog cluster down' stops them")
    return cluster


@contextlib.contextmanager
def _etcd_of(cluster: LocalCluster) -> Iterator[None]:
    """It runs meanwhile, and afterwards if it did before."""
    member = cluster.member("etcd-1")
    was_running = cluster.processes.pid(member.name) is not None
    if not was_running:
        cluster.spawn(member)
    try:
        cluster.wait_until_serving([member])
        yield
    finally:
        if not was_running:
            cluster.processes.stop([member.name], STOP_TIMEOUT_S)


@contextlib.contextmanager
def _locked(log_dirs: Sequence[Path]) -> Iterator[None]:
    """No broker may use them meanwhile."""
    with contextlib.ExitStack() as stack:
        for log_dir in log_dirs:
            if log_dir.is_dir():
                stack.callback(DirectoryLock(log_dir).release)
        yield


async def _recover(options: EtcdOptions, found: Survey) -> list[RebuiltTopic]:
    store = EtcdMetadataStore(options)
    try:
        return await recover(store, found)
    finally:
        await store.close()


def survey_directories(log_dirs: Sequence[Path]) -> Survey:
    """Raises ToolError if they don't belong together, CorruptFileError, OSError."""
    metas = {log_dir: meta for log_dir in log_dirs if (meta := read_meta_properties(log_dir)) is not None}
    if not metas:
        raise ToolError(f"there is nothing to recover from: no {' or '.join(map(str, log_dirs))}")
    cluster_id = _one_cluster(metas)
    replicas: dict[int, list[FoundReplica]] = {}
    greatest = -1
    with ThreadPoolExecutor(SURVEY_THREADS) as threads:
        for log_dir, meta in metas.items():
            if meta.node_id in replicas:
                raise ToolError(f"{log_dir} is a second directory of broker {meta.node_id}")
            directories = partition_directories(log_dir)
            replicas[meta.node_id] = list(threads.map(lambda item: survey(*item), directories.items()))
            greatest = max(greatest, *threads.map(greatest_producer_id, directories.values()), -1)
    return Survey(cluster_id, replicas, greatest)


def _one_cluster(metas: dict[Path, MetaProperties]) -> str:
    by_id = {meta.cluster_id: log_dir for log_dir, meta in metas.items()}
    if len(by_id) > 1:
        named = ", ".join(f"{log_dir} to {cluster_id}" for cluster_id, log_dir in by_id.items())
        raise ToolError(f"the directories belong to different clusters: {named}")
    return next(iter(by_id))


async def recover(store: MetadataStore, found: Survey) -> list[RebuiltTopic]:
    """Fill the store. Raises ToolError if it isn't empty, StoreError."""
    items = (await store.list_prefix(keys.EVERYTHING)).items
    is_under_way = any(item.key == UNDER_WAY for item in items)
    others = [item.key for item in items if item.key not in _LEFTOVERS]
    if others and not is_under_way:
        raise ToolError(
            f"etcd is not empty, it holds {len(others)} keys ({others[0]}, ...): nothing was changed. "
            "If its contents are of no use, stop it and move its data away"
        )
    topics = rebuild_topics(found.replicas, new_topic_id=uuid.uuid4())
    await store.txn([], [Put(UNDER_WAY, found.cluster_id.encode())])
    entries: list[Entry] = [
        ProducerIdBlockEntry(-1, found.greatest_producer_id + 1, PRODUCER_IDS_SKIPPED),
        *(state for topic in topics for state in topic.states),
        *(topic.config for topic in topics if topic.config is not None),
        *(topic.entry for topic in topics),
    ]
    for batch in _batches([Put(entry.key, entry.encode()) for entry in entries]):
        await store.txn([], batch)
    await ensure_cluster_id(store, found.cluster_id)
    await store.txn([], [Delete(UNDER_WAY)])
    return topics


def _batches(puts: Sequence[Put]) -> Iterator[list[Put]]:
    """As many at a time as a transaction takes."""
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
        click.echo(f"{topic.entry.name}: {len(topic.states)} partitions, {replicas} replicas")
        behind = sum(
            len(state.isr) < len(assignment)
            for state, assignment in zip(topic.states, topic.entry.assignments, strict=True)
        )
        if behind:
            note(f"  {behind} partitions have replicas that have to catch up")
        for index in topic.missing:
            note(f"  partition {index} is in no directory: it comes back empty")
        if topic.left_out:
            note(f"  brokers {topic.left_out} hold another topic of that name, which is set aside")
