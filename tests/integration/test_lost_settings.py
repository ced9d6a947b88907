"""Topics of a broker whose metadata was lost: nothing is deleted whose settings are not known."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import consume_messages, create_topic
from brokerlab.command_line import Tools
from brokerlab.old_records import OLD_RECORDS, QUICK_DELETION, await_deletion, produce_old

pytestmark = pytest.mark.integration
OLD_TOPICS = {
    "endless": {"retention.ms": "-1"},
    "compacted": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.ms": "1"},
}


def start_without_metadata(broker: BrokerProcess) -> None:
    assert broker.stop() == 0
    shutil.rmtree(broker.data_dir / "metadata")
    broker.start()


def await_a_pass(bootstrap: str, tools: Tools) -> None:
    """Waits until retention has looked at all partitions."""
    create_topic(bootstrap, "new", configs={"retention.ms": "1"})
    produce_old(bootstrap, "new")
    await_deletion(bootstrap, "new")
    tools.output("topic", "delete", "new")


def test_topics_without_known_settings_keep_all_records_until_confirmed(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    broker = start_broker()  # it deletes nothing for 30 s
    bootstrap, tools = broker.bootstrap, Tools(broker.bootstrap)
    for topic, configs in OLD_TOPICS.items():
        create_topic(bootstrap, topic, configs=configs)
        produce_old(bootstrap, topic, keys=1)
    for file in broker.data_dir.rglob("*-settings.json"):
        file.unlink()
    broker.settings |= QUICK_DELETION
    start_without_metadata(broker)
    for _ in range(2):  # also after a restart
        await_a_pass(bootstrap, tools)
        for topic in OLD_TOPICS:
            assert len(consume_messages(bootstrap, topic, OLD_RECORDS)) == OLD_RECORDS
        unconfirmed = tools.output("topic", "confirm-settings").splitlines()
        assert [line.split("\t") for line in unconfirmed[1:]] == [
            ["compacted", "delete", "604800000", "-1"],
            ["endless", "delete", "604800000", "-1"],
        ]
        broker.stop()
        broker.start()
    said = tools.run("doctor")
    assert said.returncode == 1
    assert "topic settings\tlost, so nothing is deleted: 2 topics, compacted, endless" in said.stdout.decode()
    tools.output("config", "alter", "--topic", "endless", "retention.ms=-1")
    assert "are confirmed" in tools.output("topic", "confirm-settings", "endless")
    tools.output("topic", "confirm-settings", "--all")
    await_deletion(bootstrap, "compacted")
    assert len(consume_messages(bootstrap, "endless", OLD_RECORDS)) == OLD_RECORDS
    assert "topic settings\tthe settings of all topics are known" in tools.run("doctor").stdout.decode()


def test_settings_are_restored_from_their_copies(start_broker: Callable[..., BrokerProcess]) -> None:
    broker = start_broker(QUICK_DELETION)
    bootstrap, tools = broker.bootstrap, Tools(broker.bootstrap)
    tools.output("config", "alter", "--broker-defaults", "log.retention.ms=-1")
    create_topic(bootstrap, "changed")
    create_topic(bootstrap, "inherits")
    tools.output("config", "alter", "--topic", "changed", "retention.ms=-1", "segment.bytes=2097152")
    tools.output("config", "alter", "--topic", "changed", "--delete-config", "segment.bytes")
    for topic in ("changed", "inherits"):
        produce_old(bootstrap, topic)
    start_without_metadata(broker)
    await_a_pass(bootstrap, tools)
    for topic in ("changed", "inherits"):
        assert len(consume_messages(bootstrap, topic, OLD_RECORDS)) == OLD_RECORDS
    described = tools.output("topic", "describe")
    assert "retention.ms=-1" in described.partition("Topic: changed\t")[2].splitlines()[0]
    assert "tidelog.settings.confirmed" not in described
    assert "segment.bytes=2097152" not in described
