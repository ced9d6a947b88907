"""Quarantined records are listed and put back, each once, over a real broker, without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer, TopicPartition

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import new_consumer
from tidelog.cli.main import main
from tidelog.client.cluster import Cluster
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.pipeline.quarantine import replay as replay_module
from tidelog.pipeline.quarantine.replay import REPLAY_ORIGIN, Choice, replay, survey_quarantine

pytestmark = pytest.mark.integration
NewTopic = Callable[..., str]
ALL = Choice()


def quarantine(
    broker: BrokerProcess,
    topic: str,
    origin: str,
    offsets: Iterable[int],
    reason: str = "no JSON",
    **more: bytes,
) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for offset in offsets:
        headers: dict[str, bytes] = {
            "own": b"%d" % offset,
            "tidelog.error.reason": reason.encode(),
            "tidelog.error.topic": origin.encode(),
            "tidelog.error.partition": b"1",
            "tidelog.error.offset": b"%d" % offset,
            "tidelog.error.timestamp": b"%d" % (1_700_000_000_000 + offset),
            "tidelog.error.archive": b"a",
            **{f"tidelog.error.{name.replace('_', '.')}": value for name, value in more.items()},
        }
        producer.produce(topic, b"value %d" % offset, key=b"k", headers=list(headers.items()))
    producer.flush(10)


def contents(broker: BrokerProcess, topic: str, partitions: int) -> list[Any]:
    consumer = new_consumer(broker.bootstrap, isolation_level="read_committed", enable_partition_eof=True)
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    found, ended = [], 0
    while ended < partitions:
        message = consumer.poll(10)
        assert message is not None
        if message.error():
            ended += 1
        else:
            found.append(message)
    consumer.close()
    return found


def run(broker: BrokerProcess, *arguments: str) -> Result:
    return CliRunner().invoke(
        main, ["pipeline", "quarantine", *arguments, "--bootstrap-server", broker.bootstrap]
    )


def now_ms() -> int:
    return 1_700_000_000_000


def test_list_shows_reasons_and_duplicates(broker: BrokerProcess, new_topic: NewTopic) -> None:
    bad, origin = new_topic(partitions=2), new_topic(partitions=2)
    quarantine(broker, bad, origin, range(5))
    quarantine(broker, bad, origin, range(3, 7), "field x: text but the table has bigint")
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(bad, b"by someone else")
    producer.flush(10)
    told = json.loads(run(broker, "list", bad, "--json").output)
    assert (told["waiting"], told["repeated"], told["replayed"]) == (7, 2, 0)
    assert told["strange"] == 1
    assert [(group["reason"], group["count"]) for group in told["reasons"]] == [
        ("no JSON", 5),
        ("field x: text but the table has bigint", 2),
    ]
    assert told["reasons"][0]["first_timestamp"] == 1_700_000_000_000
    lines = run(broker, "list", bad, "--reason", "^field").output.splitlines()
    assert lines[1].startswith(f"2\t{origin}\tfield x")
    assert lines[-1].startswith(f"{bad}: 2 records waiting, 2 sent again by repeated batches")


def test_replay_is_dry_by_default_and_replays_each_record_once(
    broker: BrokerProcess, new_topic: NewTopic
) -> None:
    bad, origin = new_topic(partitions=2), new_topic(partitions=2)
    quarantine(broker, bad, origin, [*range(5), 3, 4])
    assert "5 records would be put back; --execute does it." in run(broker, "replay", bad).output
    assert json.loads(run(broker, "replay", bad, "--format", "json").output)["would_be_put_back"] == 5
    assert contents(broker, origin, 2) == []
    assert run(broker, "replay", bad, "--execute").output == "5 records put back.\n"
    back = contents(broker, origin, 2)
    assert [message.value() for message in back] == [b"value %d" % offset for offset in range(5)]
    assert {message.partition() for message in back} == {1}
    assert back[2].key() == b"k"
    assert back[2].timestamp()[1] == 1_700_000_000_002
    assert back[2].headers() == [("own", b"2"), (REPLAY_ORIGIN, f"{origin}-1@2".encode())]
    assert run(broker, "replay", bad, "--execute").output == "0 records put back.\n"
    quarantine(broker, bad, origin, [4, 5])  # a batch that was repeated after the replay, and a new record
    assert run(broker, "replay", bad, "--execute").output == "1 record put back.\n"
    assert len(contents(broker, origin, 2)) == 6
    told = json.loads(run(broker, "replay", bad, "--execute", "--format", "json").output)
    assert told == {"put_back": 0, "gone": {}, "left_out": []}
    assert json.loads(run(broker, "list", bad, "--json").output)["replayed"] == 6


def test_a_replay_may_choose_and_name_another_topic(broker: BrokerProcess, new_topic: NewTopic) -> None:
    bad, origin, other = new_topic(), new_topic(partitions=2), new_topic()
    quarantine(broker, bad, origin, range(4))
    quarantine(broker, bad, "gone", range(2), "other")
    arguments = ("replay", bad, "--reason", "JSON", "--to", other, "--limit", "3", "--execute")
    assert run(broker, *arguments).output == "3 records put back.\n"
    assert len(contents(broker, other, 1)) == 3
    result = run(broker, "replay", bad, "--execute")
    assert "1 record put back." in result.output
    assert "2 records stay: topic gone does not exist; name another one with --to." in result.output
    assert len(contents(broker, origin, 2)) == 1


def test_a_record_with_an_omitted_value_stays_and_is_named(
    broker: BrokerProcess, new_topic: NewTopic
) -> None:
    bad, origin = new_topic(), new_topic(partitions=2)
    quarantine(broker, bad, origin, [8], left_out_bytes=b"2000000")
    output = run(broker, "replay", bad, "--execute").output
    assert "1 record stay: they are too large for the quarantine topic" in output
    assert f"({origin}-1 offset 8)" in output
    assert contents(broker, origin, 2) == []


def test_a_replay_that_fails_replays_nothing_of_its_transaction(
    broker: BrokerProcess, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, origin = new_topic(), new_topic(partitions=2)
    quarantine(broker, bad, origin, range(6))
    monkeypatch.setattr(replay_module, "RECORDS_A_TRANSACTION", 2)
    real = replay_module.TransactionalWriter.write
    writes = 0

    def write(self: Any, partition: int, records: Any, topic: Any = None) -> None:
        nonlocal writes
        writes += 1
        if writes == 4:  # the second transaction's note
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "killed")
        real(self, partition, records, topic)

    monkeypatch.setattr(replay_module.TransactionalWriter, "write", write)
    with Cluster(broker.bootstrap) as cluster:
        with pytest.raises(KafkaError, match="killed"):
            replay(cluster, bad, ALL, now_ms=now_ms)
        assert len(contents(broker, origin, 2)) == 2
        assert len(survey_quarantine(cluster, bad, ALL).waiting) == 4
        assert replay(cluster, bad, ALL, now_ms=now_ms).put_back == 4
    assert [message.value() for message in contents(broker, origin, 2)] == [b"value %d" % n for n in range(6)]


def test_a_second_replay_fences_the_first(
    broker: BrokerProcess, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, origin = new_topic(), new_topic(partitions=2)
    quarantine(broker, bad, origin, range(3))
    real = replay_module.survey_quarantine
    surveys = 0

    def survey(*arguments: Any) -> Any:
        nonlocal surveys
        surveys += 1
        found = real(*arguments)
        if surveys == 1:  # another replay starts and is faster
            with Cluster(broker.bootstrap) as other:
                assert replay(other, bad, ALL, now_ms=now_ms).put_back == 3
        return found

    monkeypatch.setattr(replay_module, "survey_quarantine", survey)
    with Cluster(broker.bootstrap) as cluster, pytest.raises(KafkaError) as caught:
        replay(cluster, bad, ALL, now_ms=now_ms)
    assert caught.value.code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)
    assert len(contents(broker, origin, 2)) == 3


def test_wrong_arguments_are_one_sentence(broker: BrokerProcess, new_topic: NewTopic) -> None:
    assert "is not a" in run(broker, "list", new_topic(), "--reason", "(").output
    assert "topic 'nowhere' does not exist" in run(broker, "list", "nowhere").output
    topic = new_topic()
    assert "is the quarantine topic itself" in run(broker, "replay", topic, "--to", topic).output
