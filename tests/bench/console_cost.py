#!/usr/bin/env python3
"""Measures what the web console costs a broker, and that a search in many records stops at its budget.

    python tests/bench/console_cost.py [--topics 100] [--partitions 3] [--seconds 60] [--records-gib 10]

The first part watches four pages with several viewers, and compares the CPU time of the broker with that
while nobody looks. The second part fills a topic and searches it for a text that no record contains.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil

from brokerlab.broker_process import BrokerProcess, tidelog_command
from tidelog.client.admin.groups import CommittedOffset, commit_offsets
from tidelog.client.admin.topics import create_topic
from tidelog.client.cluster import Cluster
from tidelog.console.core.isr_history import SAMPLE_INTERVAL_MS
from tidelog.model.topics import TopicPartition
from tidelog.records.builder import build_batch
from tidelog.records.compression import Compression
from tidelog.records.record import Record
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

VIEWERS = 5
PAGES = ("/", "/topics", "/groups", "/topics/topic-0")
BATCH_RECORDS = 1_000
RECORD_BYTES = 1_024
SETTLE_S = 3.0
SAMPLES = 500


@contextlib.contextmanager
def console(bootstrap: str) -> Iterator[str]:
    """Runs a console with its default settings, and yields its URL."""
    command = [*tidelog_command(), "console", "--listen", "127.0.0.1:0", "--bootstrap-server", bootstrap]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[1].rstrip("/")
    finally:
        process.terminate()
        process.wait(30)


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def share(process: psutil.Process, seconds: float) -> float:
    """Returns the share of a core that a process uses."""
    before, began_s = cpu_s(process), time.monotonic()
    time.sleep(seconds)
    return (cpu_s(process) - before) / (time.monotonic() - began_s)


def watch(url: str, stopping: threading.Event) -> None:
    with urllib.request.urlopen(url, timeout=60) as stream:
        for _ in stream:
            if stopping.is_set():
                return


def cost_of_a_sample(broker: BrokerProcess, process: psutil.Process) -> float:
    """Returns the CPU seconds that a sample of the cluster's health costs the broker: too few for the
    resolution of the other measurements.
    """
    with Cluster(broker.bootstrap) as cluster:
        cluster.describe_with_topics()
        before = cpu_s(process)
        for _ in range(SAMPLES):
            cluster.describe_with_topics()
        return (cpu_s(process) - before) / SAMPLES


def watching(broker: BrokerProcess, topics: int, partitions: int, seconds: float) -> None:
    with Cluster(broker.bootstrap) as cluster:
        for number in range(topics):
            create_topic(cluster, f"topic-{number}", num_partitions=partitions)
        for number in range(10):
            offsets = {TopicPartition(f"topic-{number}", 0): CommittedOffset(0, -1)}
            commit_offsets(cluster, f"group-{number}", offsets)
    process = psutil.Process(broker.pid)
    time.sleep(SETTLE_S)
    sample_s = cost_of_a_sample(broker, process)
    idle = share(process, seconds)
    with console(broker.bootstrap) as url:
        time.sleep(SETTLE_S)
        unwatched = share(process, seconds)
        stopping = threading.Event()
        for page in PAGES:
            for _ in range(VIEWERS):
                address = f"{url}/events{page}"
                threading.Thread(target=watch, args=(address, stopping), daemon=True).start()
        time.sleep(SETTLE_S)
        watched = share(process, seconds)
        stopping.set()
    print(f"{topics} topics of {partitions} partitions, {len(PAGES)} pages, {VIEWERS} viewers of each:")
    print(
        f"  a sample of the health          {sample_s * 1000:.2f} ms of CPU time, "
        f"{sample_s * 1000 / SAMPLE_INTERVAL_MS:.4%} of a core at one in {SAMPLE_INTERVAL_MS / 1000:.0f} s"
    )
    print(f"  the broker alone                {idle:.2%} of a core")
    print(f"  with a console, nobody looks    {unwatched:.2%}")
    print(f"  with a console, watched         {watched:.2%}, so watching costs {watched - idle:.2%}")


def searching(broker: BrokerProcess, size_bytes: int) -> None:
    source = random.Random(1)
    words = ["".join(source.choices("abcdefghij", k=8)) for _ in range(200)]
    values = [" ".join(source.choices(words, k=RECORD_BYTES // 9)).encode() for _ in range(BATCH_RECORDS)]
    now_ms = int(time.time() * 1000)
    batch = build_batch(
        (Record(number, now_ms, None, value) for number, value in enumerate(values)),
        compression=Compression.LZ4,
    )
    batches = size_bytes // sum(map(len, values))
    began_s = time.monotonic()
    with Cluster(broker.bootstrap) as cluster:
        create_topic(cluster, "large", num_partitions=1)
        topic = cluster.topic("large")
        for _ in range(batches):
            row = TopicProduceData("large", topic.topic_id, [PartitionProduceData(0, batch)])
            answer = cluster.broker(topic.partitions[0].leader).call(
                ProduceRequest(None, 1, 30_000, [row]), ProduceResponse, at_least=7
            )
            assert answer.responses[0].partition_responses[0].error_code == 0
    gib = batches * sum(map(len, values)) / 1024**3
    print(
        f"{gib:.1f} GiB of records ({batches * len(batch) / 1024**3:.1f} GiB compressed), "
        f"written in {time.monotonic() - began_s:.0f} s:"
    )
    process = psutil.Process(broker.pid)
    with console(broker.bootstrap) as url:
        for query in ("value=no+such+text&start=oldest", "json=a.b%3D1&start=oldest"):
            before, began_s = cpu_s(process), time.monotonic()
            with urllib.request.urlopen(f"{url}/topics/large/records?{query}", timeout=60) as answer:
                page = re.sub(r"<[^>]+>", " ", answer.read().decode())
            took_s = time.monotonic() - began_s
            said = re.findall(
                r"Stopped after.*?not searched\.|Read [\d,]+ records[^.]*\.\d[^.]*\.", page, re.S
            )
            print(f"  {query}: {took_s:.1f} s, {cpu_s(process) - before:.2f} s of the broker's CPU")
            for sentence in said:
                print(f"    {' '.join(sentence.split())}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topics", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--records-gib", type=float, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidelog-console-") as directory:
        broker = BrokerProcess(Path(directory) / "data", Path(directory) / "broker.log").start()
        try:
            watching(broker, options.topics, options.partitions, options.seconds)
            searching(broker, int(options.records_gib * 1024**3))
        finally:
            broker.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
