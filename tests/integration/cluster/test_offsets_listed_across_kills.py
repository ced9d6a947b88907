"""Programs that list groups' offsets with librdkafka's AdminClient while the groups' coordinators are killed
and started again at once. NOT_COORDINATOR from a broker that has just come back would end these programs.

With TIDELOG_TEST_CLUSTER=kafka, the test shows what becomes of them beside Apache Kafka.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaException, TopicPartition

from brokerlab.clients import new_consumer
from clusterlab import offset_lister
from clusterlab.kafka_cluster import KafkaCluster
from clusterlab.tidelog_cluster import TidelogCluster
from clusterlab.topic_view import await_view
from grouplab.group_members import await_true
from tidelog.client.admin.groups import coordinator_id_of
from tidelog.client.calls import GROUP
from tidelog.client.cluster import Cluster, until_answered

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

GROUPS = ("first", "second", "third", "fourth")
KILLS = 5
CALLS_BETWEEN_KILLS = 5
WAIT_S = 90.0
FROZEN_S = 8.0
"""Longer than `offsets.commit.timeout.ms`, after which a commit that is not replicated is refused."""


class Lister:
    """The program for one group, in a process of its own."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self.group = group
        self.outcomes: Counter[str] = Counter()
        self.longest_s = 0.0
        self._process = subprocess.Popen(
            [sys.executable, offset_lister.__file__, bootstrap, group],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            outcome, taken_s = line.split()
            self.outcomes[outcome] += 1
            self.longest_s = max(self.longest_s, float(taken_s))

    @property
    def ended_by(self) -> str:
        """The signal or the exit status that ended the program; empty while it runs."""
        status = self._process.poll()
        if status is None:
            return ""
        return signal.Signals(-status).name if status < 0 else f"exit status {status}"

    def await_calls(self, count: int) -> None:
        """Waits until the program has made so many further successful calls, or has ended."""
        wanted = self.outcomes["ok"] + count
        await_true(lambda: self.outcomes["ok"] >= wanted or bool(self.ended_by), WAIT_S)

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(WAIT_S)
        self._reader.join(WAIT_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def listers(
    cluster: TidelogCluster | KafkaCluster, new_replicated_topic: Callable[..., str]
) -> Iterator[list[Lister]]:
    topic = new_replicated_topic(cluster, 1)
    for group in GROUPS:
        _commit(cluster.bootstrap, group, topic)
    started = [Lister(cluster.bootstrap, group) for group in GROUPS]
    try:
        yield started
    finally:
        for lister in started:
            lister.kill()


def _commit(bootstrap: str, group: str, topic: str) -> None:
    member = new_consumer(bootstrap, group_id=group)

    def is_committed() -> bool:
        try:
            member.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
        except KafkaException:  # the first coordinator of a new cluster is not ready at once
            return False
        return True

    await_true(is_committed, WAIT_S)
    member.close()


def _coordinator(cluster: TidelogCluster | KafkaCluster, group: str) -> int:
    with Cluster(cluster.bootstrap) as client:
        return until_answered(client, lambda: coordinator_id_of(client, GROUP, group))


def test_no_program_ends_because_a_follower_is_frozen(
    cluster: TidelogCluster | KafkaCluster,
    new_replicated_topic: Callable[..., str],
    listers: list[Lister],
    tell: Callable[..., None],
) -> None:
    """Until the frozen broker's session ends, no commit is replicated, and what a coordinator answers is held
    for `offsets.commit.timeout.ms`.
    """
    topic = new_replicated_topic(cluster, 1)
    lister = listers[0]
    lister.await_calls(CALLS_BETWEEN_KILLS)
    coordinator = _coordinator(cluster, lister.group)
    frozen = next(name for name in cluster.addresses if name != f"broker-{coordinator}")
    member = new_consumer(cluster.bootstrap, group_id=lister.group)
    cluster.signal(frozen, signal.SIGSTOP)
    try:
        until_s = time.monotonic() + FROZEN_S
        while time.monotonic() < until_s:
            member.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=True)
            time.sleep(0.1)
    finally:
        cluster.signal(frozen, signal.SIGCONT)
    member.close()
    await_view(  # the next test needs all brokers
        cluster.addresses.values(),
        topic,
        lambda view: all(len(partition.isr) == len(cluster.addresses) for partition in view.values()),
        WAIT_S,
    )
    lister.await_calls(CALLS_BETWEEN_KILLS)
    print(dict(lister.outcomes), lister.ended_by)
    tell("longest call", lister.longest_s)
    assert not lister.ended_by


def test_no_program_ends_because_a_coordinator_was_killed_and_came_back(
    cluster: TidelogCluster | KafkaCluster, listers: list[Lister], tell: Callable[..., None]
) -> None:
    for lister in listers:
        lister.await_calls(CALLS_BETWEEN_KILLS)
    for number in range(KILLS):
        victim = f"broker-{_coordinator(cluster, GROUPS[number % len(GROUPS)])}"
        cluster.kill(victim)
        cluster.start(victim)
        for lister in listers:
            lister.await_calls(CALLS_BETWEEN_KILLS)
        crashed = {lister.group: lister.ended_by for lister in listers if lister.ended_by}
        print(
            f"kill {number + 1} ({victim}):", dict(sum((li.outcomes for li in listers), Counter())), crashed
        )
    crashed = {lister.group: lister.ended_by for lister in listers if lister.ended_by}
    for lister in listers:
        if not lister.ended_by:
            lister.end()
    tell("programs that crashed", len(crashed), f"of {len(listers)}")
    tell("calls", sum(lister.outcomes.total() for lister in listers), "calls")
    tell("longest call", max(lister.longest_s for lister in listers))
    assert not crashed
    assert {lister.ended_by for lister in listers} == {"exit status 0"}
