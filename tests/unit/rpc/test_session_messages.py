"""Every item of coordinators' sessions is converted to a message and back without loss."""

from __future__ import annotations

import random
import sys
from typing import get_args

import pytest

from tidelog.model.coordinator_shards import ShardId, ShardKind
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import DescribableTopics, TopicPartition
from tidelog.rpc import coordinator_session as session
from tidelog.rpc.coordinator_session import FromBroker, FromCoordinator, Item
from tidelog.rpc.generated import coordinator_session_pb2 as pb
from tidelog.rpc.session_messages import broker_items, broker_message, coordinator_items, coordinator_message

GROUP = ShardId(ShardKind.GROUP, 49)
TRANSACTION = ShardId(ShardKind.TRANSACTION, 0)
FAR = (1 << 63) - 1
AT = TopicPartition("topic", 7)

FROM_COORDINATOR: list[FromCoordinator] = [
    session.Hello(5),
    session.AttachShard(1, GROUP, 3),
    session.AttachShard(FAR, TRANSACTION, 2**31 - 1),
    session.ReadShard(1, 0, 1 << 20),
    session.AppendToShard(1, 0, 12, b"\x00batches\xff"),
    session.AppendToShard(1, 0, FAR, b""),
    session.DetachShard(2),
    session.ServeShards(()),
    session.ServeShards((session.ServedShard(GROUP, 1), session.ServedShard(TRANSACTION, 9))),
    session.AnswerRequest(1, b"body"),
    session.AnswerRequest(2, b"", hold=session.Hold(3, 0)),
    session.AnswerRequest(300, bytes(range(256)), hold=session.Hold(128, 1 << 40)),
    session.AnswerRequest(FAR, None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    session.AnswerRequest(4, None, ErrorCode.UNKNOWN_SERVER_ERROR, session.Hold(0, FAR)),
    session.WriteMarkers(1, ()),
    session.WriteMarkers(
        2,
        (
            session.Marker(FAR, 32767, True, 0, 2, (AT, TopicPartition("other", 0))),
            session.Marker(0, 0, False, 4, 0, ()),
        ),
    ),
    session.AskProducerIds(3),
    session.AskOffsets(4, ((AT, 0), (AT, -1), (AT, FAR))),
    session.AskShareStates(5, 83, 0, b"body"),
    session.TrimShard(6, 0),
    session.TrimShard(7, FAR),
]
FROM_BROKER: list[FromBroker] = [
    session.Welcome(0, FAR),
    session.ShardAttached(1, 2, 3, 4, 5),
    session.ShardRecords(1, 2, 3, 4, b"records"),
    session.ShardRecords(1, 0, 0, 0, b""),
    session.ShardCommitted(1, 0),
    session.ShardCommitted(FAR, FAR),
    session.ShardLost(1, ErrorCode.NOT_LEADER_OR_FOLLOWER, "why"),
    session.ShardLost(2, ErrorCode.UNKNOWN_SERVER_ERROR),
    session.ForwardedToShard(1, GROUP, 11, 9, b"body", "User:a", "client", "127.0.0.1"),
    session.ForwardedToShard(0, TRANSACTION, 0, 0, b"", "", None, ""),
    session.ForwardedToShard(2, GROUP, 8, 9, b"body", "User:a", None, "::1", "00-" + "ab" * 16 + "-cd-01"),
    session.ForwardedToShard(3, GROUP, 68, 1, b"body", "User:a", "client", "::1", "", DescribableTopics()),
    session.ForwardedToShard(
        4, GROUP, 68, 1, b"body", "User:a", None, "::1", "", DescribableTopics(frozenset(), 7)
    ),
    session.ForwardedToShard(
        5, GROUP, 68, 1, b"body", "", None, "", "", DescribableTopics(frozenset({"a", "b"}), FAR % 2**31)
    ),
    session.ForwardedToShard(FAR, TRANSACTION, 24, 5, b"x" * 300, "User:ä" * 50, "", "::1"),
    session.MarkersWritten(1, ()),
    session.MarkersWritten(2, ((), (ErrorCode.NONE, ErrorCode.UNKNOWN_SERVER_ERROR), (ErrorCode.NONE,))),
    session.ProducerIdsTold(1, 0, 0),
    session.ProducerIdsTold(2, FAR - 1000, 1000),
    session.OffsetsTold(1, ()),
    session.OffsetsTold(2, (session.PartitionOffsets(0, 5, 4, 1_700_000_000_000, 0),) * 2),
    session.OffsetsTold(3, (session.PartitionOffsets(-1, -1, -1, -1),)),
    session.ShareStatesTold(5, b"body"),
    session.ShareStatesTold(6, b""),
]


def test_every_kind_of_item_is_generated() -> None:
    assert {type(item) for item in FROM_COORDINATOR} == set(get_args(FromCoordinator))
    assert {type(item) for item in FROM_BROKER} == set(get_args(FromBroker))


def _name_of(item: Item) -> str:
    """Names a case. The text of an item has sets, whose order differs in each process."""
    return type(item).__name__


@pytest.mark.parametrize("item", FROM_COORDINATOR, ids=_name_of)
def test_a_coordinators_item_is_converted_without_loss(item: Item) -> None:
    [back] = coordinator_items(coordinator_message(item))
    assert back == item
    assert type(back) is type(item)


@pytest.mark.parametrize("item", FROM_BROKER, ids=_name_of)
def test_a_brokers_item_is_converted_without_loss(item: Item) -> None:
    [back] = broker_items(broker_message(item))
    assert back == item
    assert type(back) is type(item)


def test_concatenated_messages_are_one_message() -> None:
    randomness = random.Random(1)
    coordinators = randomness.choices(FROM_COORDINATOR, k=200)
    assert coordinator_items(b"".join(map(coordinator_message, coordinators))) == coordinators
    brokers = randomness.choices(FROM_BROKER, k=200)
    assert broker_items(b"".join(map(broker_message, brokers))) == brokers


@pytest.mark.parametrize("item", [*FROM_COORDINATOR, *FROM_BROKER], ids=_name_of)
def test_messages_are_those_of_protobuf(item: Item) -> None:
    """Protobuf itself reads the message without unknown fields, and its own encoding gives the same item."""
    is_broker = type(item) in get_args(FromBroker)
    frame = broker_message(item) if is_broker else coordinator_message(item)
    kind = pb.FromBroker if is_broker else pb.FromCoordinator
    message = kind.FromString(frame)
    known = kind.FromString(frame)
    known.DiscardUnknownFields()
    assert known == message
    again = message.SerializeToString()
    assert (broker_items if is_broker else coordinator_items)(again) == [item]


def test_unknown_kinds_are_skipped() -> None:
    unknown = b"\x0a\x05\xfa\x07\x02\x08\x01"  # field 127 of an item, a message
    known = session.ShardCommitted(1, 5)
    assert broker_items(unknown + broker_message(known)) == [known]
    assert coordinator_items(unknown) == []


def test_invalid_messages_are_refused() -> None:
    for frame in (b"\x0a\xff", b"nonsense", b"\x0a\x04\x12\x02\x08"):
        with pytest.raises(ValueError, match="pars"):
            coordinator_items(frame)
        with pytest.raises(ValueError, match="pars"):
            broker_items(frame)
    no_kind = pb.FromCoordinator(items=[pb.CoordinatorItem(attach_shard=pb.AttachShard(attachment=1))])
    with pytest.raises(ValueError, match="unknown kind"):
        coordinator_items(no_kind.SerializeToString())


def test_error_codes_of_a_later_version_are_unknown_errors() -> None:
    lost = pb.ShardLost(attachment=1, error_code=30_000)
    frame = pb.FromBroker(items=[pb.BrokerItem(shard_lost=lost)]).SerializeToString()
    assert broker_items(frame) == [session.ShardLost(1, ErrorCode.UNKNOWN_SERVER_ERROR)]


def test_long_client_ids_are_not_kept() -> None:
    long = "x" * 32_000
    known = sys.getrefcount(long)
    item = session.ForwardedToShard(1, GROUP, 11, 9, b"body", "User:a", long, "127.0.0.1")
    assert broker_items(broker_message(item)) == [item]
    del item
    assert sys.getrefcount(long) == known
