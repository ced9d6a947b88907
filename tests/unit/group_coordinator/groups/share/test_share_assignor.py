"""The assignor of share groups: everything is assigned, loads are equal, and little moves."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tidelog.group_coordinator.groups.share.share_assignor import ShareMemberSpec, assign

TOPICS = [UUID(int=number) for number in range(1, 4)]
COUNTS = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9), min_size=1)
Targets = dict[str, dict[UUID, frozenset[int]]]


def specs(subscriptions: dict[str, frozenset[UUID]], before: Targets | None = None) -> list[ShareMemberSpec]:
    return [
        ShareMemberSpec(member_id, topics, (before or {}).get(member_id, {}))
        for member_id, topics in subscriptions.items()
    ]


def partitions(counts: dict[UUID, int]) -> dict[UUID, frozenset[int]]:
    return {topic_id: frozenset(range(count)) for topic_id, count in counts.items()}


def pairs(targets: Targets) -> set[tuple[str, UUID, int]]:
    return {(m, t, p) for m, topics in targets.items() for t, owned in topics.items() for p in owned}


SUBSCRIPTIONS = st.dictionaries(
    st.sampled_from([f"m{number}" for number in range(12)]),
    st.frozensets(st.sampled_from(TOPICS), min_size=1),
    min_size=1,
)


@given(SUBSCRIPTIONS, COUNTS)
def test_everything_is_assigned_to_subscribers_only(
    subscriptions: dict[str, frozenset[UUID]], counts: dict[UUID, int]
) -> None:
    targets = assign(specs(subscriptions), partitions(counts))
    found = pairs(targets)
    assert all(topic_id in subscriptions[member_id] for member_id, topic_id, _ in found)
    for topic_id, count in counts.items():
        if any(topic_id in topics for topics in subscriptions.values()):
            assert {p for _, t, p in found if t == topic_id} == set(range(count))
    for member_id, topics in subscriptions.items():
        assert bool(targets[member_id]) == any(topic_id in counts for topic_id in topics)


@given(st.integers(1, 15), COUNTS)
def test_loads_are_equal_with_equal_subscriptions(members: int, counts: dict[UUID, int]) -> None:
    subscriptions = {f"m{number}": frozenset(TOPICS) for number in range(members)}
    found = pairs(assign(specs(subscriptions), partitions(counts)))
    loads = [sum(m == member_id for m, _, _ in found) for member_id in subscriptions]
    assert max(loads) - min(loads) <= 1
    shared = [
        sum((t, p) == (topic_id, partition) for _, t, p in found)
        for topic_id, count in counts.items()
        for partition in range(count)
    ]
    assert max(shared) - min(shared) <= 1


@given(SUBSCRIPTIONS, COUNTS)
def test_nothing_moves_without_a_change(
    subscriptions: dict[str, frozenset[UUID]], counts: dict[UUID, int]
) -> None:
    first = assign(specs(subscriptions), partitions(counts))
    assert assign(specs(subscriptions, first), partitions(counts)) == first


def test_a_new_member_takes_its_part_from_the_others() -> None:
    subscriptions = {"a": frozenset(TOPICS[:1]), "b": frozenset(TOPICS[:1])}
    everything = {TOPICS[0]: frozenset(range(6))}
    first = assign(specs(subscriptions), everything)
    second = assign(specs(subscriptions | {"c": frozenset(TOPICS[:1])}, first), everything)
    assert len(pairs(first) - pairs(second)) == 2
