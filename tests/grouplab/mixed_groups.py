"""A share group, a streams group and a classic group, and members of the first two, on a broker in the
process of the test.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tidelog.client import Admin, ShareConsumer
from tidelog.client.admin.groups import CommittedOffset, commit_offsets, coordinator_of
from tidelog.client.admin.offsets import describe_share_offsets
from tidelog.client.calls import GROUP
from tidelog.client.cluster import Cluster as Client
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.testing import Cluster
from tidelog.wire.messages import streams_group_heartbeat as beating
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

TOPIC = "flights"
SHARE = "tasks"
STREAMS = "application"
CLASSIC = "readers"
RECORDS = 5
DEADLINE_S = 60.0


def create_groups(cluster: Cluster) -> None:
    """Creates a topic with 5 records in its first partition, a share group that has read 3 of them and has no
    members, and a classic group that has read 1. A StreamsThread creates the streams group.
    """
    cluster.create_topic(TOPIC, 2)
    cluster.produce(TOPIC, *(b"%d" % number for number in range(RECORDS)), partition=0)
    with Admin(cluster.bootstrap) as admin:
        admin.alter_group_configs(SHARE, {"share.auto.offset.reset": "earliest"})
        admin.alter_group_configs(STREAMS, {"streams.initial.rebalance.delay.ms": "0"})
    begun = {TopicPartition(TOPIC, 0): 3, TopicPartition(TOPIC, 1): 0}
    with share_member(cluster.bootstrap, records=3), Client(cluster.bootstrap) as client:
        deadline = time.monotonic() + DEADLINE_S
        while (found := start_offsets(client)) != begun:  # a partition without records begins later
            assert time.monotonic() < deadline, found
            time.sleep(0.02)
    with Client(cluster.bootstrap) as client:
        commit_offsets(client, CLASSIC, {TopicPartition(TOPIC, 0): CommittedOffset(1)})


def start_offsets(client: Client) -> dict[TopicPartition, int | None]:
    return {place: found.start_offset for place, found in describe_share_offsets(client, SHARE).items()}


@contextmanager
def share_member(bootstrap: str, records: int = 0) -> Iterator[ShareConsumer[bytes, bytes]]:
    """A member that has both partitions, and has read and accepted so many records."""
    settings = {
        "group.id": SHARE,
        "client.id": "worker",
        "max.poll.records": 3,
        "share.acquire.mode": "record_limit",
    }
    with ShareConsumer[bytes, bytes](bootstrap, settings) as member:
        member.subscribe([TOPIC])
        deadline, found = time.monotonic() + DEADLINE_S, 0
        while len(member.assignment()) < 2 or found < records:
            assert time.monotonic() < deadline, f"{member.assignment()}, {found} of {records} records"
            if found < records:
                found += len(member.poll(0.1))
            else:
                time.sleep(0.02)
        member.commit()
        yield member


class StreamsThread:
    """A thread of an application, which sends heartbeats until it leaves."""

    def __init__(self, bootstrap: str) -> None:
        self._client = Client(bootstrap)
        self._epoch = 0
        self._is_over = threading.Event()
        self.tasks: list[int] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> StreamsThread:
        deadline = time.monotonic() + DEADLINE_S
        while not self.tasks:
            assert time.monotonic() < deadline, "the application got no tasks"
            self.beat()
            time.sleep(0.05)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join(DEADLINE_S)
        self._epoch = -1
        self.beat()
        self._client.close()

    def _run(self) -> None:
        while not self._is_over.wait(0.5):
            self.beat()

    def commit(self, offsets: dict[TopicPartition, int]) -> None:
        topics = [
            OffsetCommitRequestTopic(
                place.topic, partitions=[OffsetCommitRequestPartition(place.partition, offset)]
            )
            for place, offset in offsets.items()
        ]
        request = OffsetCommitRequest(STREAMS, self._epoch, "thread-1", topics=topics)
        with Client(self._client.bootstrap) as client:  # the other client belongs to the thread
            answer = coordinator_of(client, GROUP, STREAMS).call(request, OffsetCommitResponse, at_most=9)
        assert [row.error_code for topic in answer.topics for row in topic.partitions] == [ErrorCode.NONE]

    def beat(self) -> None:
        request = beating.StreamsGroupHeartbeatRequest(STREAMS, "thread-1", self._epoch)
        if not self._epoch:
            request.topology = beating.Topology(0, [beating.Subtopology("0", [TOPIC])])
            request.rebalance_timeout_ms, request.process_id = 60_000, "process"
            request.active_tasks, request.standby_tasks, request.warmup_tasks = [], [], []
        coordinator = coordinator_of(self._client, GROUP, STREAMS)
        answer = coordinator.call(request, beating.StreamsGroupHeartbeatResponse)
        assert answer.error_code == ErrorCode.NONE, answer
        self._epoch = answer.member_epoch
        if answer.active_tasks is not None:
            self.tasks = [task for ids in answer.active_tasks for task in ids.partitions]
