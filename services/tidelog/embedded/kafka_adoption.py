"""Takes a data directory of Apache Kafka over: plans it, and writes the metadata beside the partitions.

A plan reads only. The metadata store is a file in the data directory, which Kafka ignores, so Kafka can still
start on the directory afterwards. Settings that topics inherited from their brokers become their own, because
the brokers' settings do not come along. A topic whose deletion depends on a setting that is not known deletes
nothing until an administrator confirms its settings (ADR 0067, ADR 0070).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from tidelog.embedded.adopt import next_epoch, skip_producer_ids, topic_id_of, topics_on_disk, write_topic
from tidelog.embedded.kafka_metadata import (
    BROKER_CONFIGS,
    DEFAULT_FOR_ALL,
    TOPIC_CONFIGS,
    KafkaMetadata,
    KafkaTopic,
)
from tidelog.embedded.log_survey import found_topic_settings
from tidelog.log_format.directory import LOG_SUFFIX, CorruptFileError
from tidelog.metadata.cluster_identity import ensure_cluster_id, stored_cluster_id
from tidelog.metadata.entries import TopicEntry
from tidelog.metadata.store import MetadataStore
from tidelog.model.errors import KafkaError
from tidelog.model.topics import INTERNAL_TOPICS, NOT_CONFIRMED
from tidelog.records.batch import CURRENT_MAGIC
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.setting import SettingError
from tidelog.settings.topic_settings import (
    BROKER_SYNONYMS,
    TOPIC_SETTINGS,
    TopicSettings,
    broker_default,
    validate_overrides,
)

_MAGIC_POSITION: Final = 16
_POLICY, _RETENTION = "cleanup.policy", ("retention.ms", "retention.bytes")
_DECIDE_DELETION: Final = frozenset({_POLICY, *_RETENTION, "remote.storage.enable"})
_SYNONYMS: Final = frozenset(synonym for synonyms in BROKER_SYNONYMS.values() for synonym in synonyms)
_RESOURCES: Final = {BROKER_CONFIGS: "settings of brokers", 16: "client metrics", 32: "settings of groups"}


class AdoptedTopic(NamedTuple):
    """A topic that is taken over. `leader_epochs` are those with which its partitions start."""

    name: str
    topic_id: UUID
    leader_epochs: tuple[int, ...]
    configs: Mapping[str, str]
    is_in_metadata: bool


class Ignored(NamedTuple):
    """Something that is not taken over, with the reason or what to do instead."""

    what: str
    number: int
    remark: str


class AdoptionPlan(NamedTuple):
    """The outcome of reading a data directory of Kafka. With `obstacles`, it must not be taken over."""

    cluster_id: str
    node_id: int
    topics: tuple[AdoptedTopic, ...]
    ignored: tuple[Ignored, ...]
    obstacles: tuple[str, ...]
    greatest_producer_id: int
    directories: tuple[Path, ...]


def plan_adoption(
    log_dir: Path,
    cluster_id: str,
    node_id: int,
    metadata: KafkaMetadata | None,
    server_properties: Mapping[str, str] | None,
) -> AdoptionPlan:
    """Reads the partitions of `log_dir` and plans what becomes of them.

    `metadata` is Kafka's, None if it is lost. `server_properties` has the broker's own settings, None if
    they are not known. Raises OSError, CorruptFileError.
    """
    known = {} if metadata is None else metadata.topics_by_name
    on_disk = topics_on_disk(log_dir)
    inherited = _InheritedSettings(metadata, node_id, server_properties)
    topics: list[AdoptedTopic] = []
    ignored: list[Ignored] = []
    obstacles: list[str] = []
    for name, directories in sorted(on_disk.items()):
        topic = known.get(name)
        topic_id = topic_id_of(name, directories)
        if topic is not None and topic.topic_id != topic_id:
            topic = None  # it was deleted and created again on other brokers
        obstacles += _obstacles_of(name, directories, topic)
        count = max(max(directories) + 1, 0 if topic is None else len(topic.partitions))
        epochs = tuple(_epoch(topic, index, directories.get(index)) for index in range(count))
        configs = found_topic_settings(name, (), replicas=1, are_defaults_known=False)
        if topic is not None and metadata is not None and name not in INTERNAL_TOPICS:
            configs, refused = inherited.configs_of(metadata.configs_of(TOPIC_CONFIGS, name))
            ignored += [Ignored(f"{name}: {setting}", 1, reason) for setting, reason in refused]
        topics.append(AdoptedTopic(name, topic_id, epochs, configs, topic is not None))
        behind = [] if topic is None else _behind(topic, node_id)
        if behind:
            remark = "this broker was not in sync, so other brokers may have newer records"
            ignored.append(Ignored(f"{name}: partitions {_numbers(behind)}", len(behind), remark))
    ignored += _elsewhere(known.values(), on_disk)
    ignored += [] if metadata is None else _not_taken_over(metadata)
    paths = tuple(path for directories in on_disk.values() for path in directories.values())
    return AdoptionPlan(
        cluster_id,
        node_id,
        tuple(topics),
        tuple(ignored),
        tuple(obstacles),
        -1 if metadata is None else metadata.next_producer_id - 1,
        paths,
    )


async def is_adopted(store: MetadataStore) -> bool:
    """Returns whether the store holds a cluster, which an interrupted adoption did not write."""
    return await stored_cluster_id(store) is not None


async def carry_out(plan: AdoptionPlan, store: MetadataStore) -> None:
    """Writes the topics, and then the cluster id, so that an interrupted adoption is repeated. Raises
    StoreError, OSError.
    """
    await skip_producer_ids(store, plan.directories, plan.greatest_producer_id)
    for topic in plan.topics:
        entry = TopicEntry(topic.name, topic.topic_id, ((plan.node_id,),) * len(topic.leader_epochs))
        await write_topic(store, entry, topic.leader_epochs, topic.configs)
    await ensure_cluster_id(store, plan.cluster_id)


class _InheritedSettings:
    """The settings that topics have from their broker unless they override them."""

    def __init__(
        self, metadata: KafkaMetadata | None, node_id: int, server_properties: Mapping[str, str] | None
    ) -> None:
        self._are_known = server_properties is not None
        stored = KafkaMetadata() if metadata is None else metadata
        static = _of_topics(server_properties or {})
        for_all = _of_topics(stored.configs_of(BROKER_CONFIGS, DEFAULT_FOR_ALL))
        own = _of_topics(stored.configs_of(BROKER_CONFIGS, str(node_id)))
        try:
            broker = BrokerSettings.parse(static, dynamic_default=for_all, dynamic=own)
        except SettingError as error:
            raise CorruptFileError(f"the settings of Kafka's broker cannot be taken over: {error}") from error
        given = {*static, *for_all, *own}
        self._values: dict[str, str] = {}
        for name, synonyms in BROKER_SYNONYMS.items():
            text = TOPIC_SETTINGS[name].format(broker_default(broker, name))
            if text is not None and not given.isdisjoint(synonyms):
                self._values[name] = text

    def configs_of(self, overrides: Mapping[str, str]) -> tuple[Mapping[str, str], list[tuple[str, str]]]:
        """Returns the overrides that a topic of Kafka with `overrides` gets, and the settings that it does
        not get, each with the reason.
        """
        configs: dict[str, str] = {}
        refused: list[tuple[str, str]] = []
        for name, text in {**self._values, **overrides}.items():
            try:
                if name not in TOPIC_SETTINGS:
                    raise KeyError(name)
                validate_overrides({name: text})
            except KeyError:
                refused.append((f"{name}={text}", "tidelog does not have this setting"))
            except KafkaError as error:
                refused.append((f"{name}={text}", str(error)))
            else:
                configs[name] = text
        is_certain = not any(setting.partition("=")[0] in _DECIDE_DELETION for setting, _ in refused)
        if not (is_certain and self._is_deletion_known(configs)):
            configs |= NOT_CONFIRMED
        return configs, refused

    def _is_deletion_known(self, configs: Mapping[str, str]) -> bool:
        """Returns whether no setting of the broker that is not known decides what is deleted."""
        if self._are_known:
            return True
        if _POLICY not in configs:
            return False
        policies = TopicSettings.resolve(BrokerSettings(), {_POLICY: configs[_POLICY]}).cleanup_policy
        return "delete" not in policies or all(name in configs for name in _RETENTION)


def _of_topics(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings of a broker that are the defaults of topics."""
    return {name: text for name, text in settings.items() if name in _SYNONYMS}


def _epoch(topic: KafkaTopic | None, index: int, directory: Path | None) -> int:
    known = None if topic is None else topic.partitions.get(index)
    return max(next_epoch(directory), -1 if known is None else known.leader_epoch + 1)


def _obstacles_of(name: str, directories: Mapping[int, Path], topic: KafkaTopic | None) -> list[str]:
    obstacles: list[str] = []
    missing = [] if topic is None else sorted(set(topic.partitions).difference(directories))
    if missing:
        obstacles.append(
            f"topic {name}: partitions {_numbers(missing)} are not in this directory; copy their directories "
            "from the other brokers or log.dirs into it first"
        )
    for path in directories.values():
        old = [segment for segment in sorted(path.glob(f"*{LOG_SUFFIX}")) if _has_old_format(segment)]
        if old:
            obstacles.append(
                f"{old[0]}: its records have a message format of Kafka before 0.11, which tidelog does not "
                "read; copy the topic within Kafka first"
            )
    return obstacles


def _behind(topic: KafkaTopic, node_id: int) -> list[int]:
    """Returns the partitions that other brokers have and that were not in sync on this one. The last broker
    that stops leaves an ISR that is empty.
    """
    return [index for index, state in topic.partitions.items() if state.isr and node_id not in state.isr]


def _has_old_format(segment: Path) -> bool:
    with segment.open("rb") as file:
        head = file.read(_MAGIC_POSITION + 1)
    return len(head) > _MAGIC_POSITION and head[_MAGIC_POSITION] < CURRENT_MAGIC


def _elsewhere(topics: Iterable[KafkaTopic], on_disk: Mapping[str, object]) -> list[Ignored]:
    names = sorted(topic.name for topic in topics if topic.name not in on_disk)
    return [Ignored(f"topic {name}", 1, "no partition of it is in this directory") for name in names]


def _not_taken_over(metadata: KafkaMetadata) -> list[Ignored]:
    others: list[tuple[str, int, str]] = [
        ("ACLs", len(metadata.acls), "'tidelog acl add' makes them again"),
        ("SCRAM credentials", len(metadata.scram_credentials), "'tidelog user add' makes them again"),
        ("client quotas", len(metadata.quotas), "kafka-configs.sh makes them again"),
        ("delegation tokens", metadata.delegation_tokens, "clients ask for new ones"),
        ("features", len(metadata.features), "tidelog has its own"),
    ]
    for kind, what in _RESOURCES.items():
        settings = [
            f"{name or 'all'}: {setting}"
            for (found, name), configs in sorted(metadata.configs.items())
            if found == kind
            for setting in sorted(configs)
            if not (kind == BROKER_CONFIGS and setting in _SYNONYMS)  # topics got them
        ]
        others.append((what, len(settings), ", ".join(settings)))
    return [Ignored(what, count, remark) for what, count, remark in others if count]


def _numbers(values: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(values)))
