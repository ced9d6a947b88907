"""`tidelog cluster check`: tests everything that clients need. The chart's `helm test` runs it, too."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import click

from tidelog.cli.output import counted, note, say
from tidelog.cli.tool_command import ToolCommand, ToolError, cluster_options, connect, sentence_of
from tidelog.client.admin.groups import delete_group
from tidelog.client.admin.topics import create_topic, delete_topic
from tidelog.client.admin.transactions import TransactionalWriter
from tidelog.client.cluster import Cluster, Topic
from tidelog.client.errors import ClientError
from tidelog.client.threads.topic_reader import batch_producer_of, consumer_of, reading, sound_records
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.records.record import Record

PARTITIONS: Final = 3
RECORDS: Final = 100
REPLICAS: Final = 3
TOPIC_PREFIX: Final = "tidelog-check-"
JOIN_POLL_S: Final = 0.1


@dataclass(slots=True)
class _Check:
    """The state that the steps share: each step reads the records of the previous one."""

    cluster: Cluster
    topic: Topic
    written: dict[int, list[bytes]] = field(default_factory=dict)

    def produce(self) -> str:
        self.written = {
            partition.index: [b"%d-%d" % (partition.index, number) for number in range(RECORDS)]
            for partition in self.topic.partitions
        }
        with batch_producer_of(self.cluster) as producer:
            sent = [
                producer.send_batch(self.topic.name, values, partition=partition)
                for partition, values in self.written.items()
            ]
            for delivery in sent:
                delivery.result()
        return f"{RECORDS * len(self.written)} records to {counted(len(self.written), 'partition')}, acks=all"

    def consume(self) -> str:
        self._expect(self.written, "read_uncommitted")
        return f"all {RECORDS * len(self.written)} records read back in order"

    def group(self) -> str:
        group_id = self.topic.name
        wanted = {
            TopicPartition(self.topic.name, partition): len(values)
            for partition, values in self.written.items()
        }
        settings = {"group.id": group_id, "group.protocol": "classic", "enable.auto.commit": False}
        with consumer_of(self.cluster, settings) as consumer:
            consumer.subscribe([self.topic.name])
            deadline_s = time.monotonic() + self.cluster.timeout_s
            while not consumer.assignment():
                if time.monotonic() > deadline_s:
                    raise ToolError(
                        f"group '{group_id}' gave no partitions to its member: {consumer.health().reason}"
                    )
                consumer.poll(JOIN_POLL_S)
            consumer.commit(wanted)
            found = consumer.committed(wanted)
        if found != wanted:
            raise ToolError(f"group '{group_id}' committed {wanted}, but fetched {found}")
        delete_group(self.cluster, group_id)
        return "joined, committed, fetched the same offsets, left"

    def transaction(self) -> str:
        writer = TransactionalWriter(self.cluster, self.topic, self.topic.name)
        for verdict, commits in ((b"aborted", False), (b"committed", True)):
            for partition, values in self.written.items():
                writer.write(partition, _records([verdict]))
                if commits:
                    values.append(verdict)
            writer.end(commits=commits)
        self._expect(self.written, "read_committed")
        return "one aborted, one committed; read_committed returns only the second"

    def _expect(self, wanted: dict[int, list[bytes]], isolation_level: str) -> None:
        """Reads the topic from the beginning and compares it with `wanted`. Raises ToolError."""
        starts = dict.fromkeys(wanted, 0)
        found: dict[int, list[bytes]] = {partition: [] for partition in wanted}
        deadline_s = time.monotonic() + self.cluster.timeout_s
        with reading(self.cluster, self.topic.name, starts, {"isolation.level": isolation_level}) as reader:
            while _count(found) < _count(wanted) and time.monotonic() < deadline_s:
                batch = reader.poll()
                if batch is not None:
                    found[batch.partition] += [record.value or b"" for record in sound_records(batch)]
        for partition, values in wanted.items():
            if found[partition] != values:
                raise ToolError(
                    f"topic '{self.topic.name}' partition {partition}: wrote {len(values)} records, "
                    f"read {len(found[partition])}, {_difference(values, found[partition])}"
                )


_STEPS: Final[dict[str, Callable[[_Check], str]]] = {
    "produce": _Check.produce,
    "consume": _Check.consume,
    "group": _Check.group,
    "transaction": _Check.transaction,
}


@click.command(
    "check",
    cls=ToolCommand,
    short_help="Test writing, reading, a group and transactions.",
    examples=(
        "tidelog cluster check",
        "tidelog cluster check --bootstrap-server broker-1:9092 --command-config client.properties",
    ),
)
@click.option(
    "--replication-factor",
    type=click.IntRange(min=1),
    help=f"Replicas of the test topic. The default is {REPLICAS}, or the number of brokers if that is lower.",
)
@click.option("--keep", is_flag=True, help="Do not delete the test topic.")
@cluster_options
def command(replication_factor: int | None, keep: bool) -> None:
    """Test whether the cluster works.

    The check creates a topic, writes to it, reads the records back, commits offsets as a group, runs two
    transactions, and deletes the topic. It prints one line for each step and stops with exit code 1 at the
    first step that fails.
    """
    with connect() as cluster, _topic(cluster, replication_factor, keeps=keep) as topic:
        check = _Check(cluster, topic)
        for name, step in _STEPS.items():
            began_s = time.monotonic()
            try:
                found = step(check)
            except (ToolError, ClientError, KafkaError) as error:
                raise ToolError(f"{name} failed: {sentence_of(error)}") from error
            took_ms = (time.monotonic() - began_s) * 1000
            say(
                f"{name:<12} ok  {took_ms:6.0f} ms  {found}",
                is_one_of_many=True,
                step=name,
                took_ms=round(took_ms),
                found=found,
            )


@contextlib.contextmanager
def _topic(cluster: Cluster, replication_factor: int | None, *, keeps: bool) -> Iterator[Topic]:
    name = TOPIC_PREFIX + uuid.uuid4().hex[:8]
    factor = replication_factor or min(REPLICAS, len(cluster.describe().brokers))
    create_topic(cluster, name, num_partitions=PARTITIONS, replication_factor=factor)
    try:
        yield cluster.topic(name)
    finally:
        if not keeps:
            try:
                delete_topic(cluster, name)
            except (ClientError, KafkaError) as error:
                if not (isinstance(error, KafkaError) and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                    note(f"topic '{name}' could not be deleted: {sentence_of(error)}")


def _records(values: list[bytes]) -> list[Record]:
    now_ms = int(time.time() * 1000)
    return [Record(number, now_ms, None, value) for number, value in enumerate(values)]


def _count(values: dict[int, list[bytes]]) -> int:
    return sum(map(len, values.values()))


def _difference(wanted: list[bytes], found: list[bytes]) -> str:
    for number, (one, other) in enumerate(zip(wanted, found, strict=False)):
        if one != other:
            return f"record {number} is {other!r} instead of {one!r}"
    return "the last records are missing" if len(found) < len(wanted) else "more records than were written"
