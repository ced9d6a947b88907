"""Counts the files that a reader has to open to follow one request through tidelog.

The test starts the embedded cluster (broker, controller and group coordinator in one process), sends one
request several times, and records which files of services/tidelog run a function between the request's bytes
and the end of all work that the request causes. The requests are a produce with acks=all to one replica, a
consumer's fetch, the OffsetCommit of a member of a group, and a CreateTopics.

- Each file counts once, whatever part of it runs.
- Generated modules (messages, protobuf's stubs) and the codecs that `wire.source` compiles at first use do
  not count: nobody reads them to follow a request.
- The first requests, which import modules, fill caches and load shards, do not count.
- A repetition ends when the cluster is idle. The group coordinator reacts to a new topic while the response
  is sent, so a count that ends with the response depends on the load of the machine.
- A file counts only if it runs in every repetition. The others belong to timers. A repetition that takes as
  long as the shortest period of a timer is not used.

LIMITS holds today's counts, which rise only for a new idea on the path. TARGETS holds the goals; ADRs 0033
and 0097 say why OffsetCommit and CreateTopics miss theirs. Before the modules were merged, this test counted
25, 21, 43 and 77 to 84 files.
"""

from __future__ import annotations

import asyncio
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import tidelog
from brokerlab.batches import build_batch
from brokerlab.raw_client import RawClient
from tidelog.embedded.cluster import EmbeddedCluster
from tidelog.process.build import is_compiled
from tidelog.settings.broker_settings import BrokerSettings

TARGETS = {"Produce": 24, "Fetch": 16, "OffsetCommit": 22, "CreateTopics": 24}
# Produce gained requests/one_batch.py, because a module has at most 600 lines, and all gained net/turn.py, in
# which clients have their shares (ADR 0077).
# OffsetCommit gained the fair budgets (ADR 0077) and the turns of clients at a shard, CreateTopics the copies
# of settings (ADR 0068) and ModernGroup.
LIMITS = {"Produce": 18, "Fetch": 16, "OffsetCommit": 32, "CreateTopics": 58}

ROOT = f"{Path(tidelog.__file__).parent}/"
WALKS = Path(__file__).parents[2] / "docs" / "walks.md"
"""The page that names each file and why it is there."""
GENERATED = (f"{ROOT}wire/messages/", f"{ROOT}metadata/etcd/generated/", f"{ROOT}rpc/generated/")
OF_TESTS = f"{ROOT}testing/"
"""The log of `tidelog.testing`, which other tests of the process may have installed."""
WARM_UP_REQUESTS = 3
COUNTED_REQUESTS = 8
IDLE_S = 0.15
"""The cluster is idle when none of its functions has been called for this time."""
MAX_REQUEST_S = 0.8
"""A repetition that takes longer may contain a call of every timer that runs once per second."""
TIMEOUT_S = 60.0

pytestmark = pytest.mark.skipif(is_compiled(), reason="compiled functions report no calls")


class CallRecorder:
    """Records the files of the functions that run while `is_recording`.

    It records the thread that installs it and every thread that starts later.
    """

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._last_call = 0.0

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            file = frame.f_code.co_filename
            if file.startswith(ROOT):
                self._files.add(file)
                self._last_call = time.monotonic()

    def install(self) -> None:
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def remove(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # None ends it, typeshed does not know

    def record(self, request: Callable[[], None]) -> set[str]:
        """Returns the files of tidelog, relative to the package, that ran from the start of `request` until
        the cluster was idle.
        """
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            self.wait_until_idle()
            self._files = set()
            started = time.monotonic()
            request()
            self.wait_until_idle()
            if time.monotonic() - started < MAX_REQUEST_S:
                break
            assert time.monotonic() < deadline, "the machine is too busy to tell a request from timers"
        left_out = (*GENERATED, OF_TESTS)
        return {file.removeprefix(ROOT) for file in self._files if not file.startswith(left_out)}

    def wait_until_idle(self) -> None:
        while (quiet_s := time.monotonic() - self._last_call) < IDLE_S:
            time.sleep(IDLE_S - quiet_s)


class WarmRequests:
    """Requests of one client, on a topic `events` and a group `readers`."""

    def __init__(self, address: str) -> None:
        self._client = RawClient(address)
        self._topics = 0
        self._call("create_topics", 7, topics=[_topic("events")], timeout=10_000)
        metadata = self._call(
            "metadata",
            12,
            topics=[{"topic_id": uuid.UUID(int=0), "name": "events"}],
            include_topic_authorized_operations=False,
        )
        self._topic_id = metadata.topics[0].topic_id
        self._call("find_coordinator", 4, key_type=0, coordinator_keys=["readers"])
        self._member_id, self._generation = "", -1
        _until_it_works(self._join_group)

    def _call(self, api: str, version: int, **values: Any) -> Any:
        return self._client.call(api, version, **values)

    def _join_group(self) -> None:
        joined = self._call(
            "join_group",
            9,
            group_id="readers",
            session_timeout=30_000,
            rebalance_timeout=30_000,
            member_id=self._member_id,
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": b""}],
        )
        self._member_id, self._generation = joined.member_id, joined.generation_id
        assert joined.error_code == 0
        assignment = {"member_id": self._member_id, "assignment": b""}
        synced = self._call(
            "sync_group",
            5,
            group_id="readers",
            generation_id=self._generation,
            member_id=self._member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[assignment],
        )
        assert synced.error_code == 0

    def produce(self) -> None:
        batch = build_batch([b"value"])
        partition = {"index": 0, "records": batch}
        answer = self._call(
            "produce",
            13,
            acks=-1,
            timeout=10_000,
            topic_data=[{"topic_id": self._topic_id, "partition_data": [partition]}],
        )
        assert answer.responses[0].partition_responses[0].error_code == 0

    def fetch(self) -> None:
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        answer = self._call(
            "fetch",
            16,
            max_wait=0,
            min_bytes=1,
            topics=[{"topic_id": self._topic_id, "partitions": [partition]}],
            forgotten_topics_data=[],
        )
        assert answer.responses[0].partitions[0].records

    def commit_offset(self) -> None:
        partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
        answer = self._call(
            "offset_commit",
            9,
            group_id="readers",
            member_id=self._member_id,
            generation_id_or_member_epoch=self._generation,
            topics=[{"name": "events", "partitions": [partition]}],
        )
        assert answer.topics[0].partitions[0].error_code == 0

    def create_topic(self) -> None:
        self._topics += 1
        answer = self._call("create_topics", 7, topics=[_topic(f"t{self._topics}")], timeout=10_000)
        assert answer.topics[0].error_code == 0

    def close(self) -> None:
        self._client.close()


def _topic(name: str) -> dict[str, object]:
    return {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}


def _until_it_works(request: Callable[[], None], timeout_s: float = 20) -> None:
    """Repeats the request until the topic has a leader and the shard is loaded."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return request()
        except AssertionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _count(address: str, recorder: CallRecorder) -> dict[str, set[str]]:
    requests = WarmRequests(address)
    files = {}
    try:
        for api, request in (
            ("Produce", requests.produce),
            ("Fetch", requests.fetch),
            ("OffsetCommit", requests.commit_offset),
            ("CreateTopics", requests.create_topic),
        ):
            for _ in range(WARM_UP_REQUESTS):
                _until_it_works(request)
            files[api] = set.intersection(*(recorder.record(request) for _ in range(COUNTED_REQUESTS)))
    finally:
        requests.close()
    return files


@pytest.fixture(scope="module")
def files_by_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, set[str]]]:
    data_dir = tmp_path_factory.mktemp("data")
    settings = BrokerSettings.parse(
        {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(data_dir),
            "group.initial.rebalance.delay.ms": "0",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
        }
    )

    async def run(recorder: CallRecorder) -> dict[str, set[str]]:
        cluster = await EmbeddedCluster.start(settings, data_dir)
        try:
            return await asyncio.to_thread(_count, cluster.address, recorder)
        finally:
            await cluster.stop()

    recorder = CallRecorder()
    recorder.install()
    try:
        yield asyncio.run(run(recorder))
    finally:
        recorder.remove()


@pytest.mark.parametrize("api", list(LIMITS))
def test_a_request_runs_through_few_files(
    api: str, files_by_api: dict[str, set[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    files = files_by_api[api]
    with capsys.disabled():
        print(f"\n{api}: {len(files)} files (limit {LIMITS[api]}, target {TARGETS[api]})")
    listed = "\n".join(sorted(files))
    assert len(files) <= LIMITS[api], f"{api} runs through {len(files)} files:\n{listed}"


@pytest.mark.parametrize("api", list(LIMITS))
def test_the_walk_names_each_file(api: str, files_by_api: dict[str, set[str]]) -> None:
    section = WALKS.read_text().split(f"\n## {api}\n")[1].split("\n## ")[0]
    named = set(re.findall(r"^\| `([\w/.]+)` \|", section, re.MULTILINE))
    assert files_by_api[api] == named, "update docs/walks.md"


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__, "-q", "-n", "0"]))
