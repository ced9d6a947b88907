#!/usr/bin/env python3
"""Prints a broker's responses to requests about share groups and about settings of groups.

    tests/grouplab/share_script.py HOST:PORT > tests/grouplab/share_answers_of_kafka.txt

records the responses of Apache Kafka 4.3. A test compares a broker's responses with them. The broker must be
new, because the script names its groups and its topic.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final  # Any: generated messages have no common base

from tidelog.client.address import parse_bootstrap
from tidelog.client.cluster import BrokerConnection
from tidelog.wire.messages import alter_share_group_offsets as altering
from tidelog.wire.messages import consumer_group_heartbeat as consuming
from tidelog.wire.messages import (
    create_topics,
    delete_groups,
    describe_configs,
    find_coordinator,
    incremental_alter_configs,
    list_config_resources,
    list_groups,
    offset_commit,
    offset_fetch,
)
from tidelog.wire.messages import delete_share_group_offsets as deleting
from tidelog.wire.messages import describe_share_group_offsets as offsets
from tidelog.wire.messages import share_group_describe as describing
from tidelog.wire.messages import share_group_heartbeat as beating

ANSWERS_OF_KAFKA: Final = Path(__file__).with_name("share_answers_of_kafka.txt")
TOPIC: Final = "script-shared"
GROUP: Final = "script-sharers"
MEMBER: Final = "11111111-1111-1111-1111-111111111111"
STRANGER: Final = "22222222-2222-2222-2222-222222222222"
GROUP_RESOURCE: Final = 32
SET, APPEND = 0, 2
DYNAMIC_GROUP_CONFIG: Final = 8
WAIT_S: Final = 0.5
ATTEMPTS: Final = 120


class Script:
    def __init__(self, bootstrap: str) -> None:
        self._address = parse_bootstrap(bootstrap)[0]

    def _call(self, request: Any, response: Any, **how: int) -> Any:
        with BrokerConnection.open(self._address) as connection:
            return connection.call(request, response, **how)

    # -- requests

    def beat(
        self, epoch: int, names: list[str] | None = None, member: str = MEMBER, **other: Any
    ) -> beating.ShareGroupHeartbeatResponse:
        group, rack = other.get("group", GROUP), other.get("rack")
        request = beating.ShareGroupHeartbeatRequest(group, member, epoch, rack, names)
        answer: beating.ShareGroupHeartbeatResponse
        answer = self._call(request, beating.ShareGroupHeartbeatResponse)
        return answer

    def describe(self, group: str) -> list[object]:
        answer = self._call(
            describing.ShareGroupDescribeRequest([group]), describing.ShareGroupDescribeResponse
        )
        (found,) = answer.groups
        members = [
            (
                m.member_id,
                m.rack_id,
                m.client_id,
                m.client_host,
                m.subscribed_topic_names,
                [(t.topic_name, sorted(t.partitions)) for t in m.assignment.topic_partitions],
            )
            for m in found.members
        ]
        return [found.error_code, found.error_message, found.group_state, found.assignor_name, members]

    def offsets(self, group: str, topics: dict[str, list[int]] | None = None) -> list[object]:
        named = topics and [
            offsets.DescribeShareGroupOffsetsRequestTopic(name, numbers) for name, numbers in topics.items()
        ]
        asked = offsets.DescribeShareGroupOffsetsRequestGroup(group, named)
        request = offsets.DescribeShareGroupOffsetsRequest([asked])
        (found,) = self._call(request, offsets.DescribeShareGroupOffsetsResponse).groups
        return [
            found.error_code,
            found.error_message,
            sorted(
                (t.topic_name, p.partition_index, p.start_offset, p.leader_epoch, p.lag, p.error_code)
                for t in found.topics
                for p in t.partitions
            ),
        ]

    def reset(self, group: str, topic: str, to: dict[int, int]) -> list[object]:
        partitions = [altering.AlterShareGroupOffsetsRequestPartition(p, at) for p, at in to.items()]
        request = altering.AlterShareGroupOffsetsRequest(
            group, [altering.AlterShareGroupOffsetsRequestTopic(topic, partitions)]
        )
        answer = self._call(request, altering.AlterShareGroupOffsetsResponse)
        results = [
            (t.topic_name, t.topic_id.int != 0, p.partition_index, p.error_code, p.error_message)
            for t in answer.responses
            for p in t.partitions
        ]
        return [answer.error_code, answer.error_message, results]

    def delete_offsets(self, group: str, topic: str) -> list[object]:
        request = deleting.DeleteShareGroupOffsetsRequest(
            group, [deleting.DeleteShareGroupOffsetsRequestTopic(topic)]
        )
        answer = self._call(request, deleting.DeleteShareGroupOffsetsResponse)
        results = [(t.topic_name, t.error_code, t.error_message) for t in answer.responses]
        return [answer.error_code, answer.error_message, results]

    def delete_groups(self, *groups: str) -> list[object]:
        answer = self._call(
            delete_groups.DeleteGroupsRequest(list(groups)), delete_groups.DeleteGroupsResponse
        )
        return sorted((found.group_id, found.error_code) for found in answer.results)

    def configs(self, group: str) -> dict[str, list[object]]:
        resource = describe_configs.DescribeConfigsResource(GROUP_RESOURCE, group, None)
        request = describe_configs.DescribeConfigsRequest([resource], True)
        (found,) = self._call(request, describe_configs.DescribeConfigsResponse).results
        if found.error_code:
            return {"error": [found.error_code, found.error_message]}
        return {
            config.name: [
                config.value,
                config.config_source,
                config.read_only,
                config.config_type,
                [(synonym.name, synonym.value, synonym.source) for synonym in config.synonyms],
            ]
            for config in found.configs
        }

    def alter(self, group: str, name: str, value: str, operation: int = SET) -> list[object]:
        change = incremental_alter_configs.AlterableConfig(name, operation, value)
        resource = incremental_alter_configs.AlterConfigsResource(GROUP_RESOURCE, group, [change])
        request = incremental_alter_configs.IncrementalAlterConfigsRequest([resource])
        (found,) = self._call(request, incremental_alter_configs.IncrementalAlterConfigsResponse).responses
        return [found.error_code, found.error_message]

    # -- the script

    def lines(self) -> Iterator[str]:
        for name, answer in self._answers():
            yield f"{name}: {answer}"

    def _answers(self) -> Iterator[tuple[str, object]]:
        self._prepare()
        yield from self._invalid_heartbeats()
        epoch = yield from self._membership()
        yield from self._busy_group(epoch)
        yield from self._empty_group()
        yield from self._settings()

    def _prepare(self) -> None:
        topic = create_topics.CreatableTopic(TOPIC, 4, 1)
        request = create_topics.CreateTopicsRequest([topic], timeout_ms=10_000)
        self._call(request, create_topics.CreateTopicsResponse)
        asked = find_coordinator.FindCoordinatorRequest(coordinator_keys=[GROUP])
        for _ in range(ATTEMPTS):
            found = self._call(asked, find_coordinator.FindCoordinatorResponse).coordinators[0]
            if not found.error_code and self.beat(7).error_code not in (14, 15, 16):
                return
            time.sleep(WAIT_S)
        raise TimeoutError(f"there is no coordinator of {GROUP}")

    def _invalid_heartbeats(self) -> Iterator[tuple[str, object]]:
        for name, answer in (
            ("empty group", self.beat(0, [TOPIC], group="")),
            ("empty rack", self.beat(0, [TOPIC], rack="")),
            ("no names", self.beat(0)),
            ("empty names", self.beat(0, [])),
            ("epoch -2", self.beat(-2, [TOPIC])),
            ("epoch of an absent group", self.beat(3, [TOPIC])),
            ("leave an absent group", self.beat(-1)),
        ):
            yield name, [answer.error_code, answer.error_message, answer.member_id, answer.member_epoch]
        yield "empty member", self.beat(0, [TOPIC], member="").error_code
        yield "describe an absent group", self.describe("absent")
        yield "offsets of an absent group", self.offsets("absent")
        yield "named offsets of an absent group", self.offsets("absent", {TOPIC: [0]})

    def _membership(self) -> Iterator[tuple[str, object]]:
        epoch = 0
        for _ in range(ATTEMPTS):
            answer = self.beat(epoch, None if epoch else [TOPIC])
            if not answer.error_code:
                epoch = answer.member_epoch
            if answer.assignment is not None and answer.assignment.topic_partitions:
                break
            time.sleep(WAIT_S)
        assert answer.assignment is not None
        assigned = sorted(p for topic in answer.assignment.topic_partitions for p in topic.partitions)
        yield "assigned", [answer.member_id, answer.heartbeat_interval_ms, assigned]
        yield "nothing changed", self.beat(epoch).assignment
        full = self.beat(epoch, [TOPIC]).assignment
        yield "a full heartbeat", full is not None and [sorted(t.partitions) for t in full.topic_partitions]
        yield "a greater epoch", self.beat(epoch + 1).error_code
        yield "a stranger", [self.beat(1, member=STRANGER).error_message]
        yield "a stranger leaves", [self.beat(-1, member=STRANGER).error_message]
        return epoch

    def _busy_group(self, epoch: int) -> Iterator[tuple[str, object]]:
        yield "describe", self.describe(GROUP)
        groups = self._call(list_groups.ListGroupsRequest(), list_groups.ListGroupsResponse).groups
        yield "list", [(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in groups]
        yield "offsets", self.offsets(GROUP)
        yield "named offsets", self.offsets(GROUP, {TOPIC: [0], "absent": [0]})
        yield "reset a busy group", self.reset(GROUP, TOPIC, {0: 5})
        yield "delete offsets of a busy group", self.delete_offsets(GROUP, TOPIC)
        yield "delete a busy group", self.delete_groups(GROUP)
        heartbeat = consuming.ConsumerGroupHeartbeatRequest(
            GROUP, "m", 0, rebalance_timeout_ms=1_000, subscribed_topic_names=[TOPIC], topic_partitions=[]
        )
        consumer = self._call(heartbeat, consuming.ConsumerGroupHeartbeatResponse)
        yield "a consumer joins", consumer.error_code
        partition = offset_commit.OffsetCommitRequestPartition(0, 1, -1, "")
        topic = offset_commit.OffsetCommitRequestTopic(TOPIC, partitions=[partition])
        commit = self._call(
            offset_commit.OffsetCommitRequest(GROUP, topics=[topic]),
            offset_commit.OffsetCommitResponse,
            at_most=9,
        )
        yield "commit", [found.error_code for committed in commit.topics for found in committed.partitions]
        asked = offset_fetch.OffsetFetchRequest(groups=[offset_fetch.OffsetFetchRequestGroup(GROUP)])
        fetched = self._call(asked, offset_fetch.OffsetFetchResponse, at_least=8, at_most=9).groups[0]
        yield "fetch", [fetched.error_code, fetched.topics]
        left = self.beat(-1)
        yield "leave", [left.error_code, left.member_id, left.member_epoch, left.heartbeat_interval_ms]

    def _empty_group(self) -> Iterator[tuple[str, object]]:
        yield "describe an empty group", self.describe(GROUP)
        yield "reset", self.reset(GROUP, TOPIC, {0: 0, 1: 0})
        yield "reset an absent partition", self.reset(GROUP, TOPIC, {9: 5})
        yield "reset an absent topic", self.reset(GROUP, "absent", {0: 5})
        yield "reset an absent group", self.reset("created", TOPIC, {0: 5})
        yield "offsets after the reset", self.offsets(GROUP)
        yield "delete offsets of an absent topic", self.delete_offsets(GROUP, "absent")
        yield "delete offsets of an absent group", self.delete_offsets("absent", TOPIC)
        yield "delete offsets", self.delete_offsets(GROUP, TOPIC)
        yield "delete offsets again", self.delete_offsets(GROUP, TOPIC)
        yield "offsets after the deletion", self.offsets(GROUP)
        yield "delete groups", self.delete_groups(GROUP, "created", "absent")
        keys = find_coordinator.FindCoordinatorRequest("", 2, ["g:x:0", "g"])
        found = self._call(keys, find_coordinator.FindCoordinatorResponse).coordinators
        yield "invalid keys of share partitions", [(c.key, c.error_code, c.node_id) for c in found]

    def _settings(self) -> Iterator[tuple[str, object]]:
        for name, described in sorted(self.configs("set").items()):
            yield f"setting {name}", described
        yield "settings without a group", self.configs("")
        yield "unknown", self.alter("set", "share.nothing", "1")
        yield "too low", self.alter("set", "share.session.timeout.ms", "1")
        yield "too high", self.alter("set", "share.delivery.count.limit", "99")
        yield "no number", self.alter("set", "share.delivery.count.limit", "x")
        yield "no reset", self.alter("set", "share.auto.offset.reset", "x")[0]
        yield "append", self.alter("set", "share.auto.offset.reset", "earliest", APPEND)[0]
        yield "no group", self.alter("", "share.auto.offset.reset", "earliest")
        yield "alter", self.alter("set", "share.auto.offset.reset", "earliest")
        yield "alter more", self.alter("set", "share.session.timeout.ms", "50000")
        altered: dict[str, list[object]] = {}
        for _ in range(ATTEMPTS):
            altered = {n: c for n, c in self.configs("set").items() if c[1] == DYNAMIC_GROUP_CONFIG}
            if len(altered) == 2:
                break
            time.sleep(WAIT_S)
        yield "altered", sorted(altered.items())
        request = list_config_resources.ListConfigResourcesRequest([GROUP_RESOURCE])
        listed = self._call(request, list_config_resources.ListConfigResourcesResponse).config_resources
        yield "resources", [(found.resource_name, found.resource_type) for found in listed]


if __name__ == "__main__":
    for line in Script(sys.argv[1]).lines():
        print(line)
