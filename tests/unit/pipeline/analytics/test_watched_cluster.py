"""Three real brokers, one of them killed, are scraped; the episode is found with its broker."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from brokerlab.clients import create_topic, new_consumer, produce_values
from brokerlab.kafka_jars import TOOLS, JavaTools, KafkaUnavailableError, find_jars
from clusterlab.metrics import METRICS_LISTENER, metrics_url
from clusterlab.tidelog_cluster import TidelogCluster
from tidelog.client.admin.reassignments import alter_reassignments, plan_json, standing_of
from tidelog.client.admin.topics import create_topic as create_assigned
from tidelog.client.cluster import Cluster
from tidelog.pipeline.analytics.facts import Fact, Row, Sample, fact_of, interval_ms, node_ids
from tidelog.pipeline.analytics.job import HistoryView, load_of, look_at_brokers, partition_rows
from tidelog.pipeline.analytics.loads import PartitionLoad, Proposal, propose

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(400)]
TOPIC, GROUP = "watched", "left-behind"
LOPSIDED = "lopsided"
INTERVAL_S = 0.5
WAIT_S = 90.0
TURNS_DOWN = 8
RECORDS = 200


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogCluster]:
    settings = {
        **METRICS_LISTENER,
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
    }
    made = TidelogCluster(tmp_path_factory.mktemp("watched"), controllers=1, settings=settings)
    try:
        yield made.up()
    finally:
        made.destroy()


class Watch:
    """Scrapes the services and keeps the facts."""

    def __init__(self, cluster: TidelogCluster) -> None:
        self._cluster = cluster
        self.facts: list[Fact] = []
        self.targets = self.current_targets()

    def current_targets(self) -> list[str]:
        pids = self._cluster.pids()
        return [metrics_url(pid) for name, pid in pids.items() if name.startswith(("broker", "coordinator"))]

    def until(self, condition: Callable[[list[Fact]], bool], what: str) -> None:
        """Scrapes at each interval until the scraped history meets the condition."""
        deadline_s = time.monotonic() + WAIT_S
        while True:
            at_ms = time.time_ns() // 1_000_000
            samples = [sample for url in self.targets for sample in scraped(url, at_ms)]
            nodes = node_ids(samples)
            now = [fact for sample in samples if (fact := fact_of(sample, nodes)) is not None]
            self.facts += now
            if condition(now):
                return
            assert time.monotonic() < deadline_s, f"not seen: {what}"
            time.sleep(INTERVAL_S)


def scraped(url: str, at_ms: int) -> list[Sample]:
    """Returns the samples of a page of /metrics, or none if the target does not answer."""
    try:
        with urllib.request.urlopen(url, timeout=5.0) as answer:
            page = answer.read().decode()
    except OSError:
        return []
    return [
        Sample(sample.name, {**sample.labels, "instance": url}, at_ms, sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    ]


def in_sync_counts(facts: list[Fact]) -> set[float]:
    metric = "kafka_topic_partition_in_sync_replica"
    return {fact.value for fact in facts if fact.metric == metric and fact.topic == TOPIC}


def looked_at(facts: list[Fact]) -> tuple[dict[int, str | None], dict[str, list[Row]]]:
    """Analyses the history like the Spark job, but without Spark. Returns brokers' racks and the tables."""
    times = sorted({fact.at_ms for fact in facts})
    usual_ms = interval_ms(times, 0)
    racks, heard = look_at_brokers(facts, times[-1], usual_ms)
    view = HistoryView(times[-1], usual_ms, 600_000, heard)
    by_partition: dict[tuple[str, int], list[Fact]] = defaultdict(list)
    for fact in facts:
        if fact.topic is not None and fact.partition is not None:
            by_partition[fact.topic, fact.partition].append(fact)
    found: dict[str, list[Row]] = defaultdict(list)
    for (topic, partition), told in by_partition.items():
        for table, row in partition_rows(topic, partition, told, view):
            found[table].append(row)
    return racks, found


def planned(proposal: Proposal) -> dict[tuple[str, int], tuple[int, ...]]:
    """Returns the plan as its JSON says."""
    plan = json.loads(plan_json(proposal.moves))
    return {(p["topic"], p["partition"]): tuple(p["replicas"]) for p in plan["partitions"]}


def fall_behind(bootstrap: str) -> None:
    """Makes a group that has read half and then stops."""
    consumer = new_consumer(bootstrap, **{"group.id": GROUP})
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, RECORDS // 2)], asynchronous=False)
    consumer.close()


def test_a_killed_broker_is_an_episode_with_its_name(cluster: TidelogCluster) -> None:
    create_topic(cluster.bootstrap, TOPIC, 3, replication_factor=3)
    produce_values(cluster.bootstrap, TOPIC, [b"x" * 100] * RECORDS, partition=0)
    with Cluster(cluster.bootstrap) as client:
        create_assigned(client, LOPSIDED, assignment={partition: [1] for partition in range(4)})
    for partition in range(4):
        produce_values(cluster.bootstrap, LOPSIDED, [b"x" * 100_000] * 20, partition=partition)
    fall_behind(cluster.bootstrap)
    with Cluster(cluster.bootstrap) as client:
        watch = Watch(cluster)
        watch.until(
            lambda facts: in_sync_counts(facts) == {3} and any(f.consumer_group == GROUP for f in facts),
            "all in sync and a lag",
        )
        cluster.kill("broker-2")
        watch.until(
            lambda facts: (
                len([f for f in facts if f.topic == TOPIC and f.value == 2]) >= 3
                and in_sync_counts(facts) == {2}
            ),
            "two of three in sync",
        )
        # Scraping continues. A broker is silent only in comparison with the others.
        start = threading.Thread(target=cluster.start, args=("broker-2",))
        turns = iter(range(TURNS_DOWN))
        watch.until(lambda _: next(turns, None) is None, "some turns without it")
        start.start()
        watch.until(lambda _: not start.is_alive(), "the start's end")
        watch.targets = watch.current_targets()
        watch.until(lambda facts: in_sync_counts(facts) == {3}, "all in sync again")
        racks, rows = looked_at(watch.facts)
        episodes = [row for row in rows["isr_episodes"] if row["topic"] == TOPIC]
        assert {row["partition"] for row in episodes} == {0, 1, 2}
        for row in episodes:
            assert row["least_in_sync"] == 2
            assert not row["is_open"]
            assert row["silent_brokers"] == [2]
        assert set(racks) == {1, 2, 3}
        # The metrics alone give the same replicas as the cluster.
        loads = [load_of(row) for row in rows["partition_loads"]]
        standing = standing_of(client)
        told = {load.key: set(load.holders) for load in loads if load.topic == TOPIC}
        assert told == {key: set(m) for key, m in standing.assignment.items() if key[0] == TOPIC}
        # The cluster accepts and executes the plan.
        proposal = propose(loads, standing.racks, assignment=standing.assignment)
        wanted = planned(proposal)
        assert any(key[0] == LOPSIDED for key in wanted), "all of it is on broker 1"
        alter_reassignments(client, wanted)
        # A running move counts as finished, but brokers learn of its end slightly later than the controller.
        deadline_s = time.monotonic() + 30
        for key, members in wanted.items():
            while set(standing_of(client, [key[0]]).assignment[key]) != set(members):
                assert time.monotonic() < deadline_s, f"{key} did not move to {members}"
                time.sleep(0.1)


@pytest.mark.java
def test_kafkas_own_tool_carries_out_a_plan(cluster: TidelogCluster, tmp_path: Path) -> None:
    try:
        java = JavaTools(find_jars(), tmp_path)
    except KafkaUnavailableError as error:
        pytest.skip(str(error))
    topic = "for-the-tool"
    bytes_each = 1e9
    with Cluster(cluster.bootstrap) as client:
        create_assigned(client, topic, assignment={partition: [1] for partition in range(4)})
        standing = standing_of(client, [topic])
        loads = [
            PartitionLoad(topic, partition, 1, 1, (1,), bytes_each, 0.0, 0.0, 0.0) for partition in range(4)
        ]
        proposal = propose(loads, standing.racks, assignment=standing.assignment)
        file = tmp_path / "plan.json"
        file.write_text(plan_json(proposal.moves))
        arguments = ("--bootstrap-server", cluster.bootstrap, "--reassignment-json-file", str(file))
        tool = f"{TOOLS}.reassign.ReassignPartitionsCommand"
        wanted = planned(proposal)
        assert set(standing.racks) == {members[0] for members in wanted.values()} | {1}
        assert "Successfully started" in java.check(tool, *arguments, "--execute")
        deadline_s = time.monotonic() + WAIT_S
        while (said := java.check(tool, *arguments, "--verify")).count("is completed") != len(wanted):
            assert time.monotonic() < deadline_s, said
        now = standing_of(client, [topic]).assignment
    assert {key: now[key] for key in wanted} == wanted
