"""Measures what TLS costs the broker: its CPU seconds per GB of records, for two builds in turns.

    make compiled                                  # in the tree before and in the tree after a change
    PYTHONPATH=services:tests .venv/bin/python tests/bench/tls_cost.py BEFORE/build/compiled build/compiled

A build is a directory with the package `tidelog`; the directory `services` of a tree works, too, without
compilation. The clients are librdkafka's, in a process of their own with a low priority. Prints the CPU time
of each build for each case: the median and the quartiles of all rounds, the same of the ratios, and the rate.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.sidebyside.sides import TlsKeystore
from brokerlab.broker_process import BUILD_VARIABLE, BrokerProcess, free_port
from brokerlab.clients import create_topic

RECORD_BYTES: Final = 1000
GB: Final = 10**9
CLIENT_NICENESS: Final = 10
LOAD_TIMEOUT_S: Final = 300.0
CASES: Final = {
    "produce, 16 KB batches": ("produce", 16 * 1024, 40),
    "produce, 1 MB batches": ("produce", 1024 * 1024, 150),
    "consume": ("consume", 1024 * 1024, 300),
}
"""For each case: the load, the size of a batch, and the megabytes of a round."""
Settings = dict[str, str]


def produce(connection: Settings, topic: str, batch_bytes: int, records: int) -> None:
    import confluent_kafka

    settings = {"batch.size": batch_bytes, "linger.ms": 5, "acks": "all", "message.max.bytes": 8_000_000}
    producer = confluent_kafka.Producer({**connection, **settings, "queue.buffering.max.kbytes": 65_536})
    value = os.urandom(RECORD_BYTES)
    for _ in range(records):
        while True:
            try:
                producer.produce(topic, value, partition=0)
                break
            except BufferError:
                producer.poll(0.01)
    producer.flush()


def consume(connection: Settings, topic: str, records: int) -> None:
    import confluent_kafka

    consumer = confluent_kafka.Consumer({**connection, "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    seen = 0
    while seen < records:
        seen += len(consumer.consume(1000, 1.0))
    consumer.close()


def cpu_seconds(pid: int) -> float:
    """Returns the user and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_load(load: str, connection: Settings, topic: str, batch_bytes: int, records: int) -> None:
    plan = json.dumps([load, connection, topic, batch_bytes, records])
    command = ["nice", "-n", str(CLIENT_NICENESS), sys.executable, __file__, "--load", plan]
    subprocess.run(command, check=True, timeout=LOAD_TIMEOUT_S)


def started(build: Path, directory: Path, keystore: TlsKeystore) -> tuple[BrokerProcess, Settings]:
    port = free_port()
    plaintext_port = free_port()
    settings = {
        **keystore.settings,
        "listeners": f"PLAINTEXT://127.0.0.1:{plaintext_port},SSL://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.retention.bytes": str(400_000_000),
        "message.max.bytes": "8000000",
    }
    os.environ[BUILD_VARIABLE] = str(build)
    broker = BrokerProcess(directory, directory.with_suffix(".log"), settings, port=plaintext_port)
    broker.start()
    return broker, keystore.connection(f"127.0.0.1:{port}")


def measure(builds: list[Path], rounds: int, wanted: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        keystore = TlsKeystore(Path(name))
        sides = [started(build, Path(name) / f"side-{n}", keystore) for n, build in enumerate(builds)]
        try:
            for case, (load, batch_bytes, megabytes) in CASES.items():
                if wanted in case:
                    measure_case(sides, case, load, batch_bytes, megabytes, rounds)
        finally:
            for broker, _ in sides:
                broker.stop()


def measure_case(
    sides: list[tuple[BrokerProcess, Settings]],
    case: str,
    load: str,
    batch_bytes: int,
    megabytes: int,
    rounds: int,
) -> None:
    records = megabytes * 1_000_000 // RECORD_BYTES
    topic = f"{load}-{batch_bytes}"
    for broker, connection in sides:
        create_topic(broker.bootstrap, topic)
        run_load("produce", connection, topic, batch_bytes, records)
    costs: list[list[float]] = [[] for _ in sides]
    rates: list[list[float]] = [[] for _ in sides]
    for round_number in range(rounds):
        order = list(enumerate(sides))
        for number, (broker, connection) in order if round_number % 2 else reversed(order):
            before_s, began_s = cpu_seconds(broker.pid), time.monotonic()
            run_load(load, connection, topic, batch_bytes, records)
            rates[number].append(megabytes / (time.monotonic() - began_s))
            costs[number].append((cpu_seconds(broker.pid) - before_s) * GB / (records * RECORD_BYTES))
    ratios = [after / before for before, after in zip(costs[0], costs[-1], strict=True)]
    for number, found in enumerate(costs):
        low, middle, high = statistics.quantiles(found, n=4)
        rate = statistics.median(rates[number])
        print(f"{case}\tbuild {number}\t{middle:.2f} CPU-s/GB\t{low:.2f} - {high:.2f}\t{rate:.0f} MB/s")
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"{case}\tratio\t{middle:.2f}\t{low:.2f} - {high:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("builds", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="a part of the case's name")
    parser.add_argument("--load", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        load, connection, topic, batch_bytes, records = json.loads(options.load)
        if load == "produce":
            produce(connection, topic, batch_bytes, records)
        else:
            consume(connection, topic, records)
        return
    began_s = time.monotonic()
    measure(options.builds, options.rounds, options.only)
    print(f"{time.monotonic() - began_s:.0f} s, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
