"""The `uniform` assignor where members subscribe to different topics.

An optimal semi-matching (Harvey, Ladner, Lovász, Tamir 2003): as long as partitions can be handed on along
a chain of members so that someone with two more than the last loses one, they are. What is left has the
least sum of squared loads.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping
from uuid import UUID


def assign_unevenly(
    subscriptions: Mapping[str, frozenset[UUID]],
    counts: Mapping[UUID, int],
    kept: dict[str, dict[UUID, set[int]]],
) -> None:
    """Completes `kept` and evens it out; the members of both are the same."""
    _Balancer(subscriptions, kept).run(counts)


class _Balancer:
    def __init__(
        self, subscriptions: Mapping[str, frozenset[UUID]], owned: dict[str, dict[UUID, set[int]]]
    ) -> None:
        self._subscriptions = subscriptions
        self._owned = owned
        self._loads = {member_id: sum(map(len, own.values())) for member_id, own in owned.items()}
        self._subscribers: dict[UUID, list[str]] = {}
        for member_id, topics in subscriptions.items():
            for topic_id in topics:
                self._subscribers.setdefault(topic_id, []).append(member_id)
        self._before = {
            (topic_id, partition): member_id
            for member_id, own in owned.items()
            for topic_id, partitions in own.items()
            for partition in partitions
        }

    def run(self, counts: Mapping[UUID, int]) -> None:
        self._fill(counts)
        while any(map(self._relieve, sorted(self._loads, key=lambda member_id: -self._loads[member_id]))):
            pass
        self._bring_back()

    def _fill(self, counts: Mapping[UUID, int]) -> None:
        """Topics with few subscribers first: they have least choice."""
        for topic_id in sorted(
            self._subscribers, key=lambda topic_id: (len(self._subscribers[topic_id]), topic_id)
        ):
            least = [(self._loads[member_id], member_id) for member_id in self._subscribers[topic_id]]
            heapq.heapify(least)
            for partition in range(counts[topic_id]):
                if (topic_id, partition) not in self._before:
                    load, member_id = least[0]
                    self._give(member_id, topic_id, partition)
                    heapq.heapreplace(least, (load + 1, member_id))

    def _give(self, member_id: str, topic_id: UUID, partition: int) -> None:
        self._owned[member_id].setdefault(topic_id, set()).add(partition)
        self._loads[member_id] += 1

    def _relieve(self, loaded: str) -> bool:
        """Hands partitions on, beginning with one of this member, if that evens the loads out."""
        if self._loads[loaded] < min(self._loads.values()) + 2:
            return False
        reached_by: dict[str, tuple[str, UUID] | None] = {loaded: None}
        seen_topics: set[UUID] = set()
        waiting = deque([loaded])
        while waiting:
            giver = waiting.popleft()
            for topic_id, partitions in self._owned[giver].items():
                if not partitions or topic_id in seen_topics:
                    continue
                seen_topics.add(topic_id)
                for taker in self._subscribers[topic_id]:
                    if taker in reached_by:
                        continue
                    reached_by[taker] = (giver, topic_id)
                    if self._loads[taker] + 2 <= self._loads[loaded]:
                        self._hand_on(taker, reached_by)
                        return True
                    waiting.append(taker)
        return False

    def _hand_on(self, last: str, reached_by: Mapping[str, tuple[str, UUID] | None]) -> None:
        taker = last
        while (step := reached_by[taker]) is not None:
            giver, topic_id = step
            partition = self._cheapest(giver, taker, topic_id)
            self._move(giver, taker, topic_id, partition)
            taker = giver

    def _bring_back(self) -> None:
        """What was moved goes back to whose it was where that costs no evenness: by itself to one with less,
        or in exchange for something that wasn't its.
        """
        for taker in sorted(self._owned):
            own = self._owned[taker]
            for topic_id in sorted(own):
                for partition in sorted(own[topic_id]):
                    before = self._before.get((topic_id, partition), taker)
                    if before == taker:
                        continue
                    if self._loads[before] < self._loads[taker]:
                        self._move(taker, before, topic_id, partition)
                    elif (other := self._not_its_own(before, taker)) is not None:
                        self._move(taker, before, topic_id, partition)
                        self._move(before, taker, *other)

    def _move(self, giver: str, taker: str, topic_id: UUID, partition: int) -> None:
        self._owned[giver][topic_id].remove(partition)
        self._loads[giver] -= 1
        self._give(taker, topic_id, partition)

    def _not_its_own(self, giver: str, taker: str) -> tuple[UUID, int] | None:
        for topic_id in sorted(self._owned[giver].keys() & self._subscriptions[taker]):
            for partition in sorted(self._owned[giver][topic_id]):
                if self._before.get((topic_id, partition)) != giver:
                    return topic_id, partition
        return None

    def _cheapest(self, giver: str, taker: str, topic_id: UUID) -> int:
        """One that was the taker's, else one that wasn't the giver's before."""

        def cost(partition: int) -> tuple[int, int]:
            owner = self._before.get((topic_id, partition))
            return (0 if owner == taker else 1 if owner != giver else 2, -partition)

        return min(self._owned[giver][topic_id], key=cost)
