"""Sends each API's requests to a broker with each of the ACLs that concern it, and records the responses.

The same cases run against Apache Kafka and tidelog. The client that is judged connects from JUDGED_HOST, the
administrator from ADMIN_HOST; both are User:ANONYMOUS, so no authentication is needed. The broker needs
`authorizer.class.name`, `allow.everyone.if.no.acl.found=true` (until the administrator has its ACLs),
`auto.create.topics.enable=false` and no super user ANONYMOUS. The recording of Apache Kafka 4.3.1 is in
`kafka_acl_responses.json`. To write it again:

    NAME=acls BASE_PORT=24092 EXTRA_PROPS_TEXT=$'super.users=User:nobody\\nauto.create.topics.enable=false' \\
        shared/peer/kafka-up.sh 1
    PYTHONPATH=services:tests python -m answerslab.authorization 127.0.0.1:24092 \\
        > tests/answerslab/kafka_acl_responses.json
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
import uuid
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

from answerslab.client import Client
from tidelog.model.acl import CLUSTER_NAME, AclOperation, PatternType, PermissionType, ResourceType
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.wire.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_user_scram_credentials,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    update_features,
    write_txn_markers,
)

ADMIN_HOST, JUDGED_HOST = "127.0.0.1", "127.0.0.2"
PRINCIPAL = "User:ANONYMOUS"
TOPIC, OTHER_TOPIC, MISSING_TOPIC = "acl-a", "acl-b", "acl-none"
GROUP, CONSUMER_GROUP, TRANSACTION = "acl-g", "acl-cg", "acl-x"
PROPAGATION_S = 0.15

Grant = tuple[ResourceType, str, AclOperation]


class Case(NamedTuple):
    """A request and the grants that concern it. It is sent without ACLs, with each grant, and with all."""

    name: str
    request: Callable[[Setup], Any]
    version: int
    grants: tuple[Grant, ...]


class Setup(NamedTuple):
    """The ids of the topics and of the broker, which the requests of the cases contain."""

    topic_ids: dict[str, uuid.UUID]
    broker_id: int


def topic(operation: AclOperation, name: str = TOPIC) -> Grant:
    return (ResourceType.TOPIC, name, operation)


def group(operation: AclOperation, name: str = GROUP) -> Grant:
    return (ResourceType.GROUP, name, operation)


def cluster(operation: AclOperation) -> Grant:
    return (ResourceType.CLUSTER, CLUSTER_NAME, operation)


def transaction(operation: AclOperation, name: str = TRANSACTION) -> Grant:
    return (ResourceType.TRANSACTIONAL_ID, name, operation)


READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
)
CLUSTER_ACTION, IDEMPOTENT_WRITE = AclOperation.CLUSTER_ACTION, AclOperation.IDEMPOTENT_WRITE
DESCRIBE_CONFIGS, ALTER_CONFIGS = AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS


def _produce(
    transactional_id: str | None, *topics: str, is_transactional: bool = False
) -> Callable[[Setup], Any]:
    def make(setup: Setup) -> Any:
        producer = (
            {"producer_id": 999_999, "producer_epoch": 0, "base_sequence": 0} if is_transactional else {}
        )
        batch = build_batch(
            [Record(0, int(time.time() * 1000), None, b"x", [])],
            is_transactional=is_transactional,
            **producer,
        )
        data = [
            produce.TopicProduceData(
                name, partition_data=[produce.PartitionProduceData(0, memoryview(batch))]
            )
            for name in topics
        ]
        return produce.ProduceRequest(transactional_id, -1, 5000, data)

    return make


def _produce_by_id(setup: Setup) -> Any:
    batch = build_batch([Record(0, int(time.time() * 1000), None, b"x", [])])
    ids = [setup.topic_ids[TOPIC], setup.topic_ids[OTHER_TOPIC], uuid.UUID(int=77)]
    data = [
        produce.TopicProduceData("", known, [produce.PartitionProduceData(0, memoryview(batch))])
        for known in ids
    ]
    return produce.ProduceRequest(None, -1, 5000, data)


def _fetch(by_id: bool, replica_id: int = -1) -> Callable[[Setup], Any]:
    def make(setup: Setup) -> Any:
        part = [fetch.FetchPartition(partition=0, partition_max_bytes=1)]
        topics = (
            [fetch.FetchTopic("", setup.topic_ids[name], part) for name in (TOPIC, OTHER_TOPIC)]
            + [fetch.FetchTopic("", uuid.UUID(int=77), part)]
            if by_id
            else [fetch.FetchTopic(name, partitions=part) for name in (TOPIC, OTHER_TOPIC, MISSING_TOPIC)]
        )
        return fetch.FetchRequest(replica_id=replica_id, max_wait_ms=0, max_bytes=1, topics=topics)

    return make


def _metadata(*names: str, **fields: Any) -> Callable[[Setup], Any]:
    return lambda setup: metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name=name) for name in names],
        **{"allow_auto_topic_creation": False, **fields},
    )


def _metadata_by_id(setup: Setup) -> Any:
    return metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(known, None) for known in setup.topic_ids.values()],
        allow_auto_topic_creation=False,
    )


def _commit(setup: Setup) -> Any:
    part = [offset_commit.OffsetCommitRequestPartition(0, 1)]
    return offset_commit.OffsetCommitRequest(
        GROUP,
        topics=[offset_commit.OffsetCommitRequestTopic(n, partitions=part) for n in (TOPIC, OTHER_TOPIC)],
    )


def _txn_commit(setup: Setup) -> Any:
    part = [txn_offset_commit.TxnOffsetCommitRequestPartition(0, 1)]
    return txn_offset_commit.TxnOffsetCommitRequest(
        TRANSACTION,
        GROUP,
        999_999,
        0,
        topics=[
            txn_offset_commit.TxnOffsetCommitRequestTopic(n, partitions=part) for n in (TOPIC, OTHER_TOPIC)
        ],
    )


def _offset_fetch(names: tuple[str, ...] | None, version: int) -> Callable[[Setup], Any]:
    def make(setup: Setup) -> Any:
        if version < 8:
            topics = names and [offset_fetch.OffsetFetchRequestTopic(n, [0]) for n in names]
            return offset_fetch.OffsetFetchRequest(group_id=GROUP, topics=topics)
        wanted = names and [offset_fetch.OffsetFetchRequestTopics(n, partition_indexes=[0]) for n in names]
        groups = [offset_fetch.OffsetFetchRequestGroup(g, topics=wanted) for g in (GROUP, "acl-other")]
        return offset_fetch.OffsetFetchRequest(groups=groups)

    return make


def _configs(module: Any, request: str, kinds: dict[int, str]) -> Callable[[Setup], Any]:
    def make(setup: Setup) -> Any:
        resources = []
        for kind, name in kinds.items():
            name = str(setup.broker_id) if kind == 4 else name
            if module is describe_configs:
                resources.append(describe_configs.DescribeConfigsResource(kind, name, ["no.such.setting"]))
            else:
                resources.append(module.AlterConfigsResource(kind, name, []))
        extra = {} if module is describe_configs else {"validate_only": True}
        return getattr(module, request)(resources, **extra)

    return make


def _simple(make: Callable[[], Any]) -> Callable[[Setup], Any]:
    return lambda setup: make()


_TOPICS = (TOPIC, OTHER_TOPIC, MISSING_TOPIC)
_ANY_ACL = (1, None, 1, "User:nobody", None, 1, 1)

CASES: tuple[Case, ...] = (
    Case("produce", _produce(None, *_TOPICS), 9, (topic(WRITE), topic(READ))),
    Case("produce by id", _produce_by_id, 13, (topic(WRITE), topic(DESCRIBE))),
    Case(
        "produce without transaction", _produce(TRANSACTION, TOPIC), 9, (topic(WRITE), transaction(DESCRIBE))
    ),
    Case(
        "produce in transaction",
        _produce(TRANSACTION, TOPIC, is_transactional=True),
        9,
        (topic(WRITE), transaction(WRITE), transaction(DESCRIBE)),
    ),
    Case("fetch", _fetch(False), 12, (topic(READ), topic(WRITE))),
    Case("fetch by id", _fetch(True), 13, (topic(READ), topic(DESCRIBE))),
    Case(
        "list offsets",
        _simple(
            lambda: list_offsets.ListOffsetsRequest(
                -1,
                topics=[
                    list_offsets.ListOffsetsTopic(n, [list_offsets.ListOffsetsPartition(0, timestamp=-2)])
                    for n in _TOPICS
                ],
            )
        ),
        7,
        (topic(DESCRIBE), topic(READ), topic(CREATE)),
    ),
    Case(
        "metadata", _metadata(*_TOPICS), 12, (topic(DESCRIBE), topic(ALTER), topic(CREATE), cluster(CREATE))
    ),
    Case("metadata by id", _metadata_by_id, 12, (topic(DESCRIBE),)),
    Case(
        "metadata of all",
        _simple(lambda: metadata.MetadataRequest(topics=None)),
        12,
        (topic(DESCRIBE), topic(DESCRIBE, "acl-b")),
    ),
    Case("metadata v0 of all", _simple(lambda: metadata.MetadataRequest(topics=[])), 0, (topic(WRITE),)),
    Case(
        "metadata with operations",
        _metadata(
            TOPIC, include_topic_authorized_operations=True, include_cluster_authorized_operations=True
        ),
        8,
        (topic(READ), topic(ALTER_CONFIGS), cluster(DESCRIBE), cluster(ALTER)),
    ),
    Case("offset commit", _commit, 8, (group(READ), topic(READ), group(DESCRIBE))),
    *(
        Case(
            f"offset fetch v{version} of {names}",
            _offset_fetch(names, version),
            version,
            (group(DESCRIBE), group(READ), topic(DESCRIBE)),
        )
        for version in (7, 9)
        for names in ((TOPIC, OTHER_TOPIC), None)
    ),
    Case(
        "find group",
        _simple(lambda: find_coordinator.FindCoordinatorRequest(GROUP, 0)),
        3,
        (group(DESCRIBE),),
    ),
    Case(
        "find groups",
        _simple(
            lambda: find_coordinator.FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP, "acl-o"])
        ),
        4,
        (group(DESCRIBE), group(READ)),
    ),
    Case(
        "find transactions",
        _simple(
            lambda: find_coordinator.FindCoordinatorRequest(key_type=1, coordinator_keys=[TRANSACTION, "o"])
        ),
        4,
        (transaction(DESCRIBE), transaction(WRITE)),
    ),
    Case(
        "join group",
        _simple(
            lambda: join_group.JoinGroupRequest(
                GROUP,
                6000,
                6000,
                protocol_type="consumer",
                protocols=[join_group.JoinGroupRequestProtocol("r", b"")],
            )
        ),
        5,
        (group(READ), group(DESCRIBE)),
    ),
    Case("sync group", _simple(lambda: sync_group.SyncGroupRequest(GROUP, 1, "m")), 3, (group(READ),)),
    Case("heartbeat", _simple(lambda: heartbeat.HeartbeatRequest(GROUP, 1, "m")), 3, (group(READ),)),
    Case(
        "leave group",
        _simple(lambda: leave_group.LeaveGroupRequest(GROUP, members=[leave_group.MemberIdentity("m")])),
        4,
        (group(READ),),
    ),
    Case(
        "describe groups",
        _simple(lambda: describe_groups.DescribeGroupsRequest([GROUP, "acl-o"], True)),
        5,
        (group(DESCRIBE), group(READ), group(DELETE)),
    ),
    Case("list groups", _simple(list_groups.ListGroupsRequest), 4, (group(DESCRIBE), cluster(DESCRIBE))),
    Case(
        "delete groups",
        _simple(lambda: delete_groups.DeleteGroupsRequest(["acl-o", "acl-p"])),
        2,
        (group(DELETE, "acl-o"), group(READ, "acl-o")),
    ),
    Case(
        "create topics",
        _simple(
            lambda: create_topics.CreateTopicsRequest(
                [create_topics.CreatableTopic(n, 1, 1) for n in (MISSING_TOPIC, OTHER_TOPIC)],
                validate_only=True,
            )
        ),
        7,
        (topic(CREATE, MISSING_TOPIC), topic(DESCRIBE_CONFIGS, MISSING_TOPIC), cluster(CREATE)),
    ),
    Case(
        "delete topics",
        _simple(
            lambda: delete_topics.DeleteTopicsRequest(
                topic_names=[MISSING_TOPIC, OTHER_TOPIC], timeout_ms=5000
            )
        ),
        5,
        (topic(DELETE, MISSING_TOPIC), topic(DESCRIBE, MISSING_TOPIC)),
    ),
    Case(
        "delete topics by id",
        lambda setup: delete_topics.DeleteTopicsRequest(
            [
                delete_topics.DeleteTopicState(None, setup.topic_ids[OTHER_TOPIC]),
                delete_topics.DeleteTopicState(None, uuid.UUID(int=77)),
                delete_topics.DeleteTopicState(MISSING_TOPIC),
            ],
            timeout_ms=5000,
        ),
        6,
        (topic(DESCRIBE, OTHER_TOPIC), topic(DELETE, MISSING_TOPIC)),
    ),
    Case(
        "delete records",
        _simple(
            lambda: delete_records.DeleteRecordsRequest(
                [
                    delete_records.DeleteRecordsTopic(n, [delete_records.DeleteRecordsPartition(0, 0)])
                    for n in _TOPICS
                ],
                5000,
            )
        ),
        2,
        (topic(DELETE), topic(WRITE)),
    ),
    Case(
        "init producer id",
        _simple(lambda: init_producer_id.InitProducerIdRequest(None, 6000)),
        4,
        (cluster(IDEMPOTENT_WRITE), topic(WRITE, "anything"), topic(READ)),
    ),
    Case(
        "init producer id of transaction",
        _simple(lambda: init_producer_id.InitProducerIdRequest(TRANSACTION, 6000)),
        4,
        (transaction(WRITE), transaction(DESCRIBE), cluster(IDEMPOTENT_WRITE)),
    ),
    Case(
        "offset for leader epoch",
        _simple(
            lambda: offset_for_leader_epoch.OffsetForLeaderEpochRequest(
                -1,
                [
                    offset_for_leader_epoch.OffsetForLeaderTopic(
                        n, [offset_for_leader_epoch.OffsetForLeaderPartition(0, -1, 0)]
                    )
                    for n in _TOPICS
                ],
            )
        ),
        4,
        (topic(DESCRIBE), cluster(CLUSTER_ACTION)),
    ),
    Case(
        "add partitions to transaction",
        _simple(
            lambda: add_partitions_to_txn.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=TRANSACTION,
                v3_and_below_producer_id=999_999,
                v3_and_below_topics=[
                    add_partitions_to_txn.AddPartitionsToTxnTopic(n, [0]) for n in (TOPIC, OTHER_TOPIC)
                ],
            )
        ),
        3,
        (transaction(WRITE), topic(WRITE), topic(WRITE, OTHER_TOPIC)),
    ),
    Case(
        "add partitions for brokers",
        _simple(
            lambda: add_partitions_to_txn.AddPartitionsToTxnRequest(
                [
                    add_partitions_to_txn.AddPartitionsToTxnTransaction(
                        TRANSACTION,
                        999_999,
                        0,
                        True,
                        [add_partitions_to_txn.AddPartitionsToTxnTopic(TOPIC, [0])],
                    )
                ]
            )
        ),
        4,
        (transaction(WRITE),),
    ),
    Case(
        "add offsets to transaction",
        _simple(lambda: add_offsets_to_txn.AddOffsetsToTxnRequest(TRANSACTION, 999_999, 0, GROUP)),
        3,
        (transaction(WRITE), group(READ)),
    ),
    Case(
        "end transaction",
        _simple(lambda: end_txn.EndTxnRequest(TRANSACTION, 999_999, 0, True)),
        3,
        (transaction(WRITE),),
    ),
    Case(
        "write markers",
        _simple(
            lambda: write_txn_markers.WriteTxnMarkersRequest(
                [
                    write_txn_markers.WritableTxnMarker(
                        1, 0, False, [write_txn_markers.WritableTxnMarkerTopic(MISSING_TOPIC, [0])]
                    )
                ]
            )
        ),
        1,
        (cluster(CLUSTER_ACTION), cluster(ALTER)),
    ),
    Case("commit in transaction", _txn_commit, 3, (transaction(WRITE), group(READ), topic(READ))),
    Case(
        "describe acls",
        _simple(lambda: describe_acls.DescribeAclsRequest(*_ANY_ACL)),
        3,
        (cluster(DESCRIBE),),
    ),
    Case(
        "create acls",
        _simple(
            lambda: create_acls.CreateAclsRequest([create_acls.AclCreation(2, "", 3, "User:u", "*", 3, 3)])
        ),
        3,
        (cluster(ALTER),),
    ),
    Case(
        "delete acls",
        _simple(lambda: delete_acls.DeleteAclsRequest([delete_acls.DeleteAclsFilter(*_ANY_ACL)])),
        3,
        (cluster(ALTER), cluster(DESCRIBE)),
    ),
    Case(
        "describe configs",
        _configs(describe_configs, "DescribeConfigsRequest", {2: TOPIC, 4: "", 32: GROUP}),
        4,
        (topic(DESCRIBE_CONFIGS), topic(ALTER_CONFIGS), cluster(DESCRIBE_CONFIGS)),
    ),
    Case(
        "describe configs of a missing topic",
        _configs(describe_configs, "DescribeConfigsRequest", {2: MISSING_TOPIC}),
        4,
        (topic(DESCRIBE_CONFIGS, MISSING_TOPIC),),
    ),
    Case(
        "alter configs",
        _configs(alter_configs, "AlterConfigsRequest", {2: TOPIC, 4: ""}),
        2,
        (topic(ALTER_CONFIGS), topic(ALTER), cluster(ALTER_CONFIGS)),
    ),
    Case(
        "incremental alter configs",
        _configs(incremental_alter_configs, "IncrementalAlterConfigsRequest", {2: TOPIC, 4: ""}),
        1,
        (topic(ALTER_CONFIGS), topic(ALTER), cluster(ALTER_CONFIGS)),
    ),
    Case(
        "alter replica log dirs",
        _simple(
            lambda: alter_replica_log_dirs.AlterReplicaLogDirsRequest(
                [
                    alter_replica_log_dirs.AlterReplicaLogDir(
                        "/nowhere", [alter_replica_log_dirs.AlterReplicaLogDirTopic(MISSING_TOPIC, [0])]
                    )
                ]
            )
        ),
        2,
        (cluster(ALTER),),
    ),
    Case(
        "describe log dirs",
        _simple(
            lambda: describe_log_dirs.DescribeLogDirsRequest(
                [describe_log_dirs.DescribableLogDirTopic(MISSING_TOPIC, [0])]
            )
        ),
        4,
        (cluster(DESCRIBE), cluster(ALTER)),
    ),
    Case(
        "create partitions",
        _simple(
            lambda: create_partitions.CreatePartitionsRequest(
                [create_partitions.CreatePartitionsTopic(n, 3, None) for n in _TOPICS], 5000, True
            )
        ),
        3,
        (topic(ALTER), topic(CREATE)),
    ),
    Case(
        "elect leaders",
        _simple(lambda: elect_leaders.ElectLeadersRequest(0, [elect_leaders.TopicPartitions(TOPIC, [0])])),
        2,
        (cluster(ALTER), topic(ALTER)),
    ),
    Case(
        "alter reassignments",
        _simple(
            lambda: alter_partition_reassignments.AlterPartitionReassignmentsRequest(
                topics=[
                    alter_partition_reassignments.ReassignableTopic(
                        TOPIC, [alter_partition_reassignments.ReassignablePartition(0, None)]
                    )
                ]
            )
        ),
        0,
        (cluster(ALTER),),
    ),
    Case(
        "list reassignments",
        _simple(lambda: list_partition_reassignments.ListPartitionReassignmentsRequest(topics=None)),
        0,
        (cluster(DESCRIBE),),
    ),
    Case(
        "delete offsets",
        _simple(
            lambda: offset_delete.OffsetDeleteRequest(
                GROUP,
                [
                    offset_delete.OffsetDeleteRequestTopic(n, [offset_delete.OffsetDeleteRequestPartition(0)])
                    for n in (TOPIC, OTHER_TOPIC)
                ],
            )
        ),
        0,
        (group(DELETE), topic(READ), group(READ)),
    ),
    Case(
        "describe client quotas",
        _simple(lambda: describe_client_quotas.DescribeClientQuotasRequest([])),
        1,
        (cluster(DESCRIBE_CONFIGS), cluster(DESCRIBE)),
    ),
    Case(
        "alter client quotas",
        _simple(
            lambda: alter_client_quotas.AlterClientQuotasRequest(
                [
                    alter_client_quotas.RequestEntryData(
                        [alter_client_quotas.EntityData("user", "u")],
                        [alter_client_quotas.OpData("producer_byte_rate", 5.0, False)],
                    )
                ],
                True,
            )
        ),
        1,
        (cluster(ALTER_CONFIGS), cluster(ALTER)),
    ),
    Case(
        "describe scram",
        _simple(lambda: describe_user_scram_credentials.DescribeUserScramCredentialsRequest(None)),
        0,
        (cluster(DESCRIBE),),
    ),
    Case(
        "alter scram",
        _simple(
            lambda: alter_user_scram_credentials.AlterUserScramCredentialsRequest(
                [alter_user_scram_credentials.ScramCredentialDeletion("u", 1)]
            )
        ),
        0,
        (cluster(ALTER),),
    ),
    Case("describe quorum", _simple(describe_quorum.DescribeQuorumRequest), 1, (cluster(ALTER),)),
    Case(
        "update features",
        _simple(lambda: update_features.UpdateFeaturesRequest(validate_only=True)),
        1,
        (cluster(DESCRIBE),),
    ),
    Case(
        "unregister broker",
        _simple(lambda: unregister_broker.UnregisterBrokerRequest(77)),
        0,
        (cluster(DESCRIBE),),
    ),
    Case(
        "describe cluster",
        _simple(lambda: describe_cluster.DescribeClusterRequest(True)),
        1,
        (cluster(DESCRIBE), cluster(ALTER), cluster(CREATE)),
    ),
    Case(
        "describe producers",
        _simple(
            lambda: describe_producers.DescribeProducersRequest(
                [describe_producers.TopicRequest(n, [0]) for n in (OTHER_TOPIC, MISSING_TOPIC)]
            )
        ),
        0,
        (topic(READ, OTHER_TOPIC), topic(DESCRIBE, OTHER_TOPIC)),
    ),
    Case(
        "describe transactions",
        _simple(lambda: describe_transactions.DescribeTransactionsRequest([TRANSACTION, "acl-y"])),
        0,
        (transaction(DESCRIBE), topic(DESCRIBE)),
    ),
    Case(
        "list transactions",
        _simple(list_transactions.ListTransactionsRequest),
        0,
        (transaction(DESCRIBE), cluster(DESCRIBE)),
    ),
    Case(
        "consumer group heartbeat",
        _simple(
            lambda: consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
                CONSUMER_GROUP, "unknown", 7, subscribed_topic_names=[TOPIC]
            )
        ),
        0,
        (group(READ, CONSUMER_GROUP), topic(DESCRIBE), topic(READ)),
    ),
    Case(
        "consumer group describe",
        _simple(
            lambda: consumer_group_describe.ConsumerGroupDescribeRequest([CONSUMER_GROUP, "acl-o"], True)
        ),
        0,
        (group(DESCRIBE, CONSUMER_GROUP), group(DESCRIBE, "acl-o")),
    ),
    Case(
        "list config resources",
        _simple(list_config_resources.ListConfigResourcesRequest),
        0,
        (cluster(DESCRIBE_CONFIGS),),
    ),
    Case(
        "describe topic partitions",
        _simple(
            lambda: describe_topic_partitions.DescribeTopicPartitionsRequest(
                [describe_topic_partitions.TopicRequest(n) for n in _TOPICS]
            )
        ),
        0,
        (topic(DESCRIBE), topic(WRITE)),
    ),
    Case(
        "describe all topic partitions",
        _simple(describe_topic_partitions.DescribeTopicPartitionsRequest),
        0,
        (topic(DESCRIBE), topic(DESCRIBE, OTHER_TOPIC)),
    ),
)


def _change_acls(admin: Client, grants: tuple[Grant, ...], pause_s: float) -> None:
    """Makes `grants` the only ACLs of the judged client."""
    admin.call(
        delete_acls.DeleteAclsRequest([delete_acls.DeleteAclsFilter(1, None, 1, None, JUDGED_HOST, 1, 1)]), 3
    )
    creations = [
        create_acls.AclCreation(
            kind, name, PatternType.LITERAL, PRINCIPAL, JUDGED_HOST, operation, PermissionType.ALLOW
        )
        for kind, name, operation in grants
    ]
    if creations:
        response = admin.call(create_acls.CreateAclsRequest(creations), 3)
        assert not any(result.error_code for result in response.results), response
    time.sleep(pause_s)


def prepare(bootstrap: str) -> Setup:
    """Gives the administrator every right and creates what the cases need."""
    admin = Client(bootstrap, ADMIN_HOST)
    everything = [
        create_acls.AclCreation(
            kind,
            CLUSTER_NAME if kind is ResourceType.CLUSTER else "*",
            PatternType.LITERAL,
            PRINCIPAL,
            ADMIN_HOST,
            AclOperation.ALL,
            PermissionType.ALLOW,
        )
        for kind in (
            ResourceType.TOPIC,
            ResourceType.GROUP,
            ResourceType.CLUSTER,
            ResourceType.TRANSACTIONAL_ID,
        )
    ]
    response = admin.call(create_acls.CreateAclsRequest(everything), 3)
    assert not any(result.error_code for result in response.results), response
    time.sleep(1)
    creation = create_topics.CreateTopicsRequest(
        [create_topics.CreatableTopic(n, 1, 1) for n in (TOPIC, OTHER_TOPIC)], 10_000
    )
    admin.call(creation, 7)
    time.sleep(1)
    for request in (
        find_coordinator.FindCoordinatorRequest(GROUP, 0),
        find_coordinator.FindCoordinatorRequest(CONSUMER_GROUP, 0),
        find_coordinator.FindCoordinatorRequest(TRANSACTION, 1),
    ):
        until(partial(_is_found, admin, request))
    until(
        lambda: all(
            not part.error_code
            for found in admin.call(_commit(Setup({}, 0)), 8).topics
            for part in found.partitions
        )
    )
    until(lambda: admin.call(init_producer_id.InitProducerIdRequest(TRANSACTION, 6000), 4).error_code == 0)
    described = admin.call(_metadata(TOPIC, OTHER_TOPIC)(Setup({}, 0)), 12)
    admin.close()
    return Setup({topic.name: topic.topic_id for topic in described.topics}, described.brokers[0].node_id)


def _is_found(admin: Client, request: find_coordinator.FindCoordinatorRequest) -> bool:
    return not admin.call(request, 3).error_code


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, "the broker is not ready for the cases"
        time.sleep(0.2)


# Fields whose values differ between brokers or between runs. Everything else is compared.
IGNORED = frozenset(
    [
        "aborted_transactions",
        "active_producers",
        "base_offset",
        "brokers",
        "cluster_id",
        "committed_leader_epoch",
        "configs",
        "controller_id",
        "end_offset",
        "error_message",
        "eligible_leader_replicas",
        "high_watermark",
        "host",
        "is_internal",
        "isr_nodes",
        "current_leader",
        "last_stable_offset",
        "leader_epoch",
        "leader_id",
        "log_append_time_ms",
        "log_start_offset",
        "low_watermark",
        "member_id",
        "members",
        "metadata",
        "node_endpoints",
        "node_id",
        "nodes",
        "offline_replicas",
        "offset",
        "port",
        "producer_epoch",
        "producer_id",
        "protocol_name",
        "protocol_type",
        "rack",
        "records",
        "replica_nodes",
        "session_id",
        "throttle_time_ms",
        "timestamp",
        "transaction_start_time_ms",
        "transaction_timeout_ms",
        "last_known_elr",
        "leader",
        "protocol_data",
        "assignor_name",
        "group_epoch",
        "assignment_epoch",
        "heartbeat_interval_ms",
        "entries",
        "skip_assignment",
        "log_dir",
        "total_bytes",
        "usable_bytes",
        "generation_id",
        "member_epoch",
    ]
)


def plain(value: Any, setup: Setup, names: dict[uuid.UUID, str]) -> Any:
    """Returns the comparable part of a response."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.name not in IGNORED}
        shown = {name: plain(field, setup, names) for name, field in fields.items()}
        return {name: field for name, field in shown.items() if field not in (None, "", [], {}, -(2**31))}
    if isinstance(value, (list, tuple)):
        items = [plain(item, setup, names) for item in value]
        return sorted((item for item in items if not _is_internal(item)), key=repr)
    if isinstance(value, uuid.UUID):
        return names.get(value, "unknown")
    if isinstance(value, IntEnum):
        return int(value)
    if isinstance(value, (bytes, memoryview)):
        return None
    return value


def _is_internal(item: Any) -> bool:
    return isinstance(item, dict) and str(item.get("name", "")).startswith("__")


def observe(bootstrap: str, pause_s: float = PROPAGATION_S) -> dict[str, Any]:
    """Returns the responses by case and grants."""
    setup = prepare(bootstrap)
    names = {known: name for name, known in setup.topic_ids.items()}
    admin = Client(bootstrap, ADMIN_HOST)
    seen: dict[str, Any] = {}
    for case in CASES:
        sets = [(), *((grant,) for grant in case.grants), case.grants]
        for grants in dict.fromkeys(sets):
            _change_acls(admin, grants, pause_s)
            label = ", ".join(f"{operation.name} {kind.name} {name}" for kind, name, operation in grants)
            client = Client(bootstrap, JUDGED_HOST)
            try:
                response = client.call(case.request(setup), case.version)
                seen[f"{case.name}: {label or 'nothing'}"] = plain(response, setup, names)
            except (ConnectionError, TimeoutError) as error:
                seen[f"{case.name}: {label or 'nothing'}"] = type(error).__name__
            finally:
                client.close()
    _change_acls(admin, (), pause_s)
    admin.close()
    return seen


if __name__ == "__main__":
    json.dump(observe(sys.argv[1]), sys.stdout, indent=1, sort_keys=True)
