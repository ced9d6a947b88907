"""Reads which controllers a cluster has. The controller id in Metadata is no answer: it names the broker to
which a client sends admin requests, and since KRaft (KIP-500) each broker forwards them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from tidelog.client.answers import raise_on_error
from tidelog.client.cluster import Cluster
from tidelog.client.errors import NoAnswerError, UnsupportedApiError
from tidelog.model.errors import KafkaError
from tidelog.model.protocol_values import NO_LEADER
from tidelog.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    RequestPartitionData,
    RequestTopicData,
)

MAX_WAIT_S: Final = 2.0
"""The time after which the controllers are unknown. A broker answers at once if there is an active one."""
_TOPIC: Final = "__cluster_metadata"


@dataclass(frozen=True, slots=True)
class Quorum:
    """The controllers that are registered. Their ids are not those of brokers, unless a process is both.

    `active_id` is None if no controller is active. If the cluster does not tell, `unknown` states the reason,
    and nothing else is known.
    """

    active_id: int | None = None
    controller_ids: tuple[int, ...] = ()
    unknown: str = ""

    @property
    def active_text(self) -> str:
        """The id of the active controller, or what is known instead of it."""
        if self.unknown:
            return "unknown"
        return "none" if self.active_id is None else str(self.active_id)


def describe_quorum(cluster: Cluster) -> Quorum:
    """Returns the controllers. A user needs DESCRIBE on the cluster. Raises ClientError."""
    request = DescribeQuorumRequest([RequestTopicData(_TOPIC, [RequestPartitionData(0)])])
    try:
        connection = cluster.any_broker()
        pending = connection.send(request)
        deadline_s = min(pending.deadline_s, time.monotonic() + MAX_WAIT_S)
        answer = connection.receive(pending._replace(deadline_s=deadline_s), DescribeQuorumResponse)
        raise_on_error(answer.error_code, "the controllers", answer.error_message)
        (topic,) = answer.topics
        (partition,) = topic.partitions
        raise_on_error(partition.error_code, "the controllers", partition.error_message)
    except NoAnswerError:
        return Quorum(unknown=f"no active controller answered within {MAX_WAIT_S:g} s")
    except (KafkaError, UnsupportedApiError) as error:
        return Quorum(unknown=str(error))
    voters = tuple(sorted(voter.replica_id for voter in partition.current_voters))
    return Quorum(None if partition.leader_id == NO_LEADER else partition.leader_id, voters)
