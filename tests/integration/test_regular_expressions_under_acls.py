"""A member that subscribes by a regular expression learns nothing about topics that it may not describe."""

from __future__ import annotations

import time
import uuid

import pytest

from answerslab.authorization import ADMIN_HOST, JUDGED_HOST, PRINCIPAL
from answerslab.client import Client
from tidelog.model.acl import AclOperation, PatternType, PermissionType, ResourceType
from tidelog.model.errors import ErrorCode
from tidelog.settings.broker_settings import STANDARD_AUTHORIZER
from tidelog.testing.cluster import Cluster
from tidelog.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tidelog.wire.messages.create_acls import AclCreation, CreateAclsRequest
from tidelog.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest

GROUP = "own"
WAIT_S = 30.0
SETTINGS = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "allow.everyone.if.no.acl.found": "true",  # until the administrator has its ACLs
    "super.users": "User:nobody",
}


def allow(host: str, operation: AclOperation, kind: ResourceType, name: str) -> AclCreation:
    return AclCreation(kind, name, PatternType.LITERAL, PRINCIPAL, host, operation, PermissionType.ALLOW)


def assigned_partitions(client: Client, expression: str) -> int:
    """Returns the number of partitions that a new and only member of the group gets."""
    member_id, deadline = str(uuid.uuid4()), time.monotonic() + WAIT_S
    joining = ConsumerGroupHeartbeatRequest(
        GROUP,
        member_id,
        0,
        rebalance_timeout_ms=5_000,
        subscribed_topic_regex=expression,
        topic_partitions=[],
    )
    while True:
        response = client.call(joining, 1)
        if response.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
    client.call(ConsumerGroupHeartbeatRequest(GROUP, member_id, -1), 1)
    topics = response.assignment.topic_partitions if response.assignment else []
    return sum(len(topic.partitions) for topic in topics)


@pytest.mark.parametrize("brokers", [1, 3])
def test_hidden_topics_are_not_matched(brokers: int) -> None:
    with Cluster(brokers, settings=SETTINGS) as cluster:
        bootstrap = cluster.bootstrap.partition(",")[0]
        admin = Client(bootstrap, ADMIN_HOST)
        grants = [
            allow(ADMIN_HOST, AclOperation.ALL, ResourceType.TOPIC, "*"),
            allow(ADMIN_HOST, AclOperation.ALL, ResourceType.GROUP, "*"),
            allow(JUDGED_HOST, AclOperation.READ, ResourceType.GROUP, GROUP),
            allow(JUDGED_HOST, AclOperation.READ, ResourceType.TOPIC, "open"),
        ]
        created = admin.call(CreateAclsRequest(grants), 3).results
        assert [each.error_code for each in created] == [0] * len(grants)
        topics = [CreatableTopic("open", 2, 1), CreatableTopic("hidden", 3, 1)]
        admin.call(CreateTopicsRequest(topics, 10_000), 7)
        finder, deadline = Client(bootstrap, JUDGED_HOST), time.monotonic() + WAIT_S
        while True:
            (found,) = finder.call(FindCoordinatorRequest(coordinator_keys=[GROUP]), 4).coordinators
            if not found.error_code or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        judged = Client(f"{found.host}:{found.port}", JUDGED_HOST)
        assert assigned_partitions(judged, ".*") == 2
        assert assigned_partitions(judged, "hid.*") == 0
        for client in (admin, finder, judged):
            client.close()
