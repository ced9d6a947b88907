"""The gate before handlers, with a real broker's handlers: denied items get errors, hidden ones disappear."""

from __future__ import annotations

import gc
import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brokerlab.in_memory_broker import InMemoryBroker
from fuzz.mutation import RequestSource
from tidelog.broker.requests.apis import APIS
from tidelog.broker.security.judging import Judgement
from tidelog.broker.security.rules import hide_topologies, judge_describe_share_group_offsets
from tidelog.kernel.steps import all_at_once
from tidelog.metadata.entries import AclEntry
from tidelog.model.acl import (
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    Principal,
    ResourceType,
    user_principal,
)
from tidelog.model.errors import ErrorCode
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.rpc.broker_commands import SecurityUpdate
from tidelog.settings.broker_settings import STANDARD_AUTHORIZER
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages import (
    alter_share_group_offsets,
    delete_share_group_offsets,
    delete_topics,
    describe_cluster,
    describe_share_group_offsets,
    describe_topic_partitions,
    fetch,
    metadata,
    produce,
    share_group_describe,
    share_group_heartbeat,
    streams_group_describe,
    streams_group_heartbeat,
)
from tidelog.wire.messages.describe_acls import DescribeAclsRequest

ALICE, ROOT = user_principal("alice"), user_principal("root")
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
NO_BITS = -(2**31)
GUARDED_APIS = sorted({key for key, api in APIS.items() if api.needs} - {ApiKey.PRODUCE, ApiKey.FETCH})
"""The APIs that the gate judges; the handlers of Produce and Fetch judge themselves."""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[InMemoryBroker]:
    given_settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:root;User:other"}
    broker = InMemoryBroker(tmp_path, given_settings)
    broker.add_topic("open")
    broker.add_topic("closed")
    yield broker
    broker.close()


def allow(
    lab: InMemoryBroker,
    operation: AclOperation,
    resource_type: ResourceType,
    name: str,
    principal: Principal = ALICE,
) -> AclEntry:
    entry = AclEntry(
        AclBinding(resource_type, PatternType.LITERAL, name, principal, "*", operation, PermissionType.ALLOW)
    )
    lab.update_metadata(security=SecurityUpdate(1, (entry,)))
    return entry


def remove(lab: InMemoryBroker, entry: AclEntry) -> None:
    lab.update_metadata(security=SecurityUpdate(2, (), (entry.key,)))


def produced(lab: InMemoryBroker, topic: str, principal: Principal) -> int:
    batch = build_batch([Record(0, lab.clock.wall_ms(), None, b"x", [])])
    data = produce.PartitionProduceData(0, memoryview(bytearray(batch)))
    request = produce.ProduceRequest(None, -1, 1000, [produce.TopicProduceData(topic, partition_data=[data])])
    response = lab.call(request, 9, principal=principal)
    code: int = response.responses[0].partition_responses[0].error_code
    return code


def fetched(lab: InMemoryBroker, topic: str, principal: Principal) -> int:
    wanted = fetch.FetchTopic(topic, partitions=[fetch.FetchPartition(partition_max_bytes=1000)])
    request = fetch.FetchRequest(max_wait_ms=0, topics=[wanted])
    code: int = lab.call(request, 12, principal=principal).responses[0].partitions[0].error_code
    return code


def has_session(lab: InMemoryBroker, topic: str, principal: Principal) -> bool:
    """Returns whether a full fetch of one partition begins a fetch session."""
    wanted = fetch.FetchTopic(topic, partitions=[fetch.FetchPartition(partition_max_bytes=1000)])
    request = fetch.FetchRequest(max_wait_ms=0, session_epoch=0, topics=[wanted])
    return bool(lab.call(request, 12, principal=principal).session_id)


def topics_of(response: metadata.MetadataResponse) -> dict[str | None, int]:
    return {topic.name: topic.error_code for topic in response.topics}


def test_produce_and_fetch_need_write_and_read(lab: InMemoryBroker) -> None:
    assert produced(lab, "open", ALICE) == fetched(lab, "open", ALICE) == DENIED
    assert produced(lab, "none", ALICE) == DENIED, "a denial must not show whether the topic exists"
    assert produced(lab, "open", ROOT) == fetched(lab, "open", ROOT) == ErrorCode.NONE
    write = allow(lab, AclOperation.WRITE, ResourceType.TOPIC, "open")
    assert produced(lab, "open", ALICE) == ErrorCode.NONE
    assert produced(lab, "closed", ALICE) == DENIED
    assert fetched(lab, "open", ALICE) == DENIED
    allow(lab, AclOperation.READ, ResourceType.TOPIC, "open")
    assert fetched(lab, "open", ALICE) == ErrorCode.NONE
    remove(lab, write)
    assert produced(lab, "open", ALICE) == DENIED


def test_a_fetch_session_does_not_show_whether_a_topic_exists(lab: InMemoryBroker) -> None:
    assert has_session(lab, "closed", ALICE) == has_session(lab, "none", ALICE)
    allow(lab, AclOperation.READ, ResourceType.TOPIC, "open")
    assert has_session(lab, "open", ALICE)
    wanted = [
        fetch.FetchTopic(topic, partitions=[fetch.FetchPartition(partition_max_bytes=1000)])
        for topic in ("closed", "none")
    ]
    errors = []
    for added in wanted:
        begin = fetch.FetchRequest(
            max_wait_ms=0,
            session_epoch=0,
            topics=[fetch.FetchTopic("open", partitions=[fetch.FetchPartition(partition_max_bytes=1000)])],
        )
        session_id = lab.call(begin, 12, principal=ALICE).session_id
        more = fetch.FetchRequest(max_wait_ms=0, session_id=session_id, session_epoch=1, topics=[added])
        errors.append(lab.call(more, 12, principal=ALICE).error_code)
    assert errors[0] == errors[1]


def test_metadata_hides_topics(lab: InMemoryBroker) -> None:
    everything = metadata.MetadataRequest(topics=None)
    assert topics_of(lab.call(everything, 12, principal=ROOT)) == {"open": 0, "closed": 0}
    assert topics_of(lab.call(everything, 12, principal=ALICE)) == {}
    assert lab.call(metadata.MetadataRequest(topics=[]), 0, principal=ALICE).topics == []
    allow(lab, AclOperation.READ, ResourceType.TOPIC, "open")
    assert topics_of(lab.call(everything, 12, principal=ALICE)) == {"open": 0}
    assert topics_of(lab.call(metadata.MetadataRequest(topics=[]), 0, principal=ALICE)) == {"open": 0}
    named = metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name=name) for name in ("open", "closed", "none")]
    )
    assert topics_of(lab.call(named, 12, principal=ALICE)) == {"open": 0, "closed": DENIED, "none": DENIED}
    ids = {topic.name: topic.topic_id for topic in lab.call(everything, 12, principal=ROOT).topics}
    for name in (None, "", "open"):  # the id decides, so the name must not open the topic
        by_id = metadata.MetadataRequest(
            topics=[metadata.MetadataRequestTopic(topic_id=ids["closed"], name=name)]
        )
        (topic,) = lab.call(by_id, 12, principal=ALICE).topics
        assert (topic.error_code, topic.name, topic.topic_id) == (DENIED, None, ids["closed"])


def test_a_topic_that_this_broker_does_not_know_is_not_deleted_without_delete(lab: InMemoryBroker) -> None:
    """The controller may know the topic already, and decides nothing about ACLs."""
    lab.controller.answer = lambda message: delete_topics.DeleteTopicsResponse(
        responses=[delete_topics.DeletableTopicResult(topic.name) for topic in message.topics]
    )
    allow(lab, AclOperation.DESCRIBE, ResourceType.TOPIC, "new")
    by_name = delete_topics.DeleteTopicsRequest([delete_topics.DeleteTopicState("new")])
    by_id = delete_topics.DeleteTopicsRequest(
        [delete_topics.DeleteTopicState(topic_id=uuid.uuid5(uuid.NAMESPACE_DNS, "new"))]
    )
    old = delete_topics.DeleteTopicsRequest(topic_names=["new"])
    (result,) = lab.call(by_name, 6, principal=ALICE).responses
    assert (result.name, result.error_code) == ("new", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    (result,) = lab.call(old, 5, principal=ALICE).responses
    assert (result.name, result.error_code) == ("new", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    (result,) = lab.call(by_id, 6, principal=ALICE).responses
    assert (result.name, result.error_code) == (None, ErrorCode.UNKNOWN_TOPIC_ID)
    assert lab.controller.forwarded == []
    allow(lab, AclOperation.DELETE, ResourceType.TOPIC, "new")
    assert lab.call(by_name, 6, principal=ALICE).responses[0].error_code == ErrorCode.NONE


def test_describe_topic_partitions_hides_topics(lab: InMemoryBroker) -> None:
    request = describe_topic_partitions.DescribeTopicPartitionsRequest()
    assert lab.call(request, 0, principal=ALICE).topics == []
    allow(lab, AclOperation.WRITE, ResourceType.TOPIC, "open")
    (topic,) = lab.call(request, 0, principal=ALICE).topics
    bits = 1 << AclOperation.WRITE | 1 << AclOperation.DESCRIBE
    assert (topic.name, topic.topic_authorized_operations) == ("open", bits)


def test_operations_are_those_of_the_client(lab: InMemoryBroker) -> None:
    request = describe_cluster.DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert lab.call(request, 0, principal=ALICE).cluster_authorized_operations == 0
    assert lab.call(request, 0, principal=ROOT).cluster_authorized_operations == 0b1111110100000
    allow(lab, AclOperation.ALTER, ResourceType.CLUSTER, "kafka-cluster")
    assert lab.call(request, 0, principal=ALICE).cluster_authorized_operations == 0b110000000
    not_asked = describe_cluster.DescribeClusterRequest()
    assert lab.call(not_asked, 0, principal=ALICE).cluster_authorized_operations == NO_BITS


def test_acls_are_described_to_those_who_may(lab: InMemoryBroker) -> None:
    allow(lab, AclOperation.READ, ResourceType.TOPIC, "open")
    request = DescribeAclsRequest(1, None, 1, None, None, 1, 1)
    assert lab.call(request, 3, principal=ALICE).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    (resource,) = lab.call(request, 3, principal=ROOT).resources
    assert (resource.resource_name, resource.acls[0].principal) == ("open", ALICE)


def test_streams_groups_need_the_group_and_all_topics_of_the_topology(lab: InMemoryBroker) -> None:
    changelog = streams_group_heartbeat.TopicInfo("closed")
    parts = [streams_group_heartbeat.Subtopology("0", ["open"], state_changelog_topics=[changelog])]
    beat = streams_group_heartbeat.StreamsGroupHeartbeatRequest(
        "g", "m", topology=streams_group_heartbeat.Topology(0, parts)
    )
    describe = streams_group_describe.StreamsGroupDescribeRequest(["g"], True)
    of_group = ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert lab.call(beat, 0, principal=ALICE).error_code == of_group
    assert lab.call(describe, 0, principal=ALICE).groups[0].error_code == of_group
    allow(lab, AclOperation.READ, ResourceType.GROUP, "g")
    allow(lab, AclOperation.DESCRIBE, ResourceType.TOPIC, "open")
    assert lab.call(beat, 0, principal=ALICE).error_code == DENIED
    allow(lab, AclOperation.DESCRIBE, ResourceType.TOPIC, "closed")
    assert lab.call(beat, 0, principal=ALICE).error_code == ErrorCode.NOT_COORDINATOR
    assert lab.call(describe, 0, principal=ALICE).groups[0].error_code == ErrorCode.NOT_COORDINATOR


def test_a_streams_group_with_a_topic_of_others_is_hidden() -> None:
    part = streams_group_describe.Subtopology(
        "0", ["open"], repartition_source_topics=[streams_group_describe.TopicInfo("closed")]
    )
    group = streams_group_describe.DescribedGroup(
        group_id="g",
        group_state="Stable",
        topology=streams_group_describe.Topology(0, [part]),
        members=[streams_group_describe.Member("m")],
    )
    allowed = {"open"}

    class Judge:
        def may(self, operation: object, kind: object, name: str, *, is_asked_for: bool) -> bool:
            return name in allowed

    response = streams_group_describe.StreamsGroupDescribeResponse(groups=[group])
    all_at_once(hide_topologies(cast(Judgement, Judge()), response))
    (hidden,) = response.groups
    assert (hidden.error_code, hidden.group_id, hidden.members, hidden.topology) == (DENIED, "g", [], None)
    allowed.add("closed")
    response = streams_group_describe.StreamsGroupDescribeResponse(groups=[group])
    all_at_once(hide_topologies(cast(Judgement, Judge()), response))
    assert response.groups == [group]


def test_share_groups_need_the_group_and_its_topics(lab: InMemoryBroker) -> None:
    beat = share_group_heartbeat.ShareGroupHeartbeatRequest("g", "m", 0, None, ["open", "closed"])
    describe = share_group_describe.ShareGroupDescribeRequest(["g"])
    partition = alter_share_group_offsets.AlterShareGroupOffsetsRequestPartition(0, 1)
    reset = alter_share_group_offsets.AlterShareGroupOffsetsRequest(
        "g", [alter_share_group_offsets.AlterShareGroupOffsetsRequestTopic("closed", [partition])]
    )
    delete = delete_share_group_offsets.DeleteShareGroupOffsetsRequest(
        "g", [delete_share_group_offsets.DeleteShareGroupOffsetsRequestTopic("closed")]
    )
    asked = describe_share_group_offsets.DescribeShareGroupOffsetsRequestGroup("g", None)
    offsets = describe_share_group_offsets.DescribeShareGroupOffsetsRequest([asked])
    of_group = ErrorCode.GROUP_AUTHORIZATION_FAILED
    for request in (beat, reset, delete):
        assert lab.call(request, request.VERSIONS[1], principal=ALICE).error_code == of_group
    for request in (describe, offsets):
        assert lab.call(request, 1, principal=ALICE).groups[0].error_code == of_group
    for operation in (AclOperation.READ, AclOperation.DELETE):
        allow(lab, operation, ResourceType.GROUP, "g")
    allow(lab, AclOperation.READ, ResourceType.TOPIC, "open")
    assert lab.call(beat, 1, principal=ALICE).error_code == DENIED
    (result,) = lab.call(reset, 0, principal=ALICE).responses
    assert [found.error_code for found in result.partitions] == [DENIED]
    assert [found.error_code for found in lab.call(delete, 0, principal=ALICE).responses] == [DENIED]
    no_coordinator = {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    for request in (describe, offsets):
        assert lab.call(request, 1, principal=ALICE).groups[0].error_code in no_coordinator


def test_a_share_group_that_is_asked_for_twice_hides_topics() -> None:
    """Once without topics, which shows all, and once with a topic, whose denial may be told."""
    asked = describe_share_group_offsets.DescribeShareGroupOffsetsRequestGroup
    wanted = describe_share_group_offsets.DescribeShareGroupOffsetsRequestTopic("open", [0])
    found = describe_share_group_offsets.DescribeShareGroupOffsetsResponseGroup
    topic = describe_share_group_offsets.DescribeShareGroupOffsetsResponseTopic

    class Judge:
        api_key, version = ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0
        message = describe_share_group_offsets.DescribeShareGroupOffsetsRequest(
            [asked("g", None), asked("g", [wanted])]
        )

        def __init__(self) -> None:
            self.edits: list[Any] = []

        def may(self, operation: object, kind: object, name: str, *, is_asked_for: bool = True) -> bool:
            return name != "closed"

    judge = Judge()
    all_at_once(judge_describe_share_group_offsets(cast(Judgement, judge)))
    response = describe_share_group_offsets.DescribeShareGroupOffsetsResponse(
        groups=[found("g", [topic("open"), topic("closed")]), found("g", [topic("open")])]
    )
    for edit in judge.edits:
        all_at_once(edit(judge, response))
    assert [[each.topic_name for each in group.topics] for group in response.groups] == [["open"], ["open"]]


def test_an_empty_name_is_a_name(lab: InMemoryBroker) -> None:
    """An empty name once stood for "some resource of the type" among the remembered decisions."""
    allow(lab, AclOperation.WRITE, ResourceType.TOPIC, "open")
    assert produced(lab, "open", ALICE) == ErrorCode.NONE
    assert produced(lab, "", ALICE) == DENIED


def _empty_answer(request: Any) -> Any:
    return codec.response_class(ApiKey(request.API_KEY))()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(seed=st.integers(0, 1 << 32), api_key=st.sampled_from(GUARDED_APIS))
def test_a_denied_request_of_any_shape_is_answered(lab: InMemoryBroker, seed: int, api_key: int) -> None:
    lab.controller.answer = _empty_answer
    source = RequestSource(random.Random(seed), ["open", "closed", "none", ""], [b""])
    served = APIS[api_key]
    version = served.min_version + seed % (served.max_version - served.min_version + 1)
    assert lab.call(source.message(ApiKey(api_key), version), version, principal=ALICE) is not None


def test_no_judgement_is_left_to_the_garbage_collector(lab: InMemoryBroker) -> None:
    """The collector visits frozen objects rarely (ADR 0066)."""
    lab.controller.answer = _empty_answer
    gc.collect()
    gc.freeze()  # so that the collections below visit only what the requests made, and not all modules
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for api_key in GUARDED_APIS:
            version = APIS[api_key].max_version
            for seed in range(20):
                source = RequestSource(random.Random(seed), ["open", "closed", "none", ""], [b""])
                lab.call(source.message(ApiKey(api_key), version), version, principal=ALICE)
            gc.collect()
        left = {ApiKey(found.api_key).name for found in gc.garbage if isinstance(found, Judgement)}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
    assert left == set()
