"""DeleteTopics, and the completion of topics that are half created or deleted."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Final, NamedTuple

from tidelog.controller.core.decision import (
    ABSENT,
    Context,
    ControllerDecision,
    DecisionSteps,
    Erase,
    Record,
    Write,
)
from tidelog.controller.core.state import ClusterState
from tidelog.controller.core.topic_creation import first_state
from tidelog.metadata.entries import TopicEntry, partition_state_key, topic_config_key
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import ZERO_TOPIC_ID
from tidelog.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

_BY_ID_FROM_VERSION: Final = 6
_DISABLED_ERROR_FROM_VERSION: Final = 3


class _Wanted(NamedTuple):
    name: str | None
    topic_id: uuid.UUID


def delete_topics(
    state: ClusterState, context: Context, request: DeleteTopicsRequest, api_version: int
) -> DecisionSteps[DeleteTopicsResponse]:
    """Deletes topics. The topic's own key is deleted first: without it the topic does not exist, and its
    other keys can be removed later.
    """
    wanted = _wanted(request, api_version)
    if not context.rules.delete_topic_enable:
        raise KafkaError(
            ErrorCode.TOPIC_DELETION_DISABLED
            if api_version >= _DISABLED_ERROR_FROM_VERSION
            else ErrorCode.INVALID_REQUEST,
            "Topic deletion is disabled by delete.topic.enable.",
        )
    given = Counter(_resolved_name(state, want) for want in wanted)
    records: list[Record] = []
    results: list[DeletableTopicResult] = []
    for want in dict.fromkeys(wanted):
        yield
        try:
            name = _resolved_name(state, want)
            if name is not None and given[name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic in the request.")
            topic = _find(state, want)
        except KafkaError as error:
            results.append(
                DeletableTopicResult(
                    name=want.name,
                    topic_id=want.topic_id,
                    error_code=error.code,
                    error_message=error.message,
                )
            )
            continue
        results.append(DeletableTopicResult(name=topic.name, topic_id=topic.topic_id))
        records += deleted_topic_records(state, topic)
    return ControllerDecision(tuple(records), DeleteTopicsResponse(responses=results))


def deleted_topic_records(state: ClusterState, topic: TopicEntry) -> list[Record]:
    records: list[Record] = [Erase(topic.key)]
    if topic.name in state.topic_configs:
        records.append(Erase(topic_config_key(topic.name)))
    stored = sorted(state.partitions.get(topic.name, ()))
    records += [Erase(partition_state_key(topic.name, partition)) for partition in stored]
    return records


def _wanted(request: DeleteTopicsRequest, api_version: int) -> list[_Wanted]:
    if api_version < _BY_ID_FROM_VERSION:
        return [_Wanted(name, ZERO_TOPIC_ID) for name in request.topic_names]
    return [_Wanted(topic.name, topic.topic_id) for topic in request.topics]


def _resolved_name(state: ClusterState, want: _Wanted) -> str | None:
    return want.name if want.name is not None else state.topic_names.get(want.topic_id)


def _find(state: ClusterState, want: _Wanted) -> TopicEntry:
    if want.name is None and want.topic_id == ZERO_TOPIC_ID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    if want.name is not None and want.topic_id != ZERO_TOPIC_ID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Both topic name and id were specified.")
    name = _resolved_name(state, want)
    if name is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    topic = state.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topic


def finish_half_done(state: ClusterState, context: Context) -> DecisionSteps[None]:
    """Writes the missing states of announced partitions and deletes the remaining keys of deleted topics.

    Elections, changes of the ELR and reassignments are not handled here: `settle_partitions` and
    `advance_reassignments` find their incomplete work in the state itself.
    """
    records: list[Record] = []
    for topic in state.topics.values():
        stored = state.partitions.get(topic.name, {})
        yield
        for partition, replicas in enumerate(topic.assignments):
            if partition not in stored:
                records.append(Write(first_state(state, context, topic.name, partition, replicas), ABSENT))
    for name, stored in state.partitions.items():
        yield
        known = len(state.topics[name].assignments) if name in state.topics else 0
        records += [Erase(partition_state_key(name, index)) for index in sorted(stored) if index >= known]
    records += [Erase(topic_config_key(name)) for name in state.topic_configs if name not in state.topics]
    return ControllerDecision(tuple(records), None)


def forget_isr_changes(state: ClusterState, context: Context) -> ControllerDecision[None]:
    """Deletes the notifications whose states have been read, unless they were written again since."""
    records = [Erase(key, mod_revision) for key, mod_revision in state.isr_changes.items()]
    return ControllerDecision(tuple(records), None)
