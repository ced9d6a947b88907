"""A client of one share group's coordinator that survives the coordinator's death."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any, Final

from tidelog.client.address import Address
from tidelog.client.cluster import BrokerConnection
from tidelog.client.errors import ClientError
from tidelog.wire.messages import alter_share_group_offsets as altering
from tidelog.wire.messages import describe_share_group_offsets as offsets
from tidelog.wire.messages import share_group_heartbeat as beating
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

LIMIT_S: Final = 60.0


class ShareGroupClient:
    """Sends requests to the coordinator of a share group, and repeats them until they succeed."""

    def __init__(self, bootstrap: str, group: str, topic: str, partitions: int = 0) -> None:
        self._group = group
        self._topic = topic
        self._count = partitions
        self._servers = bootstrap.split(",")
        self.member_id = str(uuid.uuid4())
        self.epoch = 0
        self.partitions: set[int] = set()

    def _call(self, request: Any, response: Any) -> Any:
        for server in self._servers:
            host, _, port = server.rpartition(":")
            try:
                with BrokerConnection.open(Address(host, int(port))) as connection:
                    asked = FindCoordinatorRequest(coordinator_keys=[self._group])
                    found = connection.call(asked, FindCoordinatorResponse, at_least=4).coordinators[0]
                if not found.error_code:
                    with BrokerConnection.open(Address(found.host, found.port)) as connection:
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
        names = [self._topic] if self.epoch == 0 else None
        request = beating.ShareGroupHeartbeatRequest(self._group, self.member_id, self.epoch, None, names)
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
            for number in range(self._count)
        ]
        request = altering.AlterShareGroupOffsetsRequest(
            self._group, [altering.AlterShareGroupOffsetsRequestTopic(self._topic, partitions)]
        )
        answer = self._call(request, altering.AlterShareGroupOffsetsResponse)
        return answer is not None and not (
            answer.error_code or any(p.error_code for t in answer.responses for p in t.partitions)
        )

    def start_offsets(self) -> dict[int, int] | None:
        """Returns None if a start offset is not available at the moment."""
        found = self._described()
        return None if found is None else {p.partition_index: p.start_offset for p in found}

    def known_start_offsets(self) -> dict[int, int]:
        """Asks until all start offsets are available, while a coordinator may still take over shards."""
        found: dict[int, int] | None = None

        def is_known() -> bool:
            nonlocal found
            found = self.start_offsets()
            return found is not None

        self.until(is_known)
        assert found is not None
        return found

    def _described(self) -> list[offsets.DescribeShareGroupOffsetsResponsePartition] | None:
        request = offsets.DescribeShareGroupOffsetsRequest(
            [offsets.DescribeShareGroupOffsetsRequestGroup(self._group, None)]
        )
        answer = self._call(request, offsets.DescribeShareGroupOffsetsResponse)
        if answer is None or answer.groups[0].error_code:
            return None
        found = [p for topic in answer.groups[0].topics for p in topic.partitions]
        if any(p.error_code for p in found):
            return None
        return found

    def lags(self) -> dict[int, int] | None:
        """Returns the number of unfinished records of each partition, or None if one is not known now."""
        found = self._described()
        return None if found is None else {p.partition_index: p.lag for p in found}
