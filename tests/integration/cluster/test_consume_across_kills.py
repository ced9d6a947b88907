"""`tidelog consume` as a process, while a broker that leads one of its partitions is killed."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from brokerlab.broker_process import tidelog_command
from brokerlab.clients import create_topic, produce_values
from clusterlab.tidelog_cluster import TidelogCluster
from clusterlab.topic_view import topic_view

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]

LIMIT_S = 60.0
QUIET_S = 7.0
"""More than the time after which a reader without records asks the leaders, topic_reader.QUIET_CHECK_S."""
GIVES_UP_MS = 3_000
LONG_SESSIONS = {"broker.session.timeout.ms": "20000", "replica.lag.time.max.ms": "2000"}
"""Metadata names a killed broker as the leader for long. The ISR shrinks soon, so that no commit waits."""


class RunningConsume:
    """A `tidelog consume` whose standard output is read line by line."""

    def __init__(self, bootstrap: str, *arguments: object) -> None:
        # Background jobs of a shell ignore SIGINT, and processes inherit that.
        self._process = subprocess.Popen(
            ["env", "--default-signal=INT", *tidelog_command(), "consume", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "TIDELOG_BOOTSTRAP_SERVER": bootstrap},
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._errors: list[bytes] = []
        self._threads = [threading.Thread(target=read) for read in (self._read_lines, self._read_errors)]
        for thread in self._threads:
            thread.start()

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.decode().rstrip("\n"))

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.append(self._process.stderr.read())

    def next_lines(self, count: int) -> set[str]:
        """Returns the next lines in any order. Raises queue.Empty if they do not arrive in time."""
        return {self._lines.get(timeout=LIMIT_S) for _ in range(count)}

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def ended(self) -> tuple[int, str]:
        """Waits for the end, and returns the exit code and the standard error."""
        exit_code = self._process.wait(LIMIT_S)
        for thread in self._threads:
            thread.join(LIMIT_S)
        return exit_code, b"".join(self._errors).decode()

    def kill(self) -> None:
        self._process.kill()
        self.ended()


@pytest.fixture
def consume() -> Iterator[Callable[..., RunningConsume]]:
    """Returns consume(bootstrap, arguments...), which starts a command for one test."""
    started: list[RunningConsume] = []

    def start(bootstrap: str, *arguments: object) -> RunningConsume:
        started.append(RunningConsume(bootstrap, *arguments))
        return started[-1]

    yield start
    for each in started:
        each.kill()


def topic_with_a_partition_of_each(cluster: TidelogCluster) -> tuple[str, int, int]:
    """Returns a topic of which each broker leads one partition, which has no other replica, and two of its
    partitions: one of broker 2, and another one.
    """
    topic = f"t-{uuid.uuid4().hex[:8]}"
    create_topic(cluster.bootstrap, topic, cluster.brokers)
    led = {view.leader: index for index, view in topic_view(cluster.address(1), topic).items()}
    assert set(led) == set(range(1, cluster.brokers + 1))
    return topic, led[2], led[1]


WAYS = pytest.mark.parametrize("options", [(), ("--group", "readers")], ids=["alone", "in-a-group"])


@WAYS
def test_it_reads_on_after_the_broker_is_back(
    new_cluster: Callable[..., TidelogCluster],
    consume: Callable[..., RunningConsume],
    options: tuple[str, ...],
) -> None:
    cluster = new_cluster(controllers=1)
    topic, killed, other = topic_with_a_partition_of_each(cluster)
    produce_values(cluster.bootstrap, topic, [b"a"], killed)
    produce_values(cluster.bootstrap, topic, [b"b"], other)
    reader = consume(cluster.bootstrap, topic, "--from-beginning", *options)
    assert reader.next_lines(2) == {"a", "b"}
    cluster.kill("broker-2")
    time.sleep(QUIET_S)  # it asks the killed broker, and may fail
    assert reader.is_running, reader.ended()
    cluster.start("broker-2")
    produce_values(cluster.bootstrap, topic, [b"c"], killed)
    produce_values(cluster.bootstrap, topic, [b"d"], other)
    assert reader.next_lines(2) == {"c", "d"}
    reader.interrupt()
    assert reader.ended() == (0, f"4 records read from {topic}.\n")


@WAYS
def test_it_names_a_broker_that_stays_away(
    new_cluster: Callable[..., TidelogCluster],
    consume: Callable[..., RunningConsume],
    options: tuple[str, ...],
) -> None:
    """In a group, the command itself has not asked any leader before the kill, only its consumer has."""
    cluster = new_cluster(controllers=1, settings=LONG_SESSIONS)
    topic, killed, other = topic_with_a_partition_of_each(cluster)
    produce_values(cluster.bootstrap, topic, [b"a"], killed)
    produce_values(cluster.bootstrap, topic, [b"b"], other)
    limits = ("--request-timeout-ms", GIVES_UP_MS)
    reader = consume(cluster.bootstrap, topic, "--from-beginning", *limits, *options)
    assert reader.next_lines(2) == {"a", "b"}
    cluster.kill("broker-2")
    exit_code, errors = reader.ended()
    assert exit_code == 1
    assert "advertise" not in errors
    address = cluster.address(2)
    assert errors == (
        f"tidelog: broker 2 no longer answers: no connection to {address}: connection refused; "
        "'tidelog cluster describe' shows the brokers that run\n"
    )
