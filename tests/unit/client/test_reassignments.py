"""Moves of replicas: as files request them, as a rebalance plans them, correct, even and few, and as brokers
answer them; and elections.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerlab.scripted_broker import ScriptedBroker
from tidelog.client.admin.reassignments import (
    Assignment,
    Move,
    PlanError,
    Progress,
    Reassignment,
    after_moves,
    alter_reassignments,
    elect_preferred_leaders,
    list_reassignments,
    plan_moves,
    progress_of,
    replica_counts,
    requested_moves,
    running_moves,
    standing_of,
)
from tidelog.client.admin.topics import describe_topics_setting
from tidelog.client.cluster import Cluster
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from tidelog.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from tidelog.wire.messages.elect_leaders import ElectLeadersResponse, PartitionResult, ReplicaElectionResult
from tidelog.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from tidelog.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

CURRENT = {("t", 0): (1, 2), ("t", 1): (2, 3)}
NO_RACKS = dict.fromkeys(range(5))


def answering(**answers: Any) -> ScriptedBroker:
    """A broker with id 1 and these responses, by the API's name."""
    brokers: list[MetadataResponseBroker] = []
    scripted = {
        ApiKey[name]: lambda request, version, answer=answer: answer for name, answer in answers.items()
    }
    metadata = MetadataResponse(brokers=brokers, controller_id=1)
    broker = ScriptedBroker({ApiKey.METADATA: lambda request, version: metadata, **scripted})
    brokers.append(MetadataResponseBroker(1, "127.0.0.1", broker.port))
    return broker


def reassigned(*codes: int) -> AlterPartitionReassignmentsResponse:
    rows = [ReassignablePartitionResponse(index, code, None) for index, code in enumerate(codes)]
    return AlterPartitionReassignmentsResponse(
        error_message=None, responses=[ReassignableTopicResponse("t", rows)]
    )


def test_moves_are_requested_topic_by_topic() -> None:
    with (
        answering(ALTER_PARTITION_REASSIGNMENTS=reassigned(0, 0)) as broker,
        Cluster(broker.bootstrap) as cluster,
    ):
        alter_reassignments(cluster, {("t", 0): (1, 2), ("u", 3): None, ("t", 1): (2, 1)})
        (request,) = broker.requests_of(AlterPartitionReassignmentsRequest)
    asked = {
        topic.name: [(p.partition_index, p.replicas) for p in topic.partitions] for topic in request.topics
    }
    assert asked == {"t": [(0, [1, 2]), (1, [2, 1])], "u": [(3, None)]}


def test_a_refused_move_is_raised() -> None:
    answer = reassigned(ErrorCode.NONE, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    with (
        answering(ALTER_PARTITION_REASSIGNMENTS=answer) as broker,
        Cluster(broker.bootstrap) as cluster,
        pytest.raises(KafkaError, match="topic 't' partition 1"),
    ):
        alter_reassignments(cluster, {("t", 0): (1,), ("t", 1): (9,)})


def test_cancelling_a_finished_move_is_not_an_error() -> None:
    answer = reassigned(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    with answering(ALTER_PARTITION_REASSIGNMENTS=answer) as broker, Cluster(broker.bootstrap) as cluster:
        alter_reassignments(cluster, {("t", 0): None})


def test_running_moves() -> None:
    topics = [OngoingTopicReassignment("t", [OngoingPartitionReassignment(2, [3, 1], [3], [1])])]
    answer = ListPartitionReassignmentsResponse(error_message=None, topics=topics)
    with answering(LIST_PARTITION_REASSIGNMENTS=answer) as broker, Cluster(broker.bootstrap) as cluster:
        assert list_reassignments(cluster) == {("t", 2): Reassignment((3, 1), (3,), (1,))}


def test_a_move_that_ends_between_the_requests_counts_as_finished() -> None:
    brokers: list[MetadataResponseBroker] = []
    moving = [OngoingTopicReassignment("t", [OngoingPartitionReassignment(0, [3, 1], [3], [1])])]
    replicas = [3, 1]

    def metadata(request: MetadataRequest, version: int) -> MetadataResponse:
        seen = [MetadataResponsePartition(0, 0, 1, 0, list(replicas), [1], [])]
        if request.topics != []:
            end_move()
        return MetadataResponse(
            brokers=brokers, controller_id=1, topics=[MetadataResponseTopic(0, "t", partitions=seen)]
        )

    def listed(request: Any, version: int) -> ListPartitionReassignmentsResponse:
        answer = ListPartitionReassignmentsResponse(error_message=None, topics=list(moving))
        end_move()
        return answer

    def end_move() -> None:
        moving.clear()
        replicas[:] = [3]

    answers = {ApiKey.METADATA: metadata, ApiKey.LIST_PARTITION_REASSIGNMENTS: listed}
    with ScriptedBroker(answers) as broker:
        brokers.append(MetadataResponseBroker(1, "127.0.0.1", broker.port))
        with Cluster(broker.bootstrap) as cluster:
            assert standing_of(cluster).assignment == {("t", 0): (3,)}


def test_unnecessary_elections_do_not_count() -> None:
    codes = ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    rows = [PartitionResult(index, code, None) for index, code in enumerate(codes)]
    answer = ElectLeadersResponse(replica_election_results=[ReplicaElectionResult("t", rows)])
    with answering(ELECT_LEADERS=answer) as broker, Cluster(broker.bootstrap) as cluster:
        assert elect_preferred_leaders(cluster) == 1


def test_a_setting_of_many_topics_omits_deleted_topics() -> None:
    def configs(request: DescribeConfigsRequest, version: int) -> DescribeConfigsResponse:
        rows = [DescribeConfigsResourceResult("min.insync.replicas", "2")]
        results = [
            DescribeConfigsResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None, 2, asked.resource_name)
            if asked.resource_name == "t007"
            else DescribeConfigsResult(0, None, 2, asked.resource_name, rows)
            for asked in request.resources
        ]
        return DescribeConfigsResponse(results=results)

    with ScriptedBroker({ApiKey.DESCRIBE_CONFIGS: configs}) as broker, Cluster(broker.bootstrap) as cluster:
        found = describe_topics_setting(
            cluster, [f"t{index:03}" for index in range(1_200)], "min.insync.replicas"
        )
        assert len(found) == 1_199
        assert set(found.values()) == {"2"}
        assert len(broker.requests_of(DescribeConfigsRequest)) == 3


def test_metadata_as_one_broker_sees_it() -> None:
    brokers: list[MetadataResponseBroker] = []

    def knowing(*names: str) -> ScriptedBroker:
        answer = MetadataResponse(brokers=brokers, topics=[MetadataResponseTopic(0, name) for name in names])
        return ScriptedBroker({ApiKey.METADATA: lambda request, version: answer})

    with knowing("old") as first, knowing("old", "new") as second:
        brokers += [MetadataResponseBroker(i, "127.0.0.1", b.port) for i, b in enumerate((first, second))]
        with Cluster(first.bootstrap) as cluster:
            assert list(cluster.topics(seen_by=0)) == ["old"]
            assert list(cluster.topics(seen_by=1)) == ["new", "old"]


def test_requested_moves_have_the_replicas_before_and_after() -> None:
    assert requested_moves(CURRENT, {TopicPartition("t", 1): (3, 1)}, [1, 2, 3]) == [
        Move("t", 1, (2, 3), (3, 1))
    ]


@pytest.mark.parametrize(
    ("key", "replicas", "message"),
    [
        (TopicPartition("t", 2), (1,), "partition t-2 does not exist"),
        (TopicPartition("t", 0), (), "t-0 has no replicas"),
        (TopicPartition("t", 0), (1, 1), "t-0 has two replicas on the same broker"),
        (TopicPartition("t", 0), (1, 4), "t-0 has a replica on broker 4, which is not alive"),
    ],
)
def test_impossible_moves_are_refused(key: TopicPartition, replicas: tuple[int, ...], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        requested_moves(CURRENT, {key: replicas}, [1, 2, 3])


def test_a_running_move_goes_from_the_old_to_the_new_replicas() -> None:
    assert running_moves({("t", 0): Reassignment((3, 1, 2), (3,), (2,))}) == [Move("t", 0, (1, 2), (3, 1))]


def test_the_progress_of_each_move() -> None:
    wanted = {("t", 0): (1, 2), ("t", 1): (3, 2), ("t", 2): (1,), ("u", 0): (1,)}
    current = {**CURRENT, ("t", 2): (1,)}
    assert progress_of(wanted, current, {("t", 2)}) == {
        ("t", 0): Progress.FINISHED,
        ("t", 1): Progress.DIFFERENT,  # the order decides which leader is preferred
        ("t", 2): Progress.MOVING,
        ("u", 0): Progress.MISSING,
    }


def even_topic(
    name: str, partitions: int, brokers: int, factor: int
) -> dict[tuple[str, int], tuple[int, ...]]:
    return {
        (name, index): tuple((index + place) % brokers for place in range(factor))
        for index in range(partitions)
    }


def moved(moves: list[Move]) -> int:
    return sum(len(move.adding) for move in moves)


def spread(assignment: Assignment, brokers: list[int]) -> tuple[int, int]:
    """Returns the greatest differences between brokers in replicas and in preferred leaders."""
    counts = replica_counts(assignment, brokers)
    replicas = [counts[broker][0] for broker in brokers]
    leaders = [counts[broker][1] for broker in brokers]
    return max(replicas) - min(replicas), max(leaders) - min(leaders)


def test_a_balanced_cluster_stays_as_it_is() -> None:
    assert plan_moves(even_topic("t", 6, 3, 3), {0: None, 1: None, 2: None}) == []


def test_new_brokers_get_exactly_their_share() -> None:
    current = even_topic("t", 20, 3, 3)
    moves = plan_moves(current, NO_RACKS)
    assert spread(after_moves(current, moves), list(range(5))) == (0, 0)
    assert moved(moves) == 24, "60 replicas on 5 brokers: two of them need 12 each, no other replica moves"


def test_leaving_brokers_are_emptied_without_unnecessary_moves() -> None:
    current = even_topic("t", 20, 5, 3)
    moves = plan_moves(current, NO_RACKS, leaving=(3, 4))
    after = after_moves(current, moves)
    assert all(set(replicas) == {0, 1, 2} for replicas in after.values())
    assert moved(moves) == 24
    assert spread(after, [0, 1, 2])[1] <= 1


def test_a_dead_broker_is_emptied_only_on_request() -> None:
    current = {("t", 0): (0, 7)}
    with pytest.raises(PlanError, match="brokers 7 hold replicas but are not alive; --without 7"):
        plan_moves(current, {0: None, 1: None})
    moves = plan_moves(current, {0: None, 1: None}, leaving=(7,))
    assert [set(move.after) for move in moves] == [{0, 1}]


def test_draining_moves_nothing_else() -> None:
    current = {**even_topic("t", 12, 3, 2), **{("u", i): (0, 1) for i in range(6)}}
    moves = plan_moves(current, {0: None, 1: None, 2: None, 3: None}, leaving=(2,), evens_out=False)
    held = sum(replicas.count(2) for replicas in current.values())
    assert moved(moves) == held
    assert all(2 in move.before for move in moves if move.adding)


@pytest.mark.parametrize(
    ("racks", "leaving", "part"),
    [({0: None, 1: None}, (0, 1), "no broker"), ({0: None, 1: None}, (1,), "t-0 has 2 replicas, but only 1")],
)
def test_too_few_brokers_are_refused(racks: dict[int, None], leaving: tuple[int, ...], part: str) -> None:
    with pytest.raises(PlanError, match=part):
        plan_moves({("t", 0): (0, 1)}, racks, leaving)


def test_a_partition_in_one_rack_is_spread() -> None:
    racks = {0: "a", 1: "a", 2: "b", 3: "b"}
    (move,) = plan_moves({("t", 0): (0, 1)}, racks)
    assert len({racks[broker] for broker in move.after}) == 2
    assert move.after[0] == 0, "rather a follower moves than the leader"


def test_a_leaving_broker_is_replaced_from_its_own_rack_if_that_keeps_racks_apart() -> None:
    racks = {0: "a", 1: "b", 2: "c", 3: "a"}
    moves = plan_moves({("t", 0): (0, 1, 2)}, racks, leaving=(0,))
    assert [set(move.after) for move in moves] == [{1, 2, 3}]


def test_leaders_are_balanced_along_a_chain_without_moving_data() -> None:
    """Broker 0 leads three partitions and shares none with broker 2, which leads none."""
    current = {("a", 0): (0, 1), ("b", 0): (0, 1), ("c", 0): (0, 1), ("d", 0): (1, 2), ("e", 0): (1, 2)}
    board = {0: None, 1: None, 2: None}
    after = after_moves(current, plan_moves(current, board))
    assert spread(after, [0, 1, 2])[1] <= 1


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Assignment, dict[int, str | None], tuple[int, ...]]:
    count = draw(st.integers(2, 7))
    has_racks = draw(st.booleans())
    racks = {b: f"rack-{draw(st.integers(0, 2))}" if has_racks else None for b in range(count)}
    leaving = tuple(draw(st.lists(st.integers(0, count - 1), unique=True, max_size=count - 1)))
    most = min(3, count - len(leaving))
    current: dict[tuple[str, int], tuple[int, ...]] = {}
    for topic in range(draw(st.integers(1, 4))):
        factor = draw(st.integers(1, most))
        for index in range(draw(st.integers(1, 8))):
            order = draw(st.permutations(list(range(count))))
            current[f"t{topic}", index] = tuple(order[:factor])
    return current, racks, leaving


@given(clusters())
def test_any_plan_is_sound(case: tuple[Assignment, dict[int, str | None], tuple[int, ...]]) -> None:
    current, racks, leaving = case
    moves = plan_moves(current, racks, leaving)
    after = after_moves(current, moves)
    staying = [broker for broker in racks if broker not in leaving]
    rack_total = len({racks[broker] or broker for broker in staying})
    for key, replicas in after.items():
        assert len(set(replicas)) == len(replicas) == len(current[key])
        assert set(replicas) <= set(staying)
        assert len({racks[broker] or broker for broker in replicas}) == min(len(replicas), rack_total)
    if not any(racks.values()):
        for topic in {name for name, _ in after}:
            of_topic = {key: replicas for key, replicas in after.items() if key[0] == topic}
            assert spread(of_topic, staying)[0] <= 1, "each topic is even"
    assert all(move.before != move.after for move in moves)
    assert plan_moves(after, racks, leaving) == [], "a plan that was carried out leaves nothing to do"
