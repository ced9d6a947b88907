"""Invariants of consumer groups under random actions of members, topics and coordinators."""

from __future__ import annotations

import random

import pytest

from grouplab.consumer_lab import ConsumerLab, ModelConsumer, Partition
from grouplab.shard_lab import GROUP
from tidelog.group_coordinator.groups.consumer.consumer_group import ConsumerGroup
from tidelog.group_coordinator.groups.group_core import GroupCore
from tidelog.model.errors import ErrorCode

TOPICS = ("orders", "invoices", "parcels")
STEPS = 250


class Story:
    """The members. `live` ones send heartbeats; crashed ones own partitions until their session ends."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lab = ConsumerLab()
        self.lab.set_topic("orders", 4)
        self.live: list[ModelConsumer] = []
        self.named = 0
        self.epochs = (0, 0)

    def run(self) -> None:
        for step in range(STEPS):
            self._event()
            self.check()
            if step % 10 == 0:
                self.check_replay()
        self.settle()

    def _event(self) -> None:
        chance = self.random.random()
        if chance < 0.6 and self.live:
            self._beat(self.random.choice(self.live), loses_answer=self.random.random() < 0.1)
        elif chance < 0.72 and len(self.live) < 8:
            self._join()
        elif chance < 0.77 and self.live:
            self._go(self.random.choice(self.live))
        elif chance < 0.83:
            self._change_topics()
        elif chance < 0.87 and self.live:
            self._subscribe(self.random.choice(self.live))
        elif chance < 0.9:
            self.lab.fail_over()
        else:
            self.lab.pass_time(self.random.choice((100, 1_000, 5_000, 20_000)))

    def _beat(self, member: ModelConsumer, *, loses_answer: bool) -> None:
        if member.step(loses_answer=loses_answer) == ErrorCode.FENCED_INSTANCE_ID:
            self.live.remove(member)

    def _join(self) -> None:
        self.named += 1
        member = ModelConsumer(self.lab, f"m{self.named}")
        if self.random.random() < 0.3:
            member.instance_id = f"i{self.random.randrange(3)}"
        if self.random.random() < 0.2:
            member.assignor = self.random.choice(("uniform", "range"))
        self._subscribe(member)
        self.live.append(member)

    def _subscribe(self, member: ModelConsumer) -> None:
        if self.random.random() < 0.2:
            member.topics, member.regex = [], self.random.choice((".*s", "orders|parcels", "in.*"))
        else:
            member.topics, member.regex = self.random.sample(TOPICS, self.random.choice((1, 1, 2, 3))), ""
        member.says_all = True

    def _go(self, member: ModelConsumer) -> None:
        self.live.remove(member)
        if self.random.random() < 0.5:
            member.leave(epoch=-2 if member.instance_id and self.random.random() < 0.7 else -1)

    def _change_topics(self) -> None:
        name = self.random.choice(TOPICS)
        topic = self.lab.image.topics.get(name)
        if topic is not None and self.random.random() < 0.3:
            self.lab.delete_topic(name)
        else:
            self.lab.set_topic(name, self.random.randint(1, 4) + (topic.partition_count if topic else 0))

    # -- invariants at any time

    def check(self) -> None:
        group = self.lab.core.groups.by_id.get(GROUP)
        if not isinstance(group, ConsumerGroup):
            return
        assert group.assignment_epoch <= group.epoch
        assert (group.epoch, group.assignment_epoch) >= self.epochs
        assert group.assignment_epoch >= self.epochs[1]
        self.epochs = group.epoch, group.assignment_epoch
        owners: dict[Partition, str] = {}
        for member in group.members.values():
            for owned in (member.owned, member.revoking):
                for topic_id, partitions in owned.items():
                    for partition in partitions:
                        assert owners.setdefault((topic_id, partition), member.member_id) == member.member_id
        known = {(t, p): owner for t, found in group.owners.items() for p, owner in found.items()}
        assert known == owners
        for client in self.live:
            if client.member_id in group.members and client.epoch > 0:
                for partition in client.owned | (client.assigned or set()):
                    assert owners.get(partition) == client.member_id, (
                        "a client owns a partition that others may get"
                    )

    def check_replay(self) -> None:
        assert self._state(self.lab.reloaded()) == self._state(self.lab.core)

    @staticmethod
    def _state(core: GroupCore) -> list[object]:
        return [
            (g.epoch, g.assignment_epoch, g.metadata_hash, g.members, g.static_members, g.targets, g.regexes)
            + (g.owners,)
            for g in core.groups.by_id.values()
            if isinstance(g, ConsumerGroup)
        ]

    # -- conditions at the end

    def settle(self) -> None:
        if not self.live:
            self._join()
        for _ in range(40):
            for member in list(self.live):
                self._beat(member, loses_answer=False)
            self.lab.pass_time(4_000)
            self.check()
        described = self.lab.describe_consumer()
        assert described.group_state == "Stable"
        group = self.lab.consumer_group()
        wanted = {
            (topic_id, partition)
            for member in group.members.values()
            for topic_id in group.topic_ids_of(member, self.lab.image)
            for partition in range(
                self.lab.image.topics[self.lab.image.topic_names[topic_id]].partition_count
            )
        }
        owned = [partition for client in self.live for partition in client.owned]
        assert sorted(owned) == sorted(wanted)
        assert not self.lab.owed
        self.check_replay()


@pytest.mark.parametrize("seed", range(12))
def test_every_partition_ends_with_exactly_one_owner(seed: int) -> None:
    Story(seed).run()
