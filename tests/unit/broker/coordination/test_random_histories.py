"""Random histories of a shard at one broker.

Owners attach, append, answer and vanish; leaders change; followers fetch; clients disconnect. Each request is
answered at most once, and in the end exactly once unless its client disconnected. A held answer is sent only
if, at that moment, its owner still has the partition, this broker leads it in the same epoch, and the high
watermark has reached the answer's offset.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from brokerlab.in_memory_broker import BROKER_ID, OTHER_BROKER_ID, Asked, InMemoryBroker
from brokerlab.scripted_coordinator import ScriptedCoordinator, batch, shard_partitions
from tidelog.broker.partition.events import FollowerFetched
from tidelog.model.errors import ErrorCode
from tidelog.rpc.coordinator_session import (
    AnswerRequest,
    AppendToShard,
    AttachShard,
    DetachShard,
    ForwardedToShard,
    Hold,
    ServedShard,
    ServeShards,
    ShardAttached,
    ShardLost,
)
from tidelog.wire import codec
from tidelog.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse

BOTH = (BROKER_ID, OTHER_BROKER_ID)
RETRIABLE = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
DECIDED = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
"""Distinguishes an owner's answers from the broker's."""
BODY = b"".join(codec.response_encoder(47, 0)(OffsetDeleteResponse(error_code=DECIDED)))


class Due(NamedTuple):
    """An answer that the owner gave and that the broker has to hold."""

    attachment: int
    leader_epoch: int
    offset: int


class Owner:
    """One coordinator and its view of the shard."""

    def __init__(self, lab: InMemoryBroker, coordinator_id: int) -> None:
        self.line = ScriptedCoordinator(lab, coordinator_id)
        self.attachment: ShardAttached | None = None
        self.log_end_offset = 0
        self.owed: list[ForwardedToShard] = []

    def listen(self) -> None:
        for lost in self.line.take(ShardLost):
            if self.attachment is not None and lost.attachment == self.attachment.attachment:
                self.attachment = None
        self.owed += self.line.take(ForwardedToShard)


class History:
    def __init__(self, lab: InMemoryBroker, seed: int) -> None:
        self.random = random.Random(seed)
        self.lab = lab
        self.leader, self.leader_epoch, self.partition_epoch = BROKER_ID, 3, 1
        (self.shard,) = shard_partitions(lab, replicas=BOTH)
        self.owners: list[Owner] = []
        self.asked: list[Asked] = []
        self.due: dict[bytes, Due] = {}
        self.shard_epoch = self.asked_count = 0
        self.next_id = 1
        self.let_out = 0
        self.refused = 0

    def step(self) -> None:
        kinds = [self.ask] * 6 + [self.answer] * 6 + [self.append] * 4 + [self.fetch] * 4
        kinds += [self.new_owner, self.own, self.own, self.end_session, self.detach, self.client_leaves]
        kinds += [self.change_leader] if self.random.random() < 0.4 else []
        self.random.choice(kinds)()
        for owner in self.owners:
            owner.listen()
        self.check()

    # -- events

    def ask(self) -> None:
        self.asked_count += 1
        request = OffsetDeleteRequest(f"group-{self.asked_count}")
        self.asked.append(Asked(self.lab.broker, request, 0))

    def owner(self) -> Owner | None:
        return self.random.choice(self.owners) if self.owners else None

    def answer(self) -> None:
        owner = self.owner()
        if owner is None or not owner.owed:
            return
        forwarded = owner.owed.pop(self.random.randrange(len(owner.owed)))
        if self.random.random() < 0.1:
            owner.line.say(AnswerRequest(forwarded.request_id, None, ErrorCode.NOT_COORDINATOR))
            return
        if owner.attachment is None:
            return  # It has forgotten the requests that it has not answered.
        hold = Hold(owner.attachment.attachment, owner.log_end_offset)
        self.due[forwarded.body] = Due(hold.attachment, owner.attachment.leader_epoch, hold.offset)
        owner.line.say(AnswerRequest(forwarded.request_id, BODY, hold=hold))

    def append(self) -> None:
        owner = self.owner()
        if owner is None or owner.attachment is None:
            return
        attachment = owner.attachment
        owner.line.say(
            AppendToShard(
                attachment.attachment, attachment.leader_epoch, owner.log_end_offset, batch(b"x", b"y")
            )
        )
        owner.log_end_offset += 2

    def fetch(self) -> None:
        replica = self.lab.broker.hosted.replicas[self.shard.topic_partition]
        core = replica.core
        if core.is_leader:
            offset = self.random.randint(core.high_watermark, core.log_end_offset)
            replica.step(FollowerFetched(OTHER_BROKER_ID, 11, offset, 0, 0))

    def new_owner(self) -> None:
        if len(self.owners) < 4:
            self.owners.append(Owner(self.lab, self.next_id))
            self.next_id += 1

    def own(self) -> None:
        owner = self.owner()
        if owner is None or owner.attachment is not None:
            return
        self.shard_epoch += self.random.choice([0, 1, 1])
        epoch = max(0, self.shard_epoch - self.random.choice([0, 0, 0, 1]))
        owner.line.say(AttachShard(self.next_id, self.shard, epoch))
        self.next_id += 1
        for attached in owner.line.take(ShardAttached):
            owner.attachment, owner.log_end_offset = attached, attached.log_end_offset
            owner.line.say(ServeShards((ServedShard(self.shard, epoch),)))

    def detach(self) -> None:
        owner = self.owner()
        if owner is not None and owner.attachment is not None:
            owner.line.say(DetachShard(owner.attachment.attachment))
            owner.attachment = None

    def end_session(self) -> None:
        owner = self.owner()
        if owner is not None:
            self.owners.remove(owner)
            owner.line.end.closed()

    def client_leaves(self) -> None:
        if self.asked:
            self.random.choice(self.asked).close()

    def change_leader(self) -> None:
        if self.random.random() < 0.8:
            self.leader = BROKER_ID if self.leader == OTHER_BROKER_ID else self.random.choice(BOTH)
            self.leader_epoch += 1
        self.partition_epoch += 1
        shard_partitions(
            self.lab,
            leaders=(self.leader,),
            leader_epoch=self.leader_epoch,
            replicas=BOTH,
            partition_epoch=self.partition_epoch,
        )

    # -- invariants

    def check(self) -> None:
        """Checks, after each event, the requests that were answered during it."""
        core = self.lab.broker.hosted.replicas[self.shard.topic_partition].core
        waiting = []
        for asked in self.asked:
            if asked.answer is None:
                if not asked.is_closed:
                    waiting.append(asked)
                continue
            code = asked.answer.error_code
            if code != DECIDED:
                assert code in RETRIABLE
                self.refused += 1
                continue
            due = self.due[asked.request_body]
            assert core.is_leader and core.leader_epoch == due.leader_epoch
            assert core.high_watermark >= due.offset
            held_by = [owner for owner in self.owners if owner.attachment is not None]
            assert [o for o in held_by if o.attachment and o.attachment.attachment == due.attachment]
            self.let_out += 1
        # No request waits for an owner that no longer has the shard.
        assert not waiting or any(owner.attachment is not None for owner in self.owners)
        self.asked = waiting


@pytest.mark.parametrize("seed", range(20))
def test_decisions_are_answered_after_their_replication_or_not_at_all(lab: InMemoryBroker, seed: int) -> None:
    history = History(lab, seed)
    for _ in range(250):
        history.step()
    lab.broker.coordination.stop()
    history.owners.clear()
    for asked in history.asked:
        assert asked.answer is not None and asked.answer.error_code in RETRIABLE
    assert history.let_out + history.refused > 20
