"""Keys and values of the metadata store: each entry class has its key and its JSON, and `decode_entry` reads
any entry.

Values are JSON objects with a `version`. Only the values of `/controller_epoch` and `/tidelog/schema_version`
are decimal numbers. Unknown fields are skipped, so that an older controller can read the values of a newer
one.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote

from tidelog.metadata.store import StoreError
from tidelog.model.acl import AclBinding, AclOperation, PatternType, PermissionType, Principal, ResourceType
from tidelog.model.brokers import Endpoint
from tidelog.model.text import JsonObject
from tidelog.model.topics import TopicPartition, parse_topic_id, topic_id_text
from tidelog.sasl.scram import ScramCredential

BROKERS_AND_TOPICS_PREFIX: Final = "/brokers/"
BROKER_PREFIX: Final = "/brokers/ids/"
TOPIC_PREFIX: Final = "/brokers/topics/"
CONTROLLER_KEY: Final = "/controller"
CONTROLLER_ID_PREFIX: Final = "/controllers/ids/"
CONTROLLER_EPOCH_KEY: Final = "/controller_epoch"
ISR_CHANGE_PREFIX: Final = "/isr_change_notification/isr_change_"
# A decimal number. The transaction that writes a notification compares it and sets it to the notification's
# number.
ISR_CHANGE_COUNTER_KEY: Final = "/isr_change_notification/counter"
TOPIC_CONFIG_PREFIX: Final = "/config/topics/"
BROKER_CONFIG_PREFIX: Final = "/config/brokers/"
CLIENT_QUOTA_PREFIX: Final = "/config/client_quotas/"
GROUP_CONFIG_PREFIX: Final = "/config/groups/"
MAX_REMEMBERED_KEYS: Final = 1_000
"""The most keys of groups that are remembered, because every fetch of a share group asks for its settings."""
ACL_PREFIX: Final = "/acls/"
CLIENT_METRICS_PREFIX: Final = "/config/client_metrics/"
SCRAM_PREFIX: Final = "/config/scram/"
DELEGATION_TOKEN_PREFIX: Final = "/config/delegation_tokens/"
# The entries that brokers need to serve clients (`broker/security/security_snapshot.py`).
SECURITY_PREFIXES: Final = (
    ACL_PREFIX,
    CLIENT_QUOTA_PREFIX,
    GROUP_CONFIG_PREFIX,
    SCRAM_PREFIX,
    DELEGATION_TOKEN_PREFIX,
    CLIENT_METRICS_PREFIX,
)
# The name of the cluster-wide default in a config key, as in Kafka's config nodes in ZooKeeper.
DEFAULT_ENTITY_NAME: Final = "<default>"
FEATURES_KEY: Final = "/features"
PRODUCER_ID_BLOCK_KEY: Final = "/latest_producer_id_block"
CLUSTER_ID_KEY: Final = "/cluster/id"
SCHEMA_VERSION_KEY: Final = "/tidelog/schema_version"
SETTLED_SUSPECT_PREFIX: Final = "/tidelog/settled_suspects/"
# The controller lists and watches all keys.
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
    """Returns the key of a broker's settings. `entity` is a broker id in decimal, or "" for the cluster-wide
    default.
    """
    return f"{BROKER_CONFIG_PREFIX}{entity or DEFAULT_ENTITY_NAME}"


@lru_cache(MAX_REMEMBERED_KEYS)
def group_config_key(group_id: str) -> str:
    return f"{GROUP_CONFIG_PREFIX}{quote(group_id, safe='')}"


def scram_credential_key(mechanism: str, user: str) -> str:
    return f"{SCRAM_PREFIX}{mechanism}/{quote(user, safe='')}"


def isr_change_key(number: int) -> str:
    return f"{ISR_CHANGE_PREFIX}{number:010d}"


def parse_partition_state_key(key: str) -> TopicPartition | None:
    """Returns the partition whose state the key holds, or None if the key is of another kind."""
    match = _STATE_KEY.fullmatch(key)
    return TopicPartition(match[1], int(match[2])) if match else None


class InvalidEntryError(StoreError):
    """A value does not have the form that its key requires."""


class BrokerEntry(NamedTuple):
    """`/brokers/ids/<id>`: a broker that is alive.

    The value does not contain the broker epoch, because that is the key's create_revision.
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
        return _value(
            endpoints=[
                {
                    "listener": e.listener_name,
                    "host": e.host,
                    "port": e.port,
                    "protocol": e.security_protocol,
                }
                for e in self.endpoints
            ],
            rack=self.rack,
            rpc_address=self.rpc_address,
            log_suspect=self.is_log_suspect,
            suspect_partitions=self.suspect_partitions,
        )


class ControllerEntry(NamedTuple):
    """`/controller`: the active controller and its gRPC address ("host:port", or "" in one process with the
    broker).

    The key's create_revision fences the controller's own transactions.
    """

    controller_id: int
    rpc_address: str = ""

    @property
    def key(self) -> str:
        return CONTROLLER_KEY

    def encode(self) -> bytes:
        return _value(controller_id=self.controller_id, rpc_address=self.rpc_address)


class CandidateEntry(NamedTuple):
    """`/controllers/ids/<id>`: a controller that is alive, active or standing by."""

    controller_id: int

    @property
    def key(self) -> str:
        return f"{CONTROLLER_ID_PREFIX}{self.controller_id}"

    def encode(self) -> bytes:
        return _value()


class ControllerEpochEntry(NamedTuple):
    controller_epoch: int

    @property
    def key(self) -> str:
        return CONTROLLER_EPOCH_KEY

    def encode(self) -> bytes:
        return b"%d" % self.controller_epoch


class TopicEntry(NamedTuple):
    """`/brokers/topics/<topic>`: a topic and its replicas. `assignments[p]` are the replicas of partition p,
    the preferred leader first.

    `adding` and `removing` hold the replicas that a reassignment adds and removes, by partition.
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
        return _value(
            topic_id=topic_id_text(self.topic_id),
            partitions={str(index): replicas for index, replicas in enumerate(self.assignments)},
            adding_replicas={str(index): replicas for index, replicas in self.adding.items()},
            removing_replicas={str(index): replicas for index, replicas in self.removing.items()},
        )


class PartitionStateEntry(NamedTuple):
    """`/brokers/topics/<topic>/partitions/<p>/state`: the state of a partition. `leader` is -1 if there is no
    leader.
    """

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
    """`/config/topics/<topic>`: the settings that a topic overrides. A topic without overrides has no key."""

    topic: str
    configs: Mapping[str, str]

    @property
    def key(self) -> str:
        return topic_config_key(self.topic)

    def encode(self) -> bytes:
        return _value(config=dict(self.configs))


class BrokerConfigEntry(NamedTuple):
    """`/config/brokers/<id>`: the dynamic settings of brokers.

    `entity` is the broker id in decimal, or "" for the cluster-wide default, which has `<default>` in its
    key.
    """

    entity: str
    configs: Mapping[str, str]

    @property
    def key(self) -> str:
        return broker_config_key(self.entity)

    def encode(self) -> bytes:
        return _value(config=dict(self.configs))


class GroupConfigEntry(NamedTuple):
    """`/config/groups/<group>`: the settings that a group overrides. A group without overrides has no key.

    The key contains the group id percent-encoded, because it may contain any character.
    """

    group_id: str
    configs: Mapping[str, str]

    @property
    def key(self) -> str:
        return group_config_key(self.group_id)

    def encode(self) -> bytes:
        return _value(group_id=self.group_id, config=dict(self.configs))


class QuotaEntity(NamedTuple):
    """The entity of a client quota: (type, name) pairs, sorted by type. The name None means the default of
    the type.
    """

    parts: tuple[tuple[str, str | None], ...]


class ClientQuotaEntry(NamedTuple):
    """`/config/client_quotas/<entity>`: the quotas of an entity.

    The key contains the entity as the base64url of its JSON, because names may contain any character.
    """

    entity: QuotaEntity
    values: Mapping[str, float]

    @property
    def key(self) -> str:
        name = base64.urlsafe_b64encode(_dump(self.entity.parts)).rstrip(b"=").decode()
        return f"{CLIENT_QUOTA_PREFIX}{name}"

    def encode(self) -> bytes:
        return _value(entity=self.entity.parts, values=dict(self.values))


class AclEntry(NamedTuple):
    """`/acls/<resource type>/<pattern type>/<resource>/<principal>/<host>/<operation>/<permission>`: one
    access control list entry. The key contains the whole entry, with the texts percent-encoded.
    """

    binding: AclBinding

    @property
    def key(self) -> str:
        kind, pattern, name, principal, host, operation, permission = self.binding
        texts = "/".join(quote(text, safe="") for text in (name, principal, host))
        return f"{ACL_PREFIX}{kind.name}/{pattern.name}/{texts}/{operation.name}/{permission.name}"

    def encode(self) -> bytes:
        binding = self.binding
        return _value(
            resource_type=binding.resource_type.name,
            pattern_type=binding.pattern_type.name,
            resource_name=binding.resource_name,
            principal=binding.principal,
            host=binding.host,
            operation=binding.operation.name,
            permission=binding.permission.name,
        )


class ClientMetricsEntry(NamedTuple):
    """`/config/client_metrics/<name>`: a subscription to clients' metrics (KIP-714). Its name is
    percent-encoded in the key.
    """

    name: str
    configs: Mapping[str, str]

    @property
    def key(self) -> str:
        return f"{CLIENT_METRICS_PREFIX}{quote(self.name, safe='')}"

    def encode(self) -> bytes:
        return _value(name=self.name, config=dict(self.configs))


class ScramCredentialEntry(NamedTuple):
    """`/config/scram/<mechanism>/<user>`: the SCRAM credential of a user, whose name is percent-encoded in
    the key.
    """

    user: str
    mechanism: str
    credential: ScramCredential

    @property
    def key(self) -> str:
        return scram_credential_key(self.mechanism, self.user)

    def encode(self) -> bytes:
        credential = self.credential
        return _value(
            user=self.user,
            mechanism=self.mechanism,
            salt=base64.b64encode(credential.salt).decode(),
            stored_key=base64.b64encode(credential.stored_key).decode(),
            server_key=base64.b64encode(credential.server_key).decode(),
            iterations=credential.iterations,
        )


class DelegationTokenEntry(NamedTuple):
    """`/config/delegation_tokens/<id>`: a delegation token (KIP-48). Times are of the wall clock. The secret
    is not stored, because it follows from the id and `delegation.token.secret.key`.
    """

    token_id: str
    owner: Principal
    requester: Principal
    renewers: tuple[Principal, ...]
    issue_ms: int
    expiry_ms: int
    max_ms: int

    @property
    def key(self) -> str:
        return f"{DELEGATION_TOKEN_PREFIX}{self.token_id}"

    @property
    def viewers(self) -> frozenset[Principal]:
        """The principals that may see the token without an ACL."""
        return frozenset((self.owner, self.requester, *self.renewers))

    def encode(self) -> bytes:
        return _value(**self._asdict())


@dataclass(frozen=True, slots=True)
class ProducerIdBlockEntry:
    """`/latest_producer_id_block`: the last allocated block. The next block starts at `first + count`."""

    broker_id: int
    first: int
    count: int

    @property
    def key(self) -> str:
        return PRODUCER_ID_BLOCK_KEY

    def encode(self) -> bytes:
        return _value(broker=self.broker_id, first=self.first, count=self.count)


class FeaturesEntry(NamedTuple):
    """`/features`: the finalized feature levels by name."""

    levels: Mapping[str, int]

    @property
    def key(self) -> str:
        return FEATURES_KEY

    def encode(self) -> bytes:
        return _value(levels=dict(self.levels))


class IsrChangeEntry(NamedTuple):
    """`/isr_change_notification/isr_change_<10 digits>`: partitions whose leader has changed their
    state key.
    """

    number: int
    partitions: tuple[TopicPartition, ...]

    @property
    def key(self) -> str:
        return isr_change_key(self.number)

    def encode(self) -> bytes:
        partitions = [{"topic": p.topic, "partition": p.partition} for p in self.partitions]
        return _value(partitions=partitions)


class SettledSuspectEntry(NamedTuple):
    """`/tidelog/settled_suspects/<broker id>`: a broker registration whose suspect logs the controller has
    handled.

    The broker reported that its logs may have lost their ends. The controller has removed this broker epoch
    from every ISR and ELR, so the broker may join them again.
    """

    broker_id: int
    broker_epoch: int

    @property
    def key(self) -> str:
        return settled_suspect_key(self.broker_id)

    def encode(self) -> bytes:
        return _value(broker_epoch=self.broker_epoch)


SecurityEntry = (
    AclEntry
    | ClientQuotaEntry
    | GroupConfigEntry
    | ScramCredentialEntry
    | DelegationTokenEntry
    | ClientMetricsEntry
)

Entry = (
    BrokerEntry
    | ControllerEntry
    | ControllerEpochEntry
    | CandidateEntry
    | TopicEntry
    | PartitionStateEntry
    | TopicConfigEntry
    | BrokerConfigEntry
    | SecurityEntry
    | ProducerIdBlockEntry
    | FeaturesEntry
    | IsrChangeEntry
    | SettledSuspectEntry
)


def decode_entry(key: str, value: bytes) -> Entry | None:
    """Returns the entry at a key, or None if this module does not describe the key. Raises
    InvalidEntryError.
    """
    try:
        return _decode_entry(key, value)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if key.startswith(SCRAM_PREFIX):  # the value is a secret
            raise InvalidEntryError(f"{key} does not hold a SCRAM credential") from None
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
    if key.startswith(GROUP_CONFIG_PREFIX):
        return GroupConfigEntry(json.loads(value)["group_id"], _configs(value))
    if key.startswith(ACL_PREFIX):
        return _decode_acl(json.loads(value))
    if key.startswith(SCRAM_PREFIX):
        return _decode_scram(json.loads(value))
    if key.startswith(CONTROLLER_ID_PREFIX):
        return CandidateEntry(int(key[len(CONTROLLER_ID_PREFIX) :]))
    if key.startswith(CLIENT_METRICS_PREFIX):
        return ClientMetricsEntry(json.loads(value)["name"], _configs(value))
    if key.startswith(DELEGATION_TOKEN_PREFIX):
        return _decode_delegation_token(json.loads(value))
    return _decode_single(key, value)


def _decode_acl(value: JsonObject) -> AclEntry:
    return AclEntry(
        AclBinding(
            ResourceType[value["resource_type"]],
            PatternType[value["pattern_type"]],
            value["resource_name"],
            Principal(value["principal"]),
            value["host"],
            AclOperation[value["operation"]],
            PermissionType[value["permission"]],
        )
    )


def _decode_scram(value: JsonObject) -> ScramCredentialEntry:
    salt, stored_key, server_key = (
        base64.b64decode(value[name], validate=True) for name in ("salt", "stored_key", "server_key")
    )
    credential = ScramCredential(salt, stored_key, server_key, int(value["iterations"]))
    return ScramCredentialEntry(value["user"], value["mechanism"], credential)


def _decode_delegation_token(value: JsonObject) -> DelegationTokenEntry:
    return DelegationTokenEntry(
        value["token_id"],
        Principal(value["owner"]),
        Principal(value["requester"]),
        tuple(map(Principal, value["renewers"])),
        int(value["issue_ms"]),
        int(value["expiry_ms"]),
        int(value["max_ms"]),
    )


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
        parse_topic_id(value["topic_id"]),
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


def _value(**fields: object) -> bytes:
    """Returns the value of a key: a JSON object with the version and these fields, in this order."""
    return _dump({"version": _VERSION, **fields})


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
