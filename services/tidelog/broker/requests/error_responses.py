"""The responses to requests that fail as a whole, and the results of single items that fail.

Kafka's responses have no common place for an error: some state it once, some in a result for each item that
the request names, some at both places. ITEMS is the table of the results. An API without a row states the
error once. The classes of responses and results come from the fields of the messages, so that this module
imports none of them. It reads requests by the names of their fields, so their types are `Any`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from tidelog.model.errors import ErrorCode
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.schema import Message, Struct

AUTHORIZATION_MESSAGES: Final = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
}
_NO_OTHERS: Final[Mapping[str, object]] = MappingProxyType({})


class Place(Enum):
    """The place of the error of a whole request: the result of each item, the response itself, or both."""

    EACH = "each"
    ONCE = "once"
    BOTH = "both"


class Items(NamedTuple):
    """The items of a request, and the results that state their errors."""

    asked: str
    """The field of the request, or of the item around these, that holds a list of items."""
    answered: str
    """The field of the response, or of the result around these, that holds a list of results."""
    copied: tuple[str, ...] = ()
    """The fields that an item and its result have in common. `a:b` is `a` in the item and `b` in the result.
    An item that is a plain value becomes the first of these fields.
    """
    inner: Items | None = None
    """The items of each item, if their results state the error and the result around them does not."""
    others: Mapping[str, object] = _NO_OTHERS
    """The values of further fields of a result, where they are not the defaults."""
    error: str = "error_code"
    """The field of a result with the error code."""
    whole: Place = Place.EACH
    """The place of an error that concerns the whole request."""

    def name_of(self, item: Any) -> str:
        """Returns the name of an item of the request, or of its result."""
        name: str = item if isinstance(item, str) else getattr(item, self.copied[0])
        return name


def _partitions(asked: str = "partitions", answered: str = "partitions", **values: Any) -> Items:
    return Items(asked, answered, ("partition_index",), **values)


def _topics(inner: Items | None, *copied: str, asked: str = "topics", answered: str = "topics") -> Items:
    return Items(asked, answered, copied or ("name",), inner)


def _settings(answered: str) -> Items:
    return Items("resources", answered, ("resource_type", "resource_name"))


_NO_OFFSETS: Final = _partitions("partition_indexes", others={"committed_offset": -1})
_DESCRIBED: Final = Items("group_ids", "groups", ("group_id",))
_ADDED: Final = _partitions(answered="results_by_partition", error="partition_error_code")
_UNREAD: Final = {"high_watermark": -1, "aborted_transactions": None}

_Rows = tuple[tuple[int, Items | None], ...]
"""The rows of an API, each with the first version in which it holds. None states the error once."""

ITEMS: Final[Mapping[int, Items | _Rows]] = {
    ApiKey.PRODUCE: _topics(
        Items("partition_data", "partition_responses", ("index",), others={"base_offset": -1}),
        "name",
        "topic_id",
        asked="topic_data",
        answered="responses",
    ),
    ApiKey.FETCH: _topics(
        Items("partitions", "partitions", ("partition:partition_index",), others=_UNREAD),
        "topic",
        "topic_id",
        answered="responses",
    ),
    ApiKey.LIST_OFFSETS: _topics(_partitions()),
    ApiKey.METADATA: _topics(None, "name", "topic_id"),
    ApiKey.OFFSET_COMMIT: _topics(_partitions(), "name", "topic_id"),
    ApiKey.OFFSET_FETCH: (
        (0, _topics(_NO_OFFSETS)),
        (2, _topics(_NO_OFFSETS)._replace(whole=Place.ONCE)),
        (
            8,
            Items(
                "groups",
                "groups",
                ("group_id",),
                _topics(_NO_OFFSETS, "name", "topic_id"),
            ),
        ),
    ),
    ApiKey.FIND_COORDINATOR: (
        (0, None),
        (4, Items("coordinator_keys", "coordinators", ("key",), others={"node_id": -1, "port": -1})),
    ),
    ApiKey.DESCRIBE_GROUPS: Items("groups", "groups", ("group_id",)),
    ApiKey.CREATE_TOPICS: _topics(None),
    ApiKey.DELETE_TOPICS: (
        (0, Items("topic_names", "responses", ("name",))),
        (6, _topics(None, "name", "topic_id", answered="responses")),
    ),
    ApiKey.DELETE_RECORDS: _topics(_partitions(others={"low_watermark": -1})),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _topics(Items("partitions", "partitions", ("partition",)), "topic"),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        (
            0,
            _topics(_ADDED, asked="v3_and_below_topics", answered="results_by_topic_v3_and_below"),
        ),
        (
            4,
            Items(
                "transactions",
                "results_by_transaction",
                ("transactional_id",),
                _topics(_ADDED, answered="topic_results"),
            ),
        ),
    ),
    ApiKey.WRITE_TXN_MARKERS: Items(
        "markers", "markers", ("producer_id",), _topics(_partitions("partition_indexes"))
    ),
    ApiKey.TXN_OFFSET_COMMIT: _topics(_partitions(), "name", "topic_id"),
    ApiKey.CREATE_ACLS: Items("creations", "results"),
    ApiKey.DELETE_ACLS: Items("filters", "filter_results"),
    ApiKey.DESCRIBE_CONFIGS: _settings("results"),
    ApiKey.ALTER_CONFIGS: _settings("responses"),
    ApiKey.ALTER_REPLICA_LOG_DIRS: _topics(
        _partitions(), "name:topic_name", asked="dirs.topics", answered="results"
    ),
    ApiKey.CREATE_PARTITIONS: _topics(None, answered="results"),
    ApiKey.DELETE_GROUPS: Items("groups_names", "results", ("group_id",)),
    ApiKey.ELECT_LEADERS: Items(  # version 0 does not state the error once
        "topic_partitions",
        "replica_election_results",
        ("topic",),
        Items("partitions", "partition_result", ("partition_id",)),
        whole=Place.BOTH,
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _settings("responses"),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _topics(_partitions(), answered="responses")._replace(
        whole=Place.BOTH
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: Items("entries", "entries", ("entity",)),
    ApiKey.DESCRIBE_PRODUCERS: _topics(_partitions("partition_indexes")),
    ApiKey.DESCRIBE_TRANSACTIONS: Items("transactional_ids", "transaction_states", ("transactional_id",)),
    ApiKey.CONSUMER_GROUP_DESCRIBE: _DESCRIBED,
    ApiKey.SHARE_GROUP_DESCRIBE: _DESCRIBED,
    ApiKey.STREAMS_GROUP_DESCRIBE: _DESCRIBED,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _topics(None),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: Items(
        "groups", "groups", ("group_id",), _topics(_partitions(others={"start_offset": -1}), "topic_name")
    ),
    ApiKey.OFFSET_DELETE: _topics(_partitions())._replace(whole=Place.ONCE),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: _topics(_partitions(), "topic_name", answered="responses")._replace(
        whole=Place.ONCE
    ),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: _topics(None, "topic_name", answered="responses")._replace(
        whole=Place.ONCE
    ),
}

OTHERS: Final[Mapping[int, Mapping[str, object]]] = {
    ApiKey.FIND_COORDINATOR: {"node_id": -1, "port": -1},
    ApiKey.INIT_PRODUCER_ID: {"producer_id": -1, "producer_epoch": -1},
    ApiKey.DESCRIBE_CLIENT_QUOTAS: {"entries": None},
}
"""The values of fields of responses that state an error once, where they are not the defaults."""

_NULL_PROTOCOL_SINCE: Final = 7
_TOLD_WHILE_LOADING: Final = {
    ApiKey.SYNC_GROUP: ErrorCode.REBALANCE_IN_PROGRESS,
    ApiKey.HEARTBEAT: ErrorCode.NONE,
}
"""The error codes of members whose group is being loaded, as in Kafka. A heartbeat succeeds, and a SyncGroup
makes the member join again, because clients treat other errors there as final.
"""


def items_of(api_key: int, version: int) -> Items | None:
    """Returns the items of a request that have results in its response. None means that there are none."""
    rows = ITEMS.get(api_key)
    if rows is None or isinstance(rows, Items):
        return rows
    found = None
    for first_version, row in rows:
        if version >= first_version:
            found = row
    return found


def error_response(
    api_key: int, version: int, request: Any, code: ErrorCode, message: str | None = None
) -> Message:
    """Returns the response to a request that fails as a whole. The message is stated if there is a place."""
    response = codec.response_class(api_key)
    values: dict[str, Any] = {}
    if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        code = _TOLD_WHILE_LOADING.get(ApiKey(api_key), code)
    items = items_of(api_key, version)
    if api_key == ApiKey.JOIN_GROUP:
        values["protocol_name"] = None if version >= _NULL_PROTOCOL_SINCE else ""
    elif api_key == ApiKey.ALTER_USER_SCRAM_CREDENTIALS:
        values["results"] = _results_of_users(response, request, code, message)
        return response(**values)
    if items is None or items.whole is not Place.EACH:
        values.update(_error(response, "error_code", code, message), **OTHERS.get(api_key, _NO_OTHERS))
    if items is not None and items.whole is not Place.ONCE:
        values[items.answered] = _results(response, items, request, code, message)
    return response(**values)


def refusal(api_key: int, version: int, body: bytes, code: ErrorCode) -> Message:
    """Returns the response to the request in `body`. Raises MalformedMessageError."""
    return error_response(api_key, version, codec.request_decoder(api_key, version)(body, 0)[0], code)


def item_error(api_key: int, version: int, item: Any, code: ErrorCode, message: str | None = None) -> Any:
    """Returns the result of an item of a request, such as a topic or a group, that fails."""
    items = items_of(api_key, version)
    assert items is not None, f"{ApiKey(api_key).name} has no items"
    return _result(_class_of(codec.response_class(api_key), items.answered), items, item, code, message)


def inner_item_error(
    api_key: int, version: int, item: Any, code: ErrorCode, message: str | None = None
) -> Any:
    """Returns the result of an item of an item, such as a topic of a group, that fails."""
    items = items_of(api_key, version)
    assert items is not None and items.inner is not None, f"{ApiKey(api_key).name} has no inner items"
    outer = _class_of(codec.response_class(api_key), items.answered)
    return _result(_class_of(outer, items.inner.answered), items.inner, item, code, message)


def _class_of(holder: type[Struct], field: str) -> type[Any]:
    """Returns the class of the results in a field of a response or of a result."""
    kind = next(each.kind for each in holder.FIELDS if each.name == field)
    assert isinstance(kind, tuple) and not isinstance(kind[0], str)
    return kind[0]


def _results(
    holder: type[Struct], items: Items, asker: Any, code: ErrorCode, message: str | None
) -> list[Any]:
    result = _class_of(holder, items.answered)
    return [_result(result, items, item, code, message) for item in _asked(asker, items.asked)]


def _asked(asker: Any, path: str) -> Iterable[Any]:
    """Yields the items in a field of the request, or of a list in it (`dirs.topics`)."""
    field, _, rest = path.partition(".")
    for item in getattr(asker, field) or ():
        if rest:
            yield from _asked(item, rest)
        else:
            yield item


def _result(result: type[Any], items: Items, item: Any, code: ErrorCode, message: str | None) -> Any:
    values = dict(items.others)
    for names in items.copied:
        of_item, _, of_result = names.partition(":")
        is_plain = isinstance(item, str | int)
        values[of_result or of_item] = item if is_plain else getattr(item, of_item)
    if items.inner is not None and items.error not in result.__dataclass_fields__:
        values[items.inner.answered] = _results(result, items.inner, item, code, message)
    else:
        values.update(_error(result, items.error, code, message))
    return result(**values)


def _error(holder: type[Struct], field: str, code: ErrorCode, message: str | None) -> dict[str, Any]:
    """Returns the fields of a response or a result that state an error."""
    stated: dict[str, Any] = {field: code}
    if message is not None and "error_message" in holder.__dataclass_fields__:
        stated["error_message"] = message
    return stated


def _results_of_users(
    response: type[Struct], request: Any, code: ErrorCode, message: str | None
) -> list[Any]:
    """Returns one result for each user, whom a request may name twice: to delete and to add a password."""
    result = _class_of(response, "results")
    changes = [*request.deletions, *request.upsertions]
    return [result(user, code, message) for user in dict.fromkeys(change.name for change in changes)]
