"""Assigns partitions to the members of a group evenly, and moves as few of them as balance allows.

The coordinator's assignor `uniform` and the client's assignors `sticky` and `cooperative-sticky` use it.
Topics are known by their ids there and by their names here.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar
from uuid import UUID

T = TypeVar("T", UUID, str)


def balance(
    subscriptions: Mapping[str, frozenset[T]], counts: Mapping[T, int], kept: dict[str, dict[T, set[int]]]
) -> None:
    """Completes and balances `kept`, the partitions that each member may keep, each of one member only.

    The numbers of partitions differ by at most one if all members subscribe to the same topics. Otherwise
    they are as even as the subscriptions allow. `counts` has the partitions of all subscribed topics.
    """
    different = set(subscriptions.values())
    if len(different) == 1:
        _assign_evenly(sorted(different.pop()), counts, kept)
    else:
        _assign_unevenly(subscriptions, counts, kept)


def _assign_evenly(topics: Sequence[T], counts: Mapping[T, int], kept: dict[str, dict[T, set[int]]]) -> None:
    least, with_one_more = divmod(sum(counts[topic] for topic in topics), len(kept))
    loads = {
        member_id: sum(len(partitions) for partitions in own.values()) for member_id, own in kept.items()
    }
    # The members with the most partitions get one more than the others, so that fewer partitions move.
    by_load = sorted(kept, key=lambda member_id: -loads[member_id])
    quotas = {member_id: least + (at < with_one_more) for at, member_id in enumerate(by_load)}
    for member_id, own in kept.items():
        _give_up(own, loads[member_id] - quotas[member_id])
    free = _free_partitions(topics, counts, kept)
    at = 0
    for member_id, own in kept.items():
        for topic, partition in free[at : at + max(0, quotas[member_id] - loads[member_id])]:
            own.setdefault(topic, set()).add(partition)
            at += 1


def _give_up(own: dict[T, set[int]], excess: int) -> None:
    """Removes `excess` partitions, always from the topic with the most, so that the rest is spread evenly."""
    for _ in range(excess):
        topic = max(own, key=lambda candidate: (len(own[candidate]), candidate))
        own[topic].remove(max(own[topic]))
        if not own[topic]:
            del own[topic]


def _free_partitions(
    topics: Sequence[T], counts: Mapping[T, int], kept: Mapping[str, Mapping[T, set[int]]]
) -> list[tuple[T, int]]:
    taken: dict[T, set[int]] = {topic: set() for topic in topics}
    for own in kept.values():
        for topic, partitions in own.items():
            taken[topic] |= partitions
    return [
        (topic, partition)
        for topic in topics
        for partition in range(counts[topic])
        if partition not in taken[topic]
    ]


def _assign_unevenly(
    subscriptions: Mapping[str, frozenset[T]],
    counts: Mapping[T, int],
    kept: dict[str, dict[T, set[int]]],
) -> None:
    """Completes and balances `kept`, the previous assignments of the members in `subscriptions`.

    This is an optimal semi-matching (Harvey, Ladner, Lovász, Tamir 2003). Partitions move along chains of
    members as long as the last member of a chain has at least two partitions fewer than the first. The result
    has the minimum sum of squared loads.
    """
    _Balancer(subscriptions, kept).run(counts)


class _Balancer(Generic[T]):
    """The state of one balancing run."""

    def __init__(
        self, subscriptions: Mapping[str, frozenset[T]], owned: dict[str, dict[T, set[int]]]
    ) -> None:
        self._subscriptions: Mapping[str, frozenset[T]] = subscriptions
        self._owned: dict[str, dict[T, set[int]]] = owned
        self._loads = {member_id: sum(map(len, own.values())) for member_id, own in owned.items()}
        self._subscribers: dict[T, list[str]] = {}
        for member_id, topics in subscriptions.items():
            for topic in topics:
                self._subscribers.setdefault(topic, []).append(member_id)
        self._before: dict[tuple[T, int], str] = {
            (topic, partition): member_id
            for member_id, own in owned.items()
            for topic, partitions in own.items()
            for partition in partitions
        }

    def run(self, counts: Mapping[T, int]) -> None:
        self._fill(counts)
        while any(map(self._reduce_load, sorted(self._loads, key=lambda member_id: -self._loads[member_id]))):
            pass
        self._return_moved()

    def _fill(self, counts: Mapping[T, int]) -> None:
        """Assigns free partitions. Topics with few subscribers come first, because they have least choice."""
        for topic in sorted(self._subscribers, key=lambda topic: (len(self._subscribers[topic]), topic)):
            least = [(self._loads[member_id], member_id) for member_id in self._subscribers[topic]]
            heapq.heapify(least)
            for partition in range(counts[topic]):
                if (topic, partition) not in self._before:
                    load, member_id = least[0]
                    self._give(member_id, topic, partition)
                    heapq.heapreplace(least, (load + 1, member_id))

    def _give(self, member_id: str, topic: T, partition: int) -> None:
        self._owned[member_id].setdefault(topic, set()).add(partition)
        self._loads[member_id] += 1

    def _reduce_load(self, loaded: str) -> bool:
        """Moves partitions along a chain that begins at this member, if that improves the balance."""
        if self._loads[loaded] < min(self._loads.values()) + 2:
            return False
        reached_by: dict[str, tuple[str, T] | None] = {loaded: None}
        seen_topics: set[T] = set()
        waiting = deque([loaded])
        while waiting:
            giver = waiting.popleft()
            for topic, partitions in self._owned[giver].items():
                if not partitions or topic in seen_topics:
                    continue
                seen_topics.add(topic)
                for taker in self._subscribers[topic]:
                    if taker in reached_by:
                        continue
                    reached_by[taker] = (giver, topic)
                    if self._loads[taker] + 2 <= self._loads[loaded]:
                        self._move_along_chain(taker, reached_by)
                        return True
                    waiting.append(taker)
        return False

    def _move_along_chain(self, last: str, reached_by: Mapping[str, tuple[str, T] | None]) -> None:
        taker = last
        while (step := reached_by[taker]) is not None:
            giver, topic = step
            partition = self._cheapest(giver, taker, topic)
            self._move(giver, taker, topic, partition)
            taker = giver

    def _return_moved(self) -> None:
        """Returns moved partitions to their previous owners where the balance stays the same.

        A partition returns alone if the previous owner has fewer partitions. Otherwise the two members swap
        it for a partition that the previous owner did not own before.
        """
        for taker in sorted(self._owned):
            own = self._owned[taker]
            for topic in sorted(own):
                for partition in sorted(own[topic]):
                    before = self._before.get((topic, partition), taker)
                    if before == taker:
                        continue
                    if self._loads[before] < self._loads[taker]:
                        self._move(taker, before, topic, partition)
                    elif (other := self._newly_owned(before, taker)) is not None:
                        self._move(taker, before, topic, partition)
                        self._move(before, taker, *other)

    def _move(self, giver: str, taker: str, topic: T, partition: int) -> None:
        self._owned[giver][topic].remove(partition)
        self._loads[giver] -= 1
        self._give(taker, topic, partition)

    def _newly_owned(self, giver: str, taker: str) -> tuple[T, int] | None:
        for topic in sorted(self._owned[giver].keys() & self._subscriptions[taker]):
            for partition in sorted(self._owned[giver][topic]):
                if self._before.get((topic, partition)) != giver:
                    return topic, partition
        return None

    def _cheapest(self, giver: str, taker: str, topic: T) -> int:
        """Returns a partition that the taker owned before, or else one that the giver did not own before."""

        def cost(partition: int) -> tuple[int, int]:
            owner = self._before.get((topic, partition))
            return (0 if owner == taker else 1 if owner != giver else 2, -partition)

        return min(self._owned[giver][topic], key=cost)
