"""The command line tools as real processes against a real broker, compared with librdkafka."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import uuid
from collections.abc import Callable

import pytest

from brokerlab.broker_process import BrokerProcess, free_port, tidelog_command
from brokerlab.clients import CLIENT_TIMEOUT_S, consume_messages, new_producer
from brokerlab.command_line import Tools

pytestmark = pytest.mark.integration

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture
def tools(bootstrap: str) -> Tools:
    return Tools(bootstrap)


@pytest.fixture
def name() -> str:
    return f"cli-{uuid.uuid4().hex[:10]}"


def test_a_topic_is_created_changed_and_deleted(tools: Tools, name: str) -> None:
    created = tools.output(
        "topic", "create", "--topic", name, "--partitions", 3, "--replication-factor", 1,
        "--config", "retention.ms=100000000",
    )  # fmt: skip
    assert created == f"Topic {name} created: 3 partitions, replication factor 1.\n"
    assert name in tools.output("topic", "list").splitlines()
    described = tools.output("topic", "describe", name)
    assert f"Topic: {name}\tTopicId: " in described
    assert "PartitionCount: 3\tReplicationFactor: 1\tConfigs: " in described
    assert "retention.ms=100000000" in described
    assert described.count("\tIsr: ") == 3
    assert tools.output("topic", "describe", name, "--unavailable-partitions") == ""
    assert "already exists" in tools.output("topic", "create", name, "--if-not-exists")
    assert "5 partitions" in tools.output("topic", "alter", name, "--partitions", 5)
    assert "PartitionCount: 5" in tools.output("topic", "describe", name)
    assert tools.output("topic", "delete", name) == f"Topic {name} deleted.\n"
    assert name not in tools.output("topic", "list").splitlines()
    assert "does not exist" in tools.output("topic", "delete", name, "--if-exists")


def test_a_dry_run_creates_no_topic(tools: Tools, name: str) -> None:
    assert "could be created" in tools.output("topic", "create", name, "--validate-only")
    assert name not in tools.output("topic", "list").splitlines()


def test_mistyped_arguments(tools: Tools, topic: str) -> None:
    missing = "no-such-topic"
    assert f"'{topic}' already exists" in tools.refusal("topic", "create", topic)
    for arguments in (
        ["topic", "describe", missing],
        ["topic", "delete", missing],
        ["topic", "alter", missing, "--partitions", 2],
        ["offsets", missing],
        ["consume", missing],
        ["perf", "produce", missing],
        ["perf", "consume", missing],
        ["config", "describe", "--topic", missing],
        ["config", "alter", "--topic", missing, "--add-config", "retention.ms=1"],
    ):
        refusal = tools.refusal(*arguments)
        assert missing in refusal
        assert "'tidelog topic list' shows" in refusal
    assert "1 partition" in tools.refusal("topic", "alter", topic, "--partitions", 1)
    assert "'a b'" in tools.refusal("topic", "create", "a b")
    assert "cluster" in tools.refusal("topic", "create", f"{topic}-2", "--replication-factor", 99)
    assert "no.such" in tools.refusal("topic", "create", f"{topic}-2", "--config", "no.such=1")
    assert "no.such" in tools.refusal("config", "alter", "--topic", topic, "--add-config", "no.such=1")
    assert "retention.ms" in tools.refusal(
        "config", "alter", "--topic", topic, "--add-config", "retention.ms=soon"
    )
    assert "no live broker 77" in tools.refusal("config", "describe", "--broker", 77)
    assert "partitions 0 to 0, not 1" in tools.refusal("consume", topic, "--partition", 1)
    assert "partitions 0 to 0, not 1" in tools.refusal("produce", topic, "--partition", 1, stdin=b"x\n")
    assert "has no offset 5" in tools.refusal("consume", topic, "--partition", 0, "--offset", 5)
    port = free_port()
    refusal = tools.refusal("topic", "list", "--bootstrap-server", f"127.0.0.1:{port}")
    assert f"127.0.0.1:{port}: connection refused; check that a broker is running there" in refusal


def test_produce_counts_its_records_in_json(tools: Tools, topic: str) -> None:
    told = json.loads(tools.output("produce", topic, "--format", "json", stdin=b"a\nb\n"))
    assert told == {"topic": topic, "records": 2}
    assert tools.output("produce", topic, stdin=b"a\n") == ""


@pytest.mark.parametrize("codec", CODECS)
def test_lines_in_and_out(tools: Tools, new_topic: Callable[..., str], codec: str) -> None:
    topic = new_topic(3)
    lines = b"".join(b"k%d:v%d %s\n" % (i % 11, i, b"x" * (i % 50)) for i in range(2000))
    tools.output(
        "produce", topic, "--parse-key", "--key-separator", ":", "--compression-codec", codec, stdin=lines
    )
    read = tools.output(
        "consume", topic, "--from-beginning", "--max-messages", 2000, "--print-key", "--key-separator", ":"
    )
    assert sorted(read.encode().splitlines()) == sorted(lines.splitlines())
    for key in range(11):
        of_key = [line for line in read.splitlines() if line.startswith(f"k{key}:")]
        numbers = [int(line.split(":v")[1].split()[0]) for line in of_key]
        assert numbers == sorted(numbers), "order per key"


def test_keys_go_where_the_java_client_puts_them(
    tools: Tools, new_topic: Callable[..., str], bootstrap: str
) -> None:
    ours, theirs = new_topic(5), new_topic(5)
    keys = [b"key %d" % i for i in range(200)]
    tools.output("produce", ours, "--parse-key", stdin=b"".join(key + b"\tv\n" for key in keys))
    producer = new_producer(bootstrap, partitioner="murmur2")  # librdkafka's name of Java's default
    for key in keys:
        producer.produce(theirs, b"v", key)
    assert producer.flush(CLIENT_TIMEOUT_S) == 0
    places = [
        {m.key(): m.partition() for m in consume_messages(bootstrap, topic, 200, range(5))}
        for topic in (ours, theirs)
    ]
    assert places[0] == places[1]


def test_headers_nulls_and_all_printed_parts(tools: Tools, topic: str, bootstrap: str) -> None:
    text = b"a:1,b:\tk\tv\nNULL\tk\tNULL\n"
    tools.output(
        "produce",
        topic,
        "--parse-headers",
        "--parse-key",
        "--null-marker",
        "NULL",
        "--header",
        "c=2",
        stdin=text,
    )
    first, second = consume_messages(bootstrap, topic, 2)
    assert first.headers() == [("c", b"2"), ("a", b"1"), ("b", b"")]
    assert (first.key(), first.value()) == (b"k", b"v")
    assert (second.key(), second.value()) == (b"k", None)
    shown = tools.output(
        "consume", topic, "--from-beginning", "--max-messages", 2, "--print-partition", "--print-offset",
        "--property", "print.key=true", "--property", "print.headers=true", "--property", "null.literal=none",
    )  # fmt: skip
    assert shown == "Partition:0\tOffset:0\tc:2,a:1,b:\tk\tv\nPartition:0\tOffset:1\tc:2\tk\tnone\n"


def test_all_lines_before_a_bad_one_are_stored(tools: Tools, topic: str) -> None:
    """Up to 16 kB of them were dropped, and nothing said how many were sent."""
    lines = b"".join(b"%d\tv\n" % number for number in range(500))
    refusal = tools.refusal("produce", topic, "--parse-key", stdin=lines + b"bad\n501\tv\n")
    assert "line 501 has no key" in refusal and "500 records were sent, from the lines before it" in refusal
    stored = tools.output("consume", topic, "--from-beginning", "--timeout-ms", 2_000)
    assert stored == "v\n" * 500


def test_headers_may_repeat_a_name_and_have_spaces(tools: Tools, topic: str, bootstrap: str) -> None:
    tools.output("produce", topic, "--header", "a=1", "--header", "a= 2 ", stdin=b"v\n")
    (found,) = consume_messages(bootstrap, topic, 1)
    assert found.headers() == [("a", b"1"), ("a", b" 2 ")]


def test_where_reading_begins_and_ends(tools: Tools, topic: str) -> None:
    tools.output("produce", topic, stdin=b"".join(b"%d\n" % i for i in range(10)))
    read = ["consume", topic, "--partition", 0, "--timeout-ms", 300]
    assert tools.output(*read, "--offset", 7) == "7\n8\n9\n"
    assert tools.output(*read, "--offset=-2") == "8\n9\n"
    assert tools.output(*read, "--offset", "earliest", "--max-messages", 2) == "0\n1\n"
    assert tools.output("consume", topic, "--timeout-ms", 300) == ""


def test_new_records_are_read_as_they_arrive(tools: Tools, topic: str) -> None:
    # Background jobs of a shell ignore SIGINT, and processes inherit that.
    heeds_ctrl_c = ["env", "--default-signal=INT"]
    reader = subprocess.Popen(
        [*heeds_ctrl_c, *tidelog_command(), "consume", topic, "--from-beginning"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=tools.environment,
    )
    assert reader.stdout is not None
    try:
        for i in range(3):
            tools.output("produce", topic, stdin=b"line %d\n" % i)
            assert reader.stdout.readline() == b"line %d\n" % i
        reader.send_signal(signal.SIGINT)
        _, errors = reader.communicate(timeout=CLIENT_TIMEOUT_S)
    finally:
        reader.kill()
        reader.wait()
    assert reader.returncode == 0
    assert errors == f"3 records read from {topic}.\n".encode()


def test_lines_are_sent_while_the_input_stays_open(tools: Tools, topic: str, bootstrap: str) -> None:
    writer = subprocess.Popen(
        [*tidelog_command(), "produce", topic], stdin=subprocess.PIPE, env=tools.environment
    )
    assert writer.stdin is not None
    try:
        writer.stdin.write(b"first\nsecond\nthi")
        writer.stdin.flush()
        assert [m.value() for m in consume_messages(bootstrap, topic, 2)] == [b"first", b"second"]
        writer.stdin.write(b"rd")
        writer.stdin.close()
        assert writer.wait(CLIENT_TIMEOUT_S) == 0
    finally:
        writer.kill()
        writer.wait()
    assert [m.value() for m in consume_messages(bootstrap, topic, 3)][2] == b"third"


def test_a_missing_topic_is_created_with_a_notice(tools: Tools, name: str) -> None:
    done = tools.run("produce", name, stdin=b"x\n")
    assert done.returncode == 0
    assert f"Topic {name} did not exist; the broker created it with" in done.stderr.decode()


@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_acks(tools: Tools, topic: str, acks: str, bootstrap: str) -> None:
    tools.output("produce", topic, "--acks", acks, stdin=b"a\nb\n")
    assert [m.value() for m in consume_messages(bootstrap, topic, 2)] == [b"a", b"b"]


def test_a_record_that_is_too_large(tools: Tools, new_topic: Callable[..., str]) -> None:
    topic = new_topic(max_message_bytes=2000)
    done = tools.run("produce", topic, stdin=b"x" * 3000 + b"\n")
    assert done.returncode == 1
    sent, refusal = done.stderr.decode().splitlines()
    assert sent.startswith(f"0 records sent to {topic}")
    assert "exceeds max.message.bytes, 2000; raise max.message.bytes with 'tidelog config alter" in refusal


def test_offsets(tools: Tools, new_topic: Callable[..., str], bootstrap: str) -> None:
    topic = new_topic(2, retention_ms=-1)  # its records are years old
    producer = new_producer(bootstrap)
    for i, timestamp in enumerate((1_600_000_000_000, 1_600_000_009_000, 1_600_000_005_000)):
        producer.produce(topic, b"%d" % i, partition=1, timestamp=timestamp)
        assert producer.flush(CLIENT_TIMEOUT_S) == 0
    rows = [line.split("\t") for line in tools.output("offsets", topic).splitlines()]
    assert rows == [["topic", "partition", "earliest", "latest", "offsets"]] + [
        [topic, "0", "0", "0", "0"],
        [topic, "1", "0", "3", "3"],
    ]

    def at(time_text: object) -> list[str]:
        return tools.output("offsets", "--topic", topic, "--time", time_text).splitlines()

    assert at("latest") == at(-1) == [f"{topic}:0:0", f"{topic}:1:3"]
    assert at("earliest") == at(-2) == [f"{topic}:0:0", f"{topic}:1:0"]
    assert at("max-timestamp") == at(-3) == [f"{topic}:0:", f"{topic}:1:1"]
    assert at(1_600_000_000_001) == [f"{topic}:0:", f"{topic}:1:1"]
    assert at(1_700_000_000_000) == [f"{topic}:0:", f"{topic}:1:"]
    only = tools.output("offsets", "--topic", topic[:-1] + ".", "--partitions", "1-3", "--time", "latest")
    assert only == f"{topic}:1:3\n"


def test_settings_of_a_topic(tools: Tools, topic: str) -> None:
    of_topic = ["--topic", topic]
    tools.output(
        "config", "alter", *of_topic, "--add-config", "cleanup.policy=[compact,delete],segment.ms=600000"
    )
    entity = ["--entity-type", "topics", "--entity-name", topic]
    shown = {
        line.split("\t")[0]: line.split("\t")[1:3]
        for line in tools.output("config", "describe", *entity).splitlines()
    }
    assert shown["cleanup.policy"] == ["compact,delete", "DYNAMIC_TOPIC_CONFIG"]
    assert shown["segment.ms"] == ["600000", "DYNAMIC_TOPIC_CONFIG"]
    tools.output("config", "alter", *of_topic, "--delete-config", "segment.ms,cleanup.policy")
    assert "segment.ms" not in tools.output("config", "describe", *of_topic)
    everything = tools.output("config", "describe", *of_topic, "--all")
    assert "\nsegment.ms\t604800000\tDEFAULT_CONFIG\t" in everything


def test_settings_of_brokers(tools: Tools) -> None:
    broker_id = tools.output("cluster", "describe").splitlines()[1].split("\t")[0]
    everything = tools.output("config", "describe", "--broker", broker_id, "--all")
    assert "\nnum.partitions\t" in everything
    tools.output("config", "alter", "--broker-defaults", "--add-config", "log.cleaner.backoff.ms=15001")
    try:
        shown = tools.output("config", "describe", "--entity-type", "brokers", "--entity-default")
        assert "log.cleaner.backoff.ms\t15001\tDYNAMIC_DEFAULT_BROKER_CONFIG" in shown
    finally:
        tools.output("config", "alter", "--broker-defaults", "--delete-config", "log.cleaner.backoff.ms")


def test_cluster(tools: Tools, bootstrap: str) -> None:
    controllers, _, header, broker = tools.output("cluster", "describe").splitlines()
    assert controllers.split("\t") == ["controller", "state"]
    assert header.split("\t")[:2] == ["broker", "address"]
    assert broker.split("\t")[1] == bootstrap
    versions = tools.output("cluster", "describe", "--api-versions").splitlines()
    assert any(line.startswith("0\tProduce\t") for line in versions)


def test_perf(tools: Tools, topic: str) -> None:
    written = tools.output("perf", "produce", topic, "--num-records", 3000, "--record-size", 100).splitlines()
    assert written[0].startswith("records\tseconds\trecords/s\tMiB/s")
    assert written[1].startswith("3000\t")
    assert tools.output("perf", "consume", topic).splitlines()[1].startswith("3000\t")
    began = time.monotonic()
    tools.output("perf", "produce", topic, "--num-records", 300, "--throughput", 300, "--batch-size", 1000)
    assert time.monotonic() - began >= 0.9


def test_dump_log_of_a_running_broker(own_broker: BrokerProcess) -> None:
    tools = Tools(own_broker.bootstrap)
    tools.output(
        "topic", "create", "d", "--config", "segment.bytes=1048576", "--config", "index.interval.bytes=100"
    )
    text = b"".join(b"k\t%d %s\n" % (i, b"x" * 100) for i in range(12_000))
    tools.output("produce", "d", "--parse-key", "--batch-size", 4000, stdin=text)
    own_broker.stop()
    dumped = tools.output("dump-log", own_broker.data_dir)
    assert dumped.count("Log starting offset: ") >= 2
    assert "lastOffset: 11999 " in dumped
    (partition,) = own_broker.data_dir.rglob("d-0")
    records = tools.output("dump-log", "--print-data-log", *sorted(partition.glob("*.log")))
    assert records.count("\n| offset: ") == 12_000
    assert " key: k payload: 11999 " in records
    segment = min(partition.glob("*.log"))
    damaged = bytearray(segment.read_bytes())
    damaged[5000] ^= 1
    segment.write_bytes(damaged)
    done = tools.run("dump-log", partition)
    assert done.returncode == 1
    assert "has a wrong CRC" in done.stderr.decode()
