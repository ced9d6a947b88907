"""`tidelog adopt`: what is taken over from a directory of Apache Kafka, and what keeps it from that."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from brokerlab.kraft_logs import frame, segment
from brokerlab.logs import make_batch
from tidelog.broker.log.directory_files import write_meta_properties, write_topic_id
from tidelog.cli.main import main
from tidelog.embedded.adopt import NotAdoptedError, metadata_directory, require_adopted
from tidelog.embedded.cluster import EmbeddedCluster
from tidelog.embedded.kafka_metadata import BROKER_CONFIGS, METADATA_LOG, TOPIC_CONFIGS
from tidelog.log_format.directory import MetaProperties
from tidelog.metadata.cluster_identity import stored_cluster_id
from tidelog.metadata.entries import (
    Entry,
    PartitionStateEntry,
    ProducerIdBlockEntry,
    TopicConfigEntry,
    TopicEntry,
    decode_entry,
)
from tidelog.metadata.file_store import FileMetadataStore
from tidelog.model.topics import NOT_CONFIRMED
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.wire.messages.records import kraft_metadata as kraft

NODE_ID = 7
IDS = {name: uuid.uuid5(uuid.NAMESPACE_DNS, name) for name in ("endless", "compacted", "plain")}
ENDLESS = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "endless": ENDLESS,
    "compacted": {"cleanup.policy": "compact"},
    "plain": {"retention.ms": "5000"},
}


class Kafka:
    """A directory as Apache Kafka leaves it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        write_meta_properties(path, MetaProperties("abc", NODE_ID))
        self.records = [frame(kraft.TopicRecord(name, topic_id)) for name, topic_id in IDS.items()]
        for name, topic_id in IDS.items():
            self.add_partition(name, 0)
            partition = kraft.PartitionRecord(0, topic_id, [NODE_ID], [NODE_ID], leader_epoch=4)
            self.records.append(frame(partition, 2))
            for setting, value in SETTINGS[name].items():
                self.configure(TOPIC_CONFIGS, name, setting, value)
        self.write_metadata()

    def add_partition(self, topic: str, index: int) -> Path:
        directory = self.path / f"{topic}-{index}"
        directory.mkdir()
        (directory / f"{0:020d}.log").write_bytes(make_batch(0))
        if topic in IDS:
            write_topic_id(directory, IDS[topic])
        return directory

    def configure(self, kind: int, resource: str, name: str, value: str) -> None:
        self.records.append(frame(kraft.ConfigRecord(kind, resource, name, value)))

    def write_metadata(self, where: Path | None = None) -> None:
        segment((where or self.path) / METADATA_LOG, 0, self.records)

    def adopt(self, *options: object) -> Result:
        return CliRunner().invoke(main, ["adopt", str(self.path), *map(str, options)])

    def files(self) -> dict[Path, bytes]:
        paths = [path for path in self.path.rglob("*") if path.is_file() and path.name != ".lock"]
        return {path: path.read_bytes() for path in paths}

    def stored(self) -> list[Entry]:
        async def run() -> list[Entry]:
            store = FileMetadataStore.open(self.path, monotonic_ms=lambda: 0)
            try:
                assert await stored_cluster_id(store) == "abc"
                items = (await store.list_prefix("/")).items
                return [decode_entry(item.key, item.value) for item in items if "cluster" not in item.key]
            finally:
                await store.close()

        return asyncio.run(run())

    def configs(self) -> dict[str, Mapping[str, str]]:
        return {entry.topic: entry.configs for entry in self.stored() if isinstance(entry, TopicConfigEntry)}


@pytest.fixture
def kafka(tmp_path: Path) -> Kafka:
    return Kafka(tmp_path / "data")


def test_a_dry_run_changes_nothing(kafka: Kafka) -> None:
    before = kafka.files()
    shown = kafka.adopt()
    assert shown.exit_code == 0, shown.output
    assert "Nothing was changed" in shown.output
    rows = [line.split("\t") for line in shown.output.splitlines() if "\t" in line]
    assert ["endless", str(IDS["endless"]), "1"] in [row[:3] for row in rows]
    assert kafka.files() == before
    with pytest.raises(NotAdoptedError, match=r"tidelog adopt .*data' shows"):
        require_adopted(kafka.path, kafka.path)
    assert kafka.files() == before


def test_topics_come_with_ids_epochs_and_settings(kafka: Kafka) -> None:
    kafka.records.append(frame(kraft.ProducerIdsRecord(NODE_ID, 1, 3000)))
    kafka.write_metadata()
    assert kafka.adopt("--execute").exit_code == 0
    entries = kafka.stored()
    assert {entry.name: entry.topic_id for entry in entries if isinstance(entry, TopicEntry)} == IDS
    states = [entry for entry in entries if isinstance(entry, PartitionStateEntry)]
    assert {(state.leader, state.leader_epoch, state.isr) for state in states} == {(NODE_ID, 5, (NODE_ID,))}
    assert [entry.first for entry in entries if isinstance(entry, ProducerIdBlockEntry)] == [3000]
    assert kafka.configs() == {
        "endless": ENDLESS,
        "compacted": {"cleanup.policy": "compact"},
        "plain": {"retention.ms": "5000", **NOT_CONFIRMED},  # Kafka's broker decides on log.retention.bytes
    }
    require_adopted(kafka.path, kafka.path)
    assert metadata_directory(kafka.path) == kafka.path
    assert [path for path in kafka.path.iterdir() if path.is_dir() and "-" not in path.name] == []
    again = kafka.adopt("--execute")
    assert again.exit_code == 1
    assert "has metadata of tidelog already" in again.output


def test_topics_keep_what_they_have_from_their_broker(kafka: Kafka, tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text(
        "node.id=7\nprocess.roles=broker\nlog.retention.hours=-1\nlog.segment.bytes=1048576\n"
    )
    kafka.configure(BROKER_CONFIGS, "", "log.segment.bytes", "2097152")
    kafka.configure(BROKER_CONFIGS, str(NODE_ID), "log.cleanup.policy", "compact")
    kafka.configure(BROKER_CONFIGS, "8", "log.cleanup.policy", "delete")
    kafka.write_metadata()
    assert kafka.adopt("--execute", "--server-properties", properties).exit_code == 0
    common = {"segment.bytes": "2097152", "retention.ms": "-1", "cleanup.policy": "compact"}
    assert kafka.configs() == {name: {**common, **SETTINGS[name]} for name in IDS}


def test_without_the_metadata_log_nothing_is_deleted(kafka: Kafka, tmp_path: Path) -> None:
    controller = tmp_path / "controller"
    (kafka.path / METADATA_LOG).rename(tmp_path / METADATA_LOG)
    shown = kafka.adopt()
    assert "the settings of topics are not known" in shown.output
    assert "3 topics until" in shown.output
    with pytest.raises(NotAdoptedError):
        require_adopted(kafka.path, kafka.path)
    kafka.write_metadata(controller)
    for place in (controller, controller / METADATA_LOG):
        shown = kafka.adopt("--metadata-dir", place)
        assert "1 topic until" in shown.output
    assert kafka.adopt("--metadata-dir", tmp_path / "data").exit_code == 1
    assert kafka.adopt("--execute").exit_code == 0
    assert kafka.configs() == dict.fromkeys(IDS, NOT_CONFIRMED)


def test_a_partition_that_kafka_does_not_know_deletes_nothing(kafka: Kafka) -> None:
    kafka.add_partition("stranger", 1)
    shown = kafka.adopt("--execute")
    assert "nothing until confirmed: not in Kafka's metadata" in shown.output
    assert kafka.configs()["stranger"] == NOT_CONFIRMED


def test_settings_that_tidelog_lacks_are_named(kafka: Kafka) -> None:
    kafka.configure(TOPIC_CONFIGS, "endless", "remote.storage.enable", "true")
    kafka.configure(TOPIC_CONFIGS, "compacted", "message.format.version", "2.0")
    kafka.write_metadata()
    shown = kafka.adopt("--execute")
    assert "endless: remote.storage.enable=true\t1\t" in shown.output
    assert "compacted: message.format.version=2.0\t1\t" in shown.output
    assert kafka.configs()["endless"] == {**ENDLESS, **NOT_CONFIRMED}
    assert kafka.configs()["compacted"] == {"cleanup.policy": "compact"}


def test_what_must_be_made_again_is_named_with_numbers(kafka: Kafka) -> None:
    for number in range(3):
        acl = kraft.AccessControlEntryRecord(uuid.UUID(int=number), 2, "t", 3, f"User:{number}", "*", 3, 3)
        kafka.records.append(frame(acl))
    for mechanism in (1, 2):
        credential = kraft.UserScramCredentialRecord("ada", mechanism, b"s", b"k", b"v", 4096)
        kafka.records.append(frame(credential))
    entity = [kraft.EntityData("user", "ada")]
    kafka.records.append(frame(kraft.ClientQuotaRecord(entity, "producer_byte_rate", 1000.0)))
    kafka.write_metadata()
    shown = kafka.adopt().output
    for row in ("ACLs\t3\t", "SCRAM credentials\t2\t", "client quotas\t1\t"):
        assert row in shown


def test_partitions_on_other_brokers_keep_it_from_being_taken_over(kafka: Kafka) -> None:
    kafka.records.append(frame(kraft.PartitionRecord(1, IDS["plain"], [8], [8], leader_epoch=0), 2))
    kafka.write_metadata()
    before = kafka.files()
    assert "topic plain: partitions 1 are not in this directory" in kafka.adopt().output
    refused = kafka.adopt("--execute")
    assert refused.exit_code == 1
    assert "copy their directories" in refused.output
    assert kafka.files() == before


def test_old_message_formats_keep_it_from_being_taken_over(kafka: Kafka) -> None:
    path = kafka.path / "plain-0" / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[16] = 1
    path.write_bytes(content)
    refused = kafka.adopt("--execute")
    assert refused.exit_code == 1
    assert "message format of Kafka before 0.11" in refused.output


def test_an_interrupted_adoption_is_repeated(kafka: Kafka) -> None:
    async def begin() -> None:
        await FileMetadataStore.open(kafka.path, monotonic_ms=lambda: 0).close()

    async def serve() -> None:
        settings = BrokerSettings.parse({"log.dirs": str(kafka.path), "listeners": "PLAINTEXT://127.0.0.1:0"})
        await EmbeddedCluster.start(settings, kafka.path)

    asyncio.run(begin())
    with pytest.raises(NotAdoptedError):
        asyncio.run(serve())
    assert kafka.adopt("--execute").exit_code == 0
    assert kafka.configs()["endless"] == ENDLESS


def test_a_directory_of_tidelog_is_not_refused(tmp_path: Path) -> None:
    require_adopted(tmp_path, tmp_path)
    require_adopted(tmp_path / "new", tmp_path / "new")
    Kafka(tmp_path / "data")
    own = MetaProperties("abc", NODE_ID, None, {"tidelog.broker.epoch": "3"})
    write_meta_properties(tmp_path / "data", own)
    (tmp_path / "data" / METADATA_LOG).rename(tmp_path / METADATA_LOG)
    require_adopted(tmp_path / "data", tmp_path / "data")  # its metadata was lost; ADR 0067 applies
