"""StreamsGroupDescribe v0 and v1 (KIP-1071). There are no descriptions of topologies (KIP-1331)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidelog.group_coordinator.answer_room import described_within_bound
from tidelog.group_coordinator.groups.shared import Groups, answer
from tidelog.group_coordinator.groups.streams.assignor import STICKY, TaskAssignment
from tidelog.group_coordinator.groups.streams.owned_tasks import NO_ASSIGNMENT, to_message
from tidelog.group_coordinator.groups.streams.streams_group import StreamsGroup
from tidelog.group_coordinator.groups.streams.streams_groups import found_group
from tidelog.group_coordinator.groups.streams.streams_member import StreamsMember
from tidelog.group_coordinator.groups.streams.topology import InternalTopic, TopicInfo
from tidelog.group_coordinator.shard_core import ShardDecision, ShardRequest
from tidelog.model.errors import KafkaError
from tidelog.model.instants import WallMs
from tidelog.timing.steps import Steps
from tidelog.wire.messages import streams_group_describe as describing
from tidelog.wire.messages.streams_group_describe import (
    DescribedGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)


class StreamsDescriptions:
    """The handler of StreamsGroupDescribe."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    def describe(self, request: ShardRequest[StreamsGroupDescribeRequest], now_ms: WallMs) -> ShardDecision:
        described = described_within_bound(
            request.message.group_ids,
            self._described,
            lambda group_id, error: DescribedGroup(error_code=error, group_id=group_id),
            lambda groups: StreamsGroupDescribeResponse(groups=groups),
        )
        return answer(request, described)

    def _described(self, group_id: str) -> Steps[DescribedGroup]:
        """Describes a group as it is at the first step."""
        try:
            group = found_group(self._groups, group_id)
        except KafkaError as error:
            return DescribedGroup(error_code=error.code, error_message=error.message, group_id=group_id)
        described = DescribedGroup(
            group_id=group_id,
            group_state=group.state,
            group_epoch=group.epoch,
            assignment_epoch=group.assignment_epoch,
            topology=_topology(group),
            assignor_name=STICKY,
        )
        members, targets = list(group.members.values()), dict(group.targets)
        for member in members:
            described.members.append(_member(member, targets.get(member.member_id, NO_ASSIGNMENT)))
            yield
        return described


def _topology(group: StreamsGroup) -> describing.Topology | None:
    """Returns the topology with the decided numbers of partitions, or as the client defined it if they are
    not known.
    """
    topology, configured = group.topology, group.configured
    if topology is None:
        return None
    found = topology.subtopologies
    decided = None if configured is None or not configured.is_ready else configured.subtopologies
    return describing.Topology(
        topology.epoch,
        [
            describing.Subtopology(
                name,
                sorted(found[name].source_topics),
                sorted(found[name].repartition_sink_topics),
                _topics(
                    found[name].state_changelog_topics
                    if decided is None
                    else decided[name].state_changelog_topics.values()
                ),
                _topics(
                    found[name].repartition_source_topics
                    if decided is None
                    else decided[name].repartition_source_topics.values()
                ),
            )
            for name in sorted(found)
        ],
    )


def _topics(topics: Iterable[TopicInfo | InternalTopic]) -> list[describing.TopicInfo]:
    return [
        describing.TopicInfo(
            topic.name,
            topic.partitions,
            max(topic.replication_factor, 0),
            [describing.KeyValue(name, value) for name, value in sorted(topic.configs)],
        )
        for topic in sorted(topics, key=lambda topic: topic.name)
    ]


def _member(member: StreamsMember, target: TaskAssignment) -> describing.Member:
    endpoint = member.user_endpoint
    return describing.Member(
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None if endpoint is None else describing.Endpoint(*endpoint),
        client_tags=[describing.KeyValue(key, value) for key, value in member.client_tags],
        assignment=_assignment(member.owned.active, member.owned.standby, member.owned.warmup),
        target_assignment=_target(target),
    )


def _target(target: TaskAssignment) -> describing.Assignment:
    return _assignment(target.active_tasks, target.standby_tasks, target.warmup_tasks)


def _assignment(
    active: Mapping[str, Iterable[int]],
    standby: Mapping[str, Iterable[int]],
    warmup: Mapping[str, Iterable[int]],
) -> describing.Assignment:
    task_ids = describing.TaskIds
    return describing.Assignment(
        to_message(task_ids, active), to_message(task_ids, standby), to_message(task_ids, warmup)
    )
