"""The table of what each API needs: API -> operations and resources. All decisions about requests come from
it.

The rows are those of Kafka's `KafkaApis`, `ControllerApis` and `AclApis`. An API without a row is not served
while an authorizer is configured. A row without requirements means that everyone may send the request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidelog.broker.authorization import rules
from tidelog.broker.authorization.judging import (
    ALTER,
    ALTER_CONFIGS,
    CLUSTER,
    CLUSTER_ACTION,
    CREATE,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    IDEMPOTENT_WRITE,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    By,
    Each,
    InHandler,
    Judgement,
    Requirement,
    Shown,
    Whole,
)
from tidelog.model.acl import AclOperation, ResourceType
from tidelog.timing.steps import Steps
from tidelog.wire.api_keys import ApiKey


def _group(operation: AclOperation) -> Whole:
    return Whole(operation, GROUP, lambda message: message.group_id)


def _cluster(operation: AclOperation) -> Whole:
    return Whole(operation, CLUSTER)


def _topics(operation: AclOperation) -> Each:
    return Each(operation, TOPIC)


def _by(
    rule: Callable[[Judgement], Steps[None] | None], *operations: tuple[AclOperation, ResourceType]
) -> By:
    return By(rule, operations)


_TRANSACTION: Final = Whole(WRITE, TRANSACTIONAL_ID, lambda message: message.transactional_id)
_TELL_TOPICS: Final = _by(rules.tell_topics, (DESCRIBE, TOPIC))
_SUBSCRIBED_TOPICS: Final = _by(rules.need_subscribed_topics, (DESCRIBE, TOPIC))
_DESCRIBED_GROUPS: Final = ((DESCRIBE, GROUP), (DESCRIBE, TOPIC))

TABLE: Final[dict[int, tuple[Requirement, ...]]] = {
    ApiKey.PRODUCE: (InHandler(WRITE, TRANSACTIONAL_ID), InHandler(WRITE, TOPIC)),
    ApiKey.FETCH: (InHandler(READ, TOPIC), InHandler(CLUSTER_ACTION, CLUSTER)),
    ApiKey.LIST_OFFSETS: (_topics(DESCRIBE),),
    ApiKey.METADATA: (
        _by(rules.judge_metadata, (DESCRIBE, TOPIC), (CREATE, TOPIC), (CREATE, CLUSTER), (DESCRIBE, CLUSTER)),
    ),
    ApiKey.OFFSET_COMMIT: (_group(READ), _topics(READ)),
    ApiKey.OFFSET_FETCH: (_by(rules.judge_offset_fetch, (DESCRIBE, GROUP), (DESCRIBE, TOPIC)),),
    ApiKey.FIND_COORDINATOR: (
        _by(
            rules.judge_find_coordinator,
            (DESCRIBE, GROUP),
            (DESCRIBE, TRANSACTIONAL_ID),
            (CLUSTER_ACTION, CLUSTER),
        ),
    ),
    ApiKey.JOIN_GROUP: (_group(READ), _TELL_TOPICS),
    ApiKey.HEARTBEAT: (_group(READ), _TELL_TOPICS),
    ApiKey.LEAVE_GROUP: (_group(READ),),
    ApiKey.SYNC_GROUP: (_group(READ),),
    ApiKey.DESCRIBE_GROUPS: (_by(rules.describe_groups(), (DESCRIBE, GROUP)),),
    ApiKey.LIST_GROUPS: (Shown(DESCRIBE, GROUP, "groups", "group_id", unless=DESCRIBE),),
    ApiKey.SASL_HANDSHAKE: (),
    ApiKey.API_VERSIONS: (),
    ApiKey.CREATE_TOPICS: (
        _by(rules.judge_create_topics, (CREATE, TOPIC), (CREATE, CLUSTER), (DESCRIBE_CONFIGS, TOPIC)),
    ),
    ApiKey.DELETE_TOPICS: (_by(rules.judge_delete_topics, (DELETE, TOPIC), (DESCRIBE, TOPIC)),),
    ApiKey.DELETE_RECORDS: (_topics(DELETE),),
    ApiKey.INIT_PRODUCER_ID: (
        _by(
            rules.judge_init_producer_id,
            (WRITE, TRANSACTIONAL_ID),
            (IDEMPOTENT_WRITE, CLUSTER),
            (WRITE, TOPIC),
        ),
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (_topics(DESCRIBE)._replace(unless=CLUSTER_ACTION),),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        _by(
            rules.judge_add_partitions_to_txn,
            (WRITE, TRANSACTIONAL_ID),
            (WRITE, TOPIC),
            (CLUSTER_ACTION, CLUSTER),
        ),
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: (_TRANSACTION, _group(READ)),
    ApiKey.END_TXN: (_TRANSACTION,),
    ApiKey.WRITE_TXN_MARKERS: (
        _by(rules.judge_write_txn_markers, (ALTER, CLUSTER), (CLUSTER_ACTION, CLUSTER)),
    ),
    ApiKey.TXN_OFFSET_COMMIT: (
        _TRANSACTION,
        _group(READ),
        _topics(READ),
    ),
    ApiKey.DESCRIBE_ACLS: (_cluster(DESCRIBE),),
    ApiKey.CREATE_ACLS: (_cluster(ALTER),),
    ApiKey.DELETE_ACLS: (_cluster(ALTER),),
    ApiKey.DESCRIBE_CONFIGS: (rules.configs(DESCRIBE_CONFIGS),),
    ApiKey.ALTER_CONFIGS: (rules.configs(ALTER_CONFIGS),),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (_cluster(ALTER),),
    ApiKey.DESCRIBE_LOG_DIRS: (_cluster(DESCRIBE),),
    ApiKey.SASL_AUTHENTICATE: (),
    ApiKey.CREATE_PARTITIONS: (_topics(ALTER),),
    # Everyone may use their own tokens. The ACLs open those of others, except for renewal and expiry.
    ApiKey.CREATE_DELEGATION_TOKEN: (InHandler(AclOperation.CREATE_TOKENS, ResourceType.USER),),
    ApiKey.RENEW_DELEGATION_TOKEN: (),
    ApiKey.EXPIRE_DELEGATION_TOKEN: (),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: (
        InHandler(DESCRIBE, ResourceType.DELEGATION_TOKEN),
        InHandler(AclOperation.DESCRIBE_TOKENS, ResourceType.USER),
    ),
    ApiKey.DELETE_GROUPS: (Each(DELETE, GROUP),),
    ApiKey.ELECT_LEADERS: (_cluster(ALTER),),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (rules.configs(ALTER_CONFIGS),),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (_cluster(ALTER),),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (_cluster(DESCRIBE),),
    ApiKey.OFFSET_DELETE: (_group(DELETE), _topics(READ)),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (_cluster(DESCRIBE_CONFIGS),),
    ApiKey.ALTER_CLIENT_QUOTAS: (_cluster(ALTER_CONFIGS),),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (_cluster(DESCRIBE),),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (_cluster(ALTER),),
    ApiKey.DESCRIBE_QUORUM: (_cluster(DESCRIBE),),
    ApiKey.UPDATE_FEATURES: (_cluster(ALTER),),
    ApiKey.DESCRIBE_CLUSTER: (_by(rules.judge_describe_cluster, (DESCRIBE, CLUSTER)),),
    ApiKey.DESCRIBE_PRODUCERS: (_topics(READ),),
    ApiKey.UNREGISTER_BROKER: (_cluster(ALTER),),
    ApiKey.DESCRIBE_TRANSACTIONS: (
        _by(rules.judge_describe_transactions, (DESCRIBE, TRANSACTIONAL_ID), (DESCRIBE, TOPIC)),
    ),
    ApiKey.LIST_TRANSACTIONS: (Shown(DESCRIBE, TRANSACTIONAL_ID, "transaction_states", "transactional_id"),),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (_group(READ), _SUBSCRIBED_TOPICS, _TELL_TOPICS),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (By(rules.describe_groups(rules.hide_members), _DESCRIBED_GROUPS),),
    ApiKey.SHARE_GROUP_HEARTBEAT: (_group(READ), _SUBSCRIBED_TOPICS),
    ApiKey.SHARE_GROUP_DESCRIBE: (By(rules.describe_groups(rules.hide_members), _DESCRIBED_GROUPS),),
    ApiKey.STREAMS_GROUP_HEARTBEAT: (
        _group(READ),
        _by(rules.need_topics_of_topology, (DESCRIBE, TOPIC)),
        InHandler(CREATE, CLUSTER),
        InHandler(CREATE, TOPIC),
    ),
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: (_group(READ),),
    ApiKey.STREAMS_GROUP_DESCRIBE: (
        By(
            rules.describe_groups(rules.hide_topologies),
            _DESCRIBED_GROUPS,
        ),
    ),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (
        _by(rules.judge_describe_share_group_offsets, (DESCRIBE, GROUP), (DESCRIBE, TOPIC)),
    ),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: (
        _group(READ),
        _topics(READ),
    ),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: (
        _group(DELETE),
        _topics(READ),
    ),
    # Everyone may push metrics, as in Kafka: the subscriptions say whose are wanted.
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: (),
    ApiKey.PUSH_TELEMETRY: (),
    ApiKey.LIST_CONFIG_RESOURCES: (_cluster(DESCRIBE_CONFIGS),),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (_by(rules.judge_describe_topic_partitions, (DESCRIBE, TOPIC)),),
    ApiKey.SHARE_FETCH: (_group(READ), InHandler(READ, TOPIC)),
    ApiKey.SHARE_ACKNOWLEDGE: (_group(READ), InHandler(READ, TOPIC)),
}
