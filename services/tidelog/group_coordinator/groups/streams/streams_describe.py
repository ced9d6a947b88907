"""StreamsGroupDescribe v0 and v1 (KIP-1071). There are no descriptions of topologies (KIP-1331)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidelog.group_coordinator.groups.streams.assignor import TaskAssignment
from tidelog.group_coordinator.groups.streams.streams_group import StreamsGroup
from tidelog.group_coordinator.groups.streams.streams_member import StreamsMember, to_message
from tidelog.group_coordinator.groups.streams.topology import InternalTopic, TopicInfo
from tidelog.wire.messages import streams_group_describe as describing


def described_topology(group: StreamsGroup) -> describing.Topology | None:
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


def described_member(member: StreamsMember, target: TaskAssignment) -> describing.Member:
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
