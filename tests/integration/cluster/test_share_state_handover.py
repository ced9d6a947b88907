"""Share groups and the states of their share partitions while coordinators and a broker are killed."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from brokerlab.clients import create_topic
from clusterlab.tidelog_cluster import TidelogCluster
from tidelog.client.address import Address
from tidelog.client.connection import BrokerConnection
from tidelog.client.errors import ClientError
from tidelog.wire.messages import alter_share_group_offsets as altering
from tidelog.wire.messages import describe_share_group_offsets as offsets
from tidelog.wire.messages import share_group_heartbeat as beating
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

TOPIC = "shared"
GROUP = "sharers"
PARTITIONS = 8
"""The share partitions, whose states are in several shards of both coordinators."""
LIMIT_S = 60.0


class GroupClient:
    """Sends requests to the coordinator of the group, and repeats them until they succeed."""

    def __init__(self, bootstrap: str) -> None:
        self._servers = bootstrap.split(",")
        self.member_id = str(uuid.uuid4())
        self.epoch = 0
        self.partitions: set[int] = set()

    def _call(self, request: Any, response: Any) -> Any:
        for server in self._servers:
            host, _, port = server.rpartition(":")
            try:
                with BrokerConnection(Address(host, int(port))) as connection:
                    asked = FindCoordinatorRequest(coordinator_keys=[GROUP])
                    found = connection.call(asked, FindCoordinatorResponse, at_least=4).coordinators[0]
                if not found.error_code:
                    with BrokerConnection(Address(found.host, found.port)) as connection:
                        return connection.call(request, response)
            except ClientError:
                continue
        return None

    def until(self, attempt: Callable[[], bool]) -> float:
        """Repeats an attempt until it succeeds. Returns how long it took, in seconds."""
        began_s = time.monotonic()
        while not attempt():
            assert time.monotonic() < began_s + LIMIT_S
            time.sleep(0.05)
        return time.monotonic() - began_s

    def beat(self) -> bool:
        names = [TOPIC] if self.epoch == 0 else None
        request = beating.ShareGroupHeartbeatRequest(GROUP, self.member_id, self.epoch, None, names)
        answer = self._call(request, beating.ShareGroupHeartbeatResponse)
        if answer is None or answer.error_code:
            return False
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.partitions = {p for topic in answer.assignment.topic_partitions for p in topic.partitions}
        return True

    def reset(self, offset: int) -> bool:
        """Sets all start offsets to `offset` plus the number of the partition."""
        partitions = [
            altering.AlterShareGroupOffsetsRequestPartition(number, offset + number)
            for number in range(PARTITIONS)
        ]
        request = altering.AlterShareGroupOffsetsRequest(
            GROUP, [altering.AlterShareGroupOffsetsRequestTopic(TOPIC, partitions)]
        )
        answer = self._call(request, altering.AlterShareGroupOffsetsResponse)
        return answer is not None and not (
            answer.error_code or any(p.error_code for t in answer.responses for p in t.partitions)
        )

    def start_offsets(self) -> dict[int, int] | None:
        """Returns None if a start offset is not available at the moment."""
        request = offsets.DescribeShareGroupOffsetsRequest(
            [offsets.DescribeShareGroupOffsetsRequestGroup(GROUP, None)]
        )
        answer = self._call(request, offsets.DescribeShareGroupOffsetsResponse)
        if answer is None or answer.groups[0].error_code:
            return None
        found = [p for topic in answer.groups[0].topics for p in topic.partitions]
        if any(p.error_code for p in found):
            return None
        return {p.partition_index: p.start_offset for p in found}


def test_no_acknowledged_start_offset_is_lost(
    new_cluster: Callable[..., TidelogCluster], tell: Callable[..., None]
) -> None:
    cluster = new_cluster(
        controllers=1,
        options=["--coordinators", "2"],
        settings={"offsets.topic.num.partitions": "4", "share.coordinator.state.topic.num.partitions": "8"},
    )
    create_topic(cluster.bootstrap, TOPIC, PARTITIONS, replication_factor=3)
    client = GroupClient(cluster.bootstrap)
    client.until(lambda: client.beat() and len(client.partitions) == PARTITIONS)
    client.epoch = -1
    client.until(client.beat)
    expected = dict.fromkeys(range(PARTITIONS), -1)
    for number, victim in enumerate(("coordinator-1", "coordinator-2", "broker-2"), 1):
        cluster.kill(victim)
        silence_s = client.until(lambda: client.start_offsets() is not None)
        tell(f"SIGKILL {victim}: start offsets are available again", silence_s)
        assert client.start_offsets() == expected
        offset = 1_000 * number
        client.until(partial(client.reset, offset))
        expected = {partition: offset + partition for partition in range(PARTITIONS)}
        assert client.start_offsets() == expected
        cluster.start(victim)
    client.epoch = 0
    client.until(lambda: client.beat() and len(client.partitions) == PARTITIONS)
