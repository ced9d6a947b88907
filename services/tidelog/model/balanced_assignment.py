"""Assigns partitions to the members of a group evenly, and moves as few of them as balance allows.

The coordinator's assignor `uniform` and the client's assignors `sticky` and `cooperative-sticky` use it.
Topics are known by their ids there and by their names here.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TypeVar
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
    if excess <= 0:
        return
    sizes = sorted(map(len, own.values()), reverse=True)
    most, count = sizes[0], 0
    """The greatest number of partitions of a topic afterwards, and the topics that have as many before."""
    while True:
        while count < len(sizes) and sizes[count] >= most:
            count += 1
        if excess < count:
            break
        excess -= count
        most -= 1
    large = sorted((topic for topic, partitions in own.items() if len(partitions) >= most), reverse=True)
    for at, topic in enumerate(large):
        size = most - (at < excess)
        if not size:
            del own[topic]
        elif size < len(own[topic]):
            own[topic] = set(sorted(own[topic])[:size])


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
    different = set(subscriptions.values())
    topics = sorted(frozenset[T]().union(*different))
    number_of = {topic: number for number, topic in enumerate(topics)}
    numbered = {of_one: frozenset(map(number_of.__getitem__, of_one)) for of_one in different}
    owned = {
        member_id: {number_of[topic]: partitions for topic, partitions in own.items() if partitions}
        for member_id, own in kept.items()
    }
    numbers_of = {member_id: numbered[of_one] for member_id, of_one in subscriptions.items()}
    _Balancer(numbers_of, owned).run([counts[topic] for topic in topics])
    for member_id, own in owned.items():
        kept[member_id] = {topics[number]: partitions for number, partitions in own.items()}


class _Balancer:
    """The state of one balancing run. Topics have numbers in their order, which are hashed faster than ids.
    A member has no empty sets.
    """

    def __init__(
        self, subscriptions: Mapping[str, frozenset[int]], owned: dict[str, dict[int, set[int]]]
    ) -> None:
        self._subscriptions: Mapping[str, frozenset[int]] = subscriptions
        self._owned: dict[str, dict[int, set[int]]] = owned
        self._loads = {member_id: sum(map(len, own.values())) for member_id, own in owned.items()}
        self._subscribers: Mapping[int, Sequence[str]] = _subscribers(subscriptions)
        self._before: dict[tuple[int, int], str] = {
            (topic, partition): member_id
            for member_id, own in owned.items()
            for topic, partitions in own.items()
            for partition in partitions
        }
        self._had: dict[str, dict[int, frozenset[int]]] = {
            member_id: {topic: frozenset(partitions) for topic, partitions in own.items()}
            for member_id, own in owned.items()
        }
        """The partitions that each member owned before, by topic."""
        self._candidates: dict[str, deque[int]] = {member_id: deque(own) for member_id, own in owned.items()}
        """The topics of each member that may have subscribers with much lower loads. A topic that has none
        remains so: the highest load does not grow, and only a member with this load gets a lower one.
        """
        self._settled: set[str] = set()
        """Members that no later move changes."""
        self._light: dict[int, list[tuple[int, str]]] = {}
        """The subscribers of each topic in a heap by their loads, some of which have changed since."""

    def run(self, counts: Sequence[int]) -> None:
        self._fill(counts)
        self._level()
        self._return_moved()

    def _fill(self, counts: Sequence[int]) -> None:
        """Assigns free partitions. Topics with few subscribers come first, because they have least choice."""
        for topic in sorted(self._subscribers, key=lambda topic: (len(self._subscribers[topic]), topic)):
            free = [at for at in range(counts[topic]) if (topic, at) not in self._before]
            if free:
                least = [(self._loads[member_id], member_id) for member_id in self._subscribers[topic]]
                heapq.heapify(least)
                for partition in free:
                    load, member_id = least[0]
                    self._give(member_id, topic, partition)
                    heapq.heapreplace(least, (load + 1, member_id))

    def _give(self, member_id: str, topic: int, partition: int) -> None:
        own = self._owned[member_id]
        if topic not in own:
            own[topic] = set()
            self._candidates[member_id].append(topic)
        own[topic].add(partition)
        self._loads[member_id] += 1

    def _level(self) -> None:
        """Moves partitions from the members with the most until no chain of moves improves the balance."""
        floor = min(self._loads.values(), default=0)  # no move reduces it
        order = {member_id: at for at, member_id in enumerate(self._loads)}
        waiting = [(-load, order[member_id], member_id) for member_id, load in self._loads.items()]
        heapq.heapify(waiting)
        while waiting:
            negative_load, _, loaded = heapq.heappop(waiting)
            if -negative_load != self._loads[loaded] or loaded in self._settled:
                continue
            if -negative_load < floor + 2:
                return
            taker = self._reduce_load(loaded)
            if taker is not None:
                for member_id in (loaded, taker):
                    heapq.heappush(waiting, (-self._loads[member_id], order[member_id], member_id))

    def _reduce_load(self, loaded: str) -> str | None:
        """Moves a partition away from the member with the highest load, along a chain if necessary. Returns
        the last member of the chain, or None if no move improves the balance.

        In this case, all members that chains reach have the highest load or one partition less. They give
        nothing to the other members, and chains of those can end at none of them. So they are settled, and
        each of them is visited in vain only once.
        """
        most = self._loads[loaded] - 2
        candidates = self._candidates[loaded]
        while candidates:
            topic = candidates[0]
            if topic in self._owned[loaded]:
                taker = self._light_subscriber(topic)
                if self._loads[taker] <= most:
                    self._move(loaded, taker, topic, self._cheapest(loaded, taker, topic))
                    return taker
            candidates.popleft()
        reached_by: dict[str, tuple[str, int] | None] = {loaded: None}
        seen_topics: set[int] = set()
        seen_lists: set[int] = set()
        """The identities of lists of subscribers, which topics in the same subscriptions share."""
        waiting = deque([loaded])
        while waiting:
            giver = waiting.popleft()
            for topic in self._owned[giver]:
                if topic in seen_topics:
                    continue
                seen_topics.add(topic)
                subscribers = self._subscribers[topic]
                if id(subscribers) in seen_lists:
                    continue
                seen_lists.add(id(subscribers))
                for taker in subscribers:
                    if taker in reached_by or taker in self._settled:
                        continue
                    reached_by[taker] = (giver, topic)
                    if self._loads[taker] <= most:
                        self._move_along_chain(taker, reached_by)
                        return taker
                    waiting.append(taker)
        self._settled.update(reached_by)
        return None

    def _light_subscriber(self, topic: int) -> str:
        """Returns a subscriber with a low load, usually the lowest, without a search of all of them."""
        light = self._light.get(topic)
        if light is None:
            light = [(self._loads[member_id], member_id) for member_id in self._subscribers[topic]]
            heapq.heapify(light)
            self._light[topic] = light
        while True:
            load, member_id = light[0]
            if self._loads[member_id] <= load:
                return member_id
            heapq.heapreplace(light, (self._loads[member_id], member_id))

    def _move_along_chain(self, last: str, reached_by: Mapping[str, tuple[str, int] | None]) -> None:
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
        gained = {member_id: self._gained_by(member_id) for member_id in self._owned}
        for taker in sorted(self._owned):
            own = gained[taker]
            # Of one previous owner, the taker gets its partitions in this order. Others only get their own.
            offers: dict[str, Iterator[tuple[int, int]]] = {}
            for topic in sorted(self._owned[taker]):
                for partition in sorted(own.get(topic, ())):
                    before = self._before.get((topic, partition), taker)
                    if before == taker:
                        continue
                    if self._loads[before] < self._loads[taker]:
                        other = None
                    else:
                        if before not in offers:
                            common = gained[before].keys() & self._subscriptions[taker]
                            offers[before] = _in_order(sorted(common), gained[before])
                        other = next(offers[before], None)
                        if other is None:
                            continue
                    self._move(taker, before, topic, partition)
                    own[topic].remove(partition)
                    if other is not None:
                        self._move(before, taker, *other)
                        gained[before][other[0]].remove(other[1])
                        if self._before.get(other) != taker:
                            own.setdefault(other[0], set()).add(other[1])

    def _gained_by(self, member_id: str) -> dict[int, set[int]]:
        """Returns the partitions that the member owns and did not own before."""
        had = self._had[member_id]
        nothing: frozenset[int] = frozenset()
        gained = {
            topic: partitions - had.get(topic, nothing)
            for topic, partitions in self._owned[member_id].items()
        }
        return {topic: partitions for topic, partitions in gained.items() if partitions}

    def _move(self, giver: str, taker: str, topic: int, partition: int) -> None:
        own = self._owned[giver]
        own[topic].remove(partition)
        if not own[topic]:
            del own[topic]
        self._loads[giver] -= 1
        self._give(taker, topic, partition)

    def _cheapest(self, giver: str, taker: str, topic: int) -> int:
        """Returns a partition that the taker owned before, or else one that the giver did not own before."""
        own = self._owned[giver][topic]
        nothing: frozenset[int] = frozenset()
        returning = own & self._had[taker].get(topic, nothing)
        return max(returning or own - self._had[giver].get(topic, nothing) or own)


def _subscribers(subscriptions: Mapping[str, frozenset[int]]) -> dict[int, Sequence[str]]:
    """Returns the subscribers of each topic in the order of the members. Reads equal subscriptions once."""
    ids = list(subscriptions)
    positions: dict[frozenset[int], list[int]] = {}
    for at, topics in enumerate(subscriptions.values()):
        positions.setdefault(topics, []).append(at)
    containing: dict[int, list[int]] = {}
    for number, topics in enumerate(positions):
        for topic in topics:
            containing.setdefault(topic, []).append(number)
    of_subscription = list(positions.values())
    alike: dict[tuple[int, ...], list[str]] = {}
    """The subscribers of topics that are in the same subscriptions."""
    found: dict[int, Sequence[str]] = {}
    for topic, numbers in containing.items():
        key = tuple(numbers)
        if key not in alike:
            alike[key] = [ids[at] for at in sorted(chain.from_iterable(of_subscription[n] for n in numbers))]
        found[topic] = alike[key]
    return found


def _in_order(topics: Iterable[int], partitions: Mapping[int, set[int]]) -> Iterator[tuple[int, int]]:
    """Returns the partitions of each topic in ascending order."""
    for topic in topics:
        for partition in sorted(partitions[topic]):
            yield topic, partition
