"""Topologies of streams groups: what is refused, and what follows from the topics that exist."""

from __future__ import annotations

import pytest

from tidelog.group_coordinator.groups.streams.topology import (
    InternalTopic,
    StreamsStatus,
    TopologyProblem,
    configure,
    endpoint_partitions,
    record_of,
    topology_of_record,
    topology_of_request,
)
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire.messages.streams_group_heartbeat import (
    CopartitionGroup,
    KeyValue,
    Subtopology,
    TopicInfo,
    Topology,
)

WORD_COUNT = Topology(
    0,
    [
        Subtopology("0", ["lines"], repartition_sink_topics=["words"]),
        Subtopology(
            "1",
            repartition_source_topics=[TopicInfo("words", topic_configs=[KeyValue("segment.bytes", "9")])],
            state_changelog_topics=[TopicInfo("counts", 0, 2, [KeyValue("cleanup.policy", "compact")])],
        ),
    ],
)


def refusal(topology: Topology, existing: dict[str, int] | None = None) -> tuple[ErrorCode, str | None]:
    with pytest.raises(KafkaError) as refused:
        configure(topology_of_request(topology), (existing or {}).get)
    return refused.value.code, refused.value.message


def test_internal_topics_follow_the_source_topics() -> None:
    configured = configure(topology_of_request(WORD_COUNT), {"lines": 3}.get)
    assert configured.subtopologies is not None
    assert {name: one.task_count for name, one in configured.subtopologies.items()} == {"0": 3, "1": 3}
    assert [one.is_stateful for one in configured.subtopologies.values()] == [False, True]
    assert configured.missing_internal_topics == {
        "words": InternalTopic("words", 3, -1, (("segment.bytes", "9"),)),
        "counts": InternalTopic("counts", 3, 2, (("cleanup.policy", "compact"),)),
    }
    assert configured.problem == TopologyProblem(
        StreamsStatus.MISSING_INTERNAL_TOPICS, "Internal topics are missing: counts, words"
    )
    assert not configured.is_ready


def test_a_refusal_names_only_some_invalid_topics() -> None:
    topology = Topology(0, [Subtopology("0", [f"a b{number}" for number in range(5)])])
    assert refusal(topology) == (
        ErrorCode.STREAMS_INVALID_TOPOLOGY,
        "Topic names a b0,a b1,a b2 and 2 additional topics are not valid topic names.",
    )


def test_the_work_grows_with_the_topics_and_not_with_their_square() -> None:
    compared = 0

    class Count(int):
        def __gt__(self, other: int) -> bool:
            nonlocal compared
            compared += 1
            return int(self) > int(other)

    sources, sinks = ([f"{kind}{number}" for number in range(300)] for kind in ("source", "sink"))
    topology = Topology(0, [Subtopology("0", sources, repartition_sink_topics=sinks)])
    configured = configure(topology_of_request(topology), dict.fromkeys(sources, Count(3)).get)
    assert configured.subtopologies is not None
    assert configured.subtopologies["0"].task_count == 3
    assert compared < 10 * len(sources)


def test_a_topology_is_ready_once_all_topics_exist() -> None:
    configured = configure(topology_of_request(WORD_COUNT), {"lines": 3, "words": 3, "counts": 3}.get)
    assert configured.is_ready
    assert not configured.missing_internal_topics


def test_missing_source_topics() -> None:
    topology = Topology(0, [Subtopology("0", [f"s{at}" for at in range(5)])])
    configured = configure(topology_of_request(topology), {"s0": 1}.get)
    detail = "Source topics s1, s2, s3 and 1 additional topics are missing."
    assert configured.problem == TopologyProblem(StreamsStatus.MISSING_SOURCE_TOPICS, detail)
    assert configured.subtopologies is None


def test_an_internal_topic_with_another_number_of_partitions() -> None:
    configured = configure(topology_of_request(WORD_COUNT), {"lines": 3, "words": 3, "counts": 2}.get)
    assert configured.problem == TopologyProblem(
        StreamsStatus.INCORRECTLY_PARTITIONED_TOPICS,
        "Existing topic counts has different number of partitions: expected 3, found 2",
    )


def test_copartitioned_source_topics_must_have_equal_numbers_of_partitions() -> None:
    topology = Topology(0, [Subtopology("0", ["a", "b"], copartition_groups=[CopartitionGroup([0, 1])])])
    configured = configure(topology_of_request(topology), {"a": 3, "b": 2}.get)
    assert configured.problem == TopologyProblem(
        StreamsStatus.INCORRECTLY_PARTITIONED_TOPICS,
        "Following topics do not have the same number of partitions: [{a=3, b=2}]",
    )


def test_a_copartition_group_ignores_the_topics_of_other_groups() -> None:
    """Kafka 4.3 refuses this topology, because it compares `x` with `other`. The classic protocol runs it."""
    topology = Topology(
        0,
        [
            Subtopology("0", ["a"], repartition_sink_topics=["x", "y", "other"]),
            Subtopology(
                "1",
                repartition_source_topics=[TopicInfo("x", 4), TopicInfo("y", 0)],
                copartition_groups=[CopartitionGroup([], [], [0, 1])],
            ),
            Subtopology("2", repartition_source_topics=[TopicInfo("other", 7)]),
        ],
    )
    configured = configure(topology_of_request(topology), {"a": 1, "x": 4, "y": 4, "other": 7}.get)
    assert configured.is_ready


def test_the_number_of_a_repartition_topic_passes_along_the_topology() -> None:
    length = 2_000
    names = [f"r{at}" for at in range(length)]
    # The client may send the last subtopology first. The work must not grow with the square of the length.
    chain = [
        Subtopology(
            str(at), repartition_source_topics=[TopicInfo(names[at])], repartition_sink_topics=[names[at + 1]]
        )
        for at in reversed(range(length - 1))
    ]
    chain.append(Subtopology("first", ["lines"], repartition_sink_topics=[names[0]]))
    chain.append(Subtopology("last", repartition_source_topics=[TopicInfo(names[-1])]))
    configured = configure(topology_of_request(Topology(0, chain)), {"lines": 5}.get)
    assert configured.subtopologies is not None
    assert {one.task_count for one in configured.subtopologies.values()} == {5}


@pytest.mark.parametrize(
    ("subtopologies", "message"),
    [
        (
            [Subtopology("0", ["__consumer_offsets"])],
            "Use of Kafka internal topics __consumer_offsets in a Kafka Streams topology is prohibited.",
        ),
        ([Subtopology("0", ["a b", "c/d"])], "Topic names a b,c/d are not valid topic names."),
        (
            [Subtopology("0", ["a"], state_changelog_topics=[TopicInfo("c", 3)])],
            "Changelog topic c must have an undefined partition count, but it is set to 3.",
        ),
        (
            [Subtopology("0", ["a"], repartition_source_topics=[TopicInfo("r", -3)])],
            "Repartition topic r has the partition count -3.",
        ),
        ([Subtopology("0", ["a"]), Subtopology("0", ["b"])], "Two subtopologies have the same id."),
        (
            [Subtopology("0", ["a"], state_changelog_topics=[TopicInfo("c"), TopicInfo("c")])],
            "Subtopology 0 names an internal topic twice.",
        ),
        (
            [
                Subtopology(
                    "0",
                    ["a"],
                    state_changelog_topics=[TopicInfo("c", 0, 0, [KeyValue("k", "1"), KeyValue("k", "2")])],
                )
            ],
            "Internal topic c names a setting twice.",
        ),
        (
            [Subtopology("0", ["a"], copartition_groups=[CopartitionGroup([-1])])],
            "A copartition group of subtopology 0 refers to a topic that the subtopology does not have.",
        ),
        ([Subtopology("0")], "No source topics found for subtopology 0"),
        (
            [Subtopology("0", repartition_source_topics=[TopicInfo("r")], repartition_sink_topics=["r"])],
            "Failed to compute number of partitions for all repartition topics. "
            "There may be loops in the topology that cannot be resolved.",
        ),
        (
            [Subtopology("0", ["a"], repartition_source_topics=[TopicInfo("r")])],
            "Failed to compute number of partitions for all repartition topics, "
            "because a repartition source topic is never used as a sink topic.",
        ),
    ],
)
def test_invalid_topologies(subtopologies: list[Subtopology], message: str) -> None:
    topology = Topology(0, subtopologies)
    assert refusal(topology, {"a": 1}) == (ErrorCode.STREAMS_INVALID_TOPOLOGY, message)


def test_a_negative_epoch_and_a_regular_expression() -> None:
    assert refusal(Topology(-1, [])) == (
        ErrorCode.STREAMS_INVALID_TOPOLOGY,
        "The topology epoch must be non-negative, but it is -1.",
    )
    assert refusal(Topology(0, [Subtopology("0", source_topic_regex=["a.*"])])) == (
        ErrorCode.INVALID_REQUEST,
        "Regular expressions for source topics are not supported yet.",
    )


def test_the_record_keeps_the_topology() -> None:
    topology = topology_of_request(WORD_COUNT)
    assert topology_of_record(record_of(topology)) == topology


def test_required_topics_are_those_that_tasks_read_or_restore_from() -> None:
    assert topology_of_request(WORD_COUNT).required_topics() == {"lines", "words", "counts"}


def test_an_endpoint_has_the_partitions_that_exist() -> None:
    topology = topology_of_request(Topology(0, [Subtopology("0", ["a", "b", "gone"])]))
    configured = configure(topology, {"a": 4, "b": 2, "gone": 1}.get)
    assert configured.subtopologies is not None
    found = endpoint_partitions({"0": {3, 1}, "9": {0}}, configured.subtopologies, {"a": 4, "b": 2}.get)
    assert found == {"a": [1, 3], "b": [1]}
