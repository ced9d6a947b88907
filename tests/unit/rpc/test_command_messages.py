"""Commands, registrations and refusals are converted to protobuf and back without loss."""

from __future__ import annotations

import uuid
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.kernel.steps import Steps, all_at_once
from tidelog.metadata.entries import ClientQuotaEntry, GroupConfigEntry, QuotaEntity
from tidelog.model.brokers import BrokerRegistration, Endpoint
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.features import FinalizedFeatures
from tidelog.model.topics import TopicPartition
from tidelog.rpc.broker_commands import (
    CommandResult,
    DeletedTopic,
    LeaderAndIsr,
    PartitionState,
    SecurityUpdate,
    StopReplica,
    TopicState,
    UpdateMetadata,
)
from tidelog.rpc.cluster_messages import refusal, refusal_message, registration, registration_message
from tidelog.rpc.command_messages import command, command_message, command_result, result_message
from tidelog.rpc.generated import broker_commands_pb2 as pb
from tidelog.rpc.generated import cluster_pb2

_texts = st.text(st.characters(codec="utf-8"), max_size=8)
_topics = st.from_regex(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,8}", fullmatch=True)
_ids = st.integers(0, 2**31 - 1)
_ports = st.integers(0, 65_535)
_int64s = st.integers(-(2**63), 2**63 - 1)
_epochs = st.integers(-1, 2**31 - 1)
_replicas = st.lists(_ids, max_size=4).map(tuple)
_configs = st.dictionaries(_texts, _texts, max_size=3)
_partitions = st.builds(TopicPartition, _topics, _ids)
_codes = st.sampled_from(ErrorCode)


def _states(topic: str, topic_id: uuid.UUID) -> st.SearchStrategy[PartitionState]:
    return st.builds(
        PartitionState,
        topic=st.just(topic),
        topic_id=st.just(topic_id),
        partition=_ids,
        leader=st.integers(-1, 2**31 - 1),
        leader_epoch=_epochs,
        isr=_replicas,
        replicas=_replicas,
        controller_epoch=_epochs,
        partition_epoch=st.integers(-1, 2**63 - 1),
        is_new=st.booleans(),
        elr=_replicas,
        last_known_elr=_replicas,
        adding_replicas=_replicas,
        removing_replicas=_replicas,
    )


_any_state = st.tuples(_topics, st.uuids()).flatmap(lambda topic: _states(*topic))


@st.composite
def _topic_states(draw: st.DrawFn) -> TopicState:
    name, topic_id = draw(_topics), draw(st.uuids())
    states = draw(st.lists(_states(name, topic_id), max_size=3))
    return TopicState(name, topic_id, tuple(states), draw(_configs))


_registrations = st.builds(
    BrokerRegistration,
    broker_id=_ids,
    broker_epoch=_int64s,
    endpoints=st.lists(st.builds(Endpoint, _texts, _texts, _ports, _texts), max_size=2).map(tuple),
    rack=st.none() | _texts,
    rpc_address=_texts,
    is_log_suspect=st.booleans(),
    suspect_partitions=st.lists(_partitions, max_size=2).map(tuple),
)
_leader_and_isrs = st.builds(
    LeaderAndIsr,
    controller_id=_ids,
    controller_epoch=_ids,
    partitions=st.lists(_any_state, max_size=4).map(tuple),
    topic_configs=st.dictionaries(_topics, _configs, max_size=2),
    is_full=st.booleans(),
)
_update_metadatas = st.builds(
    UpdateMetadata,
    controller_id=_ids,
    controller_epoch=_ids,
    brokers=st.lists(_registrations, max_size=2).map(tuple),
    topics=st.lists(_topic_states(), max_size=3).map(tuple),
    deleted_topics=st.lists(st.builds(DeletedTopic, _topics, st.uuids()), max_size=2).map(tuple),
    broker_configs=st.none() | st.dictionaries(_texts, _configs, max_size=2),
    feature_levels=st.none()
    | st.builds(
        FinalizedFeatures,
        st.dictionaries(_texts, st.integers(0, 2**31 - 1), max_size=2),
        st.integers(0, 2**62),
    ),
    is_full=st.booleans(),
    security=st.none()
    | st.builds(
        SecurityUpdate,
        _int64s,
        st.dictionaries(_texts, st.floats(allow_nan=False), max_size=2).map(
            lambda values: (ClientQuotaEntry(QuotaEntity((("user", None),)), values),)
        ),
        st.lists(_texts, max_size=2).map(tuple),
    ),
)
_stop_replicas = st.builds(
    StopReplica,
    controller_id=_ids,
    controller_epoch=_ids,
    partitions=st.lists(_partitions, max_size=3).map(tuple),
    topic_ids=st.dictionaries(_topics, st.uuids(), max_size=2),
    delete=st.booleans(),
)
_results = st.builds(
    CommandResult, error=_codes, partition_errors=st.dictionaries(_partitions, _codes, max_size=3)
)


@given(_leader_and_isrs | _update_metadatas | _stop_replicas)
def test_a_command_is_converted_without_loss(sent: Any) -> None:
    encoded = all_at_once(command_message(sent)).SerializeToString()
    assert all_at_once(command(pb.Command.FromString(encoded))) == sent


def states(count: int, topic: str = "t") -> tuple[PartitionState, ...]:
    topic_id = uuid.UUID(int=1)
    return tuple(PartitionState(topic, topic_id, n, 1, 0, (1, 2), (1, 2), 1) for n in range(count))


def large_commands(count: int) -> dict[str, Any]:
    """Returns a command for each part of a message that may have `count` elements."""
    topics = tuple(TopicState(f"t{n}", uuid.UUID(int=1), states(1, f"t{n}"), {}) for n in range(count))
    acls = tuple(GroupConfigEntry(f"g{n}", {}) for n in range(count))
    partitions = tuple(TopicPartition("t", n) for n in range(count))
    return {
        "partitions": LeaderAndIsr(1, 1, states(count), {}),
        "settings of topics": LeaderAndIsr(1, 1, (), {f"t{n}": {"retention.ms": "1"} for n in range(count)}),
        "topics": UpdateMetadata(1, 1, (), topics),
        "partitions of a topic": UpdateMetadata(
            1, 1, (), (TopicState("t", uuid.UUID(int=1), states(count), {}),)
        ),
        "deleted topics": UpdateMetadata(
            1, 1, (), deleted_topics=tuple(DeletedTopic(f"t{n}", uuid.UUID(int=n)) for n in range(count))
        ),
        "security": UpdateMetadata(1, 1, (), security=SecurityUpdate(1, acls)),
        "stopped partitions": StopReplica(1, 1, partitions, {}, delete=True),
    }


@pytest.mark.parametrize("part", large_commands(1))
def test_a_command_is_converted_in_a_step_for_each_element(part: str) -> None:
    """The conversion of a large command must not hold the event loop."""
    count = 300
    sent = large_commands(count)[part]
    encoding = _Counted(command_message(sent))
    message = all_at_once(encoding.steps())
    decoding = _Counted(command(message))
    assert all_at_once(decoding.steps()) == sent
    assert encoding.count >= count
    assert decoding.count >= count


class _Counted:
    """Counts the steps of long work."""

    def __init__(self, work: Steps[Any]) -> None:
        self._work = work
        self.count = 0

    def steps(self) -> Steps[Any]:
        while True:
            try:
                next(self._work)
            except StopIteration as ended:
                return ended.value
            self.count += 1
            yield


@given(_update_metadatas)
def test_an_envelope_before_the_encoded_command_makes_one_message(sent: UpdateMetadata) -> None:
    envelope = pb.Command(id=7, broker_id=2, broker_epoch=99).SerializeToString()
    received = pb.Command.FromString(envelope + all_at_once(command_message(sent)).SerializeToString())
    assert (received.id, received.broker_id, received.broker_epoch) == (7, 2, 99)
    assert all_at_once(command(received)) == sent


@given(_results)
def test_a_result_is_converted_without_loss(sent: CommandResult) -> None:
    encoded = result_message(sent).SerializeToString()
    assert command_result(pb.CommandResult.FromString(encoded)) == sent


@given(_registrations)
def test_a_registration_is_converted_without_loss(sent: BrokerRegistration) -> None:
    encoded = registration_message(sent).SerializeToString()
    assert registration(cluster_pb2.BrokerRegistration.FromString(encoded)) == sent


@given(_codes, st.none() | _texts.filter(bool))
def test_a_refusal_keeps_code_and_message(code: ErrorCode, text: str | None) -> None:
    encoded = refusal_message(KafkaError(code, text)).SerializeToString()
    received = refusal(cluster_pb2.Refusal.FromString(encoded))
    assert (received.code, received.message) == (code, text)


def test_an_unknown_code_becomes_an_unknown_error_with_its_number() -> None:
    received = refusal(cluster_pb2.Refusal(code=9999, message="so new"))
    assert (received.code, received.message) == (ErrorCode.UNKNOWN_SERVER_ERROR, "error 9999: so new")


def test_absent_and_empty_values_are_distinguished() -> None:
    for absent_or_empty in cast("tuple[dict[str, Any] | None, ...]", (None, {})):
        features = None if absent_or_empty is None else FinalizedFeatures({}, 0)
        sent = UpdateMetadata(1, 2, (), broker_configs=absent_or_empty, feature_levels=features)
        received = all_at_once(
            command(pb.Command.FromString(all_at_once(command_message(sent)).SerializeToString()))
        )
        assert isinstance(received, UpdateMetadata)
        assert received.broker_configs == absent_or_empty
        assert received.feature_levels == features


def test_a_partition_in_another_topics_state_is_refused() -> None:
    stranger = PartitionState("b", uuid.UUID(int=2), 0, 1, 0, (1,), (1,), 1)
    with pytest.raises(ValueError, match="does not belong to topic 'a'"):
        all_at_once(
            command_message(UpdateMetadata(1, 1, (), (TopicState("a", uuid.UUID(int=1), (stranger,), {}),)))
        )


def test_a_command_of_an_unknown_kind_is_none() -> None:
    assert all_at_once(command(pb.Command(id=1))) is None


@pytest.mark.parametrize(
    ("fields", "message", "apart"),
    [
        # The fields that the message has elsewhere: the topic and the topic id of a partition are those of
        # all its partitions.
        (PartitionState._fields, pb.PartitionState, {"topic", "topic_id"}),
        (BrokerRegistration._fields, cluster_pb2.BrokerRegistration, set()),
        (Endpoint._fields, cluster_pb2.Endpoint, set()),
        (TopicPartition._fields, cluster_pb2.TopicPartition, set()),
        (DeletedTopic._fields, pb.DeletedTopic, set()),
        (UpdateMetadata.__slots__, pb.UpdateMetadata, set()),
        (StopReplica.__slots__, pb.StopReplica, set()),
    ],
)
def test_no_field_is_forgotten(fields: tuple[str, ...], message: Any, apart: set[str]) -> None:
    """A field that is added to a dataclass must be added to its message."""
    assert set(fields) - apart == {field.name for field in message.DESCRIPTOR.fields}
