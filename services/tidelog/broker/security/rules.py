"""The rules of APIs that have no common form: `By` applies each of them to the judgement about a request."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from tidelog.broker.requests.error_responses import AUTHORIZATION_MESSAGES, inner_item_error, item_error
from tidelog.broker.security.judging import (
    ALTER,
    CLUSTER,
    CLUSTER_ACTION,
    CREATE,
    DELETE,
    DENIAL,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    IDEMPOTENT_WRITE,
    NOT_ASKED,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    By,
    Each,
    Judgement,
)
from tidelog.kernel.steps import Steps
from tidelog.model.acl import AclOperation
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import ZERO_TOPIC_ID, DescribableTopics
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages import (
    add_partitions_to_txn,
    delete_topics,
    describe_topic_partitions,
    metadata,
)

_FIRST_METADATA_WITH_NULL_FOR_ALL: Final = 1
_FIRST_METADATA_WITH_AUTO_CREATE_FLAG: Final = 4
_FIRST_ADD_PARTITIONS_OF_BROKERS: Final = 4
_FIRST_FIND_COORDINATOR_WITH_KEYS: Final = 4
_FIRST_OFFSET_FETCH_WITH_GROUPS: Final = 8
_FIRST_DELETE_TOPICS_WITH_TOPIC_ID: Final = 6
_GROUP_KEY, _TRANSACTION_KEY = 0, 1
_CONFIG_TOPIC, _CONFIG_GROUP = 2, 32
"""Kafka's `ConfigResource.Type`. All other types belong to the cluster."""


def judge_metadata(judgement: Judgement) -> Steps[None]:
    wanted = judgement.message.topics
    if wanted is None or (judgement.version < _FIRST_METADATA_WITH_NULL_FOR_ALL and not wanted):
        yield from _all_metadata(judgement)
    else:
        yield from _wanted_metadata(judgement, wanted)
    if judgement.message.include_topic_authorized_operations:
        judgement.edits.append(_state_topic_operations)
    if judgement.message.include_cluster_authorized_operations:
        judgement.edits.append(_state_cluster_operations)


def _all_metadata(judgement: Judgement) -> Steps[None]:
    shown = yield from _shown_topics(judgement)
    if shown is not None:
        if judgement.version < _FIRST_METADATA_WITH_NULL_FOR_ALL:  # an empty list would mean all topics
            names = frozenset(shown)
            judgement.edits.append(lambda _, response: _keep_topics(response, names))
        else:
            topics = [metadata.MetadataRequestTopic(name=name) for name in shown]
            judgement.keep(topics=topics, allow_auto_topic_creation=False)


def _shown_topics(judgement: Judgement) -> Steps[list[str] | None]:
    """Returns the topics that the client may describe, without a report of the others. Returns None if these
    are all topics at the end, because topics may be created and deleted between two steps.
    """
    shown = yield from _shown_of(judgement, tuple(judgement.metadata.topics))
    topics = judgement.metadata.topics
    if topics.keys() <= shown.keys():
        return None
    return [name for name in shown if name in topics]


def _shown_of(judgement: Judgement, names: Iterable[str]) -> Steps[dict[str, None]]:
    """Returns those of the topics that the client may describe, in their order."""
    shown: dict[str, None] = {}
    for name in names:
        if judgement.may(DESCRIBE, TOPIC, name, is_asked_for=False):
            shown[name] = None
        yield
    return shown


def _keep_topics(response: Any, names: frozenset[str]) -> None:
    response.topics = [topic for topic in response.topics if topic.name in names]


def _wanted_metadata(judgement: Judgement, wanted: list[Any]) -> Steps[None]:
    message = judgement.message
    creates = judgement.creates_topics and (
        message.allow_auto_topic_creation or judgement.version < _FIRST_METADATA_WITH_AUTO_CREATE_FLAG
    )
    left: list[Any] = []
    denied: list[Any] = []
    for topic in wanted:
        name = judgement.topic_name(topic)
        allowed = name is None or (
            judgement.may_topic(DESCRIBE, name)
            and (not creates or name in judgement.metadata.topics or _may_create(judgement, name))
        )
        (left if allowed else denied).append(topic)
        yield
    if not denied:
        return
    if not left and judgement.version < _FIRST_METADATA_WITH_NULL_FOR_ALL:
        judgement.edits.append(lambda _, response: _keep_topics(response, frozenset()))
    judgement.keep(topics=left)
    # As in Kafka, a topic id may be stated, but not the name or the id that belongs to what the client named.
    results = [
        metadata.MetadataResponseTopic(
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            (topic.name or None) if topic.topic_id == ZERO_TOPIC_ID else None,
            topic.topic_id,
        )
        for topic in denied
    ]
    judgement.edits.append(lambda _, response: response.topics.extend(results))


def _may_create(judgement: Judgement, topic: str) -> bool:
    return judgement.may(CREATE, CLUSTER, is_asked_for=False) or judgement.may_topic(CREATE, topic)


def _state_topic_operations(judgement: Judgement, response: Any) -> Steps[None]:
    for topic in response.topics:
        if topic.name is not None and topic.topic_authorized_operations != NOT_ASKED:
            topic.topic_authorized_operations = judgement.operations(TOPIC, topic.name)
        yield


def _state_cluster_operations(judgement: Judgement, response: Any) -> None:
    allowed = judgement.may(DESCRIBE, CLUSTER, is_asked_for=False)
    response.cluster_authorized_operations = judgement.operations(CLUSTER) if allowed else 0


def judge_describe_cluster(judgement: Judgement) -> None:
    if judgement.message.include_cluster_authorized_operations:
        judgement.edits.append(_state_cluster_operations)


def judge_describe_topic_partitions(judgement: Judgement) -> Steps[None]:
    if judgement.message.topics:
        yield from Each(DESCRIBE, TOPIC).apply(judgement)
    else:
        yield from _all_topic_partitions(judgement)
    judgement.edits.append(_state_topic_operations)


def _all_topic_partitions(judgement: Judgement) -> Steps[None]:
    shown = yield from _shown_topics(judgement)
    if shown is not None:
        judgement.keep(topics=[describe_topic_partitions.TopicRequest(name) for name in shown])
        judgement.is_nothing_left = not shown  # an empty list would mean all topics


def judge_create_topics(judgement: Judgement) -> Steps[None]:
    yield from Each(CREATE, TOPIC, unless=CREATE).apply(judgement)
    judgement.edits.append(_hide_settings)


def _hide_settings(judgement: Judgement, response: Any) -> Steps[None]:
    for topic in response.topics:
        yield
        if not topic.error_code and not judgement.may(
            DESCRIBE_CONFIGS, TOPIC, topic.name, is_asked_for=False
        ):
            topic.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            topic.num_partitions = topic.replication_factor = -1
            topic.configs = []


def judge_delete_topics(judgement: Judgement) -> Steps[None]:
    message, left = judgement.message, list[Any]()
    refused: list[delete_topics.DeletableTopicResult] = []
    if judgement.version >= _FIRST_DELETE_TOPICS_WITH_TOPIC_ID:
        items, wanted = "topics", message.topics
    else:
        items, wanted = "topic_names", message.topic_names
    for item in wanted:
        topic = delete_topics.DeleteTopicState(item) if isinstance(item, str) else item
        code = _deletion_refusal(judgement, topic)
        if code:
            refused.append(_refused_topic_deletion(judgement, topic, code))
        else:
            left.append(item)
        yield
    if refused:
        judgement.keep(**{items: left})
        judgement.is_nothing_left = not left
        judgement.edits.append(lambda _, response: response.responses.extend(refused))


def _deletion_refusal(judgement: Judgement, topic: delete_topics.DeleteTopicState) -> ErrorCode:
    """Returns why the controller may not be asked to delete a topic, or NONE.

    The controller does not ask for ACLs, and may know topics that this broker does not know yet. So this
    broker answers that it does not know them, unless the client may delete a topic with that name.
    """
    name = judgement.topic_name(topic)
    if name is None:
        is_by_id = topic.name is None and topic.topic_id != ZERO_TOPIC_ID
        return ErrorCode.UNKNOWN_TOPIC_ID if is_by_id else ErrorCode.NONE  # the controller refuses it
    is_unknown = name not in judgement.metadata.topics and judgement.may(
        DESCRIBE, TOPIC, name, is_asked_for=False
    )
    if judgement.may(DELETE, TOPIC, name, is_asked_for=not is_unknown):
        return ErrorCode.NONE
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_unknown else ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _refused_topic_deletion(
    judgement: Judgement, topic: delete_topics.DeleteTopicState, code: ErrorCode
) -> delete_topics.DeletableTopicResult:
    """Returns the result of a topic by the name or the id with which the client named it. The name of an id
    is only for those who may describe the topic.
    """
    message = AUTHORIZATION_MESSAGES.get(code)
    if topic.name is not None:
        return delete_topics.DeletableTopicResult(topic.name, ZERO_TOPIC_ID, code, message)
    name = judgement.metadata.topic_names.get(topic.topic_id)
    if name is not None and not judgement.may(DESCRIBE, TOPIC, name, is_asked_for=False):
        name = None
    return delete_topics.DeletableTopicResult(name, topic.topic_id, code, message)


def judge_init_producer_id(judgement: Judgement) -> None:
    transactional_id = judgement.message.transactional_id
    if transactional_id is not None:
        allowed = judgement.may(WRITE, TRANSACTIONAL_ID, transactional_id)
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    else:
        allowed = (
            judgement.may(IDEMPOTENT_WRITE, CLUSTER, is_asked_for=False)
            or judgement.authorizer.may_on_any(judgement.context, WRITE, TOPIC)
            or judgement.may(IDEMPOTENT_WRITE, CLUSTER)
        )
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if not allowed:
        judgement.refuse(code)


def judge_add_partitions_to_txn(judgement: Judgement) -> Steps[None]:
    message = judgement.message
    if judgement.version >= _FIRST_ADD_PARTITIONS_OF_BROKERS:
        if not judgement.may(CLUSTER_ACTION, CLUSTER):
            code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED  # it is stated once, other errors by transaction
            judgement.refusal = add_partitions_to_txn.AddPartitionsToTxnResponse(error_code=code)
        return
    if not judgement.may(WRITE, TRANSACTIONAL_ID, message.v3_and_below_transactional_id):
        judgement.refuse(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return
    codes: dict[str, ErrorCode] = {}
    for topic in message.v3_and_below_topics:
        codes[topic.name] = (
            ErrorCode.OPERATION_NOT_ATTEMPTED
            if judgement.may_topic(WRITE, topic.name)
            else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        )
        yield
    if ErrorCode.TOPIC_AUTHORIZATION_FAILED in codes.values():
        denied = add_partitions_to_txn.AddPartitionsToTxnPartitionResult
        judgement.refusal = add_partitions_to_txn.AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=[
                add_partitions_to_txn.AddPartitionsToTxnTopicResult(
                    topic.name, [denied(index, codes[topic.name]) for index in topic.partitions]
                )
                for topic in message.v3_and_below_topics
            ]
        )


def judge_find_coordinator(judgement: Judgement) -> Steps[None]:
    message = judgement.message
    if message.key_type == _GROUP_KEY:
        kind = GROUP
    elif message.key_type == _TRANSACTION_KEY:
        kind = TRANSACTIONAL_ID
    else:
        if not judgement.may(CLUSTER_ACTION, CLUSTER):
            judgement.refuse(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return
    if judgement.version >= _FIRST_FIND_COORDINATOR_WITH_KEYS:
        yield from Each(DESCRIBE, kind).apply(judgement)
    elif not judgement.may(DESCRIBE, kind, message.key):
        judgement.refuse(DENIAL[kind])


def judge_offset_fetch(judgement: Judgement) -> Steps[None]:
    if judgement.version < _FIRST_OFFSET_FETCH_WITH_GROUPS:
        yield from _offsets_of_one_group(judgement)
    else:
        yield from _offsets_of_groups(judgement)


def _offsets_of_one_group(judgement: Judgement) -> Steps[None]:
    message = judgement.message
    if not judgement.may(DESCRIBE, GROUP, message.group_id):
        judgement.refuse(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    elif message.topics is None:
        judgement.edits.append(_show_offsets)
    else:
        left, denied = yield from _split_topics(judgement, message.topics)
        if denied:
            judgement.keep(topics=left)
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            results = [judgement.denied(topic, code) for topic in denied]
            judgement.edits.append(lambda _, response: response.topics.extend(results))


def _offsets_of_groups(judgement: Judgement) -> Steps[None]:
    yield from Each(DESCRIBE, GROUP).apply(judgement)
    groups, results_by_group, with_all_topics = [], {}, set()
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    for group in judgement.message.groups:
        if group.topics is None:
            with_all_topics.add(group.group_id)
        else:
            left, denied = yield from _split_topics(judgement, group.topics)
            if denied:
                results_by_group[group.group_id] = [
                    inner_item_error(ApiKey.OFFSET_FETCH, judgement.version, topic, code) for topic in denied
                ]
                group = replace(group, topics=left)
        groups.append(group)
    if results_by_group:
        judgement.keep(groups=groups)

    def edit(judgement: Judgement, response: Any) -> Steps[None]:
        for group in response.groups:
            if group.group_id in with_all_topics:
                yield from _show_offsets(judgement, group)
            if not group.error_code:
                group.topics.extend(results_by_group.get(group.group_id, ()))

    if results_by_group or with_all_topics:
        judgement.edits.append(edit)


def _split_topics(judgement: Judgement, topics: Iterable[Any]) -> Steps[tuple[list[Any], list[Any]]]:
    left: list[Any] = []
    denied: list[Any] = []
    for topic in topics:
        name = judgement.topic_name(topic)
        (left if name is None or judgement.may_topic(DESCRIBE, name) else denied).append(topic)
        yield
    return left, denied


def _show_offsets(judgement: Judgement, holder: Any) -> Steps[None]:
    """Removes the topics that the client may not describe from a response or a group in it."""
    shown = []
    for topic in holder.topics:
        name = judgement.topic_name(topic)
        if name is not None and judgement.may(DESCRIBE, TOPIC, name, is_asked_for=False):
            shown.append(topic)
        yield
    holder.topics = shown


def describe_groups(
    hide: Callable[[Judgement, Any], Steps[None]] | None = None,
) -> Callable[[Judgement], Steps[None]]:
    """Returns the rule of an API that describes groups. `hide` removes from the response what the client may
    not see because of its topics.
    """

    def judge(judgement: Judgement) -> Steps[None]:
        yield from Each(DESCRIBE, GROUP).apply(judgement)
        if hide is not None:
            judgement.edits.append(hide)
        if judgement.message.include_authorized_operations:
            judgement.edits.append(_state_group_operations)

    return judge


def _state_group_operations(judgement: Judgement, response: Any) -> Steps[None]:
    for group in response.groups:
        yield
        if not group.error_code:
            group.authorized_operations = judgement.operations(GROUP, group.group_id)


def hide_topologies(judgement: Judgement, response: Any) -> Steps[None]:
    """Hides a streams group that has topics that the client may not describe."""
    for at, group in enumerate(response.groups):
        if group.topology is None:
            continue
        if not (yield from _may_describe(judgement, _topics_of_topology(group.topology))):
            response.groups[at] = item_error(
                ApiKey.STREAMS_GROUP_DESCRIBE,
                0,
                group.group_id,
                ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                "The described group uses topics that the client is not authorized to describe.",
            )


def _may_describe(judgement: Judgement, names: Iterable[str], *, is_asked_for: bool = False) -> Steps[bool]:
    """Returns whether the client may describe all the topics. A topic may occur more than once."""
    for name in dict.fromkeys(names):
        if not judgement.may(DESCRIBE, TOPIC, name, is_asked_for=is_asked_for):
            return False
        yield
    return True


def _topics_of_topology(topology: Any) -> Iterable[str]:
    """Returns all topics of a topology in a request or response. A topic may occur more than once."""
    for subtopology in topology.subtopologies or ():
        yield from subtopology.source_topics
        yield from subtopology.repartition_sink_topics
        yield from (topic.name for topic in subtopology.repartition_source_topics)
        yield from (topic.name for topic in subtopology.state_changelog_topics)


def judge_describe_share_group_offsets(judgement: Judgement) -> Steps[None]:
    """Refuses groups. Topics that the client may not describe are left out, or refused if it names topics. A
    group that it names twice, with topics and without, has them left out.
    """
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    deny = partial(inner_item_error, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0)
    asks_for_all = {group.group_id for group in judgement.message.groups if group.topics is None}
    yield from Each(DESCRIBE, GROUP).apply(judgement)

    def edit(judgement: Judgement, response: Any) -> Steps[None]:
        for group in response.groups:
            topics = []
            for topic in group.topics:
                if judgement.may(DESCRIBE, TOPIC, topic.topic_name, is_asked_for=False):
                    topics.append(topic)
                elif group.group_id not in asks_for_all:
                    topics.append(deny(topic, code, AUTHORIZATION_MESSAGES[code]))
                yield
            group.topics = topics

    judgement.edits.append(edit)


def hide_members(judgement: Judgement, response: Any) -> Steps[None]:
    """Hides the members of a group that has topics that the client may not describe. Members of share groups
    have no target assignment in responses.
    """
    for group in response.groups:
        names: set[str] = set()
        for member in group.members:
            for assignment in (member.assignment, getattr(member, "target_assignment", member.assignment)):
                names.update(partitions.topic_name for partitions in assignment.topic_partitions)
            yield
        if not (yield from _may_describe(judgement, names)):
            group.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            group.error_message = (
                "The group has described topic(s) that the client is not authorized to describe."
            )
            group.members = []


def need_topics_of_topology(judgement: Judgement) -> Steps[None] | None:
    """Refuses a heartbeat of a client that may not describe all topics of its topology."""
    topology = judgement.message.topology
    return None if topology is None else _need_topics(judgement, _topics_of_topology(topology))


def need_subscribed_topics(judgement: Judgement) -> Steps[None] | None:
    """Refuses a heartbeat of a client that may not describe all topics to which it subscribes."""
    names = judgement.message.subscribed_topic_names
    return _need_topics(judgement, names) if names else None


def tell_topics(judgement: Judgement) -> None:
    """Lets a coordinator ask which topics the client may describe, because regular expressions of a consumer
    group match no others.
    """
    judgement.describable = _describable_topics


def _describable_topics(judgement: Judgement) -> Steps[DescribableTopics]:
    # The number tells the coordinator whether topics were created that nobody has decided about.
    names = tuple(judgement.metadata.topics)
    shown = yield from _shown_of(judgement, names)
    return DescribableTopics(frozenset(shown), len(names))


def _need_topics(judgement: Judgement, names: Iterable[str]) -> Steps[None]:
    if not (yield from _may_describe(judgement, names, is_asked_for=True)):
        judgement.refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def judge_describe_transactions(judgement: Judgement) -> Steps[None]:
    yield from Each(DESCRIBE, TRANSACTIONAL_ID).apply(judgement)
    judgement.edits.append(_hide_topics_of_transactions)


def _hide_topics_of_transactions(judgement: Judgement, response: Any) -> Steps[None]:
    for state in response.transaction_states:
        shown = []
        for topic in state.topics:
            if judgement.may(DESCRIBE, TOPIC, topic.topic, is_asked_for=False):
                shown.append(topic)
            yield
        state.topics = shown


def judge_write_txn_markers(judgement: Judgement) -> None:
    if not judgement.may(ALTER, CLUSTER, is_asked_for=False) and not judgement.may(CLUSTER_ACTION, CLUSTER):
        judgement.refuse(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def configs(operation: AclOperation) -> By:
    """Returns the rule of an API about settings: it needs the operation on the resource that has them."""

    def judge(judgement: Judgement) -> Steps[None]:
        left: list[Any] = []
        denied: list[Any] = []
        for resource in judgement.message.resources:
            kind = {_CONFIG_TOPIC: TOPIC, _CONFIG_GROUP: GROUP}.get(resource.resource_type, CLUSTER)
            allowed = (
                judgement.may(operation, CLUSTER)
                if kind is CLUSTER
                else judgement.may(operation, kind, resource.resource_name)
            )
            if allowed:
                left.append(resource)
            else:
                denied.append(judgement.denied(resource, DENIAL[kind]))
            yield
        if denied:
            judgement.deny(left, denied)

    return By(judge, ((operation, TOPIC), (operation, GROUP), (operation, CLUSTER)))
