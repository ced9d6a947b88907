"""The meaning of Kafka's error codes, for messages to people.

A meaning is a clause that follows the name of the item and a colon: `topic 'flights' partition 0: its leader
has changed`. Brokers send many codes without a message, and Kafka's name of a code tells operators little.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidelog.model.errors import ErrorCode as Code

_NO_ACL: Final = "no ACL allows it"
_COORDINATOR_MOVED: Final = "it has moved to another coordinator"
_OTHER_MEMBER: Final = "another member has taken its place"
_RAFT: Final = "the controllers' quorum refused it"

_MEANINGS: Final[Mapping[Code, str]] = {
    Code.UNKNOWN_SERVER_ERROR: "the broker failed unexpectedly; its log contains the reason",
    Code.NONE: "no error",
    Code.OFFSET_OUT_OF_RANGE: "the log does not contain the offset",
    Code.CORRUPT_MESSAGE: "the records are damaged",
    Code.UNKNOWN_TOPIC_OR_PARTITION: "the topic or partition does not exist",
    Code.INVALID_FETCH_SIZE: "the size of the fetch is not valid",
    Code.LEADER_NOT_AVAILABLE: "it has no leader at present",
    Code.NOT_LEADER_OR_FOLLOWER: "its leader has changed",
    Code.REQUEST_TIMED_OUT: "the brokers did not finish it in time",
    Code.BROKER_NOT_AVAILABLE: "the broker is not available",
    Code.REPLICA_NOT_AVAILABLE: "the broker has no such replica at present",
    Code.MESSAGE_TOO_LARGE: "the records are larger than max.message.bytes permits",
    Code.STALE_CONTROLLER_EPOCH: "the request came from a controller that was replaced",
    Code.OFFSET_METADATA_TOO_LARGE: "its metadata is larger than offset.metadata.max.bytes permits",
    Code.NETWORK_EXCEPTION: "the broker closed the connection before it answered",
    Code.COORDINATOR_LOAD_IN_PROGRESS: "its coordinator is still loading it",
    Code.COORDINATOR_NOT_AVAILABLE: "it has no coordinator at present",
    Code.NOT_COORDINATOR: _COORDINATOR_MOVED,
    Code.INVALID_TOPIC_EXCEPTION: "the topic has an invalid name, or is internal",
    Code.RECORD_LIST_TOO_LARGE: "the batch is larger than a segment of the topic",
    Code.NOT_ENOUGH_REPLICAS: "fewer replicas are in sync than min.insync.replicas requires",
    Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "the records were written, but fewer replicas are in sync than "
    "min.insync.replicas requires",
    Code.INVALID_REQUIRED_ACKS: "the number of acknowledgements is not valid",
    Code.ILLEGAL_GENERATION: "the member belongs to an earlier generation of the group",
    Code.INCONSISTENT_GROUP_PROTOCOL: "the group's members use other protocols or assignors",
    Code.INVALID_GROUP_ID: "the group has an invalid name",
    Code.UNKNOWN_MEMBER_ID: "the group has no such member",
    Code.INVALID_SESSION_TIMEOUT: "the brokers do not permit this session timeout",
    Code.REBALANCE_IN_PROGRESS: "the group is rebalancing",
    Code.INVALID_COMMIT_OFFSET_SIZE: "the offset commit is too large",
    Code.TOPIC_AUTHORIZATION_FAILED: _NO_ACL,
    Code.GROUP_AUTHORIZATION_FAILED: _NO_ACL,
    Code.CLUSTER_AUTHORIZATION_FAILED: _NO_ACL,
    Code.INVALID_TIMESTAMP: "the topic's settings do not permit the timestamp",
    Code.UNSUPPORTED_SASL_MECHANISM: "the brokers do not offer this SASL mechanism",
    Code.ILLEGAL_SASL_STATE: "the request does not belong to this step of the login",
    Code.UNSUPPORTED_VERSION: "the broker does not support this, or not in this version",
    Code.TOPIC_ALREADY_EXISTS: "the topic already exists",
    Code.INVALID_PARTITIONS: "the number of partitions is not possible",
    Code.INVALID_REPLICATION_FACTOR: "the cluster has fewer brokers than the replication factor requires",
    Code.INVALID_REPLICA_ASSIGNMENT: "the list of replicas is not possible",
    Code.INVALID_CONFIG: "a setting is unknown or has an invalid value",
    Code.NOT_CONTROLLER: "the active controller has changed",
    Code.INVALID_REQUEST: "the broker refused the request as invalid",
    Code.UNSUPPORTED_FOR_MESSAGE_FORMAT: "the format of the records does not support it",
    Code.POLICY_VIOLATION: "a policy of the cluster forbids it",
    Code.OUT_OF_ORDER_SEQUENCE_NUMBER: "records of this producer that came before are missing",
    Code.DUPLICATE_SEQUENCE_NUMBER: "the broker already has these records",
    Code.INVALID_PRODUCER_EPOCH: "a newer producer with the same transactional id has replaced this one",
    Code.INVALID_TXN_STATE: "the state of the transaction does not permit it",
    Code.INVALID_PRODUCER_ID_MAPPING: "the producer id does not belong to this transactional id",
    Code.INVALID_TRANSACTION_TIMEOUT: "the timeout is longer than transaction.max.timeout.ms permits",
    Code.CONCURRENT_TRANSACTIONS: "an earlier change of the transaction is not finished",
    Code.TRANSACTION_COORDINATOR_FENCED: "a newer transaction coordinator has replaced this one",
    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _NO_ACL,
    Code.SECURITY_DISABLED: "the brokers have no authorizer",
    Code.OPERATION_NOT_ATTEMPTED: "it was not tried, because another part of the request failed",
    Code.KAFKA_STORAGE_ERROR: "the broker's disk failed",
    Code.LOG_DIR_NOT_FOUND: "the broker has no such log directory",
    Code.SASL_AUTHENTICATION_FAILED: "the login failed",
    Code.UNKNOWN_PRODUCER_ID: "the broker does not know the producer",
    Code.REASSIGNMENT_IN_PROGRESS: "its replicas are moving",
    Code.DELEGATION_TOKEN_AUTH_DISABLED: "the brokers have no delegation tokens",
    Code.DELEGATION_TOKEN_NOT_FOUND: "the delegation token does not exist",
    Code.DELEGATION_TOKEN_OWNER_MISMATCH: "the delegation token belongs to another user",
    Code.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "this login does not permit requests for delegation tokens",
    Code.DELEGATION_TOKEN_AUTHORIZATION_FAILED: _NO_ACL,
    Code.DELEGATION_TOKEN_EXPIRED: "the delegation token has expired",
    Code.INVALID_PRINCIPAL_TYPE: "the type of the principal is not User",
    Code.NON_EMPTY_GROUP: "the group has members",
    Code.GROUP_ID_NOT_FOUND: "the group does not exist",
    Code.FETCH_SESSION_ID_NOT_FOUND: "the broker does not know the fetch session",
    Code.INVALID_FETCH_SESSION_EPOCH: "the epoch of the fetch session is not the expected one",
    Code.LISTENER_NOT_FOUND: "its leader does not have the listener over which the request came",
    Code.TOPIC_DELETION_DISABLED: "delete.topic.enable forbids the deletion of topics",
    Code.FENCED_LEADER_EPOCH: "its leader has changed",
    Code.UNKNOWN_LEADER_EPOCH: "the broker has not heard of its new leader yet",
    Code.UNSUPPORTED_COMPRESSION_TYPE: "the broker does not support this compression",
    Code.STALE_BROKER_EPOCH: "the broker has started again since",
    Code.OFFSET_NOT_AVAILABLE: "its new leader does not know the offset yet",
    Code.MEMBER_ID_REQUIRED: "the member must join with the id that it was given",
    Code.PREFERRED_LEADER_NOT_AVAILABLE: "its preferred leader is not alive or not in sync",
    Code.GROUP_MAX_SIZE_REACHED: "the group has as many members as group.max.size permits",
    Code.FENCED_INSTANCE_ID: _OTHER_MEMBER,
    Code.ELIGIBLE_LEADERS_NOT_AVAILABLE: "none of its replicas is alive and may become the leader",
    Code.ELECTION_NOT_NEEDED: "it needs no election",
    Code.NO_REASSIGNMENT_IN_PROGRESS: "its replicas are not moving",
    Code.GROUP_SUBSCRIBED_TO_TOPIC: "a member subscribes to the topic",
    Code.INVALID_RECORD: "a record is not valid",
    Code.UNSTABLE_OFFSET_COMMIT: "a transaction that commits its offset is not finished",
    Code.THROTTLING_QUOTA_EXCEEDED: "the quota for such requests is used up",
    Code.PRODUCER_FENCED: "a newer producer with the same transactional id has replaced this one",
    Code.RESOURCE_NOT_FOUND: "it does not exist",
    Code.DUPLICATE_RESOURCE: "the request names it twice",
    Code.UNACCEPTABLE_CREDENTIAL: "the brokers do not accept the credential",
    Code.INCONSISTENT_VOTER_SET: _RAFT,
    Code.INVALID_UPDATE_VERSION: "the version of the feature is not possible",
    Code.FEATURE_UPDATE_FAILED: "the feature was not changed",
    Code.PRINCIPAL_DESERIALIZATION_FAILURE: "the controller could not read the user's name in the request",
    Code.SNAPSHOT_NOT_FOUND: _RAFT,
    Code.POSITION_OUT_OF_RANGE: _RAFT,
    Code.UNKNOWN_TOPIC_ID: "the topic was deleted, or created again with the same name",
    Code.DUPLICATE_BROKER_REGISTRATION: "a broker with this id is already registered",
    Code.BROKER_ID_NOT_REGISTERED: "no broker with this id is registered",
    Code.INCONSISTENT_TOPIC_ID: "the topic was deleted, or created again with the same name",
    Code.INCONSISTENT_CLUSTER_ID: "the request is for another cluster",
    Code.TRANSACTIONAL_ID_NOT_FOUND: "it does not exist",
    Code.FETCH_SESSION_TOPIC_ID_ERROR: "the fetch session uses both names and ids of topics",
    Code.INELIGIBLE_REPLICA: "a replica may not join those in sync",
    Code.NEW_LEADER_ELECTED: "its leader has changed",
    Code.OFFSET_MOVED_TO_TIERED_STORAGE: "the records have moved to tiered storage",
    Code.FENCED_MEMBER_EPOCH: "the group has removed the member",
    Code.UNRELEASED_INSTANCE_ID: "a member with the same group.instance.id has not left",
    Code.UNSUPPORTED_ASSIGNOR: "the brokers do not have this assignor",
    Code.STALE_MEMBER_EPOCH: "the epoch of the member has changed",
    Code.MISMATCHED_ENDPOINT_TYPE: "a controller has this address instead of a broker, or the reverse",
    Code.UNSUPPORTED_ENDPOINT_TYPE: "the broker does not know this type of address",
    Code.UNKNOWN_CONTROLLER_ID: "no controller has this id",
    Code.UNKNOWN_SUBSCRIPTION_ID: "the subscription to the client's metrics has changed",
    Code.TELEMETRY_TOO_LARGE: "the metrics are larger than telemetry.max.bytes permits",
    Code.INVALID_REGISTRATION: "the controller refused the registration",
    Code.TRANSACTION_ABORTABLE: "the transaction must be aborted",
    Code.INVALID_RECORD_STATE: "a record is no longer acquired by this member",
    Code.SHARE_SESSION_NOT_FOUND: "the broker does not know the share session",
    Code.INVALID_SHARE_SESSION_EPOCH: "the epoch of the share session is not the expected one",
    Code.FENCED_STATE_EPOCH: "its share coordinator has changed",
    Code.INVALID_VOTER_KEY: _RAFT,
    Code.DUPLICATE_VOTER: _RAFT,
    Code.VOTER_NOT_FOUND: _RAFT,
    Code.INVALID_REGULAR_EXPRESSION: "the regular expression is not valid",
    Code.REBOOTSTRAP_REQUIRED: "the client must connect to the cluster anew",
    Code.STREAMS_INVALID_TOPOLOGY: "the topology of the streams group is not valid",
    Code.STREAMS_INVALID_TOPOLOGY_EPOCH: "the epoch of the topology is not valid",
    Code.STREAMS_TOPOLOGY_FENCED: "the group has a newer topology",
    Code.SHARE_SESSION_LIMIT_REACHED: "the broker has as many share sessions as it permits",
    Code.GROUP_DELETION_FAILED: "the group was not deleted",
    Code.STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED: "the description of the topology was not stored",
    Code.CONTROLLER_ID_NOT_REGISTERED: "no controller with this id is registered",
}


def known_code(code: int) -> Code:
    """Returns UNKNOWN_SERVER_ERROR for a code that Kafka does not have."""
    try:
        return Code(code)
    except ValueError:
        return Code.UNKNOWN_SERVER_ERROR


def meaning_of(code: int) -> str:
    """Returns the meaning as a clause, also of a code that Kafka does not have."""
    known = known_code(code)
    return _MEANINGS[known] if known == code else f"the broker answered with the unknown error code {code}"
