"""Coordinators that stop or die: another one takes over their shards within limits, and no commit is lost."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from brokerlab.clients import create_topic
from clusterlab.tidelog_cluster import TidelogCluster
from tidelog.client.address import Address
from tidelog.client.cluster import BrokerConnection
from tidelog.client.errors import ClientError
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

GROUPS = [f"group-{number}" for number in range(8)]
TOPIC = "committed"
SESSION_MS = 6_000
HAND_OVER_LIMIT_S = 2.0
TAKE_OVER_LIMIT_S = 1.5 * SESSION_MS / 1000
SLACK_S = 4.0
"""The additional time that a busy CI machine may take; the measurements are recorded."""


class Committer(threading.Thread):
    """Commits 1, 2, 3, ... for one group, and repeats each commit until it succeeds."""

    def __init__(self, bootstrap: str, group: str) -> None:
        super().__init__(name=f"commits of {group}")
        self.group = group
        self.acknowledged = 0
        self.moments_s: list[float] = []
        self.is_stopped = threading.Event()
        self._servers = bootstrap
        self._connection: BrokerConnection | None = None

    def run(self) -> None:
        for number in itertools.count(1):
            while not self._is_committed(number):
                if self.is_stopped.wait(0.02):
                    return
            self.acknowledged = number
            self.moments_s.append(time.monotonic())
            if self.is_stopped.wait(0.02):
                return

    def fetched(self) -> int:
        topics = [OffsetFetchRequestTopics(TOPIC, partition_indexes=[0])]
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(self.group, topics=topics)])
        answer = self._coordinator().call(request, OffsetFetchResponse, at_least=8, at_most=9)
        return answer.groups[0].topics[0].partitions[0].committed_offset

    def longest_silence_s(self, from_s: float) -> float:
        moments = [from_s, *(moment for moment in self.moments_s if moment >= from_s), time.monotonic()]
        return max(after - before for before, after in itertools.pairwise(moments))

    def _is_committed(self, number: int) -> bool:
        partition = OffsetCommitRequestPartition(0, number, -1, "")
        request = OffsetCommitRequest(
            self.group, topics=[OffsetCommitRequestTopic(TOPIC, partitions=[partition])]
        )
        try:
            answer = self._coordinator().call(request, OffsetCommitResponse, at_most=9)
        except ClientError:
            self._connection = None
            return False
        error = answer.topics[0].partitions[0].error_code
        if error:
            self._connection = None
        return not error

    def _coordinator(self) -> BrokerConnection:
        if self._connection is None or self._connection.is_closed:
            host, _, port = self._servers.split(",")[0].rpartition(":")
            with BrokerConnection.open(Address(host, int(port))) as connection:
                request = FindCoordinatorRequest(coordinator_keys=[self.group])
                found = connection.call(request, FindCoordinatorResponse, at_least=4).coordinators[0]
            if found.error_code:
                raise ClientError(f"no coordinator: error {found.error_code}")
            self._connection = BrokerConnection.open(Address(found.host, found.port))
        return self._connection


@contextmanager
def committing(cluster: TidelogCluster) -> Iterator[list[Committer]]:
    """Runs a load on every group and then checks that each has its acknowledged offset or the one in
    progress.
    """
    committers = [Committer(cluster.bootstrap, group) for group in GROUPS]
    for committer in committers:
        committer.start()
    try:
        yield committers
    finally:
        for committer in committers:
            committer.is_stopped.set()
        for committer in committers:
            committer.join(30)
    for committer in committers:
        assert committer.acknowledged <= committer.fetched() <= committer.acknowledged + 1


def until_all_commit(committers: list[Committer], limit_s: float = 60) -> None:
    deadline_s = time.monotonic() + limit_s
    before = [committer.acknowledged for committer in committers]
    while any(c.acknowledged < n + 3 for c, n in zip(committers, before, strict=True)):
        assert time.monotonic() < deadline_s, [committer.acknowledged for committer in committers]
        time.sleep(0.05)


@pytest.fixture
def coordinated(new_cluster: Callable[..., TidelogCluster]) -> TidelogCluster:
    cluster = new_cluster(
        controllers=1,
        options=["--coordinators", "2"],
        settings={"offsets.topic.num.partitions": "8", "broker.session.timeout.ms": str(SESSION_MS)},
    )
    create_topic(cluster.bootstrap, TOPIC, 1, replication_factor=3)
    return cluster


def test_a_stopped_coordinator_hands_its_shards_over(
    coordinated: TidelogCluster, tell: Callable[..., None]
) -> None:
    with committing(coordinated) as committers:
        until_all_commit(committers)
        for name in ("coordinator-1", "coordinator-2"):
            stopped_s = coordinated.signal(name, signal.SIGTERM)
            until_all_commit(committers)
            silence_s = max(committer.longest_silence_s(stopped_s) for committer in committers)
            tell(f"SIGTERM {name}: longest time without a commit", silence_s)
            assert silence_s < HAND_OVER_LIMIT_S + SLACK_S
            coordinated.start(name)
            until_all_commit(committers)


def test_a_coordinator_that_is_killed_is_replaced_when_its_lease_ends(
    coordinated: TidelogCluster, tell: Callable[..., None]
) -> None:
    with committing(coordinated) as committers:
        until_all_commit(committers)
        killed_s = coordinated.kill("coordinator-1")
        until_all_commit(committers)
        silence_s = max(committer.longest_silence_s(killed_s) for committer in committers)
        tell("SIGKILL: longest time without a commit", silence_s)
        assert silence_s < TAKE_OVER_LIMIT_S + SLACK_S


def test_a_killed_broker_loses_no_commit(coordinated: TidelogCluster, tell: Callable[..., None]) -> None:
    with committing(coordinated) as committers:
        until_all_commit(committers)
        killed_s = coordinated.kill("broker-3")
        until_all_commit(committers)
        silence_s = max(committer.longest_silence_s(killed_s) for committer in committers)
        tell("SIGKILL of a broker: longest time without a commit", silence_s)
        assert silence_s < TAKE_OVER_LIMIT_S + SLACK_S
