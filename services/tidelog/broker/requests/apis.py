"""The APIs that this broker serves: one row for each, with all that is decided about it before its handler.

A row states the versions, who answers, the operations that a client needs, the feature that has to be on, and
whether calls are audited. ApiVersions lists exactly these rows.
`error_responses.ITEMS` states where the responses have their errors. `chain.py` applies the rows.

The operations are those of Kafka's `KafkaApis`, `ControllerApis` and `AclApis`. A row without any means that
everyone may send the request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.broker.handlers import wiring
from tidelog.broker.security import rules
from tidelog.broker.security.judging import (
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
from tidelog.kernel.steps import Steps
from tidelog.model.acl import AclOperation, ResourceType
from tidelog.model.coordinator_shards import ShardKind
from tidelog.model.features import GROUP_VERSION, SHARE_VERSION, STREAMS_VERSION
from tidelog.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from tidelog.broker.handlers.wiring import Family
    from tidelog.broker.parts import BrokerParts


class Place(Enum):
    """The place where an API is answered, if neither a handler of this broker nor a coordinator answers."""

    CONTROLLER = "controller"
    """The controller answers; this broker only forwards the request."""


TO_CONTROLLER: Final = Place.CONTROLLER


class ToShard(NamedTuple):
    """The coordinator of a group or transaction answers. Before version `batched_from`, a request names one
    group or transaction at the start of its body; from this version on, it contains a list of them
    (`coordination/batched.py`).
    """

    kind: ShardKind
    batched_from: int | None = None


MakeFamily = Callable[["BrokerParts"], "Family"]
"""Makes the handlings of a family of APIs that this broker answers, at the first request of each of them."""


class Api(NamedTuple):
    """An API that this broker serves."""

    min_version: int
    max_version: int
    answered: MakeFamily | Place | ToShard
    needs: tuple[Requirement, ...]
    """The operations that a client needs, if there is an authorizer."""
    feature: str = ""
    """The feature whose level must be at least 1."""
    is_audited: bool = False
    """Whether administrators call it, so that each call has a line in the audit log."""
    may_answer_large: bool = False
    """Whether coordinators may answer a small request with up to 16 MiB."""
    is_of_telemetry: bool = False
    """Whether it is served only with `tidelog.client.metrics.enable`."""
    advertised_min: int | None = None
    """The first version that ApiVersions lists, if it differs from the first version that is served."""


def _api_versions(parts: BrokerParts) -> Family:
    return wiring.api_versions(parts, listed_versions(has_telemetry=parts.client_telemetry is not None))


def _group(operation: AclOperation) -> Whole:
    return Whole(operation, GROUP, lambda message: message.group_id)


def _cluster(operation: AclOperation) -> Whole:
    return Whole(operation, CLUSTER)


def _by(
    rule: Callable[[Judgement], Steps[None] | None], *operations: tuple[AclOperation, ResourceType]
) -> By:
    return By(rule, operations)


_TRANSACTION: Final = Whole(WRITE, TRANSACTIONAL_ID, lambda message: message.transactional_id)
_TELL_TOPICS: Final = _by(rules.tell_topics, (DESCRIBE, TOPIC))
_SUBSCRIBED_TOPICS: Final = _by(rules.need_subscribed_topics, (DESCRIBE, TOPIC))
_DESCRIBED_GROUPS: Final = ((DESCRIBE, GROUP), (DESCRIBE, TOPIC))
_GROUP_SHARD: Final = ToShard(ShardKind.GROUP)
_GROUP_SHARDS: Final = ToShard(ShardKind.GROUP, batched_from=0)

APIS: Final[Mapping[int, Api]] = {
    # librdkafka compresses only for brokers that list Produce from version 0 on (KAFKA-18659). Versions 0 to
    # 2 are refused nevertheless.
    ApiKey.PRODUCE: Api(
        3, 13, wiring.produce, (InHandler(WRITE, TRANSACTIONAL_ID), InHandler(WRITE, TOPIC)), advertised_min=0
    ),
    ApiKey.FETCH: Api(4, 18, wiring.fetch, (InHandler(READ, TOPIC), InHandler(CLUSTER_ACTION, CLUSTER))),
    ApiKey.LIST_OFFSETS: Api(1, 11, wiring.offsets, (Each(DESCRIBE, TOPIC),)),
    ApiKey.METADATA: Api(
        0,
        13,
        wiring.metadata,
        (
            _by(
                rules.judge_metadata,
                (DESCRIBE, TOPIC),
                (CREATE, TOPIC),
                (CREATE, CLUSTER),
                (DESCRIBE, CLUSTER),
            ),
        ),
    ),
    ApiKey.OFFSET_COMMIT: Api(2, 10, _GROUP_SHARD, (_group(READ), Each(READ, TOPIC))),
    ApiKey.OFFSET_FETCH: Api(
        1,
        10,
        ToShard(ShardKind.GROUP, batched_from=8),
        (_by(rules.judge_offset_fetch, (DESCRIBE, GROUP), (DESCRIBE, TOPIC)),),
    ),
    ApiKey.FIND_COORDINATOR: Api(
        0,
        6,
        wiring.coordinators,
        (
            _by(
                rules.judge_find_coordinator,
                (DESCRIBE, GROUP),
                (DESCRIBE, TRANSACTIONAL_ID),
                (CLUSTER_ACTION, CLUSTER),
            ),
        ),
    ),
    ApiKey.JOIN_GROUP: Api(0, 9, _GROUP_SHARD, (_group(READ), _TELL_TOPICS)),
    ApiKey.HEARTBEAT: Api(0, 4, _GROUP_SHARD, (_group(READ), _TELL_TOPICS)),
    ApiKey.LEAVE_GROUP: Api(0, 5, _GROUP_SHARD, (_group(READ),)),
    ApiKey.SYNC_GROUP: Api(0, 5, _GROUP_SHARD, (_group(READ),)),
    ApiKey.DESCRIBE_GROUPS: Api(
        0, 6, _GROUP_SHARDS, (_by(rules.describe_groups(), (DESCRIBE, GROUP)),), may_answer_large=True
    ),
    ApiKey.LIST_GROUPS: Api(
        0,
        5,
        wiring.coordinators,
        (Shown(DESCRIBE, GROUP, "groups", "group_id", unless=DESCRIBE),),
        may_answer_large=True,
    ),
    ApiKey.SASL_HANDSHAKE: Api(0, 1, wiring.sasl, ()),
    ApiKey.API_VERSIONS: Api(0, 5, _api_versions, ()),
    ApiKey.CREATE_TOPICS: Api(
        2,
        7,
        wiring.create_topics,
        (_by(rules.judge_create_topics, (CREATE, TOPIC), (CREATE, CLUSTER), (DESCRIBE_CONFIGS, TOPIC)),),
        is_audited=True,
    ),
    ApiKey.DELETE_TOPICS: Api(
        1,
        6,
        TO_CONTROLLER,
        (_by(rules.judge_delete_topics, (DELETE, TOPIC), (DESCRIBE, TOPIC)),),
        is_audited=True,
    ),
    ApiKey.DELETE_RECORDS: Api(0, 2, wiring.delete_records, (Each(DELETE, TOPIC),), is_audited=True),
    ApiKey.INIT_PRODUCER_ID: Api(
        0,
        5,
        wiring.transactions,
        (
            _by(
                rules.judge_init_producer_id,
                (WRITE, TRANSACTIONAL_ID),
                (IDEMPOTENT_WRITE, CLUSTER),
                (WRITE, TOPIC),
            ),
        ),
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Api(
        2, 4, wiring.offsets, (Each(DESCRIBE, TOPIC, unless=CLUSTER_ACTION),)
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: Api(
        0,
        5,
        ToShard(ShardKind.TRANSACTION, batched_from=4),
        (
            _by(
                rules.judge_add_partitions_to_txn,
                (WRITE, TRANSACTIONAL_ID),
                (WRITE, TOPIC),
                (CLUSTER_ACTION, CLUSTER),
            ),
        ),
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: Api(0, 4, ToShard(ShardKind.TRANSACTION), (_TRANSACTION, _group(READ))),
    ApiKey.END_TXN: Api(0, 5, ToShard(ShardKind.TRANSACTION), (_TRANSACTION,)),
    ApiKey.WRITE_TXN_MARKERS: Api(
        1,
        2,
        wiring.transactions,
        (_by(rules.judge_write_txn_markers, (ALTER, CLUSTER), (CLUSTER_ACTION, CLUSTER)),),
        is_audited=True,
    ),
    ApiKey.TXN_OFFSET_COMMIT: Api(
        0,
        6,
        wiring.transactions,
        (
            _TRANSACTION,
            _group(READ),
            Each(READ, TOPIC),
        ),
    ),
    ApiKey.DESCRIBE_ACLS: Api(1, 3, wiring.security, (_cluster(DESCRIBE),)),
    ApiKey.CREATE_ACLS: Api(1, 3, wiring.security, (_cluster(ALTER),), is_audited=True),
    ApiKey.DELETE_ACLS: Api(1, 3, wiring.security, (_cluster(ALTER),), is_audited=True),
    ApiKey.DESCRIBE_CONFIGS: Api(1, 4, wiring.configs, (rules.configs(DESCRIBE_CONFIGS),)),
    ApiKey.ALTER_CONFIGS: Api(0, 2, wiring.configs, (rules.configs(ALTER_CONFIGS),), is_audited=True),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Api(1, 2, wiring.log_dirs, (_cluster(ALTER),), is_audited=True),
    ApiKey.DESCRIBE_LOG_DIRS: Api(1, 5, wiring.log_dirs, (_cluster(DESCRIBE),)),
    ApiKey.SASL_AUTHENTICATE: Api(0, 2, wiring.sasl, ()),
    ApiKey.CREATE_PARTITIONS: Api(0, 3, TO_CONTROLLER, (Each(ALTER, TOPIC),), is_audited=True),
    # Everyone may use their own tokens. The ACLs open those of others, except for renewal and expiry.
    ApiKey.CREATE_DELEGATION_TOKEN: Api(
        1,
        3,
        wiring.security,
        (InHandler(AclOperation.CREATE_TOKENS, ResourceType.USER),),
        is_audited=True,
    ),
    ApiKey.RENEW_DELEGATION_TOKEN: Api(1, 2, wiring.security, (), is_audited=True),
    ApiKey.EXPIRE_DELEGATION_TOKEN: Api(1, 2, wiring.security, (), is_audited=True),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: Api(
        1,
        3,
        wiring.security,
        (
            InHandler(DESCRIBE, ResourceType.DELEGATION_TOKEN),
            InHandler(AclOperation.DESCRIBE_TOKENS, ResourceType.USER),
        ),
    ),
    ApiKey.DELETE_GROUPS: Api(0, 3, _GROUP_SHARDS, (Each(DELETE, GROUP),), is_audited=True),
    ApiKey.ELECT_LEADERS: Api(0, 2, TO_CONTROLLER, (_cluster(ALTER),), is_audited=True),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Api(
        0, 1, wiring.configs, (rules.configs(ALTER_CONFIGS),), is_audited=True
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Api(0, 1, TO_CONTROLLER, (_cluster(ALTER),), is_audited=True),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Api(0, 0, TO_CONTROLLER, (_cluster(DESCRIBE),)),
    ApiKey.OFFSET_DELETE: Api(0, 0, _GROUP_SHARD, (_group(DELETE), Each(READ, TOPIC)), is_audited=True),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Api(0, 1, TO_CONTROLLER, (_cluster(DESCRIBE_CONFIGS),)),
    ApiKey.ALTER_CLIENT_QUOTAS: Api(0, 1, TO_CONTROLLER, (_cluster(ALTER_CONFIGS),), is_audited=True),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Api(0, 0, wiring.security, (_cluster(DESCRIBE),)),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Api(0, 0, TO_CONTROLLER, (_cluster(ALTER),), is_audited=True),
    ApiKey.DESCRIBE_QUORUM: Api(0, 2, TO_CONTROLLER, (_cluster(DESCRIBE),)),
    ApiKey.UPDATE_FEATURES: Api(0, 2, TO_CONTROLLER, (_cluster(ALTER),), is_audited=True),
    ApiKey.DESCRIBE_CLUSTER: Api(
        0, 2, wiring.metadata, (_by(rules.judge_describe_cluster, (DESCRIBE, CLUSTER)),)
    ),
    ApiKey.DESCRIBE_PRODUCERS: Api(0, 0, wiring.transactions, (Each(READ, TOPIC),)),
    ApiKey.UNREGISTER_BROKER: Api(0, 0, TO_CONTROLLER, (_cluster(ALTER),), is_audited=True),
    ApiKey.DESCRIBE_TRANSACTIONS: Api(
        0,
        0,
        ToShard(ShardKind.TRANSACTION, batched_from=0),
        (_by(rules.judge_describe_transactions, (DESCRIBE, TRANSACTIONAL_ID), (DESCRIBE, TOPIC)),),
        may_answer_large=True,
    ),
    ApiKey.LIST_TRANSACTIONS: Api(
        0,
        2,
        wiring.coordinators,
        (Shown(DESCRIBE, TRANSACTIONAL_ID, "transaction_states", "transactional_id"),),
        may_answer_large=True,
    ),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Api(
        0, 1, _GROUP_SHARD, (_group(READ), _SUBSCRIBED_TOPICS, _TELL_TOPICS), feature=GROUP_VERSION
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Api(
        0,
        1,
        _GROUP_SHARDS,
        (By(rules.describe_groups(rules.hide_members), _DESCRIBED_GROUPS),),
        feature=GROUP_VERSION,
        may_answer_large=True,
    ),
    ApiKey.SHARE_GROUP_HEARTBEAT: Api(
        1, 1, _GROUP_SHARD, (_group(READ), _SUBSCRIBED_TOPICS), feature=SHARE_VERSION
    ),
    ApiKey.SHARE_GROUP_DESCRIBE: Api(
        1,
        1,
        _GROUP_SHARDS,
        (By(rules.describe_groups(rules.hide_members), _DESCRIBED_GROUPS),),
        feature=SHARE_VERSION,
        may_answer_large=True,
    ),
    # Everyone may push metrics, as in Kafka: the subscriptions say whose are wanted.
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: Api(0, 0, wiring.client_telemetry, (), is_of_telemetry=True),
    ApiKey.PUSH_TELEMETRY: Api(0, 0, wiring.client_telemetry, (), is_of_telemetry=True),
    ApiKey.LIST_CONFIG_RESOURCES: Api(0, 1, wiring.configs, (_cluster(DESCRIBE_CONFIGS),)),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Api(
        0,
        0,
        wiring.metadata,
        (_by(rules.judge_describe_topic_partitions, (DESCRIBE, TOPIC)),),
    ),
    ApiKey.SHARE_FETCH: Api(
        1, 2, wiring.share, (_group(READ), InHandler(READ, TOPIC)), feature=SHARE_VERSION
    ),
    ApiKey.SHARE_ACKNOWLEDGE: Api(
        1, 2, wiring.share, (_group(READ), InHandler(READ, TOPIC)), feature=SHARE_VERSION
    ),
    ApiKey.STREAMS_GROUP_HEARTBEAT: Api(
        0,
        1,
        wiring.streams_groups,
        (
            _group(READ),
            _by(rules.need_topics_of_topology, (DESCRIBE, TOPIC)),
            InHandler(CREATE, CLUSTER),
            InHandler(CREATE, TOPIC),
        ),
        feature=STREAMS_VERSION,
    ),
    ApiKey.STREAMS_GROUP_DESCRIBE: Api(
        0,
        1,
        _GROUP_SHARDS,
        (
            By(
                rules.describe_groups(rules.hide_topologies),
                _DESCRIBED_GROUPS,
            ),
        ),
        feature=STREAMS_VERSION,
        may_answer_large=True,
    ),
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: Api(
        0, 0, wiring.streams_groups, (_group(READ),), feature=STREAMS_VERSION
    ),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: Api(
        0,
        1,
        _GROUP_SHARDS,
        (_by(rules.judge_describe_share_group_offsets, (DESCRIBE, GROUP), (DESCRIBE, TOPIC)),),
        feature=SHARE_VERSION,
        may_answer_large=True,
    ),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: Api(
        0,
        0,
        _GROUP_SHARD,
        (_group(READ), Each(READ, TOPIC)),
        feature=SHARE_VERSION,
        is_audited=True,
    ),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: Api(
        0,
        0,
        _GROUP_SHARD,
        (_group(DELETE), Each(READ, TOPIC)),
        feature=SHARE_VERSION,
        is_audited=True,
    ),
}


def listed_versions(*, has_telemetry: bool) -> list[tuple[int, int, int]]:
    """Returns the key, the first and the last version of each API that ApiVersions lists. Those of clients'
    metrics belong to them only if there is a receiver.
    """
    return [
        (key, api.min_version if api.advertised_min is None else api.advertised_min, api.max_version)
        for key, api in APIS.items()
        if has_telemetry or not api.is_of_telemetry
    ]
