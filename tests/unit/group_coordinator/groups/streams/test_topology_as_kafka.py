"""Random topologies, configured by this package and by Apache Kafka's classes."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

import grouplab
from brokerlab.kafka_jars import KafkaUnavailableError, find_jars
from grouplab.kafka_answers import ask_java
from tidelog.group_coordinator.groups.streams.topology import (
    ConfiguredTopology,
    Topology,
    configure,
    topology_of_request,
)
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire.codec import encoder
from tidelog.wire.messages import streams_group_heartbeat as heartbeat

ORACLE = Path(grouplab.__file__).with_name("KafkaStreamsGroups.java")
CASES = 3_000
NAMED_IN_ANY_ORDER = 3
KAFKAS_MISTAKES = {"IllegalStateException", "IndexOutOfBoundsException", "ArrayIndexOutOfBoundsException"}
"""Kafka throws these, instead of a refusal, for topologies that contradict themselves."""

Answer = dict[str, Any]


def topic_info(chance: random.Random, name: str, partitions: int) -> heartbeat.TopicInfo:
    configs = [heartbeat.KeyValue("cleanup.policy", "compact")] if chance.random() < 0.5 else []
    return heartbeat.TopicInfo(name, partitions, chance.choice([0, 0, 1, 3]), configs)


def some(chance: random.Random, count: int, likelihood: float) -> list[int]:
    return [at for at in range(count) if chance.random() < likelihood]


def question(seed: int) -> tuple[heartbeat.Topology, dict[str, int]]:
    """Returns a topology, in which something is often wrong, and topics that exist."""
    chance = random.Random(seed)
    size = chance.randint(1, 4)
    sizes = [chance.randint(1, 3)] * 5 if chance.random() < 0.5 else [chance.randint(1, 4) for _ in range(5)]
    existing = {f"s{at}": sizes[at] for at in range(5) if chance.random() < 0.97}
    subtopologies = []
    repartition = [f"r{at}" for at in range(chance.randint(0, 4))]
    reader_of = {name: chance.randrange(size) for name in repartition}
    for at in range(size):
        sources = [f"s{number}" for number in some(chance, 5, 0.4)]
        read = [
            topic_info(chance, name, chance.choice([0, 0, 0, 2, 3]))
            for name in repartition
            if reader_of[name] == at
        ]
        # A subtopology mostly writes to topics that later ones read, so that there are few loops.
        sinks = [name for name in repartition if chance.random() < (0.9 if reader_of[name] > at else 0.15)]
        changelog_partitions = 2 if chance.random() < 0.01 else 0
        changelogs = [
            topic_info(chance, f"c{at}-{number}", changelog_partitions) for number in some(chance, 3, 0.3)
        ]
        groups = [
            heartbeat.CopartitionGroup(
                some(chance, len(sources), 0.5), [], some(chance, len(read) + (chance.random() < 0.01), 0.7)
            )
            for _ in range(chance.randint(0, 2))
        ]
        subtopology_id = "0" if chance.random() < 0.01 else str(at)
        regex = ["s.*"] if chance.random() < 0.01 else []
        subtopologies.append(
            heartbeat.Subtopology(subtopology_id, sources, regex, changelogs, sinks, read, groups)
        )
    for subtopology in subtopologies:
        for topic in [*subtopology.repartition_source_topics, *subtopology.state_changelog_topics]:
            if chance.random() < 0.3:
                existing[topic.name] = topic.partitions or chance.choice(sizes)
    topology = heartbeat.Topology(chance.randint(0, 3), subtopologies)
    if chance.random() < 0.5:
        existing |= {name: one[0] for name, one in ours(topology, existing).get("missing", {}).items()}
    return topology, existing


def ours(message: heartbeat.Topology, existing: dict[str, int]) -> Answer:
    try:
        topology = topology_of_request(message)
        return answer_of(topology, configure(topology, existing.get))
    except KafkaError as error:
        return {"error": error.code.name, "message": error.message}


def answer_of(topology: Topology, configured: ConfiguredTopology) -> Answer:
    answer: Answer = {
        "ready": configured.is_ready,
        "tasks": {name: one.task_count for name, one in (configured.subtopologies or {}).items()},
        "missing": {
            topic.name: [topic.partitions, topic.replication_factor, dict(topic.configs)]
            for topic in configured.missing_internal_topics.values()
        },
        "required": sorted(topology.required_topics()),
    }
    if configured.problem is not None:
        answer["status"] = configured.problem.status.value
        answer["detail"] = configured.problem.detail
    return answer


def as_line(message: heartbeat.Topology, existing: dict[str, int]) -> str:
    request = heartbeat.StreamsGroupHeartbeatRequest(
        group_id="g", member_id="m", rebalance_timeout_ms=1_000, topology=message
    )
    request.active_tasks = request.standby_tasks = request.warmup_tasks = []
    encoded = b"".join(bytes(chunk) for chunk in encoder(heartbeat.StreamsGroupHeartbeatRequest, 0)(request))
    return json.dumps({"request": encoded.hex(), "topics": existing})


def without_hash_order(answer: Answer) -> Answer:
    """Returns an answer in which nothing depends on the order of a hash table, in which Kafka looks."""
    detail = answer.get("detail", "")
    if detail.startswith(("Existing topic", "Number of partitions")):
        return answer | {"detail": re.sub(r"[rc][-0-9]+|\d+", "", detail)}
    if detail.startswith("Internal topics are missing: "):
        names = sorted(re.findall(r"[rc]\d[-0-9]*", detail))
        return answer | {"detail": names if len(answer["missing"]) <= NAMED_IN_ANY_ORDER else len(names)}
    return answer


def compares_too_many_topics(message: heartbeat.Topology) -> bool:
    """Returns whether Kafka compares topics that are not in the copartition group."""
    fixed = [
        one.name for sub in message.subtopologies for one in sub.repartition_source_topics if one.partitions
    ]
    return any(
        not group.source_topics and group.repartition_source_topics and fixed
        for sub in message.subtopologies
        for group in sub.copartition_groups
    )


@pytest.mark.java
@pytest.mark.integration
def test_topologies_are_configured_as_by_kafka() -> None:
    try:
        jars = find_jars()
    except KafkaUnavailableError as error:
        pytest.skip(str(error))
    questions = [question(seed) for seed in range(CASES)]
    answers = ask_java(jars, ORACLE, [as_line(*one) for one in questions])
    ready = 0
    for seed, (one, line) in enumerate(zip(questions, answers, strict=True)):
        kafkas, our = json.loads(line), ours(*one)
        ready += our.get("ready", False)
        if compares_too_many_topics(one[0]):
            continue
        if kafkas.get("error") in KAFKAS_MISTAKES:
            assert our["error"] == ErrorCode.STREAMS_INVALID_TOPOLOGY.name, (seed, kafkas, our)
        elif "error" in kafkas:
            expected = {
                "StreamsInvalidTopologyException": ErrorCode.STREAMS_INVALID_TOPOLOGY.name,
                "InvalidRequestException": ErrorCode.INVALID_REQUEST.name,
            }[kafkas["error"]]
            assert our == {"error": expected, "message": kafkas["message"]}, seed
        else:
            assert without_hash_order(our) == without_hash_order(kafkas), seed
    assert ready > CASES // 20
