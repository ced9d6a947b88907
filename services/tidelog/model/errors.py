"""Kafka's error codes, what each means to people, and the exception that carries one.

A meaning is a clause that follows the name of the item and a colon: `topic 'flights' partition 0: its leader
has changed`. Brokers send many codes without a message, and Kafka's name of a code tells operators little.

Codes and names are those of Kafka's `org.apache.kafka.common.protocol.Errors` (4.4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, Final


class ErrorCode(IntEnum):
    """The int16 error code of Kafka's responses. 0 means success."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133
    GROUP_DELETION_FAILED = 134
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = 135
    CONTROLLER_ID_NOT_REGISTERED = 136


RETRIABLE_ERRORS: frozenset[ErrorCode] = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    }
)


class TidelogError(Exception):
    """Base of the exceptions that the clients and the commands raise. They can be pickled and copied."""

    def __reduce__(self) -> tuple[Callable[..., BaseException], tuple[Any, ...]]:
        # Without this, pickle passes the message to constructors that take other arguments. A process that
        # receives such an exception fails: a multiprocessing.Pool waits forever.
        return _restored_error, (type(self), self.args, self.__dict__)


def _restored_error(
    kind: type[TidelogError], args: tuple[object, ...], fields: dict[str, Any]
) -> TidelogError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class KafkaError(TidelogError):
    """A refusal that is reported to a client by its code, with one sentence for people."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message

    @property
    def client_message(self) -> str:
        """The sentence for clients. Unlike `str` of some errors, it contains no paths of this machine."""
        return self.message or self.code.name

    @property
    def is_retriable(self) -> bool:
        return self.code in RETRIABLE_ERRORS


_NO_ACL: Final = "no ACL allows it"
_COORDINATOR_MOVED: Final = "it has moved to another coordinator"
_OTHER_MEMBER: Final = "another member has taken its place"
_RAFT: Final = "the controllers' quorum refused it"

_MEANINGS: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "the broker failed unexpectedly; its log contains the reason",
    ErrorCode.NONE: "no error",
    ErrorCode.OFFSET_OUT_OF_RANGE: "the log does not contain the offset",
    ErrorCode.CORRUPT_MESSAGE: "the records are damaged",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "the topic or partition does not exist",
    ErrorCode.INVALID_FETCH_SIZE: "the size of the fetch is not valid",
    ErrorCode.LEADER_NOT_AVAILABLE: "it has no leader at present",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "its leader has changed",
    ErrorCode.REQUEST_TIMED_OUT: "the brokers did not finish it in time",
    ErrorCode.BROKER_NOT_AVAILABLE: "the broker is not available",
    ErrorCode.REPLICA_NOT_AVAILABLE: "the broker has no such replica at present",
    ErrorCode.MESSAGE_TOO_LARGE: "the records are larger than max.message.bytes permits",
    ErrorCode.STALE_CONTROLLER_EPOCH: "the request came from a controller that was replaced",
    ErrorCode.OFFSET_METADATA_TOO_LARGE: "its metadata is larger than offset.metadata.max.bytes permits",
    ErrorCode.NETWORK_EXCEPTION: "the broker closed the connection before it answered",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "its coordinator is still loading it",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "it has no coordinator at present",
    ErrorCode.NOT_COORDINATOR: _COORDINATOR_MOVED,
    ErrorCode.INVALID_TOPIC_EXCEPTION: "the topic has an invalid name, or is internal",
    ErrorCode.RECORD_LIST_TOO_LARGE: "the batch is larger than a segment of the topic",
    ErrorCode.NOT_ENOUGH_REPLICAS: "fewer replicas are in sync than min.insync.replicas requires",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: (
        "the records were written, but fewer replicas are in sync than min.insync.replicas requires"
    ),
    ErrorCode.INVALID_REQUIRED_ACKS: "the number of acknowledgements is not valid",
    ErrorCode.ILLEGAL_GENERATION: "the member belongs to an earlier generation of the group",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "the group's members use other protocols or assignors",
    ErrorCode.INVALID_GROUP_ID: "the group has an invalid name",
    ErrorCode.UNKNOWN_MEMBER_ID: "the group has no such member",
    ErrorCode.INVALID_SESSION_TIMEOUT: "the brokers do not permit this session timeout",
    ErrorCode.REBALANCE_IN_PROGRESS: "the group is rebalancing",
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE: "the offset commit is too large",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: _NO_ACL,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: _NO_ACL,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: _NO_ACL,
    ErrorCode.INVALID_TIMESTAMP: "the topic's settings do not permit the timestamp",
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: "the brokers do not offer this SASL mechanism",
    ErrorCode.ILLEGAL_SASL_STATE: "the request does not belong to this step of the login",
    ErrorCode.UNSUPPORTED_VERSION: "the broker does not support this, or not in this version",
    ErrorCode.TOPIC_ALREADY_EXISTS: "the topic already exists",
    ErrorCode.INVALID_PARTITIONS: "the number of partitions is not possible",
    ErrorCode.INVALID_REPLICATION_FACTOR: (
        "the cluster has fewer brokers than the replication factor requires"
    ),
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: "the list of replicas is not possible",
    ErrorCode.INVALID_CONFIG: "a setting is unknown or has an invalid value",
    ErrorCode.NOT_CONTROLLER: "the active controller has changed",
    ErrorCode.INVALID_REQUEST: "the broker refused the request as invalid",
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: "the format of the records does not support it",
    ErrorCode.POLICY_VIOLATION: "a policy of the cluster forbids it",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "records of this producer that came before are missing",
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: "the broker already has these records",
    ErrorCode.INVALID_PRODUCER_EPOCH: "a newer producer with the same transactional id has replaced this one",
    ErrorCode.INVALID_TXN_STATE: "the state of the transaction does not permit it",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "the producer id does not belong to this transactional id",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "the timeout is longer than transaction.max.timeout.ms permits",
    ErrorCode.CONCURRENT_TRANSACTIONS: "an earlier change of the transaction is not finished",
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: "a newer transaction coordinator has replaced this one",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _NO_ACL,
    ErrorCode.SECURITY_DISABLED: "the brokers have no authorizer",
    ErrorCode.OPERATION_NOT_ATTEMPTED: "it was not tried, because another part of the request failed",
    ErrorCode.KAFKA_STORAGE_ERROR: "the broker's disk failed",
    ErrorCode.LOG_DIR_NOT_FOUND: "the broker has no such log directory",
    ErrorCode.SASL_AUTHENTICATION_FAILED: "the login failed",
    ErrorCode.UNKNOWN_PRODUCER_ID: "the broker does not know the producer",
    ErrorCode.REASSIGNMENT_IN_PROGRESS: "its replicas are moving",
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "the brokers have no delegation tokens",
    ErrorCode.DELEGATION_TOKEN_NOT_FOUND: "the delegation token does not exist",
    ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH: "the delegation token belongs to another user",
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: (
        "this login does not permit requests for delegation tokens"
    ),
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: _NO_ACL,
    ErrorCode.DELEGATION_TOKEN_EXPIRED: "the delegation token has expired",
    ErrorCode.INVALID_PRINCIPAL_TYPE: "the type of the principal is not User",
    ErrorCode.NON_EMPTY_GROUP: "the group has members",
    ErrorCode.GROUP_ID_NOT_FOUND: "the group does not exist",
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND: "the broker does not know the fetch session",
    ErrorCode.INVALID_FETCH_SESSION_EPOCH: "the epoch of the fetch session is not the expected one",
    ErrorCode.LISTENER_NOT_FOUND: "its leader does not have the listener over which the request came",
    ErrorCode.TOPIC_DELETION_DISABLED: "delete.topic.enable forbids the deletion of topics",
    ErrorCode.FENCED_LEADER_EPOCH: "its leader has changed",
    ErrorCode.UNKNOWN_LEADER_EPOCH: "the broker has not heard of its new leader yet",
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "the broker does not support this compression",
    ErrorCode.STALE_BROKER_EPOCH: "the broker has started again since",
    ErrorCode.OFFSET_NOT_AVAILABLE: "its new leader does not know the offset yet",
    ErrorCode.MEMBER_ID_REQUIRED: "the member must join with the id that it was given",
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "its preferred leader is not alive or not in sync",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the group has as many members as group.max.size permits",
    ErrorCode.FENCED_INSTANCE_ID: _OTHER_MEMBER,
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: "none of its replicas is alive and may become the leader",
    ErrorCode.ELECTION_NOT_NEEDED: "it needs no election",
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: "its replicas are not moving",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "a member subscribes to the topic",
    ErrorCode.INVALID_RECORD: "a record is not valid",
    ErrorCode.UNSTABLE_OFFSET_COMMIT: "a transaction that commits its offset is not finished",
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: "the quota for such requests is used up",
    ErrorCode.PRODUCER_FENCED: "a newer producer with the same transactional id has replaced this one",
    ErrorCode.RESOURCE_NOT_FOUND: "it does not exist",
    ErrorCode.DUPLICATE_RESOURCE: "the request names it twice",
    ErrorCode.UNACCEPTABLE_CREDENTIAL: "the brokers do not accept the credential",
    ErrorCode.INCONSISTENT_VOTER_SET: _RAFT,
    ErrorCode.INVALID_UPDATE_VERSION: "the version of the feature is not possible",
    ErrorCode.FEATURE_UPDATE_FAILED: "the feature was not changed",
    ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE: (
        "the controller could not read the user's name in the request"
    ),
    ErrorCode.SNAPSHOT_NOT_FOUND: _RAFT,
    ErrorCode.POSITION_OUT_OF_RANGE: _RAFT,
    ErrorCode.UNKNOWN_TOPIC_ID: "the topic was deleted, or created again with the same name",
    ErrorCode.DUPLICATE_BROKER_REGISTRATION: "a broker with this id is already registered",
    ErrorCode.BROKER_ID_NOT_REGISTERED: "no broker with this id is registered",
    ErrorCode.INCONSISTENT_TOPIC_ID: "the topic was deleted, or created again with the same name",
    ErrorCode.INCONSISTENT_CLUSTER_ID: "the request is for another cluster",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "it does not exist",
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR: "the fetch session uses both names and ids of topics",
    ErrorCode.INELIGIBLE_REPLICA: "a replica may not join those in sync",
    ErrorCode.NEW_LEADER_ELECTED: "its leader has changed",
    ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE: "the records have moved to tiered storage",
    ErrorCode.FENCED_MEMBER_EPOCH: "the group has removed the member",
    ErrorCode.UNRELEASED_INSTANCE_ID: "a member with the same group.instance.id has not left",
    ErrorCode.UNSUPPORTED_ASSIGNOR: "the brokers do not have this assignor",
    ErrorCode.STALE_MEMBER_EPOCH: "the epoch of the member has changed",
    ErrorCode.MISMATCHED_ENDPOINT_TYPE: "a controller has this address instead of a broker, or the reverse",
    ErrorCode.UNSUPPORTED_ENDPOINT_TYPE: "the broker does not know this type of address",
    ErrorCode.UNKNOWN_CONTROLLER_ID: "no controller has this id",
    ErrorCode.UNKNOWN_SUBSCRIPTION_ID: "the subscription to the client's metrics has changed",
    ErrorCode.TELEMETRY_TOO_LARGE: "the metrics are larger than telemetry.max.bytes permits",
    ErrorCode.INVALID_REGISTRATION: "the controller refused the registration",
    ErrorCode.TRANSACTION_ABORTABLE: "the transaction must be aborted",
    ErrorCode.INVALID_RECORD_STATE: "a record is no longer acquired by this member",
    ErrorCode.SHARE_SESSION_NOT_FOUND: "the broker does not know the share session",
    ErrorCode.INVALID_SHARE_SESSION_EPOCH: "the epoch of the share session is not the expected one",
    ErrorCode.FENCED_STATE_EPOCH: "its share coordinator has changed",
    ErrorCode.INVALID_VOTER_KEY: _RAFT,
    ErrorCode.DUPLICATE_VOTER: _RAFT,
    ErrorCode.VOTER_NOT_FOUND: _RAFT,
    ErrorCode.INVALID_REGULAR_EXPRESSION: "the regular expression is not valid",
    ErrorCode.REBOOTSTRAP_REQUIRED: "the client must connect to the cluster anew",
    ErrorCode.STREAMS_INVALID_TOPOLOGY: "the topology of the streams group is not valid",
    ErrorCode.STREAMS_INVALID_TOPOLOGY_EPOCH: "the epoch of the topology is not valid",
    ErrorCode.STREAMS_TOPOLOGY_FENCED: "the group has a newer topology",
    ErrorCode.SHARE_SESSION_LIMIT_REACHED: "the broker has as many share sessions as it permits",
    ErrorCode.GROUP_DELETION_FAILED: "the group was not deleted",
    ErrorCode.STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED: "the description of the topology was not stored",
    ErrorCode.CONTROLLER_ID_NOT_REGISTERED: "no controller with this id is registered",
}


def known_code(code: int) -> ErrorCode:
    """Returns UNKNOWN_SERVER_ERROR for a code that Kafka does not have."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def meaning_of(code: int) -> str:
    """Returns the meaning as a clause, also of a code that Kafka does not have."""
    known = known_code(code)
    return _MEANINGS[known] if known == code else f"the broker answered with the unknown error code {code}"
