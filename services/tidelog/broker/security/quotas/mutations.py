"""Limits how many partitions a client creates and deletes (KIP-599).

As in Kafka, a request in a recent version gets THROTTLING_QUOTA_EXCEEDED for each topic that is above the
quota, and the client sends it again. Topics of a request in an older version are changed in any case, and the
client is throttled afterwards. Deviation: each broker has a quota of its own. Kafka's controller has one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidelog.broker.requests.error_responses import item_error, items_of
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from tidelog.broker.cluster.current_settings import CurrentSettings
    from tidelog.broker.cluster.metadata_view import MetadataView
    from tidelog.broker.requests.request import RequestCharge

MAX_PARTITIONS_PER_REQUEST: Final = 10_000
"""The controller refuses to create more partitions with one request."""
_EXCEEDED: Final = ErrorCode.THROTTLING_QUOTA_EXCEEDED
_MESSAGE: Final = "The throttling quota has been exceeded."


_FIRST_STRICT_VERSION: Final[dict[int, int]] = {
    ApiKey.CREATE_TOPICS: 6,
    ApiKey.DELETE_TOPICS: 5,
    ApiKey.CREATE_PARTITIONS: 3,
}
"""The APIs that change topics, with the first version whose clients know THROTTLING_QUOTA_EXCEEDED."""


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
        first_strict_version = _FIRST_STRICT_VERSION.get(api_key)
        items = items_of(api_key, version)
        if first_strict_version is None or items is None:
            return Split(request, "", [])
        topics = getattr(request, items.asked)
        if version < first_strict_version:
            for topic in topics:
                charge.mutate(self._mutations(api_key, topic))
            return Split(request, "", [])
        allowed: list[Any] = []
        results: list[Any] = []
        for topic in topics:
            if charge.may_mutate(self._mutations(api_key, topic)):
                allowed.append(topic)
            else:
                results.append(item_error(api_key, version, topic, _EXCEEDED, _MESSAGE))
        if not results:
            return Split(request, "", [])
        changed = replace(request, **{items.asked: allowed}) if allowed else None
        return Split(changed, items.answered, results)

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
