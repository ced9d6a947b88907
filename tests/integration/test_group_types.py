"""`tidelog group`, `top` and `doctor` with a share group and a streams group, on a broker in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from brokerlab.command_line import InProcessTools
from grouplab.mixed_groups import (
    CLASSIC,
    RECORDS,
    SHARE,
    STREAMS,
    TOPIC,
    StreamsThread,
    create_groups,
    share_member,
)
from tidelog.client.admin.groups import CommittedOffset, commit_offsets
from tidelog.client.cluster import Cluster as Client
from tidelog.model.topics import TopicPartition
from tidelog.testing import Cluster

pytestmark = pytest.mark.integration


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster with the groups of `create_groups`."""
    with Cluster() as cluster:
        create_groups(cluster)
        yield cluster


@pytest.fixture
def bootstrap(cluster: Cluster) -> str:
    return cluster.bootstrap


@pytest.fixture
def tools(bootstrap: str) -> InProcessTools:
    return InProcessTools(bootstrap)


def test_groups_of_each_type_are_listed_and_described(bootstrap: str, tools: InProcessTools) -> None:
    with StreamsThread(bootstrap), share_member(bootstrap):
        for kind, group in (("share", SHARE), ("streams", STREAMS), ("classic", CLASSIC)):
            listed = tools.document("group", "list", "--type", kind)
            assert [(row["group"], row["type"]) for row in listed] == [(group, kind)]
        described = tools.document("group", "describe", "--all-groups")
        assert [(group["group"], group["type"]) for group in described] == [
            (STREAMS, "streams"),
            (CLASSIC, "classic"),
            (SHARE, "share"),
        ]
        assert [group["member_count"] for group in described] == [1, 0, 1]


def test_a_consumer_that_joins_a_share_group_is_told_that_it_has_another_type(tools: InProcessTools) -> None:
    """The coordinator spoke of the upgrade of a classic group."""
    result = tools.run("consume", TOPIC, "--group", SHARE, "--timeout-ms", "1000")
    assert result.exit_code == 1
    assert f"Group {SHARE} has another type than a group of consumers; 'tidelog group list'" in result.stderr


def test_a_share_group_shows_start_offsets_lag_and_members(bootstrap: str, tools: InProcessTools) -> None:
    (empty,) = tools.document("group", "describe", SHARE)
    assert (empty["type"], empty["state"], empty["member_count"]) == ("share", "Empty", 0)
    assert (empty["total_lag"], "total_stable_lag" in empty) == (2, False)
    assert empty["partitions"] == [
        {"topic": TOPIC, "partition": 0, "start_offset": 3, "lag": 2, "member_count": 0},
        {"topic": TOPIC, "partition": 1, "start_offset": 0, "lag": 0, "member_count": 0},
    ]
    with share_member(bootstrap):
        (group,) = tools.document("group", "describe", SHARE)
        assert (group["state"], group["assignor"]) == ("Stable", "simple")
        assert [row["member_count"] for row in group["partitions"]] == [1, 1]
        (members,) = tools.document("group", "describe", SHARE, "--members")
        (member,) = members["members"]
        assert (member["client"], member["partitions"]) == ("worker", 2)
        assert member["assignment"] == [{"topic": TOPIC, "partition": at} for at in (0, 1)]
        lines = tools.run("group", "describe", SHARE).stdout.splitlines()
        assert lines[1].split("\t") == ["topic", "partition", "start offset", "lag", "members"]
        assert lines[2].split("\t") == [TOPIC, "0", "3", "2", "1"]


def test_a_streams_group_shows_offsets_lag_and_tasks(bootstrap: str, tools: InProcessTools) -> None:
    place = TopicPartition(TOPIC, 0)
    with Client(bootstrap) as client:
        commit_offsets(client, "copier", {place: CommittedOffset(2)})
    with StreamsThread(bootstrap) as thread:
        thread.commit({place: 1})
        (group,) = tools.document("group", "describe", STREAMS)
        (classic,) = tools.document("group", "describe", "copier")
        first, second = group["partitions"]
        assert first.keys() == classic["partitions"][0].keys()
        assert (first["committed"], first["log_end"], first["lag"]) == (1, RECORDS, 4)
        assert (second["committed"], second["lag"]) == (None, None)
        assert [row["member"] for row in (first, second)] == ["thread-1", "thread-1"]
        (members,) = tools.document("group", "describe", STREAMS, "--members")
        (member,) = members["members"]
        assert member["assignment"] == [{"topic": TOPIC, "partition": at} for at in (0, 1)]
        assert member["active_tasks"] == [{"subtopology": "0", "partition": at} for at in (0, 1)]
        assert (member["standby_tasks"], member["warmup_tasks"]) == ([], [])
        line = tools.run("group", "describe", STREAMS, "--members").stdout.splitlines()[2]
        assert line.split("\t")[5:] == [f"{TOPIC}-0 {TOPIC}-1", "0_0 0_1", "", ""]


def new_offsets(tools: InProcessTools, *arguments: str) -> list[tuple[int, int | None, int]]:
    """Returns the partition, the offset before and the new one of each row."""
    found = tools.document("group", "reset-offsets", SHARE, *arguments)
    return [(row["partition"], row["committed"], row["new_offset"]) for row in found["offsets"]]


def start_offsets(tools: InProcessTools) -> list[int | None]:
    (group,) = tools.document("group", "describe", SHARE)
    return [row["start_offset"] for row in group["partitions"]]


def test_the_start_offsets_of_a_share_group_are_reset(bootstrap: str, tools: InProcessTools) -> None:
    to_earliest = ("--topic", TOPIC, "--to-earliest")
    assert new_offsets(tools, *to_earliest) == [(0, 3, 0), (1, 0, 0)]
    assert start_offsets(tools) == [3, 0]
    assert new_offsets(tools, *to_earliest, "--execute") == [(0, 3, 0), (1, 0, 0)]
    assert start_offsets(tools) == [0, 0]
    assert new_offsets(tools, "--topic", f"{TOPIC}:0", "--to-latest", "--execute") == [(0, 0, RECORDS)]
    assert start_offsets(tools) == [RECORDS, 0]
    since = ("--all-topics", "--to-datetime", "2020-01-31T08:00:00.000", "--execute")
    assert new_offsets(tools, *since) == [(0, RECORDS, 0), (1, 0, 0)]
    assert start_offsets(tools) == [0, 0]
    with share_member(bootstrap, records=3):  # the members begin at the new offset
        refused = tools.run("group", "reset-offsets", SHARE, *to_earliest, "--execute")
        assert refused.exit_code == 1
        assert refused.stderr.startswith(
            "tidelog: offsets can be reset only while a group has no members: group 'tasks' is Stable"
        )
    assert start_offsets(tools) == [3, 0]


def test_a_reset_of_all_groups_leaves_share_groups_alone(tools: InProcessTools) -> None:
    found = tools.document(
        "group", "reset-offsets", "--all-groups", "--all-topics", "--to-latest", "--execute"
    )
    assert [row["group"] for row in found["offsets"]] == [CLASSIC]
    assert start_offsets(tools) == [3, 0]


def test_the_start_offsets_of_a_topic_are_deleted(bootstrap: str, tools: InProcessTools) -> None:
    delete = ("group", "delete-offsets", SHARE)
    refused = tools.run(*delete, "--topic", f"{TOPIC}:1")
    assert refused.exit_code == 1
    assert refused.stderr == (
        f"tidelog: offsets of share group '{SHARE}' can be deleted only for a whole topic; "
        f"give --topic {TOPIC}\n"
    )
    with share_member(bootstrap):
        busy = tools.run(*delete, "--topic", TOPIC)
        assert busy.stderr.startswith(f"tidelog: group '{SHARE}' has members; stop its members first")
    absent = tools.run(*delete, "--topic", "weather")
    assert absent.stderr == (
        f"tidelog: share group '{SHARE}' has no offsets of topic 'weather'; "
        "'tidelog group describe' shows its topics\n"
    )
    assert start_offsets(tools) == [3, 0]
    deleted = tools.document(*delete, "--topic", TOPIC)
    assert deleted["partitions"] == [
        {"group": SHARE, "topic": TOPIC, "partition": at, "status": "deleted"} for at in (0, 1)
    ]
    assert start_offsets(tools) == []


def test_groups_of_each_type_are_deleted(bootstrap: str, tools: InProcessTools) -> None:
    with StreamsThread(bootstrap) as thread, share_member(bootstrap):
        thread.commit({TopicPartition(TOPIC, 0): 1})
        for group in (SHARE, STREAMS):
            refused = tools.run("group", "delete", group)
            assert refused.exit_code == 1
            assert refused.stderr.startswith(f"tidelog: group '{group}' has members; stop its members first")
    for group in (SHARE, STREAMS):
        assert tools.document("group", "delete", group)[0]["group"] == group
        gone = tools.run("group", "describe", group)
        assert gone.stderr == (
            f"tidelog: group '{group}' does not exist; 'tidelog group list' shows the existing groups\n"
        )
    assert [row["group"] for row in tools.document("group", "list")] == [CLASSIC]


def test_the_offsets_of_a_streams_group_are_reset_and_deleted(bootstrap: str, tools: InProcessTools) -> None:
    place = TopicPartition(TOPIC, 0)
    with StreamsThread(bootstrap) as thread:
        thread.commit({place: 1})
    reset = ("group", "reset-offsets", STREAMS, "--all-topics", "--to-latest", "--execute")
    (row,) = tools.document(*reset)["offsets"]
    assert (row["committed"], row["new_offset"]) == (1, RECORDS)
    (group,) = tools.document("group", "describe", STREAMS)
    assert (group["type"], [row["committed"] for row in group["partitions"]]) == ("streams", [RECORDS])
    (deleted,) = tools.document("group", "delete-offsets", STREAMS, "--topic", f"{TOPIC}:0")["partitions"]
    assert deleted["status"] == "deleted"


def test_the_view_of_the_cluster_has_groups_of_each_type(bootstrap: str, tools: InProcessTools) -> None:
    with StreamsThread(bootstrap) as thread, share_member(bootstrap):
        thread.commit({TopicPartition(TOPIC, 0): 2})
        (seen,) = tools.document("top", "--once", "--interval", "0.5")
        rows = [
            (row["group"], row["type"], row["state"], row["partitions"], row["lag"]) for row in seen["groups"]
        ]
    assert rows == [
        (CLASSIC, "classic", "Empty", 1, 4),
        (STREAMS, "streams", "Stable", 1, 3),
        (SHARE, "share", "Stable", 2, 2),
    ]


def test_the_doctor_examines_groups_of_each_type(cluster: Cluster, tools: InProcessTools) -> None:
    def findings() -> list[str]:
        report = json.loads(tools.run("doctor", "--format", "json").stdout)
        return [each["finding"] for each in report["findings"] if each["check"] == "groups"]

    with StreamsThread(cluster.bootstrap) as thread, share_member(cluster.bootstrap):
        thread.commit({TopicPartition(TOPIC, 0): 2})
        assert findings() == ["no group is about to lose records to retention (3 groups)"]
    cluster.expire(TOPIC)
    lost = "records that were deleted before it read them"
    assert findings() == [
        f"streams group {STREAMS} has lost 3 {lost}: {TOPIC}-0",
        f"group {CLASSIC} has lost 4 {lost}: {TOPIC}-0",
        f"share group {SHARE} has lost up to 2 {lost}: {TOPIC}-0",
    ]
