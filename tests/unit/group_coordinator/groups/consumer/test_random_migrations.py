"""Members of both protocols join and leave at random; each partition always has at most one reader."""

from __future__ import annotations

import random

import pytest

from grouplab.classic_client import PARTITIONS, ClassicConsumer
from grouplab.consumer_lab import ConsumerLab, ModelConsumer
from grouplab.shard_lab import GROUP
from tidelog.group_coordinator.groups.shared import GroupKind
from tidelog.model.errors import ErrorCode

STEPS = 300
MOST = 4


class Story:
    """The members. A `live` one makes a step at least every 4 s, so that its session does not end."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lab = ConsumerLab()
        self.lab.set_topic("orders", PARTITIONS)
        self.cooperative = self.random.random() < 0.5
        self.live: list[ClassicConsumer | ModelConsumer] = []
        self.named = 0
        self.kinds: list[GroupKind] = []

    def run(self) -> None:
        for _ in range(STEPS):
            self._event()
            self.check()

    def _event(self) -> None:
        chance = self.random.random()
        if chance < 0.6 and self.live:
            self.random.choice(self.live).step()
        elif chance < 0.68 and len(self.live) < MOST:
            self._join()
        elif chance < 0.74 and self.live:
            self._go(self.random.choice(self.live))
        elif chance < 0.78:
            self._fail_over()
        else:
            self._pass_time()

    def _join(self) -> None:
        self.named += 1
        if self.random.random() < 0.5:
            self.live.append(ModelConsumer(self.lab, f"new{self.named}", ["orders"]))
        else:
            self.live.append(ClassicConsumer(self.lab, self.cooperative))

    def _go(self, client: ClassicConsumer | ModelConsumer) -> None:
        self.live.remove(client)
        if self.random.random() < 0.3:
            return  # the member crashes
        if isinstance(client, ModelConsumer):
            client.leave()
        elif client.member_id and GROUP in self.lab.core.groups.by_id:
            self.lab.leave((client.member_id, None))

    def _fail_over(self) -> None:
        self.lab.fail_over()
        for client in self.live:
            if isinstance(client, ClassicConsumer):
                client.step()  # reads the error of its join or sync

    def _pass_time(self) -> None:
        self.lab.pass_time(self.random.choice((100, 1_000, 2_000)))
        for client in self.live:
            client.step()

    def check(self) -> None:
        owned = [partition for client in self.live for partition in client.owned]
        assert len(owned) == len(set(owned)), "two members read the same partition"
        group = self.lab.core.groups.by_id.get(GROUP)
        if group is not None and self.kinds[-1:] != [group.kind]:
            self.kinds.append(group.kind)

    def settle(self) -> None:
        if not self.live:
            self._join()
        for _ in range(60):
            self._pass_time()
            self._pass_time()
            self.check()
        assert sum(len(client.owned) for client in self.live) == PARTITIONS
        kinds = {type(client) for client in self.live}
        expected = GroupKind.CLASSIC if kinds == {ClassicConsumer} else GroupKind.CONSUMER
        assert self.lab.core.groups.by_id[GROUP].kind is expected
        assert not any(
            ErrorCode.UNKNOWN_SERVER_ERROR in c.errors for c in self.live if isinstance(c, ModelConsumer)
        )


@pytest.mark.parametrize("seed", range(15))
def test_a_partition_has_one_reader_for_any_mix_of_protocols(seed: int) -> None:
    story = Story(seed)
    story.run()
    story.settle()
    assert story.kinds
