"""Apache Kafka's tools: the checks of shared/peer/kafka-tools-check.sh and console clients
without a group.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import produce_values
from brokerlab.kafka_jars import JavaTools
from brokerlab.tools_check import EXPECTED, SCRIPT, run_checks
from tidelog.settings.broker_settings import STANDARD_AUTHORIZER

pytestmark = [
    pytest.mark.integration,
    pytest.mark.java,
    pytest.mark.slow,
]
CHECKS_TIMEOUT_S = 500


@pytest.fixture(scope="module")
def outcomes(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """The checks against a broker with an authorizer, whose clients are super users."""
    if not SCRIPT.exists():
        pytest.skip("shared/peer/kafka-tools-check.sh is not beside the checkout")
    directory = tmp_path_factory.mktemp("tools")
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
    broker = BrokerProcess(directory / "data", directory / "broker.log", settings).start()
    try:
        (log_dir,) = {path.parent for path in broker.data_dir.rglob("meta.properties")}
        return run_checks(kafka_jars, directory, broker.bootstrap, 1, log_dir, CHECKS_TIMEOUT_S)
    finally:
        broker.stop()


@pytest.mark.timeout(CHECKS_TIMEOUT_S + 60)
@pytest.mark.parametrize("name", EXPECTED or ["(the script is not there)"])
def test_tool(outcomes: dict[str, tuple[str, str]], name: str) -> None:
    state, said = outcomes[name]
    assert state == "ok", said


def test_console_clients_with_partition_and_offset(java: JavaTools, bootstrap: str, topic: str) -> None:
    lines = [f"line {i}" for i in range(20)]
    java.check(
        "ConsoleProducer", "--bootstrap-server", bootstrap, "--topic", topic, stdin="\n".join(lines) + "\n"
    )
    said = java.check(
        "consumer.ConsoleConsumer",
        *("--bootstrap-server", bootstrap, "--topic", topic),
        *("--partition", "0", "--offset", "earliest", "--max-messages", "20", "--timeout-ms", "20000"),
    )
    assert said.splitlines() == lines
    said = java.check(
        "consumer.ConsoleConsumer",
        *("--bootstrap-server", bootstrap, "--topic", topic),
        *("--partition", "0", "--offset", "17", "--max-messages", "3", "--timeout-ms", "20000"),
        *("--isolation-level", "read_committed", "--formatter-property", "print.offset=true"),
    )
    assert [line.split("\t")[-1] for line in said.splitlines()] == lines[17:]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_javas_codecs_are_read_by_librdkafka_and_back(
    java: JavaTools, bootstrap: str, topic: str, codec: str
) -> None:
    from brokerlab.clients import consume_messages

    lines = [f"line {i} " + "x" * 50 for i in range(100)]
    java.check(
        "ConsoleProducer",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--compression-codec", codec),
        stdin="\n".join(lines) + "\n",
    )
    messages = consume_messages(bootstrap, topic, 100, check_crcs=True)
    assert [m.value().decode() for m in messages] == lines
    produce_values(bootstrap, topic, [b"from librdkafka %d" % i for i in range(100)], compression_type=codec)
    said = java.check(
        "consumer.ConsoleConsumer",
        *("--bootstrap-server", bootstrap, "--topic", topic),
        *("--partition", "0", "--offset", "100", "--max-messages", "100", "--timeout-ms", "20000"),
    )
    assert said.splitlines() == [f"from librdkafka {i}" for i in range(100)]


def test_topic_configs_and_offsets_by_tools(java: JavaTools, bootstrap: str) -> None:
    name = f"java-{uuid.uuid4().hex[:10]}"
    server = ("--bootstrap-server", bootstrap)
    java.check(
        "TopicCommand",
        *server,
        "--create",
        "--topic",
        name,
        "--partitions",
        "2",
        "--config",
        "retention.ms=86400000",
    )
    produce_values(bootstrap, name, [b"x"] * 5, partition=1)
    described = java.check("TopicCommand", *server, "--describe", "--topic", name)
    assert "retention.ms=86400000" in described
    offsets = java.check("GetOffsetShell", *server, "--topic", name, "--time", "latest")
    assert sorted(offsets.split()) == [f"{name}:0:0", f"{name}:1:5"]
    offsets = java.check("GetOffsetShell", *server, "--topic", name, "--time", "max-timestamp")
    assert f"{name}:1:" in offsets
    java.check("TopicCommand", *server, "--create", "--topic", name, "--if-not-exists", "--partitions", "2")
    wrong = java.run("TopicCommand", *server, "--create", "--topic", name, "--partitions", "2")
    assert wrong.returncode != 0
    assert "already exists" in wrong.stdout + wrong.stderr


def test_brokers_and_loggers_configs(
    java: JavaTools, bootstrap: str, shared_broker: BrokerProcess | None
) -> None:
    server = ("--bootstrap-server", bootstrap)
    said = java.check("ClusterTool", "list-endpoints", *server)
    assert bootstrap.rsplit(":", 1)[1] in said
    broker = next(line.split()[0] for line in said.splitlines() if bootstrap.rsplit(":", 1)[1] in line)
    everything = java.check(
        "kafka.admin.ConfigCommand",
        *server,
        "--describe",
        "--entity-type",
        "brokers",
        "--entity-name",
        broker,
        "--all",
    )
    assert "message.max.bytes=1048588" in everything
    assert "num.partitions=1" in everything
