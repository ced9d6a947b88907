"""Kafka Streams in the classic and in the streams protocol (KIP-1071): exactly-once counts under kills,
restored windows, standby replicas, interactive queries, the metadata of the instances, and the reset tool.
"""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from brokerlab.clients import admin_client, create_topic, new_consumer, new_producer
from brokerlab.kafka_jars import JavaTools
from clusterlab.java_systems import STREAMS_SETTINGS, JavaProcess, await_true
from clusterlab.tidelog_cluster import TidelogCluster
from tidelog.client.address import parse_bootstrap
from tidelog.client.cluster import BrokerConnection
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

pytestmark = [pytest.mark.integration, pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(400)]
SOURCE = Path(__file__).parents[1] / "clusterlab" / "StreamsApplications.java"
APPLICATION = "words"
PARTITIONS = 4
VOCABULARY = [f"word{number}" for number in range(12)]
SENTENCES = 200
SEED = 7
GROUP_RESOURCE = 32
"""Kafka's `ConfigResource.Type` of groups."""
WAIT_S = 90.0
ANSWER = "= "
Starter = Callable[[str, int], "Application"]


class Application:
    """One instance of the application, which answers a command at a time."""

    def __init__(self, process: JavaProcess) -> None:
        self.process = process.start()

    def ask(self, command: str) -> str:
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        while not (line := self.process.stdout.readline()).startswith(ANSWER):
            assert line, self.process.log_tail()
        return line.removeprefix(ANSWER).strip()

    def await_answer(self, command: str, answer: str) -> None:
        await_true(lambda: self.ask(command) == answer, WAIT_S, f"{command} is {answer}", self.process)

    def close(self) -> None:
        assert self.ask("close") == "closed"
        self.process.stop()


@pytest.fixture(params=["classic", "streams"])
def protocol(request: pytest.FixtureRequest) -> str:
    """Returns the group protocol of the application."""
    name: str = request.param
    return name


@pytest.fixture
def start(jars: Path, server: str, protocol: str, tmp_path: Path) -> Iterator[Starter]:
    """Returns start(name, standbys), which starts an instance. An instance of the same name has its state."""
    started: list[JavaProcess] = []

    def one(name: str, standbys: int) -> Application:
        state = str(tmp_path / name / "state")
        arguments = (server, APPLICATION, state, str(standbys), protocol, f"{name}:1")  # no one listens there
        process = JavaProcess(jars, tmp_path / name, name, str(SOURCE), *arguments, talks=True)
        started.append(process)
        return Application(process)

    yield one
    for process in started:
        process.kill()


def write(server: str, chance: random.Random, count: int) -> Counter[str]:
    """Produces sentences of three words and returns the number of each word."""
    producer = new_producer(server)
    words: Counter[str] = Counter()
    for number in range(count):
        sentence = [chance.choice(VOCABULARY) for _ in range(3)]
        words.update(sentence)
        producer.produce("sentences", " ".join(sentence), partition=number % PARTITIONS)
    assert producer.flush(30) == 0
    return words


class Counts:
    """Follows the topic of counts with read_committed and checks that each count only grows."""

    def __init__(self, server: str) -> None:
        self.newest: dict[str, int] = {}
        self._consumer = new_consumer(server, isolation_level="read_committed")
        self._consumer.assign([TopicPartition("counted", p, 0) for p in range(PARTITIONS)])

    def are(self, expected: Counter[str]) -> bool:
        for message in self._consumer.consume(1_000, 0.5):
            if message.error() is not None:
                continue
            key, value = message.key(), message.value()
            assert key is not None and value is not None
            word, count = bytes(key).decode() if not isinstance(key, str) else key, int.from_bytes(value)
            assert count > self.newest.get(word, 0), f"{word}: {count} after {self.newest.get(word)}"
            self.newest[word] = count
        return self.newest == expected

    def close(self) -> None:
        self._consumer.close()


def internal_topics(server: str) -> list[str]:
    topics = admin_client(server).list_topics(timeout=15).topics
    return sorted(name for name in topics if name.startswith(f"{APPLICATION}-"))


def owned_by(active: str, standby: str) -> str:
    """Returns the answer to "owners" of a word with its active and its standby task in these instances."""

    def host(name: str) -> str:
        return f"HostInfo{{host='{name}', port=1}}"

    return f"{host(active)} [{host(standby)}]"


def type_of_group(jars: Path, server: str, directory: Path) -> str:
    """Returns the type of the application's group, which is the second column of Kafka's tool."""
    listed = JavaTools(jars, directory).check("GroupsCommand", "--bootstrap-server", server, "--list")
    (line,) = (line for line in listed.splitlines() if line.startswith(APPLICATION))
    return line.split()[1].lower()


def set_standbys_of_group(server: str, count: int) -> None:
    """Sets the standby replicas of an application of the streams protocol, which the broker decides."""
    setting = AlterableConfig("streams.num.standby.replicas", 0, str(count))
    resource = AlterConfigsResource(GROUP_RESOURCE, APPLICATION, [setting])
    request = IncrementalAlterConfigsRequest([resource])
    with BrokerConnection.open(parse_bootstrap(server)[0]) as connection:
        answer = connection.call(request, IncrementalAlterConfigsResponse)
    assert [found.error_code for found in answer.responses] == [0]


def test_an_application_through_its_life(
    start: Starter, jars: Path, server: str, protocol: str, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    if protocol == "streams":
        set_standbys_of_group(server, 1)
    for topic in ("sentences", "counted"):
        create_topic(server, topic, PARTITIONS)
    counts = Counts(server)

    # Exactly-once counts, although an instance dies.
    first, second = start("first", 1), start("second", 1)
    expected = write(server, chance, SENTENCES // 2)
    await_true(lambda: counts.are(expected), WAIT_S, "the first half is counted", first.process)
    expected += write(server, chance, SENTENCES // 4)
    time.sleep(0.5)
    first.process.kill()
    first = start("first", 1)
    first.await_answer("state", "RUNNING")
    first.process.kill()
    expected += write(server, chance, SENTENCES // 4)
    await_true(lambda: counts.are(expected), WAIT_S, "everything is counted", second.process)
    word, number = expected.most_common(1)[0]

    # Interactive queries, of the store and of the windows.
    second.await_answer(f"get {word}", str(number))
    second.await_answer(f"window {word}", str(number))

    # The windows are restored from their changelog.
    second.close()
    shutil.rmtree(tmp_path / "second" / "state")
    second = start("second", 1)
    second.await_answer("state", "RUNNING")
    second.await_answer(f"window {word}", str(number))

    # Both instances have every count, as active or as standby.
    first = start("first", 1)
    for instance in (first, second):
        for each in VOCABULARY:
            instance.await_answer(f"get {each}", str(expected[each]))

    # Both know which instance has which task.
    owners = set()
    for each in VOCABULARY:
        answer = first.ask(f"owners {each}")
        second.await_answer(f"owners {each}", answer)
        owners.add(answer)
    assert owners == {owned_by("first", "second"), owned_by("second", "first")}
    assert type_of_group(jars, server, tmp_path) == protocol
    first.close()
    second.close()
    changelogs = {f"{APPLICATION}-counts-changelog", f"{APPLICATION}-windows-changelog"}
    assert changelogs <= set(internal_topics(server))

    # After a reset, the application counts from the beginning.
    counts.close()
    resetter = JavaProcess(
        *(jars, tmp_path / "reset", "reset", "org.apache.kafka.tools.StreamsResetter"),
        *("--bootstrap-server", server, "--application-id", APPLICATION),
        *("--input-topics", "sentences", "--force"),
    ).start()
    assert resetter.process is not None
    assert resetter.process.wait(WAIT_S) == 0, resetter.log_tail()
    await_true(lambda: internal_topics(server) == [], WAIT_S, "no internal topic is left", resetter)
    third = start("third", 0)
    third.await_answer("state", "RUNNING")
    third.await_answer(f"get {word}", str(number))
    third.close()


def test_an_application_on_a_cluster_whose_processes_are_killed(jars: Path, tmp_path: Path) -> None:
    """Coordinators and a broker die while streams groups are in use: every word is counted exactly once."""
    chance = random.Random(SEED)
    settings = {
        **STREAMS_SETTINGS,
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.num.partitions": "4",
    }
    options = ["--coordinators", "2"]
    cluster = TidelogCluster(tmp_path / "cluster", controllers=1, settings=settings, options=options)
    instances: list[Application] = []
    try:
        server = cluster.up().bootstrap
        for topic in ("sentences", "counted"):
            create_topic(server, topic, PARTITIONS, replication_factor=3)
        counts = Counts(server)
        expected: Counter[str] = Counter()
        for name in ("first", "second"):
            arguments = (
                server,
                APPLICATION,
                str(tmp_path / name / "state"),
                "0",
                "streams",
                f"{name}:1",
                "3",
            )
            process = JavaProcess(jars, tmp_path / name, name, str(SOURCE), *arguments, talks=True)
            instances.append(Application(process))
        for victim in ("", "coordinator-1", "coordinator-2", "broker-2"):
            if victim:
                cluster.kill(victim)
            expected += write(server, chance, SENTENCES // 4)
            what = f"everything is counted after the death of {victim or 'nobody'}"
            processes = (each.process for each in instances)
            await_true(partial(counts.are, expected), 2 * WAIT_S, what, *processes)
            if victim:
                cluster.start(victim)
        word, number = expected.most_common(1)[0]
        assert str(number) in {each.ask(f"get {word}") for each in instances}
        counts.close()
    finally:
        for each in instances:
            each.process.kill()
        cluster.destroy()
