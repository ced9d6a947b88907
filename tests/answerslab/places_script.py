"""Asks the brokers of a new cluster of three the questions whose answers depend on the broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from answerslab.client import Client
from answerslab.question import batch
from answerslab.questions_places import (
    ALL_UP,
    BROKER_OF,
    COORDINATOR,
    DOWN,
    LEADER,
    MIN_INSYNC,
    NOT_COORDINATOR,
    READ,
    SHARE_MEMBER,
    TOPICS,
    WHILE_DOWN,
    PlacedScene,
)
from answerslab.script import (
    ADMIN_HOST,
    READY_S,
    SETTINGS,
    SETTLED_S,
    Answers,
    Versions,
    answer_of,
    listed_versions,
    request_of,
    until,
)
from clusterlab.kafka_cluster import KafkaCluster
from clusterlab.tidelog_cluster import TidelogCluster
from clusterlab.topic_view import TopicView, await_view
from tidelog.model.topics import SHARE_GROUP_STATE_TOPIC
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages import (
    create_topics,
    describe_log_dirs,
    find_coordinator,
    init_producer_id,
    metadata,
    offset_commit,
    produce,
    share_fetch,
)

SETTINGS_OF_THREE = {
    name: value
    for name, value in SETTINGS.items()
    if not name.startswith(("offsets.topic.rep", "transaction.state.log.rep", "transaction.state.log.min"))
    and name not in ("authorizer.class.name", "allow.everyone.if.no.acl.found", "super.users")
} | {
    "min.insync.replicas": "1",
    "replica.lag.time.max.ms": "4000",
    "auto.leader.rebalance.enable": "false",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}
"""The settings of each broker. The racks are rack1, rack2 and rack3."""
RACK_PREFIX = "rack"
DOWN_S = 60
"""The time in which the cluster must notice that a broker is down."""
"""The number of share fetches in a row that must succeed. A first one starts only the initialization."""
CANDIDATES = 200
"""The number of names of groups and transactions, of which one has the wanted coordinator."""


class ThreeBrokers(Protocol):
    """A cluster with the brokers broker-1 to broker-3, of tidelog or of Apache Kafka."""

    addresses: dict[str, str]

    def kill(self, name: str) -> float: ...


def new_kafka(directory: Path) -> KafkaCluster:
    """Returns a cluster of Apache Kafka that is not started yet."""
    properties = "\n".join(f"{name}={value}" for name, value in SETTINGS_OF_THREE.items())
    return KafkaCluster(directory, heap="384m", properties=properties)


def new_tidelog(directory: Path) -> TidelogCluster:
    """Returns a cluster of tidelog that is not started yet."""
    options = ("--rack-prefix", RACK_PREFIX)
    return TidelogCluster(directory / "cluster", settings=SETTINGS_OF_THREE, options=options)


def ask_places(cluster: ThreeBrokers, versions: Versions | None = None) -> Answers:
    """Returns the answers of a new cluster, in which one broker is then killed. It is asked in `versions`, or
    in those that it lists.
    """
    addresses = {number: cluster.addresses[f"broker-{number}"] for number in sorted(set(BROKER_OF.values()))}
    clients = {number: Client(address, ADMIN_HOST) for number, address in addresses.items()}
    apis = {int(api) for placed in (*ALL_UP, *WHILE_DOWN) for api in placed.cases}
    versions = versions or listed_versions(clients[1], apis)
    scene = _prepared(clients, addresses)
    answers = _asked(scene, ALL_UP, versions)
    cluster.kill(f"broker-{DOWN}")
    live = [address for number, address in addresses.items() if number != DOWN]
    for topic, replicas in TOPICS.items():
        await_view(live, topic, _without_the_dead(replicas), DOWN_S)
    time.sleep(SETTLED_S)
    answers |= _asked(scene, WHILE_DOWN, versions)
    for client in clients.values():
        client.close()
    return answers


def _without_the_dead(replicas: tuple[int, ...]) -> Callable[[TopicView], bool]:
    def holds(view: TopicView) -> bool:
        alone = replicas == (DOWN,)
        return view[0].leader != DOWN and (alone or DOWN not in view[0].isr)

    return holds


def _asked(scene: PlacedScene, questions: Any, versions: Versions) -> Answers:
    names = {known: name for name, known in scene.topic_ids.items()}
    answers: Answers = {}
    for placed in questions:
        for api, cases in placed.cases.items():
            for version in versions.get(api, ()):
                for place in placed.places:
                    for number, case in enumerate(cases):
                        if not case.first <= version <= case.last:
                            continue
                        tag = f"{version}-{number}-{BROKER_OF[place]}-{len(answers)}"
                        there = replace(scene.at(place), version=version, tag=tag)
                        answer = answer_of(there.client, request_of(api, case, there), version, names)
                        row = ApiKey(api).name_in_kafka, f"{place}: {case.name}", version
                        answers[row] = _without_names(answer, there)
    return answers


def _without_names(answer: str, scene: PlacedScene) -> str:
    """Replaces the names that are different in each run."""
    given = {
        f'"{scene.group}"': '"GROUP"',
        f'"{scene.other_group}"': '"OTHER GROUP"',
        f'"{scene.transaction}"': '"TRANSACTION"',
        scene.tag: "TAG",
    }
    for name, label in given.items():
        answer = answer.replace(name, label)
    return answer


def _prepared(clients: Mapping[int, Client], addresses: Mapping[int, str]) -> PlacedScene:
    client = clients[BROKER_OF[LEADER]]
    until(lambda: _create_topics(client))
    for topic, replicas in TOPICS.items():
        _await_leader(addresses, topic, replicas)
    found = client.call(metadata.MetadataRequest(topics=None), 12)
    ids = {topic.name: topic.topic_id for topic in found.topics}
    log_dirs = {}
    for number, other in clients.items():
        (directory,) = other.call(describe_log_dirs.DescribeLogDirsRequest(None), 4).results
        log_dirs[number] = directory.log_dir
    scene = PlacedScene(client, ids, BROKER_OF[LEADER], log_dirs[1], clients=clients, log_dirs=log_dirs)
    for topic in TOPICS:
        if topic != READ:
            until(lambda topic=topic: _is_stored(clients[TOPICS[topic][0]], topic))
    until(lambda: _is_stored(client, READ, producer_id=444_444, producer_epoch=0, base_sequence=0))
    for replicas in ((2, 1), (1, 2)):
        scene.reassign(READ, list(replicas))
        _await_leader(addresses, READ, replicas, led_by=None)
        scene.elect_preferred(READ)
        scene.epoch = _await_leader(addresses, READ, replicas)
    until(lambda: _is_stored(client, READ, producer_id=444_444, producer_epoch=0, base_sequence=1))
    scene.group = _coordinated(client, "answers-group", 0, COORDINATOR)
    scene.other_group = _coordinated(client, "answers-other-group", 0, NOT_COORDINATOR)
    scene.transaction = _coordinated(client, "answers-transaction", 1, COORDINATOR)
    until(lambda: _is_committed(scene))
    until(lambda: _has_producer(scene))
    until(lambda: _has_share_states(scene))
    time.sleep(SETTLED_S)
    return scene


def _await_leader(
    addresses: Mapping[int, str], topic: str, replicas: tuple[int, ...], led_by: int | None = -1
) -> int:
    """Waits until all brokers know the replicas and the first of them as the leader, `led_by` is None for any
    leader. Returns the leader epoch.
    """

    def holds(view: TopicView) -> bool:
        one = view[0]
        is_led = one.leader >= 0 if led_by is None else one.leader == replicas[0]
        return is_led and one.replicas == replicas and set(one.isr) == set(replicas)

    return await_view(addresses.values(), topic, holds, READY_S)[0].leader_epoch


def _create_topics(client: Client) -> bool:
    topics = [
        create_topics.CreatableTopic(
            name,
            -1,
            -1,
            [create_topics.CreatableReplicaAssignment(0, list(replicas))],
            [create_topics.CreatableTopicConfig("min.insync.replicas", MIN_INSYNC.get(name, "1"))],
        )
        for name, replicas in TOPICS.items()
    ]
    results = client.call(create_topics.CreateTopicsRequest(topics, 10_000), 7).topics
    return all(result.error_code in (0, 36) for result in results)


def _is_stored(client: Client, topic: str, **fields: int) -> bool:
    parts = [produce.PartitionProduceData(0, batch(**fields))]
    data = [produce.TopicProduceData(topic, partition_data=parts)]
    response = client.call(produce.ProduceRequest(None, -1, 5000, data), 9)
    return not response.responses[0].partition_responses[0].error_code


def _coordinated(client: Client, prefix: str, key_type: int, place: str) -> str:
    """Returns a name whose coordinator is the broker with this role."""
    for number in range(CANDIDATES):
        name = f"{prefix}-{number}"
        answer = None

        def is_found(name: str = name) -> bool:
            nonlocal answer
            answer = client.call(find_coordinator.FindCoordinatorRequest(name, key_type), 3)
            return not answer.error_code

        until(is_found)
        assert answer is not None
        if answer.node_id == BROKER_OF[place]:
            return name
    raise AssertionError(f"broker {BROKER_OF[place]} is not the coordinator of any {prefix}")


def _is_committed(scene: PlacedScene) -> bool:
    part = [offset_commit.OffsetCommitRequestPartition(0, 5)]
    topics = [offset_commit.OffsetCommitRequestTopic(READ, partitions=part)]
    request = offset_commit.OffsetCommitRequest(scene.group, topics=topics)
    return not scene.client.call(request, 8).topics[0].partitions[0].error_code


def _has_share_states(scene: PlacedScene) -> bool:
    """Fetches as a member of the share group, and returns whether the topic of its state exists. The group
    itself has no members, so its state never begins; the questions do not wait for it either.
    """
    part = share_fetch.FetchPartition(0)
    topics = [share_fetch.FetchTopic(scene.topic_ids[READ], [part])]
    for session_epoch in (0, -1):
        request = share_fetch.ShareFetchRequest(
            scene.group, SHARE_MEMBER, session_epoch, 0, 0, 10_000, 10, 10, topics=topics
        )
        scene.client.call(request, 1)
    found = scene.client.call(metadata.MetadataRequest(topics=None), 12)
    return any(topic.name == SHARE_GROUP_STATE_TOPIC for topic in found.topics)


def _has_producer(scene: PlacedScene) -> bool:
    request = init_producer_id.InitProducerIdRequest(scene.transaction, 300_000)
    return not scene.client.call(request, 4).error_code
