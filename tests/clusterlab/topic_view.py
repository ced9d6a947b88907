"""One broker's view of a topic's partitions over the raw protocol: leader, replicas and in-sync replicas; and
the replicas' logs as files, which must be equal byte by byte, because a follower appends fetched bytes
unchanged.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from brokerlab.batches import read_batches
from brokerlab.raw_client import RawClient
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.client.security import environment_properties, environment_security

METADATA_VERSION = 12
ASK_TIMEOUT_S = 3.0
ASK_AGAIN_S = 0.05


class PartitionView(NamedTuple):
    error_code: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]


TopicView = dict[int, PartitionView]


def topic_view(address: str, topic: str, timeout_s: float = ASK_TIMEOUT_S) -> TopicView:
    """Returns partition -> view of the broker at `address`. Raises OSError if the broker does not answer, and
    KeyError if it does not know the topic.
    """
    if environment_properties():
        return _secure_view(address, topic, timeout_s)
    with RawClient(address, timeout_s) as client:
        answer = client.call(
            "metadata",
            METADATA_VERSION,
            topics=[{"name": topic, "topic_id": None}],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
    (found,) = answer.topics
    if found.error_code:
        raise KeyError(f"{topic}: error {found.error_code} of the broker at {address}")
    return {
        p.partition_index: PartitionView(
            int(p.error_code),
            int(p.leader_id),
            int(p.leader_epoch),
            tuple(map(int, p.replica_nodes)),
            tuple(map(int, p.isr_nodes)),
            tuple(map(int, p.offline_replicas)),
        )
        for p in found.partitions
    }


def _secure_view(address: str, topic: str, timeout_s: float) -> TopicView:
    """Returns one broker's view with the login of TIDELOG_COMMAND_CONFIG. Raises as `topic_view` does."""
    try:
        with Cluster(address, timeout_s=timeout_s, security=environment_security()) as cluster:
            found = cluster.topics()[topic]
    except ClientError as error:
        raise OSError(str(error)) from error
    return {
        p.index: PartitionView(0, p.leader, p.leader_epoch, tuple(p.replicas), tuple(p.isr), ())
        for p in found.partitions
    }


def view_of_any(addresses: Iterable[str], topic: str) -> TopicView:
    """Returns the view of the first broker that answers. Raises ConnectionError if none does."""
    for address in addresses:
        try:
            return topic_view(address, topic)
        except (OSError, KeyError):
            continue
    raise ConnectionError(f"no broker knows {topic}")


def await_view(
    addresses: Iterable[str], topic: str, wanted: Callable[[TopicView], bool], timeout_s: float
) -> TopicView:
    """Waits until every broker of `addresses` shows the wanted view. Raises TimeoutError with their actual
    views.
    """
    addresses = list(addresses)
    deadline_s = time.monotonic() + timeout_s
    while True:
        shown: dict[str, TopicView | str] = {}
        for address in addresses:
            try:
                shown[address] = topic_view(address, topic)
            except (OSError, KeyError) as error:
                shown[address] = repr(error)
        if all(not isinstance(view, str) and wanted(view) for view in shown.values()):
            view = shown[addresses[0]]
            assert not isinstance(view, str)
            return view
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the wanted view was not there after {timeout_s} s: {shown}")
        time.sleep(ASK_AGAIN_S)


class LogFacts(NamedTuple):
    """Without records, `log_end_offset` is 0 and the hash is that of no bytes."""

    log_end_offset: int
    size_bytes: int
    sha256: str


def log_bytes(log_dir: Path, topic: str, partition: int) -> bytes:
    """Returns all segments concatenated. The boundaries of segments may differ between replicas, but not
    their contents.
    """
    directory = log_dir / f"{topic}-{partition}"
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def log_facts(log_dir: Path, topic: str, partition: int) -> LogFacts:
    data = log_bytes(log_dir, topic, partition)
    last = None
    whole = 0
    for last in read_batches(data):
        whole += last.size_bytes
    return LogFacts(last.last_offset + 1 if last else 0, whole, hashlib.sha256(data[:whole]).hexdigest())


def disagreements(
    log_dirs: Mapping[int, Path], topic: str, replicas: Mapping[int, tuple[int, ...]]
) -> list[str]:
    """Returns the partitions whose replicas' logs differ. `replicas` maps a partition to broker ids."""
    found = []
    for partition, broker_ids in replicas.items():
        facts = {broker_id: log_facts(log_dirs[broker_id], topic, partition) for broker_id in broker_ids}
        if len(set(facts.values())) > 1:
            shown = {b: f"end {f.log_end_offset}, {f.size_bytes} B, {f.sha256[:8]}" for b, f in facts.items()}
            found.append(f"{topic}-{partition}: {shown}")
    return found
