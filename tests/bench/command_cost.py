"""Measures the cost to encode and to decode a full LeaderAndIsr and a full UpdateMetadata.

.venv/bin/python tests/bench/command_cost.py [PARTITIONS]
"""

from __future__ import annotations

import sys
import time
import uuid

from tidelog.kernel.steps import all_at_once
from tidelog.rpc.broker_commands import LeaderAndIsr, PartitionState, TopicState, UpdateMetadata
from tidelog.rpc.command_messages import command, command_message
from tidelog.rpc.generated import broker_commands_pb2 as pb

ROUNDS = 9
PARTITIONS_OF_A_TOPIC = (1, 10, 100, 2000)


def topics(partitions: int, of_a_topic: int) -> tuple[TopicState, ...]:
    """Returns a command with replication factor 3."""
    made = []
    for number in range(partitions // of_a_topic):
        name, topic_id = f"load-{number:05d}", uuid.uuid4()
        states = (
            PartitionState(name, topic_id, p, 1 + p % 3, 5, (1, 2, 3), (1, 2, 3), 3, 123_456 + p)
            for p in range(of_a_topic)
        )
        made.append(TopicState(name, topic_id, tuple(states), {}))
    return tuple(made)


def measure(order: LeaderAndIsr | UpdateMetadata) -> tuple[int, float, float]:
    """Returns the bytes, and the least time in ms to encode and to decode."""
    encode_ms = decode_ms = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter()
        encoded = all_at_once(command_message(order)).SerializeToString()
        between = time.perf_counter()
        decoded = all_at_once(command(pb.Command.FromString(encoded)))
        ended = time.perf_counter()
        assert decoded == order
        encode_ms = min(encode_ms, (between - started) * 1000)
        decode_ms = min(decode_ms, (ended - between) * 1000)
    return len(encoded), encode_ms, decode_ms


def main() -> None:
    partitions = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    for of_a_topic in PARTITIONS_OF_A_TOPIC:
        if of_a_topic > partitions:
            continue
        made = topics(partitions, of_a_topic)
        states = tuple(state for topic in made for state in topic.partitions)
        for order in (UpdateMetadata(1, 3, (), made, is_full=True), LeaderAndIsr(1, 3, states, is_full=True)):
            size, encode_ms, decode_ms = measure(order)
            print(
                f"{len(made):6d} topics x {of_a_topic:4d}  {type(order).__name__:14s} {size:9,d} bytes"
                f"  encode {encode_ms:6.1f} ms  decode {decode_ms:6.1f} ms"
            )


if __name__ == "__main__":
    main()
