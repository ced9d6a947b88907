"""The topics that a consumer group subscribes to, which decide which offsets expire and may be deleted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from hypothesis import given
from hypothesis import strategies as st

from tidelog.group_coordinator.groups.consumer.consumer_group import (
    CONSUMER_FORMAT,
    ConsumerGroup,
    ConsumerMember,
)
from tidelog.group_coordinator.groups.consumer.topic_regex import ResolvedRegex
from tidelog.kernel.instants import WallMs
from tidelog.wire.messages.records.consumer_group_current_member_assignment import (
    ConsumerGroupCurrentMemberAssignmentKey as CurrentAssignmentKey,
)

TOPICS = ["a", "b", "c", "d"]
NAMES = st.frozensets(st.sampled_from(TOPICS))
IDS = st.sampled_from(["m1", "m2", "m3"])
EXPRESSIONS = st.sampled_from(["x.*", "y.*"])
NOBODY: frozenset[str] = frozenset()
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("subscribe"), IDS, NAMES),
        st.tuples(st.just("assign"), IDS, st.just(NOBODY)),
        st.tuples(st.just("unassign"), IDS, st.just(NOBODY)),
        st.tuples(st.just("leave"), IDS, st.just(NOBODY)),
        st.tuples(st.just("resolve"), EXPRESSIONS, NAMES),
        st.tuples(st.just("forget"), EXPRESSIONS, st.just(NOBODY)),
    )
)


@given(CHANGES)
def test_subscribed_topics_follow_each_change(changes: Sequence[tuple[str, str, frozenset[str]]]) -> None:
    group = ConsumerGroup("g")
    for change, name, topics in changes:
        match change:
            case "subscribe":
                group.put_subscription(ConsumerMember(name, topic_names=topics))
            case "assign":
                group.put_current_assignment(ConsumerMember(name, member_epoch=3))
            case "unassign":
                group.apply(CONSUMER_FORMAT.current, CurrentAssignmentKey("g", name), None)
            case "leave":
                group.remove_member(name)
            case "resolve":
                group.put_regex(name, ResolvedRegex(topics, 0, WallMs(0)))
            case "forget":
                group.remove_regex(name)
        subscribed = NOBODY.union(
            *(member.topic_names for member in group.members.values()),
            *(resolved.topics for resolved in group.regexes.values()),
        )
        assert group.subscribed_names() == subscribed
        for topic in TOPICS:
            assert group.is_subscribed_to(topic) == (topic in subscribed)
            assert group.offsets_expire_from(topic, WallMs(5)) == (None if topic in subscribed else 5)


class CountedNames(frozenset[str]):
    """Topic names that count how often they are examined."""

    examined: ClassVar[list[int]] = [0]

    def __contains__(self, name: object) -> bool:
        self.examined[0] += 1
        return super().__contains__(name)

    def __hash__(self) -> int:
        self.examined[0] += 1
        return super().__hash__()


def test_many_offsets_do_not_examine_all_members_again() -> None:
    group = ConsumerGroup("g")
    for number in range(200):
        group.put_subscription(ConsumerMember(f"m{number}", topic_names=CountedNames([f"t{number}"])))
    CountedNames.examined[0] = 0
    for number in range(500):
        assert group.is_subscribed_to(f"t{number}") == (number < 200)
    assert CountedNames.examined[0] <= 200
