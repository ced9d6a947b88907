"""Runs consumers of one group in a process that a test may kill.

The process prints each assignment as `assigned NUMBER [[topic, partition], ...]` and each record as
`read NUMBER PARTITION OFFSET`. The number is the member's, from 0. SIGTERM stops the process cleanly.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from types import FrameType

from confluent_kafka import Consumer, TopicPartition

POLL_S = 0.05


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--members", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE, librdkafka's")
    options = parser.parse_args()
    stopping: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.append(number)

    signal.signal(signal.SIGTERM, stop)
    consumers = [new_member(options, number) for number in range(options.members)]
    while not stopping:
        for number, consumer in enumerate(consumers):
            wait_s = POLL_S if len(consumers) == 1 else 0.002
            message = consumer.poll(wait_s)
            if message is not None and message.error() is None:
                say("read", number, message.partition(), message.offset())
    for consumer in consumers:
        consumer.close()


def new_member(options: argparse.Namespace, number: int) -> Consumer:
    settings = dict(setting.split("=", 1) for setting in options.set)
    if settings.get("group.protocol") != "consumer":  # with this protocol the coordinator decides
        settings = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "500"} | settings
    consumer = Consumer(
        {
            "bootstrap.servers": options.bootstrap,
            "group.id": options.group,
            "client.id": f"member-{number}",
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 200,
            "log_level": 0,
            **settings,
        }
    )

    def assigned(_: Consumer, partitions: list[TopicPartition]) -> None:
        say("assigned", number, json.dumps(sorted([p.topic, p.partition] for p in partitions)))

    def taken(_: Consumer, partitions: list[TopicPartition]) -> None:
        say("taken", number, json.dumps(sorted([p.topic, p.partition] for p in partitions)))

    consumer.subscribe([options.topic], on_assign=assigned, on_revoke=taken, on_lost=taken)
    return consumer


def say(*words: object) -> None:
    print(*words, flush=True, file=sys.stdout)


if __name__ == "__main__":
    main()
