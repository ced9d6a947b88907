"""Streams groups in the core: heartbeats, epochs, tasks, timeouts, and random histories."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from grouplab.shard_lab import REBALANCE_MS
from grouplab.streams_lab import APPLICATION, CHANGELOG, SOURCE, ModelThread, StreamsLab, stateful
from tidelog.group_coordinator.groups.modern_group import MemberState, ModernState
from tidelog.group_coordinator.groups.streams import streams_groups
from tidelog.group_coordinator.groups.streams.topology import StreamsStatus
from tidelog.group_coordinator.groups.streams.topology import Subtopology as KnownSubtopology
from tidelog.model.errors import ErrorCode
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.delete_groups import DeleteGroupsRequest
from tidelog.wire.messages.list_groups import ListGroupsRequest
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.wire.messages.streams_group_heartbeat import (
    Endpoint,
    KeyValue,
    StreamsGroupHeartbeatRequest,
    Subtopology,
    TaskIds,
    TaskOffset,
    TopicInfo,
    Topology,
)

PARTITIONS = 6
LARGE = TopicInfo("c", topic_configs=[KeyValue("retention.ms", "1" * 30_000)])


@pytest.fixture
def lab() -> StreamsLab:
    made = StreamsLab()
    made.set_topic(SOURCE, PARTITIONS)
    return made


def joined(lab: StreamsLab, name: str = "a", process: str = "p") -> ModelThread:
    thread = ModelThread(lab, name, process)
    assert thread.step() == ErrorCode.NONE
    lab.beat_threads([thread], 3)
    return thread


def first(**fields: Any) -> dict[str, Any]:
    """Returns the fields of a valid first heartbeat."""
    return {
        "member_epoch": 0,
        "rebalance_timeout_ms": REBALANCE_MS,
        "topology": stateful(),
        "active_tasks": [],
        "standby_tasks": [],
        "warmup_tasks": [],
        "process_id": "p",
    } | fields


def commit(lab: StreamsLab, member_id: str, epoch: int, partition: int, version: int = 9) -> int:
    topics = [OffsetCommitRequestTopic(SOURCE, partitions=[OffsetCommitRequestPartition(partition, 1)])]
    request = OffsetCommitRequest(APPLICATION, epoch, member_id, topics=topics)
    code: int = lab.ask(ApiKey.OFFSET_COMMIT, version, request).topics[0].partitions[0].error_code
    return code


# -- topologies and internal topics


def test_a_member_gets_its_tasks_when_the_internal_topics_exist(lab: StreamsLab) -> None:
    lab.creates_topics = False
    thread = ModelThread(lab, "a", "p")
    thread.step()
    assert thread.statuses == [StreamsStatus.MISSING_INTERNAL_TOPICS]
    assert lab.streams_group().state is ModernState.NOT_READY
    (wanted,) = lab.asked[0].topics
    assert (wanted.name, wanted.num_partitions, wanted.replication_factor) == (CHANGELOG, PARTITIONS, -1)
    thread.step()
    assert len(lab.asked) == 2
    lab.create_topics()
    thread.step()
    assert thread.statuses == []
    thread.step()
    assert thread.partitions() == set(range(PARTITIONS))
    assert lab.streams_group().state is ModernState.STABLE
    assert len(lab.asked) == 2


def test_an_answer_asks_for_a_part_of_many_missing_topics(
    lab: StreamsLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams_groups, "MAX_CREATIONS", 2)
    changelogs = [TopicInfo(f"c{number}") for number in range(5)]
    thread = ModelThread(
        lab, "a", "p", Topology(0, [Subtopology("0", [SOURCE], state_changelog_topics=changelogs)])
    )
    lab.beat_threads([thread], 6)
    assert [[topic.name for topic in asked.topics] for asked in lab.asked] == [
        ["c0", "c1"],
        ["c2", "c3"],
        ["c4"],
    ]
    assert thread.partitions() == set(range(PARTITIONS))


def test_missing_and_wrongly_partitioned_topics_are_statuses(lab: StreamsLab) -> None:
    thread = ModelThread(lab, "a", "p", stateful(source="absent"))
    thread.step()
    assert thread.statuses == [StreamsStatus.MISSING_SOURCE_TOPICS]
    lab.set_topic("absent", 2)
    lab.set_topic(CHANGELOG, 3)
    thread.step()
    assert thread.statuses == [StreamsStatus.INCORRECTLY_PARTITIONED_TOPICS]
    assert lab.streams_group().state is ModernState.NOT_READY


def test_tasks_are_lost_while_a_source_topic_is_deleted(lab: StreamsLab) -> None:
    thread = joined(lab)
    lab.delete_topic(SOURCE)
    lab.beat_threads([thread], 2)
    assert thread.statuses == [StreamsStatus.MISSING_SOURCE_TOPICS]
    assert thread.partitions() == set()
    lab.set_topic(SOURCE, PARTITIONS)
    lab.beat_threads([thread], 3)
    assert thread.partitions() == set(range(PARTITIONS))


def test_another_topology_of_the_same_or_a_later_epoch_is_refused(lab: StreamsLab) -> None:
    joined(lab)
    other = Topology(0, [Subtopology("0", [SOURCE])])
    for topology in (other, Topology(1, other.subtopologies)):
        refused = lab.beat_streams(**first(member_id="b", topology=topology))
        assert (refused.error_code, refused.error_message) == (
            ErrorCode.INVALID_REQUEST,
            "Topology updates are not supported yet.",
        )
    assert lab.streams_group().members.keys() == {"a"}


def test_a_member_with_an_older_topology_is_told() -> None:
    lab = StreamsLab()
    lab.set_topic(SOURCE, PARTITIONS)
    ModelThread(lab, "a", "p", stateful(2)).step()
    behind = ModelThread(lab, "b", "p", stateful(1))
    behind.step()
    assert StreamsStatus.STALE_TOPOLOGY in behind.statuses
    assert lab.streams_group().topology is not None and lab.streams_group().topology.epoch == 2


def test_a_topology_with_too_many_tasks_is_refused(lab: StreamsLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_groups, "MAX_TASKS", PARTITIONS - 1)
    assert lab.beat_streams(**first()).error_code == ErrorCode.STREAMS_INVALID_TOPOLOGY
    assert APPLICATION not in lab.core.groups.by_id


def test_a_topology_whose_tasks_read_too_many_topics_is_refused(
    lab: StreamsLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.set_topic("other", PARTITIONS)
    topology = Topology(0, [Subtopology("0", [SOURCE, "other"])])
    monkeypatch.setattr(streams_groups, "MAX_TASK_TOPICS", 2 * PARTITIONS - 1)
    refused = lab.beat_streams(**first(topology=topology))
    assert (refused.error_code, refused.error_message) == (
        ErrorCode.STREAMS_INVALID_TOPOLOGY,
        "The topology has 12 topics of tasks, and a group may have 11 topics of tasks.",
    )
    monkeypatch.setattr(streams_groups, "MAX_TASK_TOPICS", 2 * PARTITIONS)
    assert lab.beat_streams(**first(topology=topology)).error_code == ErrorCode.NONE


@pytest.mark.parametrize(("subtopologies", "partitions"), [(1, streams_groups.MAX_TASKS), (1_333, 1)])
def test_one_member_can_confirm_as_many_tasks_as_a_topology_may_have(
    lab: StreamsLab, subtopologies: int, partitions: int
) -> None:
    def topology(count: int) -> Topology:
        return Topology(0, [Subtopology(str(number), ["large"]) for number in range(count)])

    lab.set_topic("large", partitions)
    refused = lab.beat_streams(**first(topology=topology(subtopologies + 1)))
    assert refused.error_code == ErrorCode.STREAMS_INVALID_TOPOLOGY
    thread = ModelThread(lab, "a", "p", topology(subtopologies))
    lab.beat_threads([thread], 6)
    assert len(thread.owned["active"]) == subtopologies * partitions
    tasks: dict[str, list[int]] = {}
    for name, partition in thread.owned["active"]:
        tasks.setdefault(name, []).append(partition)
    confirmation = StreamsGroupHeartbeatRequest(
        APPLICATION,
        "a",
        thread.epoch,
        active_tasks=[TaskIds(name, found) for name, found in tasks.items()],
        standby_tasks=[],
        warmup_tasks=[],
    )
    body = b"".join(map(bytes, codec.request_encoder(ApiKey.STREAMS_GROUP_HEARTBEAT, 0)(confirmation)))
    codec.request_decoder(ApiKey.STREAMS_GROUP_HEARTBEAT, 0)(body, 0)


# -- requests


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"instance_id": "i"}, "Static membership is not yet supported."),
        ({"task_offsets": [TaskOffset("0", 0, 1)]}, "TaskOffsets are not supported yet."),
        ({"task_end_offsets": []}, "TaskEndOffsets are not supported yet."),
        ({"warmup_tasks": [TaskIds("0", [0])]}, "WarmupTasks are not supported yet."),
        ({"member_id": " "}, "MemberId can't be empty."),
        ({"group_id": ""}, "GroupId can't be empty."),
        ({"rack_id": ""}, "RackId can't be empty."),
        ({"rebalance_timeout_ms": -1}, "RebalanceTimeoutMs must be provided in first request."),
        ({"active_tasks": [TaskIds("0", [0])]}, "ActiveTasks must be empty when (re-)joining."),
        ({"standby_tasks": None}, "StandbyTasks must be empty when (re-)joining."),
        ({"topology": None}, "Topology must be non-null when (re-)joining."),
        (
            {"client_tags": [KeyValue(str(number), "v" * 30_000) for number in range(3)]},
            "The metadata of a member takes more than 65536 bytes, which is the limit.",
        ),
        (
            {"client_tags": [KeyValue(str(number), "\u00fc" * 15_000) for number in range(3)]},
            "The metadata of a member takes 90053 bytes, and 65536 bytes are allowed.",
        ),
        (
            {"user_endpoint": Endpoint("h" * 256, 1)},
            "UserEndpoint.Host has more than 255 characters.",
        ),
        ({"member_epoch": -2}, "InstanceId can't be null."),
        ({"member_epoch": -3}, "MemberEpoch is -3, but must be greater than or equal to -2."),
        ({"member_epoch": 1}, "Topology can only be provided when (re-)joining."),
        (
            {"member_epoch": 1, "topology": None, "active_tasks": None},
            "If one task-type is non-null, all must be non-null.",
        ),
    ],
)
def test_an_invalid_heartbeat_is_refused(lab: StreamsLab, fields: dict[str, Any], message: str) -> None:
    answer = lab.beat_streams(**first(**fields))
    assert (answer.error_code, answer.error_message) == (ErrorCode.INVALID_REQUEST, message)
    assert APPLICATION not in lab.core.groups.by_id


LONG = "s" * 30_000


@pytest.mark.parametrize(
    "fields",
    [
        {"client_tags": [KeyValue(f"{number}{LONG}", LONG) for number in range(2_000)]},
        {"topology": Topology(0, [Subtopology("0", [f"{number}{LONG}" for number in range(4_000)])])},
        {"topology": Topology(0, [Subtopology("0", repartition_sink_topics=[LONG] * 4_000)])},
        {"topology": Topology(0, [Subtopology("0", source_topic_regex=[LONG] * 4_000)])},
        {"topology": Topology(0, [Subtopology(f"{number}{LONG}") for number in range(4_000)])},
        {"topology": Topology(0, [Subtopology("0", state_changelog_topics=[LARGE] * 2_000)])},
        {"topology": Topology(0, [Subtopology("0", repartition_source_topics=[LARGE] * 2_000)])},
        {
            "member_epoch": 1,
            "topology": None,
            "active_tasks": [TaskIds(f"{number}{LONG}", [0]) for number in range(2_000)],
        },
        {
            "member_epoch": 1,
            "topology": None,
            "standby_tasks": [TaskIds(f"{number}{LONG}", [0]) for number in range(2_000)],
        },
    ],
)
def test_a_heartbeat_with_too_many_bytes_is_refused_by_the_lengths_of_its_texts(
    lab: StreamsLab, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hashing and encoding 67 MB took 164 ms of the coordinator's loop."""

    def builds(*_: object) -> Any:
        raise AssertionError("a structure is built from the texts")

    for name in ("topology_of_request", "record_of", "check_member", "from_message", "_with_request"):
        monkeypatch.setattr(streams_groups, name, builds)
    assert lab.beat_streams(**first(**fields)).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("topology", "code"),
    [
        (
            Topology(0, [Subtopology("0", [SOURCE], source_topic_regex=["s.*"])]),
            ErrorCode.INVALID_REQUEST,
        ),
        (Topology(0, [Subtopology("0", ["__consumer_offsets"])]), ErrorCode.STREAMS_INVALID_TOPOLOGY),
        (Topology(0, [Subtopology("0", ["a/b"])]), ErrorCode.STREAMS_INVALID_TOPOLOGY),
        (Topology(0, [Subtopology("0" * 101, [SOURCE])]), ErrorCode.STREAMS_INVALID_TOPOLOGY),
        (
            Topology(
                0,
                [Subtopology(str(number), [SOURCE], state_changelog_topics=[LARGE]) for number in range(20)],
            ),
            ErrorCode.INVALID_REQUEST,
        ),
        (
            Topology(0, [Subtopology("0", [SOURCE], state_changelog_topics=[TopicInfo("c", 3)])]),
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
        ),
    ],
)
def test_an_invalid_topology_is_refused(lab: StreamsLab, topology: Topology, code: ErrorCode) -> None:
    assert lab.beat_streams(**first(topology=topology)).error_code == code
    assert APPLICATION not in lab.core.groups.by_id


def test_tasks_that_the_topology_does_not_have_are_refused(lab: StreamsLab) -> None:
    thread = joined(lab)
    for tasks in ([TaskIds("1", [0])], [TaskIds("0", [PARTITIONS])], [TaskIds("0", [-1])]):
        assert thread.step(active_tasks=tasks, standby_tasks=[], warmup_tasks=[]) == ErrorCode.INVALID_REQUEST


# -- epochs and reconciliation


def test_a_second_process_gets_half_of_the_tasks_after_the_first_gave_them_up(lab: StreamsLab) -> None:
    one = joined(lab)
    two = ModelThread(lab, "b", "q")
    two.step()
    assert two.assigned is not None and not two.assigned["active"]
    assert lab.streams_group().members["b"].state is MemberState.UNRELEASED
    one.step()
    assert lab.streams_group().members["a"].state is MemberState.UNREVOKED
    two.step()
    assert not two.partitions()
    assert lab.streams_group().task_counts() == (PARTITIONS, 0, 0, PARTITIONS)
    lab.beat_threads([one, two], 2)
    assert len(one.partitions()) == len(two.partitions()) == PARTITIONS // 2
    assert one.partitions().isdisjoint(two.partitions())
    assert lab.streams_group().state is ModernState.STABLE


def test_the_previous_epoch_is_valid_and_others_are_fenced(lab: StreamsLab) -> None:
    one = joined(lab)
    before = one.epoch
    two = joined(lab, "b", "q")
    lab.beat_threads([one, two], 4)
    assert one.epoch > before
    tasks = {"active_tasks": one.message("active"), "standby_tasks": [], "warmup_tasks": []}
    assert lab.beat_streams(member_epoch=before, **tasks).error_code == ErrorCode.NONE
    assert lab.beat_streams(member_epoch=before).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    everything = tasks | {"active_tasks": [TaskIds("0", list(range(PARTITIONS)))]}
    assert lab.beat_streams(member_epoch=before, **everything).error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_a_member_that_missed_a_response_gets_its_tasks_again(lab: StreamsLab) -> None:
    thread = ModelThread(lab, "a", "p")
    thread.step()
    thread.step(loses_answer=True)
    assert lab.streams_group().members["a"].owned.active
    lab.beat_threads([thread], 2)
    assert thread.partitions() == set(range(PARTITIONS))


def test_a_member_that_does_not_give_up_its_tasks_is_removed(lab: StreamsLab) -> None:
    one = joined(lab)
    two = joined(lab, "b", "q")
    one.step()
    for _ in range(REBALANCE_MS // 5_000 + 1):
        lab.pass_time(5_000)
        one.step(active_tasks=None, standby_tasks=None, warmup_tasks=None)
        two.step()
    assert one.epoch == 0
    lab.beat_threads([two], 3)
    assert two.partitions() == set(range(PARTITIONS))


def test_standby_tasks_follow_the_setting_of_the_group(lab: StreamsLab) -> None:
    threads = [joined(lab, "a", "p"), joined(lab, "b", "q")]
    lab.beat_threads(threads)
    assert not any(thread.partitions("standby") for thread in threads)
    lab.overrides = {"streams.num.standby.replicas": "1"}
    lab.beat_threads(threads)
    for thread in threads:
        assert thread.partitions("standby") == set(range(PARTITIONS)) - thread.partitions()
    assert lab.streams_group().task_counts() == (PARTITIONS, PARTITIONS, 0, PARTITIONS)


def test_a_task_stays_in_one_role_in_each_process(lab: StreamsLab) -> None:
    lab.overrides = {"streams.num.standby.replicas": "1"}
    threads = [joined(lab, "a", "p"), joined(lab, "b", "q")]
    lab.beat_threads(threads)
    threads[0].leave()
    lab.beat_threads(threads[1:])
    assert threads[1].partitions() == set(range(PARTITIONS))
    assert threads[1].partitions("standby") == set()


# -- delays


def test_the_first_assignment_waits_for_more_members() -> None:
    lab = StreamsLab(**{"group.streams.initial.rebalance.delay.ms": "3000"})
    lab.set_topic(SOURCE, PARTITIONS)
    threads = [ModelThread(lab, name, name) for name in "ab"]
    for thread in threads:
        thread.step()
        assert StreamsStatus.ASSIGNMENT_DELAYED in thread.statuses
        assert thread.epoch == 1
    lab.pass_time(3_000)
    for _ in range(2):
        for thread in threads:
            thread.step()
            assert not thread.statuses
    assert [len(thread.partitions()) for thread in threads] == [3, 3]


def test_assignments_keep_their_interval() -> None:
    lab = StreamsLab(**{"group.streams.assignment.interval.ms": "5000"})
    lab.set_topic(SOURCE, PARTITIONS)
    one = joined(lab)
    two = ModelThread(lab, "b", "q")
    two.step()
    assert two.statuses == [StreamsStatus.ASSIGNMENT_DELAYED]
    lab.pass_time(5_000)
    lab.beat_threads([one, two], 4)
    assert len(two.partitions()) == PARTITIONS // 2


def test_a_wall_clock_that_is_set_back_delays_no_assignment() -> None:
    lab = StreamsLab(**{"group.streams.assignment.interval.ms": "5000"})
    lab.set_topic(SOURCE, PARTITIONS)
    joined(lab)
    lab.now_ms -= 3_600_000
    two = ModelThread(lab, "b", "q")
    two.step()
    assert two.statuses == []


def test_a_long_computation_continues_by_a_timer(lab: StreamsLab) -> None:
    lab.set_topic("large", 3_000)
    thread = ModelThread(lab, "a", "p", Topology(0, [Subtopology("0", ["large"])]))
    thread.step()
    assert thread.statuses == [StreamsStatus.ASSIGNMENT_DELAYED]
    assert lab.streams_group().state is ModernState.ASSIGNING
    lab.pass_time(1)
    lab.beat_threads([thread], 2)
    assert len(thread.partitions()) == 3_000


def test_members_that_come_and_go_during_a_long_computation(lab: StreamsLab) -> None:
    lab.set_topic("large", 3_000)
    topology = Topology(0, [Subtopology("0", ["large"])])
    one, two, three = (ModelThread(lab, name, name, topology) for name in "abc")
    one.step()
    two.step()
    one.leave()
    three.step()
    lab.beat_threads([two, three], 8)
    assert len(two.partitions()) == len(three.partitions()) == 1_500


# -- shutdown and endpoints


def test_a_shutdown_reaches_all_members_until_the_group_is_empty(lab: StreamsLab) -> None:
    one, two = joined(lab, "a"), joined(lab, "b")
    one.leave(shutdown_application=True)
    two.step()
    assert two.statuses == [StreamsStatus.SHUTDOWN_APPLICATION]
    two.leave()
    assert StreamsStatus.SHUTDOWN_APPLICATION not in joined(lab, "c").statuses


def test_a_client_that_is_no_member_cannot_ask_for_a_shutdown(lab: StreamsLab) -> None:
    one = joined(lab, "a")
    stranger = ModelThread(lab, "nobody", "p")
    assert stranger.leave(shutdown_application=True) == ErrorCode.UNKNOWN_MEMBER_ID
    one.step()
    assert one.statuses == []
    one.leave()
    assert stranger.leave(shutdown_application=True) == ErrorCode.UNKNOWN_MEMBER_ID
    next_one = ModelThread(lab, "b", "p")
    next_one.step()
    assert StreamsStatus.SHUTDOWN_APPLICATION not in next_one.statuses


def test_an_answer_leaves_out_endpoints_beyond_its_size(
    lab: StreamsLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = [ModelThread(lab, name, name, endpoint=(f"host-{name}", 1)) for name in "abcd"]
    lab.beat_threads(threads)
    size_bytes = 4 * len("host-a" + SOURCE) + 4 * PARTITIONS
    monkeypatch.setattr(streams_groups, "MAX_ENDPOINTS_BYTES", size_bytes - 1)
    answer = lab.beat_streams(member_id="d", member_epoch=threads[3].epoch, endpoint_information_epoch=-1)
    assert answer.partitions_by_user_endpoint is not None
    named = [each.user_endpoint.host for each in answer.partitions_by_user_endpoint]
    assert named == ["host-a", "host-b", "host-d"]


def test_members_learn_the_partitions_behind_each_endpoint(lab: StreamsLab) -> None:
    one = ModelThread(lab, "a", "p", endpoint=("host-a", 1))
    two = ModelThread(lab, "b", "q", endpoint=("host-b", 2))
    lab.beat_threads([one, two])
    known = lab.beat_streams(member_id="a", member_epoch=one.epoch, endpoint_information_epoch=-1)
    assert known.partitions_by_user_endpoint is not None
    found = {
        (each.user_endpoint.host, each.user_endpoint.port): {
            (topic.topic, partition) for topic in each.active_partitions for partition in topic.partitions
        }
        for each in known.partitions_by_user_endpoint
    }
    assert found == {
        ("host-a", 1): {(SOURCE, partition) for partition in one.partitions()},
        ("host-b", 2): {(SOURCE, partition) for partition in two.partitions()},
    }
    one.step()
    assert one.answer.partitions_by_user_endpoint is None


# -- the other APIs


def test_descriptions_and_lists(lab: StreamsLab) -> None:
    thread = ModelThread(lab, "a", "p", endpoint=("h", 1))
    thread.step(client_tags=[KeyValue("zone", "z")], rack_id="r")
    lab.beat_threads([thread])
    found = lab.describe_streams()
    assert (found.group_state, found.group_epoch) == ("Stable", found.assignment_epoch)
    assert found.topology is not None and found.topology.subtopologies is not None
    assert found.topology.subtopologies[0].state_changelog_topics[0].partitions == PARTITIONS
    (member,) = found.members
    assert (member.member_id, member.process_id, member.rack_id) == ("a", "p", "r")
    assert member.user_endpoint is not None and member.user_endpoint.host == "h"
    assert member.assignment.active_tasks[0].partitions == list(range(PARTITIONS))
    assert member.assignment == member.target_assignment
    (listed,) = lab.ask(ApiKey.LIST_GROUPS, 5, ListGroupsRequest(types_filter=["Streams"])).groups
    assert (listed.group_id, listed.protocol_type, listed.group_type) == (APPLICATION, "streams", "streams")


def test_a_group_is_deleted_only_without_members(lab: StreamsLab) -> None:
    thread = joined(lab)
    request = DeleteGroupsRequest([APPLICATION])
    assert lab.ask(ApiKey.DELETE_GROUPS, 2, request).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    thread.leave()
    assert lab.describe_streams().group_state == "Empty"
    assert lab.ask(ApiKey.DELETE_GROUPS, 2, request).results[0].error_code == ErrorCode.NONE
    assert lab.describe_streams().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert APPLICATION not in lab.reloaded().groups.by_id


def test_only_members_commit_and_only_in_their_epoch(lab: StreamsLab) -> None:
    one = joined(lab)
    before = one.epoch
    assert commit(lab, "a", one.epoch, 0) == ErrorCode.NONE
    assert commit(lab, "a", one.epoch, 0, version=8) == ErrorCode.UNSUPPORTED_VERSION
    assert commit(lab, "a", one.epoch + 1, 0) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit(lab, "x", one.epoch, 0) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(lab, "", -1, 0) == ErrorCode.UNKNOWN_MEMBER_ID
    two = joined(lab, "b", "q")
    lab.beat_threads([one, two], 4)
    kept, given_up = min(one.partitions()), min(two.partitions())
    assert one.epoch > before
    assert commit(lab, "a", before, kept) == ErrorCode.NONE
    assert commit(lab, "a", before, given_up) == ErrorCode.STALE_MEMBER_EPOCH
    one.leave()
    two.leave()
    assert commit(lab, "", -1, 0) == ErrorCode.NONE


def test_a_classic_group_without_members_becomes_a_streams_group_and_back(lab: StreamsLab) -> None:
    assert commit(lab, "", -1, 0) == ErrorCode.NONE
    thread = joined(lab)
    refused = lab.answers[lab.join(group=APPLICATION)]
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    thread.leave()
    assert lab.answers[lab.join(group=APPLICATION)].error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert lab.beat_streams(member_epoch=3).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_the_offsets_of_an_application_expire_only_while_it_is_away(lab: StreamsLab) -> None:
    thread = joined(lab)
    group = lab.streams_group()
    assert group.offsets_expire_from(SOURCE, lab.now_ms) is None
    assert group.offsets_expire_from(CHANGELOG, lab.now_ms) == lab.now_ms
    thread.leave()
    assert group.offsets_expire_from(SOURCE, lab.now_ms) == lab.now_ms


def test_the_topology_is_not_read_for_each_offset(lab: StreamsLab, monkeypatch: pytest.MonkeyPatch) -> None:
    joined(lab)
    group = lab.streams_group()
    monkeypatch.delattr(KnownSubtopology, "read_topics")
    assert group.is_subscribed_to(SOURCE)
    assert not group.is_subscribed_to(CHANGELOG)


# -- histories


def state_of(lab: StreamsLab) -> object:
    group = lab.streams_group()
    return (
        group.epoch,
        group.assignment_epoch,
        group.validated_topology_epoch,
        group.topology,
        group.members,
        {name: target for name, target in group.targets.items() if name in group.members},
    )


@pytest.mark.parametrize("seed", range(20))
def test_random_histories_end_with_every_task_in_one_place(seed: int) -> None:
    chance = random.Random(seed)
    standbys = chance.randrange(3)
    lab = StreamsLab(
        **{
            "group.streams.num.standby.replicas": str(standbys),
            "group.streams.assignment.interval.ms": chance.choice(["0", "2000"]),
            "group.streams.initial.rebalance.delay.ms": chance.choice(["0", "3000"]),
        }
    )
    lab.set_topic(SOURCE, PARTITIONS)
    lab.creates_topics = chance.random() < 0.5
    threads: dict[str, ModelThread] = {}
    for number in range(120):
        chosen = chance.random()
        thread = chance.choice(list(threads.values())) if threads else None
        if thread is None or (chosen < 0.1 and len(threads) < 6):
            threads[f"m{number}"] = ModelThread(lab, f"m{number}", f"p{chance.randrange(3)}")
        elif chosen < 0.13:
            thread.leave()
            del threads[thread.member_id]
        elif chosen < 0.16:  # it dies; others that are silent as long are removed, too
            del threads[thread.member_id]
            lab.pass_time(45_000)
        elif chosen < 0.2:
            lab.fail_over()
        elif chosen < 0.23:
            lab.create_topics()
        else:
            thread.step(loses_answer=chance.random() < 0.1)
            lab.pass_time(chance.randrange(3_000))
        members = lab.streams_group().members if APPLICATION in lab.core.groups.by_id else {}
        check_owners([thread for name, thread in threads.items() if name in members])
    lab.creates_topics = True
    lab.create_topics()
    if not threads:
        threads["last"] = ModelThread(lab, "last", "p0")
    lab.beat_threads(list(threads.values()), 90)
    owners = Counter(task for thread in threads.values() for task in thread.owned["active"])
    assert owners == {("0", partition): 1 for partition in range(PARTITIONS)}
    processes = len({thread.process_id for thread in threads.values()})
    copies = Counter(task for thread in threads.values() for task in thread.owned["standby"])
    expected = min(standbys, processes - 1)
    assert copies == ({("0", partition): expected for partition in range(PARTITIONS)} if expected else {})
    assert lab.streams_group().state is ModernState.STABLE
    before = state_of(lab)
    lab.core = lab.reloaded()
    assert state_of(lab) == before


def check_owners(threads: list[ModelThread]) -> None:
    """No task is active twice, and no process has a task in two roles. Threads that were removed do not
    count: they have not learned yet that they must give up their tasks.
    """
    active = Counter(task for thread in threads for task in thread.owned["active"])
    assert all(count == 1 for count in active.values()), active
    in_process = Counter(
        (thread.process_id, task) for thread in threads for role in thread.owned.values() for task in role
    )
    assert all(count == 1 for count in in_process.values()), in_process
