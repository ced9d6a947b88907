"""The exceptions of the clients, for applications: `from tidelog.client.exceptions import StaleMemberError`.

All are `TidelogError`. `KafkaError` is a refusal by a broker, or a limit that the client applied itself. Its
`code` is Kafka's, and its subclasses name the codes that applications handle. `ClientError` is a failure to
connect. `tidelog.aio.exceptions` has the same names.
"""

from __future__ import annotations

from tidelog.client.core.delivery_errors import (
    BufferFullError,
    ClosedError,
    DeliveryTimeoutError,
    GroupAuthorizationError,
    InvalidRecordError,
    InvalidTransactionStateError,
    LeaderNotAvailableError,
    LogTruncationError,
    MetadataTimeoutError,
    NetworkError,
    NotControllerError,
    NotEnoughReplicasError,
    NotLeaderError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    RecordTooLargeError,
    RequestError,
    RequestTimeoutError,
    StaleMemberError,
    TopicAuthorizationError,
    TopicExistsError,
    TransactionAbortableError,
    UnknownTopicError,
)
from tidelog.client.core.properties import SettingsError
from tidelog.client.errors import (
    AdvertisedUnreachableError,
    AuthenticationFailedError,
    BadAddressError,
    BrokerGoneError,
    ClientError,
    ConnectionLostError,
    CorruptFetchError,
    MechanismRefusedError,
    NoAnswerError,
    NotKafkaError,
    NotTrustedError,
    UnreachableError,
    UnsupportedApiError,
)
from tidelog.client.security import SecurityConfigError
from tidelog.model.errors import ErrorCode, KafkaError, TidelogError

__all__ = [
    "AdvertisedUnreachableError",
    "AuthenticationFailedError",
    "BadAddressError",
    "BufferFullError",
    "BrokerGoneError",
    "ClientError",
    "ClosedError",
    "ConnectionLostError",
    "CorruptFetchError",
    "DeliveryTimeoutError",
    "ErrorCode",
    "GroupAuthorizationError",
    "InvalidRecordError",
    "InvalidTransactionStateError",
    "KafkaError",
    "LeaderNotAvailableError",
    "LogTruncationError",
    "MechanismRefusedError",
    "MetadataTimeoutError",
    "NetworkError",
    "NoAnswerError",
    "NotControllerError",
    "NotEnoughReplicasError",
    "NotKafkaError",
    "NotLeaderError",
    "NotTrustedError",
    "OffsetOutOfRangeError",
    "OutOfOrderSequenceError",
    "ProducerFencedError",
    "RecordTooLargeError",
    "RequestError",
    "RequestTimeoutError",
    "SecurityConfigError",
    "SettingsError",
    "StaleMemberError",
    "TidelogError",
    "TopicAuthorizationError",
    "TopicExistsError",
    "TransactionAbortableError",
    "UnknownTopicError",
    "UnreachableError",
    "UnsupportedApiError",
]
