"""The assignors of the classic protocol, with random groups and in comparison with Kafka's clients."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import grouplab
from brokerlab.kafka_jars import KafkaUnavailableError, find_jars
from grouplab.kafka_answers import ask_java
from tidelog.client.core.consuming.assignors import (
    NO_RACKS,
    STRATEGIES,
    Assigned,
    Racks,
    Subscriber,
    assign_cooperatively,
    assign_in_turn,
    assign_ranges,
    assign_sticky,
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


def racks_of(**told: str) -> Racks:
    """Returns the racks of the replicas of partitions, one letter each: `t="ab,b"` for t.0 and t.1."""
    return {
        TopicPartition(topic, index): frozenset(letters)
        for topic, text in told.items()
        for index, letters in enumerate(text.split(","))
    }


def in_racks(members: Sequence[Subscriber], racks: str) -> list[Subscriber]:
    return [member._replace(rack=rack) for member, rack in zip(members, racks, strict=True)]


def test_range_prefers_members_in_the_racks_of_the_replicas() -> None:
    members = in_racks(subscribers("", ""), "ab")
    assert assign_ranges(members, {"t": 4}, racks_of(t="b,b,a,a")) == {
        "m0": places("t.2,t.3"),
        "m1": places("t.0,t.1"),
    }


def test_range_gives_the_same_numbers_of_topics_that_are_alike() -> None:
    members = in_racks(subscribers("", ""), "ab")
    given = assign_ranges(members, {"t": 2, "u": 2}, racks_of(t="b,a", u="ab,ab"))
    assert given == {"m0": places("t.1,u.1"), "m1": places("t.0,u.0")}


@pytest.mark.parametrize("strategy", STICKY)
def test_sticky_moves_a_partition_closer_only_if_another_one_comes_in_exchange(strategy: str) -> None:
    assign, counts = STRATEGIES[strategy].assign, {"t": 4}
    members = in_racks(subscribers("t.0,t.1", "t.2,t.3"), "ab")
    assert assign(members, counts, racks_of(t="a,b,b,b")) == {
        "m0": places("t.0,t.1"),
        "m1": places("t.2,t.3"),
    }
    given = STRATEGIES["sticky"].assign(members, counts, racks_of(t="a,b,b,a"))
    assert given == {"m0": places("t.0,t.3"), "m1": places("t.1,t.2")}


@pytest.mark.parametrize("strategy", ["range", *STICKY])
@pytest.mark.parametrize("racks", [{}, {"t": "ab,ab,ab"}, {"t": "c,c,"}])
def test_racks_that_cannot_help_change_nothing(strategy: str, racks: Mapping[str, str]) -> None:
    assign = STRATEGIES[strategy].assign
    members = subscribers("t.2", "")
    assert assign(in_racks(members, "ab"), {"t": 3}, racks_of(**racks)) == assign(members, {"t": 3})


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


def with_racks(
    seed: int, members: Sequence[Subscriber], counts: Mapping[str, int]
) -> tuple[list[Subscriber], Racks]:
    """Returns the members and the partitions in random racks; some have none."""
    chance = random.Random(seed)
    letters = "abc"[: chance.randint(1, 3)]
    replicas = chance.randint(1, 3)
    placed = [
        member._replace(rack=None if chance.random() < 0.15 else chance.choice(letters)) for member in members
    ]
    return placed, {
        TopicPartition(topic, index): frozenset(
            "" if chance.random() < 0.05 else chance.sample(letters, min(replicas, len(letters)))
        )
        for topic, count in counts.items()
        for index in range(count)
    }


def close(members: Sequence[Subscriber], given: Assigned, racks: Racks) -> int:
    """Returns the number of partitions that a member in a rack of their replicas has."""
    return sum(member.rack in racks[place] for member in members for place in given[member.member_id])


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


def loads(strategy: str, given: Assigned) -> list[list[int]]:
    """Returns the numbers of partitions of the members in order. `range` balances each topic alone."""
    if strategy != "range":
        return [sorted(map(len, given.values()))]
    topics = sorted({place.topic for own in given.values() for place in own})
    return [sorted(sum(place.topic == topic for place in own) for own in given.values()) for topic in topics]


@pytest.mark.parametrize("strategy", ["range", *STICKY])
def test_racks_do_not_change_the_balance(strategy: str) -> None:
    assign = STRATEGIES[strategy].assign
    gained = 0
    for seed in range(CASES):
        members, counts = group(seed)
        placed, racks = with_racks(seed, members, counts)
        plain, given = assign(members, counts), assign(placed, counts, racks)
        if strategy != "cooperative-sticky":
            assert loads(strategy, given) == loads(strategy, plain), seed
            everything = sorted(place for own in plain.values() for place in own)
            assert sorted(place for own in given.values() for place in own) == everything, seed
        assert assign(placed[::-1], counts, racks) == given, seed
        gained += close(placed, given, racks) - close(placed, plain, racks)
    assert gained > CASES / 2


# -- the bytes


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_subscription_survives_its_encoding(strategy: str) -> None:
    had = frozenset(places("t.1,t.0,u.5"))
    owned = had if strategy == "cooperative-sticky" else frozenset()
    data = encode_subscription(strategy, ("u", "t"), owned, had, 7, "rack")
    told = decode_subscription(strategy, "m", "i", data)
    kept_ones = had if strategy in STICKY else frozenset()
    assert told == Subscriber("m", "i", frozenset({"t", "u"}), kept_ones, 7, "rack")


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


def as_line(
    strategy: str, members: Sequence[Subscriber], counts: Mapping[str, int], racks: Racks = NO_RACKS
) -> str:
    topics = ",".join(
        f"{topic}:"
        + "/".join("".join(sorted(racks.get(TopicPartition(topic, at), ""))) for at in range(count))
        for topic, count in counts.items()
    )
    told = []
    for member in members:
        owned = member.owned if strategy == "cooperative-sticky" else frozenset()
        data = encode_subscription(
            strategy, member.topics, owned, member.owned, member.generation, member.rack
        )
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
def test_assignments_with_racks_are_those_of_kafkas_clients(jars: Path) -> None:
    """The sticky assignors break ties otherwise, so the test compares how many partitions are in the racks of
    their members. Neither Kafka's nor ours always find the most.
    """
    questions = []
    for strategy in ("range", "roundrobin", *STICKY):
        for seed in range(CASES):
            members, counts = group(seed, beyond=0)
            placed, racks = with_racks(seed, members, counts)
            questions.append((strategy, placed, counts, racks))
    answers = ask_java(jars, ORACLE, [as_line(*question) for question in questions])
    ours_close: Counter[tuple[str, bool]] = Counter()
    theirs_close: Counter[tuple[str, bool]] = Counter()
    for (strategy, members, counts, racks), line in zip(questions, answers, strict=True):
        theirs = from_line(line, members)
        given = STRATEGIES[strategy].assign(members, counts, racks)
        ours = {name: sorted(own) for name, own in given.items()}
        if strategy in ("range", "roundrobin"):
            assert ours == theirs, (members, counts, racks)
        else:
            kind = strategy, len({member.topics for member in members}) == 1
            assert strategy != "sticky" or not kind[1] or unevenness(ours) == unevenness(theirs)
            ours_close[kind] += close(members, ours, racks)
            theirs_close[kind] += close(members, theirs, racks)
    for kind, count in theirs_close.items():
        assert ours_close[kind] >= 0.98 * count, (kind, ours_close, theirs_close)


@pytest.mark.java
@pytest.mark.parametrize("strategy", STICKY)
def test_what_kafkas_clients_say_is_understood(jars: Path, strategy: str) -> None:
    (line,) = ask_java(jars, ORACLE, [f"say {strategy} 5 t,u t.0,t.3,u.1"])
    told = decode_subscription(strategy, "m", None, bytes.fromhex(line))
    assert told == Subscriber("m", None, frozenset({"t", "u"}), frozenset(places("t.0,t.3,u.1")), 5)
    assert encode_subscription(strategy, told.topics, told.owned, told.owned, 5, None)[:2] == b"\0\3"
