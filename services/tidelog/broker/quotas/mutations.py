"""Limits how many partitions a client creates and deletes (KIP-599).

As in Kafka, a request in a recent version gets THROTTLING_QUOTA_EXCEEDED for each topic that is above the
quota, and the client sends it again. Topics of a request in an older version are changed in any case, and the
client is throttled afterwards. Deviation: each broker has a quota of its own. Kafka's controller has one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.create_partitions import CreatePartitionsTopicResult
from tidelog.wire.messages.create_topics import CreatableTopicResult
from tidelog.wire.messages.delete_topics import DeletableTopicResult, DeleteTopicState

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidelog.broker.current_settings import CurrentSettings
    from tidelog.broker.metadata_view import MetadataView
    from tidelog.broker.request import RequestCharge

MAX_PARTITIONS_PER_REQUEST: Final = 10_000
"""The controller refuses to create more partitions with one request."""
_EXCEEDED: Final = ErrorCode.THROTTLING_QUOTA_EXCEEDED
_MESSAGE: Final = "The throttling quota has been exceeded."


class _Api(NamedTuple):
    """An API that changes topics: the first version whose clients know THROTTLING_QUOTA_EXCEEDED, the fields
    with topics in requests and results in responses, and the result of a refused topic.
    """

    first_strict_version: int
    topics: Callable[[Any], str]
    results: str
    refused: Callable[[Any], Any]


def _refused_deletion(topic: DeleteTopicState | str) -> DeletableTopicResult:
    if isinstance(topic, str):
        return DeletableTopicResult(topic, error_code=_EXCEEDED, error_message=_MESSAGE)
    return DeletableTopicResult(topic.name, topic.topic_id, _EXCEEDED, _MESSAGE)


_APIS: Final[dict[int, _Api]] = {
    ApiKey.CREATE_TOPICS: _Api(
        6,
        lambda request: "topics",
        "topics",
        lambda topic: CreatableTopicResult(topic.name, error_code=_EXCEEDED, error_message=_MESSAGE),
    ),
    ApiKey.DELETE_TOPICS: _Api(
        5,
        lambda request: "topics" if request.topics else "topic_names",
        "responses",
        _refused_deletion,
    ),
    ApiKey.CREATE_PARTITIONS: _Api(
        3,
        lambda request: "topics",
        "results",
        lambda topic: CreatePartitionsTopicResult(topic.name, _EXCEEDED, _MESSAGE),
    ),
}


class Split(NamedTuple):
    """A request whose topics are split by the quota of the client: the part that is within it, or None if
    nothing is, and the results of the other topics with the field of the response to which they belong.
    """

    allowed: Any  # the request of the API
    field: str
    results: list[Any]

    def complete(self, response: Any) -> None:
        """Adds the results of the topics that are above the quota."""
        if self.results:
            getattr(response, self.field).extend(self.results)


class MutationQuotas:
    """Charges changes of topics to the quotas of clients."""

    __slots__ = ("_metadata", "_settings")

    def __init__(self, metadata: MetadataView, settings: CurrentSettings) -> None:
        self._metadata = metadata
        self._settings = settings

    def split(self, api_key: int, request: Any, charge: RequestCharge, version: int) -> Split:
        """Charges the topics of a request, and splits it by the quota."""
        api = _APIS.get(api_key)
        if api is None:
            return Split(request, "", [])
        field = api.topics(request)
        topics = getattr(request, field)
        if version < api.first_strict_version:
            for topic in topics:
                charge.mutate(self._mutations(api_key, topic))
            return Split(request, "", [])
        allowed: list[Any] = []
        results: list[Any] = []
        for topic in topics:
            if charge.may_mutate(self._mutations(api_key, topic)):
                allowed.append(topic)
            else:
                results.append(api.refused(topic))
        if not results:
            return Split(request, "", [])
        return Split(replace(request, **{field: allowed}) if allowed else None, api.results, results)

    def _mutations(self, api_key: int, topic: Any) -> int:
        """Returns how many partitions the change of a topic creates or deletes; 0 if it must fail."""
        name = topic if isinstance(topic, str) else topic.name
        if name is None:
            name = self._metadata.topic_names.get(topic.topic_id, "")
        known = self._metadata.topics.get(name)
        if api_key == ApiKey.CREATE_TOPICS:
            if known is not None:
                return 0
            stated: int = max(topic.num_partitions, 0)
            added = stated or len(topic.assignments) or self._settings.broker.num_partitions
        elif known is None:
            return 0
        elif api_key == ApiKey.DELETE_TOPICS:
            return len(known.partitions)
        else:
            added = max(topic.count - len(known.partitions), 0)
        return added if added <= MAX_PARTITIONS_PER_REQUEST else 0
