"""The responses to forwarded requests when the controller refuses the whole request or cannot be reached.

Kafka's responses have no common place for such an error: some have one for the whole request, others have one
for each item that the request names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tidelog.model.errors import ErrorCode
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from tidelog.wire.messages.alter_client_quotas import AlterClientQuotasRequest
    from tidelog.wire.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
    from tidelog.wire.messages.create_partitions import CreatePartitionsRequest
    from tidelog.wire.messages.delete_topics import DeleteTopicsRequest
    from tidelog.wire.messages.describe_client_quotas import DescribeClientQuotasRequest
    from tidelog.wire.messages.elect_leaders import ElectLeadersRequest
    from tidelog.wire.schema import Message

_FIRST_DELETE_TOPICS_WITH_TOPIC_ID: Final = 6


def controller_refusal(
    api_key: int, version: int, request: Message, code: ErrorCode, message: str | None
) -> Message:
    """Returns the response to `request` that carries the error; its class depends on the API."""
    refuse = _REFUSALS.get(api_key)
    if refuse is not None:
        return refuse(version, request, code, message)
    return codec.response_class(api_key)(error_code=code, error_message=message)


# The message classes are imported at first use, as those of all APIs.


def _create_partitions(
    version: int, request: CreatePartitionsRequest, code: ErrorCode, message: str | None
) -> Message:
    from tidelog.wire.messages.create_partitions import CreatePartitionsResponse, CreatePartitionsTopicResult

    return CreatePartitionsResponse(
        results=[CreatePartitionsTopicResult(topic.name, code, message) for topic in request.topics]
    )


def _delete_topics(
    version: int, request: DeleteTopicsRequest, code: ErrorCode, message: str | None
) -> Message:
    from tidelog.wire.messages.delete_topics import (
        DeletableTopicResult,
        DeleteTopicsResponse,
        DeleteTopicState,
    )

    topics = request.topics
    if version < _FIRST_DELETE_TOPICS_WITH_TOPIC_ID:
        topics = [DeleteTopicState(name=name) for name in request.topic_names]
    return DeleteTopicsResponse(
        responses=[DeletableTopicResult(topic.name, topic.topic_id, code, message) for topic in topics]
    )


def _elect_leaders(
    version: int, request: ElectLeadersRequest, code: ErrorCode, message: str | None
) -> Message:
    from tidelog.wire.messages.elect_leaders import (
        ElectLeadersResponse,
        PartitionResult,
        ReplicaElectionResult,
    )

    # Version 0 has no error for the whole request, only errors for its partitions.
    return ElectLeadersResponse(
        error_code=code,
        replica_election_results=[
            ReplicaElectionResult(
                topic.topic, [PartitionResult(partition, code, message) for partition in topic.partitions]
            )
            for topic in request.topic_partitions or ()
        ],
    )


def _alter_client_quotas(
    version: int, request: AlterClientQuotasRequest, code: ErrorCode, message: str | None
) -> Message:
    from tidelog.wire.messages.alter_client_quotas import AlterClientQuotasResponse, ResponseEntryData

    return AlterClientQuotasResponse(
        entries=[ResponseEntryData(code, message, entry.entity) for entry in request.entries]
    )


def _alter_user_scram_credentials(
    version: int, request: AlterUserScramCredentialsRequest, code: ErrorCode, message: str | None
) -> Message:
    from tidelog.wire.messages.alter_user_scram_credentials import (
        AlterUserScramCredentialsResponse,
        AlterUserScramCredentialsResult,
    )

    users = dict.fromkeys(deletion.name for deletion in request.deletions)
    users.update(dict.fromkeys(upsertion.name for upsertion in request.upsertions))
    return AlterUserScramCredentialsResponse(
        results=[AlterUserScramCredentialsResult(user, code, message) for user in users]
    )


def _describe_client_quotas(
    version: int, request: DescribeClientQuotasRequest, code: ErrorCode, message: str | None
) -> Message:
    from tidelog.wire.messages.describe_client_quotas import DescribeClientQuotasResponse

    return DescribeClientQuotasResponse(error_code=code, error_message=message, entries=None)


# `Any`: each function takes the request of its own API.
_REFUSALS: Final[dict[int, Callable[[int, Any, ErrorCode, str | None], Message]]] = {
    ApiKey.CREATE_PARTITIONS: _create_partitions,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.ELECT_LEADERS: _elect_leaders,
    ApiKey.ALTER_CLIENT_QUOTAS: _alter_client_quotas,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _alter_user_scram_credentials,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _describe_client_quotas,
}
"""All other responses have `error_code` and `error_message`."""
