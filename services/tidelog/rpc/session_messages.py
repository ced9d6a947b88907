"""Converts the items of sessions to the messages of protos/tidelog/rpc/v1/coordinator_session.proto and back.

The tables below map the class or the name of an item to its encoder or decoder. Their values take different
classes, which no type can express, hence Any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tidelog.model.coordinator_shards import ShardId, ShardKind
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import (
    MAX_REMEMBERED_NAME_CHARS,
    UNTOLD_TOPICS,
    DescribableTopics,
    TopicPartition,
)
from tidelog.rpc import coordinator_session as session
from tidelog.rpc.cluster_messages import known_or_none, not_negative, peer_partition
from tidelog.rpc.coordinator_session import Item
from tidelog.rpc.generated import cluster_pb2
from tidelog.rpc.generated import coordinator_session_pb2 as pb

MAX_PRODUCER_EPOCH: Final = 32_767
MAX_TRANSACTION_VERSION: Final = 2

_KINDS: Final = {
    ShardKind.GROUP: pb.SHARD_KIND_GROUP,
    ShardKind.TRANSACTION: pb.SHARD_KIND_TRANSACTION,
    ShardKind.SHARE: pb.SHARD_KIND_SHARE,
}
_ERRORS: Final = {code.value: code for code in ErrorCode}
_KINDS_BACK: Final = {number: kind for kind, number in _KINDS.items()}


def coordinator_message(item: Item) -> bytes:
    """Returns the message of one item of a coordinator. Concatenated messages are one message with all their
    items.
    """
    by_hand = _FREQUENT.get(type(item))
    if by_hand is not None:
        return by_hand(item)
    return _COORDINATOR_ENCODERS[type(item)](item).SerializeToString()


def broker_message(item: Item) -> bytes:
    """Returns the message of one item of a broker. See coordinator_message."""
    by_hand = _FREQUENT.get(type(item))
    if by_hand is not None:
        return by_hand(item)
    return _BROKER_ENCODERS[type(item)](item).SerializeToString()


def coordinator_items(frame: bytes) -> list[Item]:
    """Returns the items of a coordinator's message. Items of unknown kinds are skipped. Raises ValueError."""
    return _items(pb.FromCoordinator, _COORDINATOR_DECODERS, frame)


def broker_items(frame: bytes) -> list[Item]:
    """Returns the items of a broker's message. Items of unknown kinds are skipped. Raises ValueError."""
    return _items(pb.FromBroker, _BROKER_DECODERS, frame)


def _items(
    messages: type[pb.FromCoordinator] | type[pb.FromBroker],
    decoders: dict[str, Callable[[Any], Item]],
    frame: bytes,
) -> list[Item]:
    try:
        message = messages.FromString(frame)
    except Exception as error:  # each implementation of protobuf has its own DecodeError
        raise ValueError(str(error)) from error
    items = []
    for entry in message.items:
        kind = entry.WhichOneof("kind")
        if kind is not None:
            items.append(decoders[kind](getattr(entry, kind)))
    return items


def _shard_message(shard: ShardId) -> pb.Shard:
    return pb.Shard(kind=_KINDS[shard.kind], partition=shard.partition)


def _shard(message: pb.Shard) -> ShardId:
    kind = _KINDS_BACK.get(message.kind)
    if kind is None:
        raise ValueError(f"a shard of the unknown kind {message.kind}")
    return ShardId(kind, not_negative("shard", message.partition))


def _error(code: int) -> ErrorCode:
    return _ERRORS.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)  # a newer version may send an unknown code


def _partition_message(partition: TopicPartition) -> cluster_pb2.TopicPartition:
    return cluster_pb2.TopicPartition(topic=partition.topic, partition=partition.partition)


def _partition(message: cluster_pb2.TopicPartition) -> TopicPartition:
    return peer_partition(message.topic, message.partition)


def _marker_message(marker: session.Marker) -> pb.Marker:
    return pb.Marker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        is_commit=marker.is_commit,
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=marker.transaction_version,
        partitions=[_partition_message(partition) for partition in marker.partitions],
    )


def _marker(message: pb.Marker) -> session.Marker:
    if not 0 <= message.producer_epoch <= MAX_PRODUCER_EPOCH:
        raise ValueError(f"the producer epoch {message.producer_epoch} has more than 15 bits")
    if not 0 <= message.transaction_version <= MAX_TRANSACTION_VERSION:
        raise ValueError(f"the transaction version {message.transaction_version} is unknown")
    return session.Marker(
        not_negative("producer id", message.producer_id),
        message.producer_epoch,
        message.is_commit,
        known_or_none("coordinator epoch", message.coordinator_epoch),
        message.transaction_version,
        tuple([_partition(partition) for partition in message.partitions]),
    )


# The encoders of frequent items follow.
#
# Creating a message object costs more than writing its bytes, so these encoders write the bytes themselves,
# in less than half the time. Each field is preceded by its tag: its number in the .proto * 8, + 2 if the
# field has a length.

_ONE_BYTE: Final = tuple(bytes((number,)) for number in range(128))
_CACHED_TAILS: Final = 1_000


def _varint(number: int) -> bytes:
    """Encodes a number like protobuf's int32 and int64."""
    if 0 <= number < 128:
        return _ONE_BYTE[number]
    number &= 0xFFFF_FFFF_FFFF_FFFF
    encoded = bytearray()
    while number >= 128:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _in_frame(item_tag: bytes, size: int, *fields: bytes) -> bytes:
    """Returns a message whose only item consists of `fields`, which have `size` bytes together."""
    length = _varint(size)
    return b"".join((b"\x0a", _varint(size + 1 + len(length)), item_tag, length, *fields))


def _append_to_shard(item: session.AppendToShard) -> bytes:
    batches = item.batches
    head = b"".join(
        (
            b"\x08",
            _varint(item.attachment),
            b"\x10",
            _varint(item.leader_epoch),
            b"\x18",
            _varint(item.expected_offset),
            b"\x22",
            _varint(len(batches)),
        )
    )
    return _in_frame(b"\x22", len(head) + len(batches), head, batches)


def _answer_request(item: session.AnswerRequest) -> bytes:
    head, body, tail = b"\x08" + _varint(item.request_id), item.body, b""
    if body is not None:
        head += b"\x12" + _varint(len(body))
    if item.error != ErrorCode.NONE:
        code = item.error.value
        tail = b"\x18" + _varint(code << 1 if code >= 0 else (-code << 1) - 1)  # sint32
    hold = item.hold
    if hold is not None:
        held = b"\x08" + _varint(hold.attachment) + b"\x10" + _varint(hold.offset)
        tail += b"\x22" + _ONE_BYTE[len(held)] + held
    body = body or b""
    return _in_frame(b"\x3a", len(head) + len(body) + len(tail), head, body, tail)


def _shard_committed(item: session.ShardCommitted) -> bytes:
    fields = b"\x08" + _varint(item.attachment) + b"\x10" + _varint(item.high_watermark)
    return _in_frame(b"\x22", len(fields), fields)


def _forwarded_to_shard(item: session.ForwardedToShard) -> bytes:
    body = item.body
    asked = (item.shard, item.api_key, item.api_version, item.principal, item.client_id, item.host)
    around = _AROUND_BODIES.get(asked)
    if around is None:
        if len(_AROUND_BODIES) >= _CACHED_TAILS:
            _AROUND_BODIES.clear()
        around = _around_body(*asked)
        if len(item.client_id or "") <= MAX_REMEMBERED_NAME_CHARS:
            _AROUND_BODIES[asked] = around
    middle, tail = around
    if item.traceparent:
        tail += pb.ForwardedToShard(traceparent=item.traceparent).SerializeToString()
    if item.describable is not None:
        tail += _UNTOLD if item.describable == UNTOLD_TOPICS else _describable_field(item.describable)
    head = b"".join((b"\x08", _varint(item.request_id), middle, _varint(len(body))))
    return _in_frame(b"\x32", len(head) + len(body) + len(tail), head, body, tail)


def _describable_field(topics: DescribableTopics) -> bytes:
    names = topics.names
    message = pb.DescribableTopics(
        are_told=names is not None, names=sorted(names or ()), known_count=topics.known_count
    )
    return pb.ForwardedToShard(describable=message).SerializeToString()


_UNTOLD: Final = _describable_field(UNTOLD_TOPICS)


def _around_body(
    shard: ShardId, api_key: int, api_version: int, principal: str, client_id: str | None, host: str
) -> tuple[bytes, bytes]:
    """Returns the fields before and after the body, which are equal for all requests of one kind by one
    client.
    """
    before = pb.ForwardedToShard(shard=_shard_message(shard), api_key=api_key, api_version=api_version)
    after = pb.ForwardedToShard(principal=principal, client_id=client_id, host=host)
    return before.SerializeToString() + b"\x2a", after.SerializeToString()


_AROUND_BODIES: Final[dict[tuple[ShardId, int, int, str, str | None, str], tuple[bytes, bytes]]] = {}

_FREQUENT: Final[dict[type, Callable[[Any], bytes]]] = {
    session.AppendToShard: _append_to_shard,
    session.AnswerRequest: _answer_request,
    session.ShardCommitted: _shard_committed,
    session.ForwardedToShard: _forwarded_to_shard,
}


def _coordinator(item: pb.CoordinatorItem) -> pb.FromCoordinator:
    return pb.FromCoordinator(items=(item,))


def _hello(item: session.Hello) -> pb.FromCoordinator:
    return _coordinator(pb.CoordinatorItem(hello=pb.Hello(coordinator_id=item.coordinator_id)))


def _attach_shard(item: session.AttachShard) -> pb.FromCoordinator:
    return _coordinator(
        pb.CoordinatorItem(
            attach_shard=pb.AttachShard(
                attachment=item.attachment, shard=_shard_message(item.shard), shard_epoch=item.shard_epoch
            )
        )
    )


def _read_shard(item: session.ReadShard) -> pb.FromCoordinator:
    return _coordinator(
        pb.CoordinatorItem(
            read_shard=pb.ReadShard(
                attachment=item.attachment, from_offset=item.from_offset, max_bytes=item.max_bytes
            )
        )
    )


def _detach_shard(item: session.DetachShard) -> pb.FromCoordinator:
    return _coordinator(pb.CoordinatorItem(detach_shard=pb.DetachShard(attachment=item.attachment)))


def _serve_shards(item: session.ServeShards) -> pb.FromCoordinator:
    shards = [
        pb.ServedShard(shard=_shard_message(served.shard), shard_epoch=served.shard_epoch)
        for served in item.shards
    ]
    return _coordinator(pb.CoordinatorItem(serve_shards=pb.ServeShards(shards=shards)))


def _answered_request(message: pb.AnswerRequest) -> session.AnswerRequest:
    hold = None
    if message.HasField("hold"):
        hold = session.Hold(message.hold.attachment, not_negative("offset", message.hold.offset))
    body = message.body if message.HasField("body") else None
    return session.AnswerRequest(message.request_id, body, _error(message.error_code), hold)


def _write_markers(item: session.WriteMarkers) -> pb.FromCoordinator:
    markers = [_marker_message(marker) for marker in item.markers]
    return _coordinator(
        pb.CoordinatorItem(write_markers=pb.WriteMarkers(call_id=item.call_id, markers=markers))
    )


def _ask_producer_ids(item: session.AskProducerIds) -> pb.FromCoordinator:
    return _coordinator(pb.CoordinatorItem(ask_producer_ids=pb.AskProducerIds(call_id=item.call_id)))


def _ask_offsets(item: session.AskOffsets) -> pb.FromCoordinator:
    positions = [
        pb.Position(partition=_partition_message(partition), offset=offset)
        for partition, offset in item.positions
    ]
    return _coordinator(
        pb.CoordinatorItem(ask_offsets=pb.AskOffsets(call_id=item.call_id, positions=positions))
    )


def _ask_share_states(item: session.AskShareStates) -> pb.FromCoordinator:
    return _coordinator(pb.CoordinatorItem(ask_share_states=pb.AskShareStates(**item._asdict())))


def _trim_shard(item: session.TrimShard) -> pb.FromCoordinator:
    return _coordinator(pb.CoordinatorItem(trim_shard=pb.TrimShard(**item._asdict())))


_COORDINATOR_ENCODERS: Final[dict[type, Callable[[Any], pb.FromCoordinator]]] = {
    session.Hello: _hello,
    session.AttachShard: _attach_shard,
    session.ReadShard: _read_shard,
    session.DetachShard: _detach_shard,
    session.ServeShards: _serve_shards,
    session.WriteMarkers: _write_markers,
    session.AskProducerIds: _ask_producer_ids,
    session.AskOffsets: _ask_offsets,
    session.AskShareStates: _ask_share_states,
    session.TrimShard: _trim_shard,
}

_COORDINATOR_DECODERS: Final[dict[str, Callable[[Any], Item]]] = {
    "hello": lambda m: session.Hello(not_negative("coordinator id", m.coordinator_id)),
    "attach_shard": lambda m: session.AttachShard(
        m.attachment, _shard(m.shard), not_negative("shard epoch", m.shard_epoch)
    ),
    "read_shard": lambda m: session.ReadShard(
        m.attachment, not_negative("offset", m.from_offset), not_negative("size", m.max_bytes)
    ),
    "append_to_shard": lambda m: session.AppendToShard(
        m.attachment,
        not_negative("leader epoch", m.leader_epoch),
        not_negative("offset", m.expected_offset),
        m.batches,
    ),
    "detach_shard": lambda m: session.DetachShard(m.attachment),
    "serve_shards": lambda m: session.ServeShards(
        tuple(
            [
                session.ServedShard(_shard(served.shard), not_negative("shard epoch", served.shard_epoch))
                for served in m.shards
            ]
        )
    ),
    "answer_request": _answered_request,
    "write_markers": lambda m: session.WriteMarkers(
        m.call_id, tuple([_marker(marker) for marker in m.markers])
    ),
    "ask_share_states": lambda m: session.AskShareStates(m.call_id, m.api_key, m.api_version, m.body),
    "trim_shard": lambda m: session.TrimShard(m.attachment, not_negative("offset", m.offset)),
    "ask_producer_ids": lambda m: session.AskProducerIds(m.call_id),
    "ask_offsets": lambda m: session.AskOffsets(
        m.call_id,
        tuple(
            [
                (_partition(position.partition), known_or_none("offset", position.offset))
                for position in m.positions
            ]
        ),
    ),
}


def _broker(item: pb.BrokerItem) -> pb.FromBroker:
    return pb.FromBroker(items=(item,))


def _welcome(item: session.Welcome) -> pb.FromBroker:
    return _broker(
        pb.BrokerItem(welcome=pb.Welcome(broker_id=item.broker_id, broker_epoch=item.broker_epoch))
    )


def _shard_attached(item: session.ShardAttached) -> pb.FromBroker:
    return _broker(pb.BrokerItem(shard_attached=pb.ShardAttached(**item._asdict())))


def _shard_records(item: session.ShardRecords) -> pb.FromBroker:
    return _broker(pb.BrokerItem(shard_records=pb.ShardRecords(**item._asdict())))


def _shard_lost(item: session.ShardLost) -> pb.FromBroker:
    return _broker(
        pb.BrokerItem(
            shard_lost=pb.ShardLost(attachment=item.attachment, error_code=item.error, message=item.message)
        )
    )


def _forwarded(message: pb.ForwardedToShard) -> session.ForwardedToShard:
    return session.ForwardedToShard(
        message.request_id,
        _shard(message.shard),
        message.api_key,
        message.api_version,
        message.body,
        message.principal,
        message.client_id if message.HasField("client_id") else None,
        message.host,
        message.traceparent,
        _describable(message.describable) if message.HasField("describable") else None,
    )


def _describable(message: pb.DescribableTopics) -> DescribableTopics:
    names = frozenset(message.names) if message.are_told else None
    return DescribableTopics(names, message.known_count)


def _markers_written(item: session.MarkersWritten) -> pb.FromBroker:
    markers = [pb.MarkerErrors(error_codes=errors) for errors in item.errors]
    return _broker(pb.BrokerItem(markers_written=pb.MarkersWritten(call_id=item.call_id, markers=markers)))


def _written(message: pb.MarkersWritten) -> session.MarkersWritten:
    errors = [tuple([_error(code) for code in marker.error_codes]) for marker in message.markers]
    return session.MarkersWritten(message.call_id, tuple(errors))


def _producer_ids_told(item: session.ProducerIdsTold) -> pb.FromBroker:
    return _broker(pb.BrokerItem(producer_ids_told=pb.ProducerIdsTold(**item._asdict())))


def _offsets_told(item: session.OffsetsTold) -> pb.FromBroker:
    partitions = [pb.PartitionOffsets(**offsets._asdict()) for offsets in item.partitions]
    return _broker(pb.BrokerItem(offsets_told=pb.OffsetsTold(call_id=item.call_id, partitions=partitions)))


def _told(message: pb.OffsetsTold) -> session.OffsetsTold:
    partitions = [
        session.PartitionOffsets(
            known_or_none("log start offset", offsets.log_start_offset),
            known_or_none("high watermark", offsets.high_watermark),
            known_or_none("last stable offset", offsets.last_stable_offset),
            known_or_none("timestamp", offsets.first_unread_timestamp_ms),
            offsets.retention_ms if offsets.HasField("retention_ms") else -1,
        )
        for offsets in message.partitions
    ]
    return session.OffsetsTold(message.call_id, tuple(partitions))


def _share_states_told(item: session.ShareStatesTold) -> pb.FromBroker:
    return _broker(pb.BrokerItem(share_states_told=pb.ShareStatesTold(**item._asdict())))


_BROKER_ENCODERS: Final[dict[type, Callable[[Any], pb.FromBroker]]] = {
    session.Welcome: _welcome,
    session.ShardAttached: _shard_attached,
    session.ShardRecords: _shard_records,
    session.ShardLost: _shard_lost,
    session.MarkersWritten: _markers_written,
    session.ProducerIdsTold: _producer_ids_told,
    session.OffsetsTold: _offsets_told,
    session.ShareStatesTold: _share_states_told,
}

_BROKER_DECODERS: Final[dict[str, Callable[[Any], Item]]] = {
    "welcome": lambda m: session.Welcome(not_negative("broker id", m.broker_id), m.broker_epoch),
    "shard_attached": lambda m: session.ShardAttached(
        m.attachment,
        not_negative("leader epoch", m.leader_epoch),
        not_negative("log start offset", m.log_start_offset),
        not_negative("log end offset", m.log_end_offset),
        not_negative("high watermark", m.high_watermark),
    ),
    "shard_records": lambda m: session.ShardRecords(
        m.attachment,
        not_negative("offset", m.from_offset),
        not_negative("offset", m.next_offset),
        not_negative("log end offset", m.log_end_offset),
        m.records,
    ),
    "shard_committed": lambda m: session.ShardCommitted(
        m.attachment, not_negative("high watermark", m.high_watermark)
    ),
    "shard_lost": lambda m: session.ShardLost(m.attachment, _error(m.error_code), m.message),
    "forwarded_to_shard": _forwarded,
    "markers_written": _written,
    "producer_ids_told": lambda m: session.ProducerIdsTold(
        m.call_id, not_negative("producer id", m.first), not_negative("count", m.count)
    ),
    "offsets_told": _told,
    "share_states_told": lambda m: session.ShareStatesTold(m.call_id, m.body),
}
