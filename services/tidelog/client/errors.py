"""The exceptions of calls without a response. An error in a response is `tidelog.model.errors.KafkaError`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from tidelog.model.errors import ErrorCode, KafkaError, TidelogError, known_code, meaning_of
from tidelog.model.topics import topic_name_problem


class ClientError(TidelogError):
    """No usable response. The message is one sentence that names the broker and, if known, the next step."""


class BadAddressError(ClientError):
    """The bootstrap string is not a list of HOST:PORT."""


class UnreachableError(ClientError):
    """The connection failed."""


class AdvertisedUnreachableError(UnreachableError):
    """A broker answers, but not at the address that it advertises to clients."""


class BrokerGoneError(UnreachableError):
    """A broker that answered before can't be reached any more."""


class ConnectionLostError(ClientError):
    """The connection ended before the response arrived."""


class NoAnswerError(ClientError):
    """The response did not arrive in time."""


class AuthenticationFailedError(ClientError):
    """The broker does not accept the client's login, or requires one."""


class MechanismRefusedError(AuthenticationFailedError):
    """The broker does not accept the SASL mechanism, so that it has not seen the login."""


class NotTrustedError(ClientError):
    """The TLS handshake failed: the broker's certificate is not trusted, or the client's is not."""


class NotKafkaError(ClientError):
    """The server is not a Kafka broker, or it requires TLS."""


class UnsupportedApiError(ClientError):
    """The broker does not serve the API, or not in a version that supports the call."""


class CorruptFetchError(ClientError):
    """The response has a batch with a wrong CRC, or records that their producer damaged."""


class RequestError(KafkaError):
    """A KafkaError whose class names its code."""

    CODE: ClassVar[ErrorCode]

    def __init__(self, message: str) -> None:
        super().__init__(self.CODE, message)


class LeaderNotAvailableError(RequestError):
    """The partition has no leader."""

    CODE: ClassVar[ErrorCode] = ErrorCode.LEADER_NOT_AVAILABLE


class NotLeaderError(RequestError):
    """The broker is not the leader of the partition any more."""

    CODE: ClassVar[ErrorCode] = ErrorCode.NOT_LEADER_OR_FOLLOWER


class NotControllerError(RequestError):
    """The broker is not the controller."""

    CODE: ClassVar[ErrorCode] = ErrorCode.NOT_CONTROLLER


class NetworkError(RequestError):
    """The connection failed or ended before the response arrived."""

    CODE: ClassVar[ErrorCode] = ErrorCode.NETWORK_EXCEPTION


class RequestTimeoutError(RequestError):
    """Something did not happen in its time: a response, a delivery, or free space in the buffer."""

    CODE: ClassVar[ErrorCode] = ErrorCode.REQUEST_TIMED_OUT


class DeliveryTimeoutError(RequestTimeoutError):
    """`delivery.timeout.ms` ended before the broker acknowledged the record. The record may be stored."""


class BufferFullError(RequestTimeoutError):
    """`max.block.ms` ended before `buffer.memory` had space for the record. The record was not sent."""


class MetadataTimeoutError(RequestTimeoutError):
    """`max.block.ms` ended before the brokers answered with the partitions of the topic."""


class UnknownTopicError(RequestError):
    """The topic or partition does not exist."""

    CODE: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class TopicExistsError(RequestError):
    """The topic exists, so it can't be created."""

    CODE: ClassVar[ErrorCode] = ErrorCode.TOPIC_ALREADY_EXISTS


class NotEnoughReplicasError(RequestError):
    """The partition has fewer replicas in sync than `min.insync.replicas`."""

    CODE: ClassVar[ErrorCode] = ErrorCode.NOT_ENOUGH_REPLICAS


class RecordTooLargeError(RequestError):
    """The record exceeds `max.request.size`, `buffer.memory` or the broker's `max.message.bytes`.

    `producer_setting` names the setting of the producer. It is empty if the broker refused the record.
    """

    CODE: ClassVar[ErrorCode] = ErrorCode.MESSAGE_TOO_LARGE

    def __init__(self, message: str, producer_setting: str = "") -> None:
        super().__init__(message)
        self.producer_setting: str = producer_setting


class InvalidRecordError(RequestError):
    """The broker does not accept the content of the record."""

    CODE: ClassVar[ErrorCode] = ErrorCode.INVALID_RECORD


class TopicAuthorizationError(RequestError):
    """The user may not use the topic."""

    CODE: ClassVar[ErrorCode] = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class GroupAuthorizationError(RequestError):
    """The user may not use the group."""

    CODE: ClassVar[ErrorCode] = ErrorCode.GROUP_AUTHORIZATION_FAILED


class OutOfOrderSequenceError(RequestError):
    """The broker misses records that it acknowledged before, or has stored later records first."""

    CODE: ClassVar[ErrorCode] = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class ProducerFencedError(RequestError):
    """A newer producer uses the transactional id. This producer must be closed."""

    CODE: ClassVar[ErrorCode] = ErrorCode.PRODUCER_FENCED


class TransactionAbortableError(RequestError):
    """The transaction cannot be committed. The application must abort it and may begin another one."""

    CODE: ClassVar[ErrorCode] = ErrorCode.TRANSACTION_ABORTABLE


class InvalidTransactionStateError(RequestError):
    """The call does not fit the state of the transaction."""

    CODE: ClassVar[ErrorCode] = ErrorCode.INVALID_TXN_STATE


class OffsetOutOfRangeError(RequestError):
    """The partition does not have the offset, and `auto.offset.reset` is `none`."""

    CODE: ClassVar[ErrorCode] = ErrorCode.OFFSET_OUT_OF_RANGE


class LogTruncationError(OffsetOutOfRangeError):
    """The partition has lost records that the application got, after an unclean election of a leader.

    `auto.offset.reset` is `none`, so the application decides: it may seek to `divergent_offset`, where other
    records begin. None means that it is unknown.
    """

    def __init__(self, message: str, divergent_offset: int | None) -> None:
        super().__init__(message)
        self.divergent_offset = divergent_offset


class StaleMemberError(RequestError):
    """The group has given the partitions to other members, so the commit was not stored."""

    CODE: ClassVar[ErrorCode] = ErrorCode.STALE_MEMBER_EPOCH


class ClosedError(TidelogError, RuntimeError):
    """The client was closed before or during the call."""


_BY_CODE: Final[dict[ErrorCode, type[RequestError]]] = {
    each.CODE: each
    for each in (
        LeaderNotAvailableError,
        NotLeaderError,
        NotControllerError,
        NetworkError,
        RequestTimeoutError,
        UnknownTopicError,
        TopicExistsError,
        NotEnoughReplicasError,
        RecordTooLargeError,
        InvalidRecordError,
        TopicAuthorizationError,
        GroupAuthorizationError,
        OutOfOrderSequenceError,
        ProducerFencedError,
        TransactionAbortableError,
        InvalidTransactionStateError,
        OffsetOutOfRangeError,
        StaleMemberError,
    )
}


def request_error(code: int, subject: str, message: str | None = None) -> KafkaError:
    """Returns the exception of an error code. Its message is `subject`, then the broker's message or the
    meaning of the code.
    """
    return error_with(known_code(code), f"{subject}: {message or meaning_of(code)}")


def error_with(code: ErrorCode, text: str) -> KafkaError:
    """Returns the exception of an error code, of the code's class if it has one, with this message."""
    found = _BY_CODE.get(code)
    return KafkaError(code, text) if found is None else found(text)


def topic_error_of(code: int, name: str, message: str | None = None) -> KafkaError:
    """Returns the exception for a topic. The most frequent errors have messages of their own."""
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return UnknownTopicError(f"topic '{name}' does not exist")
    if code == ErrorCode.TOPIC_ALREADY_EXISTS:
        return TopicExistsError(f"topic '{name}' already exists")
    if code == ErrorCode.INVALID_TOPIC_EXCEPTION:
        message = message or topic_name_problem(name)
    return request_error(code, f"topic '{name}'", message)


_OF_A_GROUP: Final[Mapping[int, str]] = {
    ErrorCode.GROUP_ID_NOT_FOUND: "does not exist",
    ErrorCode.NON_EMPTY_GROUP: "has members",
    ErrorCode.INVALID_GROUP_ID: "has an invalid name",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "is not accessible to this user: no ACL allows it",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "has no coordinator at present",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "is still being loaded by its coordinator",
    ErrorCode.NOT_COORDINATOR: "has moved to another coordinator",
}


def group_error_of(code: int, name: str, message: str | None = None) -> KafkaError:
    """Returns the exception for a group. The most frequent errors have messages of their own."""
    sentence = _OF_A_GROUP.get(code)
    if sentence is not None:
        return error_with(ErrorCode(code), f"group '{name}' {sentence}")
    return request_error(code, f"group '{name}'", message)


def raise_on_group_error(code: int, name: str, message: str | None = None) -> None:
    if code != ErrorCode.NONE:
        raise group_error_of(code, name, message)


def raise_on_error(code: int, subject: str, message: str | None = None) -> None:
    if code != ErrorCode.NONE:
        raise request_error(code, subject, message)


def raise_on_topic_error(code: int, name: str, message: str | None) -> None:
    if code != ErrorCode.NONE:
        raise topic_error_of(code, name, message)
