"""The assignors of the classic protocol, with random groups and in comparison with Kafka's clients."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import grouplab
from brokerlab.kafka_jars import KafkaUnavailableError, find_jars
from grouplab.kafka_answers import ask_java
from tidelog.client.core.assignors import (
    STRATEGIES,
    Assigned,
    Subscriber,
    assign_cooperatively,
    assign_in_turn,
    assign_ranges,
    assign_sticky,
)
from tidelog.client.core.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from tidelog.model.topics import TopicPartition
from tidelog.wire.malformed import MalformedMessageError

ORACLE = Path(grouplab.__file__).with_name("KafkaClientAssignors.java")
CASES = 150
STICKY = ("sticky", "cooperative-sticky")


def places(text: str) -> list[TopicPartition]:
    return [TopicPartition(one.split(".")[0], int(one.split(".")[1])) for one in text.split(",") if one]


def subscribers(*told: str) -> list[Subscriber]:
    """Returns members that subscribe to t and u, and had these partitions in generation 1."""
    return [
        Subscriber(f"m{number}", None, frozenset({"t", "u"}), frozenset(places(had)), 1)
        for number, had in enumerate(told)
    ]


def test_range_gives_the_first_members_one_more_of_each_topic() -> None:
    assert assign_ranges(subscribers("", ""), {"t": 3, "u": 3}) == {
        "m0": places("t.0,t.1,u.0,u.1"),
        "m1": places("t.2,u.2"),
    }


def test_roundrobin_deals_over_all_topics() -> None:
    assert assign_in_turn(subscribers("", ""), {"t": 3, "u": 3}) == {
        "m0": places("t.0,t.2,u.1"),
        "m1": places("t.1,u.0,u.2"),
    }


def test_sticky_moves_only_what_a_new_member_needs() -> None:
    given = assign_sticky(subscribers("t.0,t.1,t.2", "t.3,t.4,t.5", ""), {"t": 6})
    assert given == {"m0": places("t.0,t.1"), "m1": places("t.3,t.4"), "m2": places("t.2,t.5")}


def test_cooperative_gives_a_partition_away_only_after_its_owner_gave_it_up() -> None:
    counts = {"t": 6}
    given = assign_cooperatively(subscribers("t.0,t.1,t.2", "t.3,t.4,t.5", ""), counts)
    assert given == {"m0": places("t.0,t.1"), "m1": places("t.3,t.4"), "m2": []}
    given = assign_cooperatively(subscribers("t.0,t.1", "t.3,t.4", ""), counts)
    assert given == {"m0": places("t.0,t.1"), "m1": places("t.3,t.4"), "m2": places("t.2,t.5")}


def test_the_newer_of_two_claims_counts() -> None:
    old, new = subscribers("t.0", "t.0")
    given = assign_sticky([old, new._replace(generation=2)], {"t": 2})
    assert given == {"m0": places("t.1"), "m1": places("t.0")}


# -- random groups


def group(seed: int, beyond: int = 1) -> tuple[list[Subscriber], dict[str, int]]:
    """Returns random members with their topics, and what they had: also `beyond` partitions of each topic
    that no longer exist.
    """
    chance = random.Random(seed)
    counts = {f"t{number}": chance.randint(1, 7) for number in range(chance.randint(1, 4))}
    names = [f"m{number}" for number in range(chance.randint(1, 6))]
    had: dict[str, set[TopicPartition]] = {name: set() for name in names}
    if chance.random() < 0.8:
        for topic, count in counts.items():
            for index in range(count + beyond):
                had[chance.choice(names)].add(TopicPartition(topic, index))
    is_same = chance.random() < 0.5
    now = [name for name in names if chance.random() < 0.8] + [f"n{n}" for n in range(chance.randint(0, 3))]
    return [
        Subscriber(
            name,
            f"i{chance.randint(0, 9)}{name}" if chance.random() < 0.3 else None,
            frozenset(counts if is_same else chance.sample(sorted(counts), chance.randint(1, len(counts)))),
            frozenset(had.get(name, ())),
            7 if had.get(name) else -1,
        )
        for name in now or ["m0"]
    ], counts


def kept(members: Sequence[Subscriber], given: Assigned) -> int:
    return sum(len(member.owned & set(given[member.member_id])) for member in members)


def unevenness(given: Assigned) -> int:
    return sum(len(own) ** 2 for own in given.values())


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "sticky"])
def test_each_partition_has_one_owner_that_subscribes(strategy: str) -> None:
    assign = STRATEGIES[strategy].assign
    for seed in range(CASES):
        members, counts = group(seed)
        given = assign(members, counts)
        subscribed = {topic for member in members for topic in member.topics}
        everything = sorted(TopicPartition(t, p) for t in subscribed for p in range(counts[t]))
        assert sorted(place for own in given.values() for place in own) == everything, seed
        for member in members:
            assert {place.topic for place in given[member.member_id]} <= member.topics, seed
        assert assign(members[::-1], counts) == given, seed


@pytest.mark.parametrize("strategy", STICKY)
def test_cooperative_rounds_end_where_sticky_does_and_nothing_moves_then(strategy: str) -> None:
    assign = STRATEGIES[strategy].assign
    for seed in range(CASES):
        members, counts = group(seed)
        for _ in range(3):
            given = assign(members, counts)
            for member in members:
                gained = set(given[member.member_id]) - member.owned
                for other in members:
                    if strategy == "cooperative-sticky" and other is not member:
                        assert not gained & other.owned, seed
            members = [
                member._replace(owned=frozenset(given[member.member_id]), generation=8) for member in members
            ]
        assert assign(members, counts) == given, seed
        subscribed = {topic for member in members for topic in member.topics}
        assert sum(map(len, given.values())) == sum(counts[topic] for topic in subscribed), seed


# -- the bytes


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_subscription_survives_its_encoding(strategy: str) -> None:
    had = frozenset(places("t.1,t.0,u.5"))
    owned = had if strategy == "cooperative-sticky" else frozenset()
    data = encode_subscription(strategy, ("u", "t"), owned, had, 7, "rack")
    told = decode_subscription(strategy, "m", "i", data)
    assert told == Subscriber("m", "i", frozenset({"t", "u"}), had if strategy in STICKY else frozenset(), 7)


def test_an_assignment_survives_its_encoding_and_empty_bytes_are_none() -> None:
    assert decode_assignment(encode_assignment(places("t.1,u.5"))) == frozenset(places("t.1,u.5"))
    assert decode_assignment(b"") == frozenset()


def test_cut_data_are_malformed() -> None:
    data = encode_subscription("sticky", ("t",), frozenset(), frozenset(places("t.1,t.0")), 7, None)
    start = data.index(b"\0\1t") + 3
    whole = bytes(data)
    for end in range(2, len(whole)):
        with pytest.raises(MalformedMessageError):
            decode_subscription("sticky", "m", None, whole[:end])
    at = whole.index(b"\0\0\0\1\0\1t", start)  # the topics of the assignor's data
    with pytest.raises(MalformedMessageError, match="sticky"):
        decode_subscription("sticky", "m", None, whole[: at + 3] + b"\x7f" + whole[at + 4 :])


# -- comparison with Apache Kafka


@pytest.fixture(scope="module")
def jars() -> Path:
    try:
        return find_jars()
    except KafkaUnavailableError as error:
        pytest.skip(str(error))


def as_line(strategy: str, members: Sequence[Subscriber], counts: Mapping[str, int]) -> str:
    topics = ",".join(f"{topic}:{count}" for topic, count in counts.items())
    told = []
    for member in members:
        owned = member.owned if strategy == "cooperative-sticky" else frozenset()
        data = encode_subscription(strategy, member.topics, owned, member.owned, member.generation, None)
        told.append(f"{member.member_id}/{member.instance_id or ''}={data.hex()}")
    return f"{strategy} {topics} {'|'.join(told)}"


def from_line(line: str, members: Sequence[Subscriber]) -> Assigned:
    given: Assigned = {member.member_id: [] for member in members}
    for part in filter(None, line.split("|")):
        member_id, _, found = part.partition("=")
        given[member_id] = sorted(places(found))
    return given


@pytest.mark.java
def test_assignments_are_those_of_kafkas_clients(jars: Path) -> None:
    """Kafka's sticky assignors break ties otherwise, so the loads and the moves are compared. They fail if a
    member had a partition that no longer exists.
    """
    questions = [(strategy, *group(seed, beyond=0)) for strategy in STRATEGIES for seed in range(CASES)]
    answers = ask_java(jars, ORACLE, [as_line(*question) for question in questions])
    moved = 0
    for (strategy, members, counts), line in zip(questions, answers, strict=True):
        theirs = from_line(line, members)
        ours = {name: sorted(own) for name, own in STRATEGIES[strategy].assign(members, counts).items()}
        if strategy in ("range", "roundrobin"):
            assert ours == theirs
        elif len({member.topics for member in members}) == 1:
            assert kept(members, ours) == kept(members, theirs)
            assert strategy != "sticky" or unevenness(ours) == unevenness(theirs)
        elif strategy == "sticky":
            assert unevenness(ours) <= unevenness(theirs)
            if unevenness(ours) == unevenness(theirs):
                moved += kept(members, theirs) - kept(members, ours)
    assert moved <= 0, "ours move more than Kafka's if the topics of the members differ"


@pytest.mark.java
@pytest.mark.parametrize("strategy", STICKY)
def test_what_kafkas_clients_say_is_understood(jars: Path, strategy: str) -> None:
    (line,) = ask_java(jars, ORACLE, [f"say {strategy} 5 t,u t.0,t.3,u.1"])
    told = decode_subscription(strategy, "m", None, bytes.fromhex(line))
    assert told == Subscriber("m", None, frozenset({"t", "u"}), frozenset(places("t.0,t.3,u.1")), 5)
    assert encode_subscription(strategy, told.topics, told.owned, told.owned, 5, None)[:2] == b"\0\3"
