"""Transaction markers for partitions that this broker leads, sent by coordinators and by Kafka's tool."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from brokerlab.in_memory_broker import BROKER_ID, OTHER_BROKER_ID, Asked, InMemoryBroker, until
from brokerlab.scripted_coordinator import ScriptedCoordinator, decoded, shard_partitions
from tidelog.broker.partition.events import FollowerFetched
from tidelog.kernel.timer import VirtualTimer
from tidelog.model.acl import Principal
from tidelog.model.coordinator_shards import ShardKind
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.rpc.broker_commands import LeaderAndIsr, PartitionState, TopicState
from tidelog.rpc.coordinator_session import (
    AnswerRequest,
    ForwardedToShard,
    Marker,
    MarkersWritten,
    WriteMarkers,
)
from tidelog.settings.broker_settings import STANDARD_AUTHORIZER, BrokerSettings
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

OFFSETS = ShardKind.GROUP.topic


def marker(*partitions: TopicPartition, producer_id: int = 5, coordinator_epoch: int = 2) -> Marker:
    return Marker(producer_id, 0, True, coordinator_epoch, 0, partitions)


def in_transaction(lab: InMemoryBroker, topic: str, *partitions: int, producer_id: int = 5) -> None:
    for partition in partitions:
        lab.append(
            topic,
            2,
            partition,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        )


def test_markers_are_written_where_the_partition_is_led_and_refused_elsewhere(lab: InMemoryBroker) -> None:
    lab.add_topic("t", 2)
    lab.add_topic("elsewhere", leader=OTHER_BROKER_ID)
    in_transaction(lab, "t", 0, 1)
    coordinator = ScriptedCoordinator(lab)
    here = [TopicPartition("t", 0), TopicPartition("t", 1)]
    strange = [TopicPartition("elsewhere", 0), TopicPartition("gone", 0), TopicPartition("t", 7)]
    coordinator.say(WriteMarkers(3, (marker(*here, *strange), marker(here[0], producer_id=6))))
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert coordinator.take_one(MarkersWritten) == MarkersWritten(
        3,
        (
            (ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, unknown, unknown),
            (ErrorCode.NONE,),
        ),
    )
    for partition in here:
        core = lab.broker.hosted.leader_replica(*partition).core
        assert core.last_stable_offset == core.log_end_offset >= 3


def test_an_older_coordinator_is_fenced(lab: InMemoryBroker) -> None:
    lab.add_topic("t")
    in_transaction(lab, "t", 0)
    coordinator = ScriptedCoordinator(lab)
    for call, epoch in ((1, 5), (2, 4)):
        coordinator.say(WriteMarkers(call, (marker(TopicPartition("t", 0), coordinator_epoch=epoch),)))
    first, second = coordinator.take(MarkersWritten)
    assert first.errors == ((ErrorCode.NONE,),)
    assert second.errors == ((ErrorCode.TRANSACTION_COORDINATOR_FENCED,),)


def replicated_topic(lab: InMemoryBroker, leader_epoch: int = 3, leader: int = BROKER_ID) -> None:
    topic_id = lab.broker.metadata.topics["t"].topic_id
    both = (BROKER_ID, OTHER_BROKER_ID)
    state = PartitionState(
        "t", topic_id, 0, leader, leader_epoch, both, both, 7, partition_epoch=leader_epoch
    )
    lab.runner.run(lab.commands.leader_and_isr(LeaderAndIsr(BROKER_ID, 7, (state,), {"t": {}})))
    lab.update_metadata(topics=(TopicState("t", topic_id, (state,), {}),))


def test_a_marker_counts_when_it_is_replicated(lab: InMemoryBroker) -> None:
    lab.add_topic("t")
    in_transaction(lab, "t", 0)
    replicated_topic(lab, 4)
    coordinator = ScriptedCoordinator(lab)
    coordinator.say(WriteMarkers(1, (marker(TopicPartition("t", 0)),)))
    replica = lab.broker.hosted.leader_replica("t", 0)
    replica.step(FollowerFetched(OTHER_BROKER_ID, 11, 2, 0, 0))
    assert not coordinator.sent
    replica.step(FollowerFetched(OTHER_BROKER_ID, 11, 3, 0, 0))
    assert coordinator.take_one(MarkersWritten).errors == ((ErrorCode.NONE,),)


@pytest.mark.parametrize("new_leader", [BROKER_ID, OTHER_BROKER_ID])
def test_an_unreplicated_marker_is_refused_after_a_leader_change(
    lab: InMemoryBroker, new_leader: int
) -> None:
    lab.add_topic("t")
    in_transaction(lab, "t", 0)
    replicated_topic(lab, 4)
    coordinator = ScriptedCoordinator(lab)
    coordinator.say(WriteMarkers(1, (marker(TopicPartition("t", 0)),)))
    assert not coordinator.sent
    replicated_topic(lab, 5, new_leader)
    assert coordinator.take_one(MarkersWritten).errors == ((ErrorCode.NOT_LEADER_OR_FOLLOWER,),)


def test_markers_that_are_not_replicated_in_time_fail(lab: InMemoryBroker) -> None:
    lab.add_topic("t")
    in_transaction(lab, "t", 0)
    replicated_topic(lab, 4)
    (shard,) = shard_partitions(lab)
    coordinator = ScriptedCoordinator(lab)
    coordinator.own(shard)
    coordinator.say(WriteMarkers(1, (marker(TopicPartition("t", 0), TopicPartition(OFFSETS, 0)),)))
    late = coordinator.take_one(ForwardedToShard)
    timer = lab.broker.timer
    assert isinstance(timer, VirtualTimer)
    timer.advance(timer.monotonic_ms() + BrokerSettings().request_timeout_ms + 1000)
    assert coordinator.take_one(MarkersWritten).errors == ((ErrorCode.REQUEST_TIMED_OUT,) * 2,)
    coordinator.answer(late, shard_answer(0))
    assert not coordinator.sent


def shard_answer(partition: int, error: ErrorCode = ErrorCode.NONE) -> WriteTxnMarkersResponse:
    result = WritableTxnMarkerPartitionResult(partition, error)
    return WriteTxnMarkersResponse(
        [WritableTxnMarkerResult(5, [WritableTxnMarkerTopicResult(OFFSETS, [result])])]
    )


def test_markers_of_groups_go_to_their_owners(lab: InMemoryBroker) -> None:
    lab.add_topic("t")
    in_transaction(lab, "t", 0)
    first, _, unowned, elsewhere = shard_partitions(lab, leaders=(BROKER_ID,) * 3 + (OTHER_BROKER_ID,))
    second = first._replace(partition=1)
    coordinator = ScriptedCoordinator(lab)
    coordinator.own(first, second)
    offsets = [shard.topic_partition for shard in (first, second, unowned, elsewhere)]
    coordinator.say(
        WriteMarkers(9, (marker(*offsets, TopicPartition("t", 0)), marker(offsets[0], producer_id=6)))
    )
    asked = coordinator.take(ForwardedToShard)
    assert [(item.shard, item.api_key, item.api_version) for item in asked] == [
        (shard, ApiKey.WRITE_TXN_MARKERS, 2) for shard in (first, second, first)
    ]
    assert decoded(asked[1]) == WriteTxnMarkersRequest(
        [WritableTxnMarker(5, 0, True, [WritableTxnMarkerTopic(OFFSETS, [1])], 2, 0)]
    )
    coordinator.answer(asked[0], shard_answer(0))
    coordinator.say(AnswerRequest(asked[1].request_id, None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
    assert not coordinator.sent
    coordinator.answer(asked[2], shard_answer(0, ErrorCode.TRANSACTION_COORDINATOR_FENCED))
    away = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert coordinator.take_one(MarkersWritten).errors == (
        (ErrorCode.NONE, away, away, away, ErrorCode.NONE),
        (ErrorCode.TRANSACTION_COORDINATOR_FENCED,),
    )


def test_an_empty_request_succeeds(lab: InMemoryBroker) -> None:
    coordinator = ScriptedCoordinator(lab)
    coordinator.say(WriteMarkers(1, ()), WriteMarkers(2, (marker(),)))
    assert [written.errors for written in coordinator.take(MarkersWritten)] == [(), ((),)]


LOOPBACK = {"listeners": "PLAINTEXT://127.0.0.1:9092"}
KNOWN = Principal("User:admin")


def markers_of_client(
    lab: InMemoryBroker, *markers: WritableTxnMarker, version: int = 2, principal: Principal = KNOWN
) -> list[list[int]]:
    """Returns the error codes of each marker's partitions."""

    async def ask() -> Asked:
        asked = Asked(lab.broker, WriteTxnMarkersRequest(list(markers)), version, principal=principal)
        await until(lambda: asked.answer is not None)
        return asked

    answer = lab.runner.run(ask()).answer
    return [
        [part.error_code for topic in found.topics for part in topic.partitions] for found in answer.markers
    ]


def abort(*topics: WritableTxnMarkerTopic, epoch: int = 0, coordinator_epoch: int = 0) -> WritableTxnMarker:
    return WritableTxnMarker(5, epoch, False, list(topics), coordinator_epoch)


@pytest.mark.parametrize("version", [1, 2])
def test_kafkas_tool_ends_a_hanging_transaction(lab: InMemoryBroker, version: int) -> None:
    lab.add_topic("t", 2)
    in_transaction(lab, "t", 0)
    sent = abort(WritableTxnMarkerTopic("t", [0]), WritableTxnMarkerTopic("u", [1, 0]))
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert markers_of_client(lab, sent, version=version) == [[ErrorCode.NONE, unknown, unknown]]
    core = lab.broker.hosted.leader_replica("t", 0).core
    assert core.last_stable_offset == core.log_end_offset == 3


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (WritableTxnMarker(5, 0, True, [WritableTxnMarkerTopic("t", [0])], 0), ErrorCode.INVALID_REQUEST),
        (abort(WritableTxnMarkerTopic("t", [0]), epoch=1), ErrorCode.INVALID_PRODUCER_EPOCH),
        (abort(WritableTxnMarkerTopic("t", [0]), epoch=32767), ErrorCode.INVALID_PRODUCER_EPOCH),
        (
            abort(WritableTxnMarkerTopic("t", [0]), coordinator_epoch=1),
            ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        ),
        (abort(WritableTxnMarkerTopic("t", [1])), ErrorCode.INVALID_TXN_STATE),
    ],
    ids=["commit", "next epoch", "last epoch", "newer coordinator", "no transaction"],
)
def test_a_client_does_no_more_than_abort_an_open_transaction(
    lab: InMemoryBroker, sent: WritableTxnMarker, error: ErrorCode
) -> None:
    """Anything else would contradict the transaction's coordinator, which still ends it afterwards."""
    lab.add_topic("t", 2)
    in_transaction(lab, "t", 0)
    assert markers_of_client(lab, sent) == [[error]]
    core = lab.broker.hosted.leader_replica("t", 0).core
    assert core.log_end_offset == 2
    coordinator = ScriptedCoordinator(lab)
    coordinator.say(WriteMarkers(1, (marker(TopicPartition("t", 0)),)))
    assert coordinator.take_one(MarkersWritten).errors == ((ErrorCode.NONE,),)


@pytest.mark.parametrize(
    ("settings", "principal", "error"),
    [
        ({}, Principal("User:ANONYMOUS"), ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        ({}, KNOWN, ErrorCode.NONE),
        (LOOPBACK, Principal("User:ANONYMOUS"), ErrorCode.NONE),
        (
            {**LOOPBACK, "authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"},
            Principal("User:ANONYMOUS"),
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ),
    ],
    ids=["stranger", "known", "this machine", "anonymous super user"],
)
def test_markers_of_strangers_are_refused(
    make_broker: Callable[..., InMemoryBroker],
    settings: dict[str, str],
    principal: Principal,
    error: ErrorCode,
) -> None:
    lab = make_broker(settings)
    lab.add_topic("t")
    in_transaction(lab, "t", 0)
    sent = abort(WritableTxnMarkerTopic("t", [0]))
    assert markers_of_client(lab, sent, principal=principal) == [[error]]
