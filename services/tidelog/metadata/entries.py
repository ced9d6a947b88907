"""The values of the metadata store, typed: each entry knows its key and its JSON, and `decode_entry` reads
any of them.

Values are JSON objects with a `version`, except `/controller_epoch` and `/tidelog/schema_version`, which
are decimal numbers. Unknown fields are skipped, so that an older controller can read what a newer one
wrote.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tidelog.metadata.store import StoreError
from tidelog.model.brokers import Endpoint
from tidelog.model.json_object import JsonObject
from tidelog.model.topics import TopicPartition

BROKER_PREFIX: Final = "/brokers/ids/"
TOPIC_PREFIX: Final = "/brokers/topics/"
CONTROLLER_KEY: Final = "/controller"
CONTROLLER_EPOCH_KEY: Final = "/controller_epoch"
ISR_CHANGE_PREFIX: Final = "/isr_change_notification/isr_change_"
# Decimal; compared and set in the transaction that writes the notification of that number.
ISR_CHANGE_COUNTER_KEY: Final = "/isr_change_notification/counter"
TOPIC_CONFIG_PREFIX: Final = "/config/topics/"
BROKER_CONFIG_PREFIX: Final = "/config/brokers/"
CLIENT_QUOTA_PREFIX: Final = "/config/client_quotas/"
# The name that stands for the cluster-wide default in a config key, as in Kafka's own store of old.
DEFAULT_ENTITY_NAME: Final = "<default>"
FEATURES_KEY: Final = "/features"
PRODUCER_ID_BLOCK_KEY: Final = "/latest_producer_id_block"
CLUSTER_ID_KEY: Final = "/cluster/id"
SCHEMA_VERSION_KEY: Final = "/tidelog/schema_version"
SETTLED_SUSPECT_PREFIX: Final = "/tidelog/settled_suspects/"
# Everything: what the controller lists at its start and watches.
ALL_KEYS_PREFIX: Final = "/"

_STATE_KEY = re.compile(r"/brokers/topics/([^/]+)/partitions/(\d+)/state")

_VERSION = 1


def broker_key(number: int) -> str:
    return f"{BROKER_PREFIX}{number}"


def settled_suspect_key(number: int) -> str:
    return f"{SETTLED_SUSPECT_PREFIX}{number}"


def topic_key(name: str) -> str:
    return f"{TOPIC_PREFIX}{name}"


def partition_state_key(topic_name: str, partition: int) -> str:
    return f"{TOPIC_PREFIX}{topic_name}/partitions/{partition}/state"


def topic_config_key(name: str) -> str:
    return f"{TOPIC_CONFIG_PREFIX}{name}"


def broker_config_key(entity: str) -> str:
    """`entity` is a broker id in decimal, or "" for the cluster-wide default."""
    return f"{BROKER_CONFIG_PREFIX}{entity or DEFAULT_ENTITY_NAME}"


def isr_change_key(number: int) -> str:
    return f"{ISR_CHANGE_PREFIX}{number:010d}"


def parse_partition_state_key(key: str) -> TopicPartition | None:
    """Returns the partition whose state `key` holds, or None if it is another kind of key."""
    match = _STATE_KEY.fullmatch(key)
    return TopicPartition(match[1], int(match[2])) if match else None


class InvalidEntryError(StoreError):
    """A value that isn't what its key promises."""


class BrokerEntry(NamedTuple):
    """`/brokers/ids/<id>`; the broker's epoch is the key's create_revision, so it doesn't stand in the
    value.
    """

    broker_id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    rpc_address: str = ""
    is_log_suspect: bool = False
    suspect_partitions: tuple[TopicPartition, ...] = ()

    @property
    def key(self) -> str:
        return broker_key(self.broker_id)

    def encode(self) -> bytes:
        return _dump(
            {
                "version": _VERSION,
                "endpoints": [
                    {
                        "listener": e.listener_name,
                        "host": e.host,
                        "port": e.port,
                        "protocol": e.security_protocol,
                    }
                    for e in self.endpoints
                ],
                "rack": self.rack,
                "rpc_address": self.rpc_address,
                "log_suspect": self.is_log_suspect,
                "suspect_partitions": self.suspect_partitions,
            }
        )


class ControllerEntry(NamedTuple):
    """`/controller`: who it is and where it is called ("host:port"; "" in one process with the broker). Its
    create_revision fences the controller's own transactions.
    """

    controller_id: int
    rpc_address: str = ""

    @property
    def key(self) -> str:
        return CONTROLLER_KEY

    def encode(self) -> bytes:
        return _dump(
            {"version": _VERSION, "controller_id": self.controller_id, "rpc_address": self.rpc_address}
        )


class ControllerEpochEntry(NamedTuple):
    controller_epoch: int

    @property
    def key(self) -> str:
        return CONTROLLER_EPOCH_KEY

    def encode(self) -> bytes:
        return b"%d" % self.controller_epoch


class TopicEntry(NamedTuple):
    """`/brokers/topics/<topic>`: `assignments[p]` are the replicas of partition p, the preferred leader
    first.

    `adding` and `removing` hold the replicas under way of partitions that are being reassigned.
    """

    name: str
    topic_id: uuid.UUID
    assignments: tuple[tuple[int, ...], ...]
    adding: Mapping[int, tuple[int, ...]] = {}
    removing: Mapping[int, tuple[int, ...]] = {}

    @property
    def key(self) -> str:
        return topic_key(self.name)

    def encode(self) -> bytes:
        return _dump(
            {
                "version": _VERSION,
                "topic_id": encode_uuid(self.topic_id),
                "partitions": {str(index): replicas for index, replicas in enumerate(self.assignments)},
                "adding_replicas": {str(index): replicas for index, replicas in self.adding.items()},
                "removing_replicas": {str(index): replicas for index, replicas in self.removing.items()},
            }
        )


class PartitionStateEntry(NamedTuple):
    """`/brokers/topics/<topic>/partitions/<p>/state`; leader -1 while none may lead."""

    topic: str
    partition: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    elr: tuple[int, ...] = ()
    last_known_leader: int = -1

    @property
    def key(self) -> str:
        return partition_state_key(self.topic, self.partition)

    def encode(self) -> bytes:
        value: JsonObject = {
            "controller_epoch": self.controller_epoch,
            "leader": self.leader,
            "version": _VERSION,
            "leader_epoch": self.leader_epoch,
            "isr": self.isr,
        }
        if self.elr:
            value["elr"] = self.elr
        if self.last_known_leader >= 0:
            value["last_known_leader"] = self.last_known_leader
        return _dump(value)


class TopicConfigEntry(NamedTuple):
    """`/config/topics/<topic>`: the overrides; no key where there are none."""

    topic: str
    configs: Mapping[str, str]

    @property
    def key(self) -> str:
        return topic_config_key(self.topic)

    def encode(self) -> bytes:
        return _dump({"version": _VERSION, "config": dict(self.configs)})


class BrokerConfigEntry(NamedTuple):
    """`/config/brokers/<id>`; `entity` is the id in decimal, "" the cluster-wide default (`<default>` in
    the key).
    """

    entity: str
    configs: Mapping[str, str]

    @property
    def key(self) -> str:
        return broker_config_key(self.entity)

    def encode(self) -> bytes:
        return _dump({"version": _VERSION, "config": dict(self.configs)})


class QuotaEntity(NamedTuple):
    """Whom a client quota is for: (type, name) pairs in order of type; a name of None is that type's
    default.
    """

    parts: tuple[tuple[str, str | None], ...]


class ClientQuotaEntry(NamedTuple):
    """`/config/client_quotas/<entity>`, the entity as base64url of its JSON: names may hold any character."""

    entity: QuotaEntity
    values: Mapping[str, float]

    @property
    def key(self) -> str:
        name = base64.urlsafe_b64encode(_dump(self.entity.parts)).rstrip(b"=").decode()
        return f"{CLIENT_QUOTA_PREFIX}{name}"

    def encode(self) -> bytes:
        return _dump({"version": _VERSION, "entity": self.entity.parts, "values": dict(self.values)})


@dataclass(frozen=True, slots=True)
class ProducerIdBlockEntry:
    """`/latest_producer_id_block`: the block handed out last; the next one starts at `first + count`."""

    broker_id: int
    first: int
    count: int

    @property
    def key(self) -> str:
        return PRODUCER_ID_BLOCK_KEY

    def encode(self) -> bytes:
        return _dump(
            {"version": _VERSION, "broker": self.broker_id, "first": self.first, "count": self.count}
        )


class FeaturesEntry(NamedTuple):
    """`/features`: finalized feature levels by name."""

    levels: Mapping[str, int]

    @property
    def key(self) -> str:
        return FEATURES_KEY

    def encode(self) -> bytes:
        return _dump({"version": _VERSION, "levels": dict(self.levels)})


class IsrChangeEntry(NamedTuple):
    """`/isr_change_notification/isr_change_<10 digits>`: partitions whose leader changed their state key."""

    number: int
    partitions: tuple[TopicPartition, ...]

    @property
    def key(self) -> str:
        return isr_change_key(self.number)

    def encode(self) -> bytes:
        partitions = [{"topic": p.topic, "partition": p.partition} for p in self.partitions]
        return _dump({"version": _VERSION, "partitions": partitions})


class SettledSuspectEntry(NamedTuple):
    """`/tidelog/settled_suspects/<broker id>`: the controller has taken this life of a broker, whose logs may
    lack their ends by its own account, out of every ISR and ELR. From then on it may be in them again.
    """

    broker_id: int
    broker_epoch: int

    @property
    def key(self) -> str:
        return settled_suspect_key(self.broker_id)

    def encode(self) -> bytes:
        return _dump({"version": _VERSION, "broker_epoch": self.broker_epoch})


Entry = (
    BrokerEntry
    | ControllerEntry
    | ControllerEpochEntry
    | TopicEntry
    | PartitionStateEntry
    | TopicConfigEntry
    | BrokerConfigEntry
    | ClientQuotaEntry
    | ProducerIdBlockEntry
    | FeaturesEntry
    | IsrChangeEntry
    | SettledSuspectEntry
)


def decode_entry(key: str, value: bytes) -> Entry | None:
    """What stands at `key`; None for keys that aren't described here (other services' own)."""
    try:
        return _decode_entry(key, value)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidEntryError(f"{key} holds {value[:200]!r}: {error!r}") from error


def _decode_entry(key: str, value: bytes) -> Entry | None:
    if key.startswith(TOPIC_PREFIX):
        partition = parse_partition_state_key(key)
        if partition is not None:
            return _decode_partition_state(partition, json.loads(value))
        name = key[len(TOPIC_PREFIX) :]
        return None if "/" in name else _decode_topic(name, json.loads(value))
    if key.startswith(BROKER_PREFIX):
        return _decode_broker(int(key[len(BROKER_PREFIX) :]), json.loads(value))
    if key.startswith(TOPIC_CONFIG_PREFIX):
        return TopicConfigEntry(key[len(TOPIC_CONFIG_PREFIX) :], _configs(value))
    if key.startswith(BROKER_CONFIG_PREFIX):
        entity = key[len(BROKER_CONFIG_PREFIX) :]
        return BrokerConfigEntry("" if entity == DEFAULT_ENTITY_NAME else entity, _configs(value))
    if key.startswith(ISR_CHANGE_PREFIX):
        partitions = json.loads(value)["partitions"]
        return IsrChangeEntry(
            int(key[len(ISR_CHANGE_PREFIX) :]),
            tuple(TopicPartition(p["topic"], p["partition"]) for p in partitions),
        )
    if key.startswith(SETTLED_SUSPECT_PREFIX):
        broker_id = int(key[len(SETTLED_SUSPECT_PREFIX) :])
        return SettledSuspectEntry(broker_id, json.loads(value)["broker_epoch"])
    if key.startswith(CLIENT_QUOTA_PREFIX):
        quota = json.loads(value)
        return ClientQuotaEntry(QuotaEntity(tuple((t, n) for t, n in quota["entity"])), quota["values"])
    return _decode_single(key, value)


def _decode_single(key: str, value: bytes) -> Entry | None:
    if key == CONTROLLER_KEY:
        controller = json.loads(value)
        return ControllerEntry(controller["controller_id"], controller.get("rpc_address", ""))
    if key == CONTROLLER_EPOCH_KEY:
        return ControllerEpochEntry(int(value))
    if key == PRODUCER_ID_BLOCK_KEY:
        block = json.loads(value)
        return ProducerIdBlockEntry(block["broker"], block["first"], block["count"])
    if key == FEATURES_KEY:
        return FeaturesEntry(json.loads(value)["levels"])
    return None


def _decode_broker(broker_id: int, value: JsonObject) -> BrokerEntry:
    endpoints = tuple(
        Endpoint(e["listener"], e["host"], e["port"], e["protocol"]) for e in value["endpoints"]
    )
    return BrokerEntry(
        broker_id,
        endpoints,
        value.get("rack"),
        value.get("rpc_address", ""),
        value.get("log_suspect", False),
        tuple(TopicPartition(topic, index) for topic, index in value.get("suspect_partitions", ())),
    )


def _decode_topic(name: str, value: JsonObject) -> TopicEntry:
    partitions = value["partitions"]
    return TopicEntry(
        name,
        decode_uuid(value["topic_id"]),
        tuple(tuple(partitions[str(index)]) for index in range(len(partitions))),
        {int(index): tuple(replicas) for index, replicas in value.get("adding_replicas", {}).items()},
        {int(index): tuple(replicas) for index, replicas in value.get("removing_replicas", {}).items()},
    )


def _decode_partition_state(partition: TopicPartition, value: JsonObject) -> PartitionStateEntry:
    return PartitionStateEntry(
        partition.topic,
        partition.partition,
        value["leader"],
        value["leader_epoch"],
        tuple(value["isr"]),
        value["controller_epoch"],
        tuple(value.get("elr", ())),
        value.get("last_known_leader", -1),
    )


def _configs(value: bytes) -> dict[str, str]:
    return {str(name): str(setting) for name, setting in json.loads(value)["config"].items()}


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def encode_uuid(topic_id: uuid.UUID) -> str:
    """Kafka's own text form of an id: base64url without padding, 22 characters."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def decode_uuid(text: str) -> uuid.UUID:
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))
