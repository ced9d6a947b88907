"""One broker's view of a topic's partitions, over the raw protocol: leader, replicas, in-sync replicas."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

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
