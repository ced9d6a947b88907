"""Invalid names and numbers of other services are refused where they arrive, and so are invented controller
epochs.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerlab.in_memory_store import InMemoryStore
from tidelog.kernel.steps import all_at_once
from tidelog.metadata.entries import CONTROLLER_EPOCH_KEY
from tidelog.metadata.store import KeyValue, Put, StoreUnavailableError
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition, topic_name_problem
from tidelog.rpc import coordinator_session as session
from tidelog.rpc.broker_commands import (
    CommandResult,
    DeletedTopic,
    LeaderAndIsr,
    StopReplica,
    TopicState,
    UpdateMetadata,
)
from tidelog.rpc.cluster_messages import registration
from tidelog.rpc.command_messages import command, command_message, command_result
from tidelog.rpc.generated import broker_commands_pb2 as pb
from tidelog.rpc.generated import cluster_pb2
from tidelog.rpc.generated import coordinator_session_pb2 as session_pb
from tidelog.rpc.grpc_broker_commands import BrokerCommandsService
from tidelog.rpc.session_messages import broker_items, coordinator_items

ID = uuid.UUID(int=7).bytes
BROKER_ID, BROKER_EPOCH = 1, 100

_names = st.sampled_from(["../../evil", "..", ".", "", "a/b", "/etc", "a\0b", "tøpic", "x" * 250, "good"])
_numbers = st.sampled_from([-(2**31), -2, -1, 0, 1, 2**31 - 1])
_far_numbers = st.sampled_from([-(2**63), -2, -1, 0, 1, 2**63 - 1])
_lists = st.lists(_numbers, max_size=2)
_states = st.builds(
    pb.TopicPartitionStates,
    topic=_names,
    topic_id=st.sampled_from([ID, b"", b"short", ID * 2]),
    partitions=st.lists(
        st.builds(
            pb.PartitionState,
            partition=_numbers,
            leader=_numbers,
            leader_epoch=_numbers,
            isr=_lists,
            replicas=_lists,
            partition_epoch=_far_numbers,
            elr=_lists,
        ),
        max_size=2,
    ),
)
_partitions = st.builds(cluster_pb2.TopicPartition, topic=_names, partition=_numbers)
_commands = st.one_of(
    st.builds(
        lambda **fields: pb.Command(leader_and_isr=pb.LeaderAndIsr(**fields)),
        controller_epoch=_numbers,
        topics=st.lists(_states, max_size=2),
        topic_configs=st.dictionaries(_names, st.builds(cluster_pb2.Settings), max_size=1),
    ),
    st.builds(
        lambda **fields: pb.Command(update_metadata=pb.UpdateMetadata(**fields)),
        controller_id=_numbers,
        topics=st.lists(st.builds(pb.TopicState, partitions=_states), max_size=2),
        deleted_topics=st.lists(st.builds(pb.DeletedTopic, name=_names, topic_id=st.just(ID)), max_size=1),
        brokers=st.lists(st.builds(cluster_pb2.BrokerRegistration, broker_id=_numbers), max_size=1),
    ),
    st.builds(
        lambda **fields: pb.Command(stop_replica=pb.StopReplica(**fields)),
        partitions=st.lists(_partitions, max_size=2),
        topic_ids=st.dictionaries(_names, st.just(ID), max_size=1),
        delete=st.booleans(),
    ),
)


def names_in(order: object) -> list[str]:
    match order:
        case LeaderAndIsr():
            return [state.topic for state in order.partitions] + list(order.topic_configs)
        case UpdateMetadata():
            return [topic.name for topic in order.topics] + [topic.name for topic in order.deleted_topics]
        case StopReplica():
            return [partition.topic for partition in order.partitions] + list(order.topic_ids)
    raise AssertionError(order)


def test_a_topic_name_that_leads_out_of_the_data_directory_is_refused() -> None:
    evil = "../../evil"
    partition = TopicPartition(evil, 0)
    orders = (
        UpdateMetadata(1, 1, (), (TopicState(evil, uuid.UUID(int=7), (), {}),)),
        UpdateMetadata(1, 1, (), deleted_topics=(DeletedTopic(evil, uuid.UUID(int=7)),)),
        LeaderAndIsr(1, 1, (), {evil: {}}),
        StopReplica(1, 1, (partition,), {}, delete=True),
        StopReplica(1, 1, (), {evil: uuid.UUID(int=7)}, delete=True),
    )
    for order in orders:
        with pytest.raises(ValueError, match="Topic name is invalid"):
            all_at_once(command(all_at_once(command_message(order))))
    state = pb.TopicPartitionStates(topic=evil, topic_id=ID, partitions=[pb.PartitionState()])
    with pytest.raises(ValueError, match="Topic name is invalid"):
        all_at_once(command(pb.Command(leader_and_isr=pb.LeaderAndIsr(topics=[state]))))


@given(_commands)
def test_a_command_is_refused_or_contains_only_valid_values(message: pb.Command) -> None:
    try:
        order = all_at_once(command(message))
    except ValueError:
        return
    assert isinstance(order, LeaderAndIsr | UpdateMetadata | StopReplica)
    assert order.controller_epoch >= 0
    assert order.controller_id >= 0
    assert all(topic_name_problem(name) is None for name in names_in(order))
    states = [
        *getattr(order, "partitions", ()),
        *(s for t in getattr(order, "topics", ()) for s in t.partitions),
    ]
    for state in states:
        assert state.partition >= 0
        if not isinstance(state, TopicPartition):
            assert min(state.leader, state.leader_epoch, state.partition_epoch) >= -1
            assert min((0, *state.isr, *state.replicas, *state.elr)) == 0


@given(_partitions, _numbers)
def test_registrations_and_results_are_refused_or_valid(partition: Any, port: int) -> None:
    message = cluster_pb2.BrokerRegistration(
        endpoints=[cluster_pb2.Endpoint(port=port)], suspect_partitions=[partition]
    )
    is_valid = topic_name_problem(partition.topic) is None and partition.partition >= 0
    try:
        found = registration(message)
    except ValueError:
        assert not is_valid or not 0 <= port <= 65_535
    else:
        assert is_valid
        assert 0 <= found.endpoints[0].port <= 65_535
    error = pb.PartitionError(topic=partition.topic, partition=partition.partition, error_code=3)
    try:
        command_result(pb.CommandResult(partition_errors=[error]))
    except ValueError:
        assert not is_valid
    else:
        assert is_valid


@given(_names, _numbers, _far_numbers)
def test_a_coordinators_items_are_refused_or_valid(name: str, number: int, offset: int) -> None:
    partition = cluster_pb2.TopicPartition(topic=name, partition=number)
    shard = session_pb.Shard(kind=session_pb.SHARD_KIND_GROUP, partition=number)
    is_partition = topic_name_problem(name) is None and number >= 0
    cases = (
        (session_pb.CoordinatorItem(hello=session_pb.Hello(coordinator_id=number)), number >= 0),
        (
            session_pb.CoordinatorItem(attach_shard=session_pb.AttachShard(shard=shard, shard_epoch=number)),
            number >= 0,
        ),
        (session_pb.CoordinatorItem(read_shard=session_pb.ReadShard(from_offset=offset)), offset >= 0),
        (
            session_pb.CoordinatorItem(append_to_shard=session_pb.AppendToShard(expected_offset=offset)),
            offset >= 0,
        ),
        (
            session_pb.CoordinatorItem(
                write_markers=session_pb.WriteMarkers(
                    markers=[session_pb.Marker(producer_id=offset, partitions=[partition])]
                )
            ),
            is_partition and offset >= 0,
        ),
        (
            session_pb.CoordinatorItem(
                write_markers=session_pb.WriteMarkers(markers=[session_pb.Marker(producer_epoch=number)])
            ),
            0 <= number <= 32_767,
        ),
        (
            session_pb.CoordinatorItem(
                ask_offsets=session_pb.AskOffsets(
                    positions=[session_pb.Position(partition=partition, offset=offset)]
                )
            ),
            is_partition and offset >= -1,
        ),
    )
    for item, is_valid in cases:
        frame = session_pb.FromCoordinator(items=[item]).SerializeToString()
        if is_valid:
            assert len(coordinator_items(frame)) == 1
        else:
            with pytest.raises(ValueError, match=r"."):
                coordinator_items(frame)


def test_a_brokers_negative_offsets_are_refused() -> None:
    for item in (
        session_pb.BrokerItem(shard_attached=session_pb.ShardAttached(log_end_offset=-5)),
        session_pb.BrokerItem(shard_records=session_pb.ShardRecords(next_offset=-1)),
        session_pb.BrokerItem(shard_committed=session_pb.ShardCommitted(high_watermark=-1)),
        session_pb.BrokerItem(producer_ids_told=session_pb.ProducerIdsTold(first=-1)),
    ):
        with pytest.raises(ValueError, match="is negative"):
            broker_items(session_pb.FromBroker(items=[item]).SerializeToString())
    unknown = session.OffsetsTold(0, (session.PartitionOffsets(-1, -1, -1, -1),))
    frame = session_pb.FromBroker(
        items=[
            session_pb.BrokerItem(
                offsets_told=session_pb.OffsetsTold(
                    partitions=[
                        session_pb.PartitionOffsets(
                            log_start_offset=-1,
                            high_watermark=-1,
                            last_stable_offset=-1,
                            first_unread_timestamp_ms=-1,
                        )
                    ]
                )
            )
        ]
    )
    assert broker_items(frame.SerializeToString()) == [unknown]


# -- controller epochs


class CountingBroker:
    """Counts the commands that reach the broker."""

    def __init__(self) -> None:
        self.count = 0

    async def leader_and_isr(self, command: LeaderAndIsr) -> CommandResult:
        raise AssertionError(command)

    async def update_metadata(self, command: UpdateMetadata) -> CommandResult:
        self.count += 1
        return CommandResult()

    async def stop_replica(self, command: StopReplica) -> CommandResult:
        raise AssertionError(command)


class ElectionStore(InMemoryStore):
    """A store whose reads are counted and can fail."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.is_away = False

    async def get(self, key: str) -> KeyValue | None:
        self.reads += 1
        if self.is_away:
            raise StoreUnavailableError("the store is away")
        return await super().get(key)

    async def elect(self, controller_epoch: int) -> None:
        await self.txn((), (Put(CONTROLLER_EPOCH_KEY, str(controller_epoch).encode()),))


class EpochLab:
    def __init__(self) -> None:
        self.store, self.broker = ElectionStore(), CountingBroker()
        self.service = BrokerCommandsService(self.broker, BROKER_ID, self.store)
        self.service.set_broker_epoch(BROKER_EPOCH)
        self._id = 0

    async def send(self, controller_epoch: int) -> pb.CommandAnswer:
        self._id += 1
        message = all_at_once(command_message(UpdateMetadata(1, controller_epoch, ())))
        message.MergeFrom(pb.Command(id=self._id, broker_id=BROKER_ID, broker_epoch=BROKER_EPOCH))
        return await self.service.answer(message)


def test_an_epoch_is_confirmed_once() -> None:
    async def scenario() -> None:
        lab = EpochLab()
        await lab.store.elect(4)
        for _ in range(5):
            assert (await lab.send(4)).result.error_code == ErrorCode.NONE
        assert (lab.broker.count, lab.store.reads) == (5, 1)

    asyncio.run(scenario())


def test_an_epoch_without_an_election_is_refused_and_changes_nothing() -> None:
    async def scenario() -> None:
        lab = EpochLab()
        assert (await lab.send(1)).failure.code == ErrorCode.INVALID_REQUEST  # nobody was elected yet
        await lab.store.elect(4)
        await lab.send(4)
        refused = await lab.send(2**31 - 1)
        assert refused.failure.code == ErrorCode.INVALID_REQUEST
        assert "no controller was elected with epoch 2147483647" in refused.failure.message
        assert (await lab.send(4)).result.error_code == ErrorCode.NONE  # the true controller goes on
        assert lab.broker.count == 2

    asyncio.run(scenario())


def test_the_first_command_of_a_deposed_controller_is_stale() -> None:
    async def scenario() -> None:
        lab = EpochLab()
        await lab.store.elect(5)
        assert (await lab.send(4)).result.error_code == ErrorCode.STALE_CONTROLLER_EPOCH
        assert lab.broker.count == 0

    asyncio.run(scenario())


def test_during_an_outage_of_the_store_only_the_known_controller_is_obeyed() -> None:
    async def scenario() -> None:
        lab = EpochLab()
        await lab.store.elect(4)
        await lab.send(4)
        lab.store.is_away = True
        assert (await lab.send(4)).WhichOneof("outcome") == "result"
        waiting = await lab.send(5)
        assert "could not be confirmed" in waiting.not_carried_out  # its sender repeats it
        lab.store.is_away = False
        await lab.store.elect(5)
        assert (await lab.send(5)).result.error_code == ErrorCode.NONE
        assert lab.broker.count == 3

    asyncio.run(scenario())
