"""The assignors of the classic protocol, which the leader of a group runs: Kafka's `range`, `roundrobin`,
`sticky` and `cooperative-sticky`.

`range` and `roundrobin` give what Kafka's classes give. The sticky ones are as even as Kafka's and move as
few partitions, but they may choose other partitions.

`range` and the sticky ones prefer members in the racks of a partition's replicas, because such members fetch
from the closest replica (KIP-881). The balance comes first. They ignore racks if that cannot help: no member
names one, no replica is in one of them, or every partition has replicas in all racks.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, islice
from typing import Final, NamedTuple, Protocol

from tidelog.client.core.cluster_view import partitions_by_topic
from tidelog.model.balanced_assignment import balance
from tidelog.model.topics import TopicPartition
from tidelog.wire.codec import record_codec
from tidelog.wire.malformed import MalformedMessageError
from tidelog.wire.messages.records.consumer_protocol_assignment import ConsumerProtocolAssignment
from tidelog.wire.messages.records.consumer_protocol_assignment import TopicPartition as AssignedTopic
from tidelog.wire.messages.records.consumer_protocol_subscription import ConsumerProtocolSubscription
from tidelog.wire.messages.records.consumer_protocol_subscription import TopicPartition as OwnedTopic
from tidelog.wire.schema import Buffer


class Subscriber(NamedTuple):
    """A member in an assignor's input.

    `owned` is what the member had in `generation`. Of two members that claim a partition, the one of the
    newer generation keeps it.
    """

    member_id: str
    instance_id: str | None
    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = -1
    rack: str | None = None

    @property
    def rank(self) -> tuple[bool, str]:
        """The place in Kafka's order of members: static members first."""
        return (self.instance_id is None, self.instance_id or self.member_id)


Assigned = dict[str, list[TopicPartition]]
"""The partitions of each member."""
Racks = Mapping[TopicPartition, frozenset[str]]
"""The racks of the replicas of each partition."""
NO_RACKS: Final[Racks] = {}
NO_RACK: Final[frozenset[str]] = frozenset()


class Assignor(Protocol):
    def __call__(
        self, members: Sequence[Subscriber], counts: Mapping[str, int], racks: Racks = NO_RACKS
    ) -> Assigned:
        """`counts` has the numbers of partitions of the topics that exist."""


def _can_racks_help(members: Iterable[Subscriber], places: Iterable[TopicPartition], racks: Racks) -> bool:
    """Source of the rule: AbstractPartitionAssignor.useRackAwareAssignment."""
    of_members = {member.rack for member in members if member.rack}
    of_partitions = [racks.get(place, NO_RACK) for place in places]
    everywhere = NO_RACK.union(*of_partitions)
    return bool(of_members & everywhere) and any(found != everywhere for found in of_partitions)


def _is_close(member: Subscriber, place: TopicPartition, racks: Racks) -> bool:
    """Returns whether the member reads the partition in its own rack, or has none."""
    return not member.rack or member.rack in racks.get(place, NO_RACK)


class _TopicRanges:
    """A topic whose partitions are split into ranges."""

    def __init__(self, topic: str, count: int, members: Sequence[Subscriber], racks: Racks) -> None:
        self.topic = topic
        self.members = sorted((each for each in members if topic in each.topics), key=lambda each: each.rank)
        self.count = count
        self.racks = racks
        self.free = dict.fromkeys(TopicPartition(topic, index) for index in range(count))
        self.given: dict[str, list[TopicPartition]] = {member.member_id: [] for member in self.members}
        self.has_racks = any(member.rack for member in self.members)
        self.is_rack_aware = _can_racks_help(self.members, self.free, racks)
        self._least, self._with_one_more = divmod(count, len(self.members)) if self.members else (0, 0)

    def room(self, member: Subscriber) -> int:
        """Returns the number of partitions that the member may still get."""
        return max(0, self._least + (self._with_one_more > 0) - len(self.given[member.member_id]))

    def give(self, member: Subscriber, places: Iterable[TopicPartition]) -> None:
        own = self.given[member.member_id]
        for place in places:
            del self.free[place]
            own.append(place)
        if len(own) > self._least:
            self._with_one_more -= 1

    def give_ranges(self, *, only_close: bool) -> None:
        for member in self.members:
            room = self.room(member)
            if room:
                fitting = (
                    each for each in self.free if not only_close or _is_close(member, each, self.racks)
                )
                found = list(islice(fitting, room))
                if found:
                    self.give(member, found)


def assign_ranges(
    members: Sequence[Subscriber], counts: Mapping[str, int], racks: Racks = NO_RACKS
) -> Assigned:
    """Splits each topic into ranges. The first members get one partition more. Source: RangeAssignor."""
    topics = [_TopicRanges(topic, counts[topic], members, racks) for topic in sorted(counts)]
    if any(topic.is_rack_aware for topic in topics):
        _give_close_ranges(topics)
    given: Assigned = {member.member_id: [] for member in members}
    for topic in topics:
        topic.give_ranges(only_close=False)
        for member_id, places in topic.given.items():
            given[member_id] += sorted(places)
    return given


def _give_close_ranges(topics: Iterable[_TopicRanges]) -> None:
    """Gives partitions to members in their racks. Of topics with the same members and numbers of partitions,
    a member gets the partitions with the same numbers, so that it can join their records.
    """
    alike: dict[tuple[tuple[str, ...], int], list[_TopicRanges]] = {}
    for topic in topics:
        if topic.has_racks:
            key = (tuple(member.member_id for member in topic.members), topic.count)
            alike.setdefault(key, []).append(topic)
    for together in alike.values():
        if len(together) > 1:
            _give_same_numbers(together)
        elif together[0].is_rack_aware:
            together[0].give_ranges(only_close=True)


def _give_same_numbers(topics: Sequence[_TopicRanges]) -> None:
    for index in range(topics[0].count):
        for member in topics[0].members:
            places = [TopicPartition(topic.topic, index) for topic in topics]
            if all(
                topic.room(member) and _is_close(member, place, topic.racks)
                for topic, place in zip(topics, places, strict=True)
            ):
                for topic, place in zip(topics, places, strict=True):
                    topic.give(member, (place,))
                break


def assign_in_turn(
    members: Sequence[Subscriber], counts: Mapping[str, int], racks: Racks = NO_RACKS
) -> Assigned:
    """Deals all partitions out, one to each subscriber in turn, and ignores racks. Source:
    RoundRobinAssignor.
    """
    given: Assigned = {member.member_id: [] for member in members}
    turn = cycle(sorted(members, key=lambda each: each.rank))
    subscribed = {topic for member in members for topic in member.topics}
    for topic in sorted(subscribed & counts.keys()):
        for index in range(counts[topic]):
            member = next(member for member in turn if topic in member.topics)
            given[member.member_id].append(TopicPartition(topic, index))
    return given


def assign_sticky(
    members: Sequence[Subscriber], counts: Mapping[str, int], racks: Racks = NO_RACKS
) -> Assigned:
    """Balances the partitions and moves as few as possible. Source of the rule: StickyAssignor."""
    if not members:
        return {}
    members = sorted(members, key=lambda each: each.rank)
    kept: dict[str, dict[str, set[int]]] = {member.member_id: {} for member in members}
    for place, owner in _owners(members, counts).items():
        kept[owner].setdefault(place.topic, set()).add(place.partition)
    existing = frozenset(counts)
    subscribed = sorted(existing & {topic for member in members for topic in member.topics})
    everything = [TopicPartition(topic, index) for topic in subscribed for index in range(counts[topic])]
    if _can_racks_help(members, everything, racks):
        _move_closer(members, everything, racks, kept)
    balance({member.member_id: member.topics & existing for member in members}, counts, kept)
    return {
        member_id: [TopicPartition(topic, index) for topic in sorted(own) for index in sorted(own[topic])]
        for member_id, own in kept.items()
    }


def _move_closer(
    members: Sequence[Subscriber],
    everything: Sequence[TopicPartition],
    racks: Racks,
    kept: Mapping[str, dict[str, set[int]]],
) -> None:
    """Gives the partitions that are free, or far from their owners, to members in their racks, as long as
    `balance` does not take them away again. Partitions for which there is no such member stay where they are.
    """
    owners = {
        TopicPartition(topic, index): member
        for member in members
        for topic, indexes in kept[member.member_id].items()
        for index in indexes
    }
    quotas = _Quotas(members, len(everything))
    free = []
    for place in everything:
        owner = owners.get(place)
        if owner is not None:
            if _is_close(owner, place, racks) and quotas.take(owner):
                continue
            kept[owner.member_id][place.topic].remove(place.partition)
        free.append(place)
    subscribers = {
        topic: [member for member in members if topic in member.topics]
        for topic in {place.topic for place in free}
    }
    close = {
        place: [member for member in subscribers[place.topic] if _is_close(member, place, racks)]
        for place in free
    }
    left = []
    for place in sorted(free, key=lambda place: len(close[place])):
        for member in sorted(close[place], key=lambda member: quotas.loads[member.member_id]):
            if quotas.take(member):
                kept[member.member_id].setdefault(place.topic, set()).add(place.partition)
                break
        else:
            left.append(place)
    for place in left:
        owner = owners.get(place)
        if owner is not None and quotas.take(owner):
            kept[owner.member_id][place.topic].add(place.partition)


class _Quotas:
    """The numbers of partitions that members have. If all members subscribe to the same topics, the numbers
    may differ by one at the end. Otherwise `balance` decides.
    """

    def __init__(self, members: Sequence[Subscriber], count: int) -> None:
        self.loads = dict.fromkeys((member.member_id for member in members), 0)
        self._is_limited = len({member.topics for member in members}) == 1
        self._least, self._with_one_more = divmod(count, len(members))

    def take(self, member: Subscriber) -> bool:
        """Counts a partition for the member. Returns False if the member must not have one more."""
        load = self.loads[member.member_id]
        if self._is_limited and load >= self._least:
            if load > self._least or not self._with_one_more:
                return False
            self._with_one_more -= 1
        self.loads[member.member_id] = load + 1
        return True


def assign_cooperatively(
    members: Sequence[Subscriber], counts: Mapping[str, int], racks: Racks = NO_RACKS
) -> Assigned:
    """Assigns as `sticky` does, but gives a partition that moves to nobody yet, because its owner still reads
    it. The owner gives it up and joins again; the next assignment gives it away. Source:
    CooperativeStickyAssignor.
    """
    given = assign_sticky(members, counts, racks)
    claimed: dict[TopicPartition, set[str]] = {}
    for member in members:
        for place in member.owned:
            claimed.setdefault(place, set()).add(member.member_id)
    return {
        member_id: [place for place in places if member_id in claimed.get(place, (member_id,))]
        for member_id, places in given.items()
    }


def _owners(members: Iterable[Subscriber], counts: Mapping[str, int]) -> dict[TopicPartition, str]:
    """Returns the member that may keep each partition: the one that owned it in the newest generation. A
    partition that two members claim for the same generation has no owner.
    """
    owners: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in members:
        for place in member.owned:
            if place.topic not in member.topics or place.partition >= counts.get(place.topic, 0):
                continue
            generation = owners.get(place, (member.generation - 1, None))[0]
            if member.generation > generation:
                owners[place] = (member.generation, member.member_id)
            elif member.generation == generation:
                owners[place] = (generation, None)
    return {place: owner for place, (_, owner) in owners.items() if owner is not None}


class Strategy(NamedTuple):
    """An assignor and the rebalances that it permits."""

    assign: Assignor
    is_cooperative: bool = False
    """Whether members may keep partitions while they join (KIP-429)."""


STRATEGIES: Final[Mapping[str, Strategy]] = {
    "range": Strategy(assign_ranges),
    "roundrobin": Strategy(assign_in_turn),
    "sticky": Strategy(assign_sticky),
    "cooperative-sticky": Strategy(assign_cooperatively, is_cooperative=True),
}
"""The assignors by the names that members exchange."""
CLASSES: Final[Mapping[str, str]] = {
    "org.apache.kafka.clients.consumer.RangeAssignor": "range",
    "org.apache.kafka.clients.consumer.RoundRobinAssignor": "roundrobin",
    "org.apache.kafka.clients.consumer.StickyAssignor": "sticky",
    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor": "cooperative-sticky",
}
"""The names of Kafka's classes, which `partition.assignment.strategy` accepts, too."""


def assignment_rows(places: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    """Groups partitions by topic, in order."""
    return sorted((topic, sorted(found)) for topic, found in partitions_by_topic(places).items())


PROTOCOL_TYPE: Final = "consumer"
NO_GENERATION: Final = -1
_GENERATION: Final = struct.Struct(">i")
_SUBSCRIPTION: Final = record_codec(ConsumerProtocolSubscription)
_ASSIGNMENT: Final = record_codec(ConsumerProtocolAssignment)


def encode_subscription(
    strategy: str,
    topics: Iterable[str],
    owned: frozenset[TopicPartition],
    had: frozenset[TopicPartition],
    generation: int,
    rack: str | None,
) -> bytes:
    """Returns the member's subscription for JoinGroup, in the format of one assignor.

    `owned` are the partitions that the member has now. `had` are those that it had in `generation`: an eager
    member gives up its partitions before it joins, and `sticky` returns them to it where it can.
    """
    user_data: bytes | None = None
    if strategy == "sticky" and generation != NO_GENERATION:
        user_data = _encode_sticky(had, generation)
    elif strategy == "cooperative-sticky":
        user_data = _GENERATION.pack(generation)
    return _SUBSCRIPTION.encode(
        ConsumerProtocolSubscription(
            sorted(topics),
            user_data,
            [OwnedTopic(topic, indexes) for topic, indexes in assignment_rows(owned)],
            generation,
            rack,
        )
    )


def decode_subscription(
    strategy: str, member_id: str, instance_id: str | None, metadata: Buffer
) -> Subscriber:
    """Returns a member as the leader's assignor sees it. Raises MalformedMessageError."""
    told = _SUBSCRIPTION.decode(metadata, newer_as_newest=True)
    owned = frozenset(
        TopicPartition(topic.topic, index) for topic in told.owned_partitions for index in topic.partitions
    )
    generation = told.generation_id
    if strategy == "sticky":
        owned, generation = _decode_sticky(bytes(told.user_data or b""))
    elif strategy == "cooperative-sticky" and generation == NO_GENERATION and told.user_data is not None:
        generation = _decode_generation(bytes(told.user_data))
    return Subscriber(member_id, instance_id, frozenset(told.topics), owned, generation, told.rack_id)


def encode_assignment(places: Iterable[TopicPartition]) -> bytes:
    return _ASSIGNMENT.encode(
        ConsumerProtocolAssignment(
            [AssignedTopic(topic, indexes) for topic, indexes in assignment_rows(places)]
        )
    )


def decode_assignment(data: Buffer) -> frozenset[TopicPartition]:
    """Returns the partitions that the leader gave, none for empty data. Raises MalformedMessageError."""
    if not len(data):
        return frozenset()
    told = _ASSIGNMENT.decode(data, newer_as_newest=True)
    return frozenset(
        TopicPartition(topic.topic, index) for topic in told.assigned_partitions for index in topic.partitions
    )


def _encode_sticky(had: frozenset[TopicPartition], generation: int) -> bytes:
    """Encodes Kafka's STICKY_ASSIGNOR_USER_DATA_V1."""
    rows = assignment_rows(had)
    parts = [struct.pack(">i", len(rows))]
    for topic, indexes in rows:
        name = topic.encode()
        parts.append(struct.pack(f">h{len(name)}si{len(indexes)}i", len(name), name, len(indexes), *indexes))
    return b"".join((*parts, _GENERATION.pack(generation)))


def _decode_sticky(data: bytes) -> tuple[frozenset[TopicPartition], int]:
    """Decodes STICKY_ASSIGNOR_USER_DATA_V1, or V0, which has no generation."""
    if not data:
        return frozenset(), NO_GENERATION
    had: set[TopicPartition] = set()
    try:
        (topic_count,) = struct.unpack_from(">i", data, 0)
        position = 4
        for _ in range(topic_count):
            (length,) = struct.unpack_from(">h", data, position)
            name, count = struct.unpack_from(f">{length}si", data, position + 2)
            position += 2 + length + 4
            topic = name.decode()
            had.update(
                TopicPartition(topic, index) for index in struct.unpack_from(f">{count}i", data, position)
            )
            position += 4 * count
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedMessageError(f"data of the sticky assignor: {error}") from error
    return frozenset(had), _decode_generation(data[position:])


def _decode_generation(data: bytes) -> int:
    return _GENERATION.unpack_from(data)[0] if len(data) >= _GENERATION.size else NO_GENERATION
