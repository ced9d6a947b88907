"""A coordinator's end of a session, whose items the test sends."""

from __future__ import annotations

import uuid
from typing import Any, TypeVar

from brokerlab.in_memory_broker import BROKER_ID, InMemoryBroker
from tidelog.model.coordinator_shards import ShardId, ShardKind
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.rpc.broker_commands import LeaderAndIsr, PartitionState, TopicState
from tidelog.rpc.coordinator_session import (
    AnswerRequest,
    AttachShard,
    ForwardedToShard,
    Hello,
    Item,
    ServedShard,
    ServeShards,
    ShardAttached,
    Welcome,
)
from tidelog.wire import codec

SentItem = TypeVar("SentItem")


class ScriptedCoordinator:
    """One coordinator. Items that the broker sends are kept until the test takes them."""

    def __init__(self, lab: InMemoryBroker, coordinator_id: int = 1) -> None:
        self.sent: list[Item] = []
        self.is_closed = False
        self._attached: dict[ShardId, int] = {}
        self._next_attachment = 1
        self.end = lab.broker.coordination.accept(self)
        self.say(Hello(coordinator_id))
        if not self.is_closed:
            assert type(self.sent.pop()) is Welcome

    # -- the line

    def send(self, item: Item) -> None:
        assert not self.is_closed
        self.sent.append(item)

    def close(self) -> None:
        self.is_closed = True

    # -- the coordinator

    def say(self, *items: Item) -> None:
        self.end.received(items)

    def take(self, kind: type[SentItem]) -> list[SentItem]:
        """Returns all items of this kind that have arrived."""
        found = [item for item in self.sent if type(item) is kind]
        self.sent = [item for item in self.sent if type(item) is not kind]
        return found

    def take_one(self, kind: type[SentItem]) -> SentItem:
        found = self.take(kind)
        assert len(found) == 1, f"{found} instead of one {kind.__name__}; else {self.sent}"
        return found[0]

    def attach(self, shard: ShardId, epoch: int = 1) -> ShardAttached:
        attachment = self._next_attachment
        self._next_attachment += 1
        self.say(AttachShard(attachment, shard, epoch))
        attached = self.take_one(ShardAttached)
        assert attached.attachment == attachment
        return attached

    def own(self, *shards: ShardId, epoch: int = 1) -> dict[ShardId, ShardAttached]:
        """Attaches to all shards and serves them at once."""
        attached = {shard: self.attach(shard, epoch) for shard in shards}
        self.say(ServeShards(tuple(ServedShard(shard, epoch) for shard in shards)))
        return attached

    def answer(self, forwarded: ForwardedToShard, response: Any, **item: Any) -> bytes:
        body = b"".join(
            map(bytes, codec.response_encoder(forwarded.api_key, forwarded.api_version)(response))
        )
        self.say(AnswerRequest(forwarded.request_id, body, **item))
        return body


def decoded(forwarded: ForwardedToShard) -> Any:
    message, end = codec.request_decoder(forwarded.api_key, forwarded.api_version)(forwarded.body, 0)
    assert end == len(forwarded.body)
    return message


def batch(*values: bytes) -> bytes:
    """Returns a batch as a coordinator sends it, without an offset."""
    return bytes(build_batch([Record(at, 1000, b"key", value, []) for at, value in enumerate(values)]))


def shard_partitions(
    lab: InMemoryBroker,
    kind: ShardKind = ShardKind.GROUP,
    *,
    leaders: tuple[int, ...] = (BROKER_ID,),
    leader_epoch: int = 3,
    replicas: tuple[int, ...] | None = None,
    partition_epoch: int = 1,
) -> list[ShardId]:
    """Creates the internal topic as the controller does. A further call changes its leaders. Each partition
    has only its leader as replica unless `replicas` is given.
    """
    topic_id = uuid.uuid5(uuid.NAMESPACE_DNS, kind.topic)
    states = tuple(
        PartitionState(
            kind.topic,
            topic_id,
            index,
            leader,
            leader_epoch,
            replicas or (leader,),
            replicas or (leader,),
            7,
            partition_epoch=partition_epoch,
        )
        for index, leader in enumerate(leaders)
    )
    here = tuple(state for state in states if BROKER_ID in state.replicas)
    if here:
        lab.runner.run(lab.commands.leader_and_isr(LeaderAndIsr(BROKER_ID, 7, here, {kind.topic: {}})))
    lab.update_metadata(topics=(TopicState(kind.topic, topic_id, states, {}),))
    return [ShardId(kind, index) for index in range(len(leaders))]
