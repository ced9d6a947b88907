"""The form of a decision: records to write and their sizes, the reply, and the context that it depends on:
randomness, the time, and the rules that follow from the settings in force.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from tidelog.kernel.instants import WallMs
from tidelog.metadata.entries import BROKER_CONFIG_PREFIX, SECURITY_PREFIXES, TOPIC_CONFIG_PREFIX, Entry
from tidelog.model.topics import topic_id_text
from tidelog.rpc.broker_commands import DEFAULT_BROKER_ENTITY
from tidelog.settings.broker_settings import BROKER_SETTINGS, BrokerSettings
from tidelog.settings.group_settings import validate_group_overrides
from tidelog.settings.other_kafka_settings import DYNAMIC_WITHOUT_EFFECT
from tidelog.settings.setting import Password, Setting, SettingType
from tidelog.settings.setting_sources import validate_broker_overrides
from tidelog.settings.topic_settings import (
    TOPIC_SETTINGS,
    are_confirmed,
    broker_default,
    validate_overrides,
)

_UNCLEAN_ELECTION: Final = "unclean.leader.election.enable"
_MIN_ISR: Final = "min.insync.replicas"


class Chance:
    """A source of randomness: the system's in a process, a seeded one in tests and in the simulator.
    `random_bits` returns a number of so many random bits.
    """

    def __init__(self, random_bits: Callable[[int], int]) -> None:
        self._random_bits = random_bits

    def topic_id(self) -> uuid.UUID:
        """Returns a new topic id. Its text never begins with a dash, which command lines would take for an
        option.
        """
        while True:
            topic_id = uuid.UUID(int=self._random_bits(128), version=4)
            if not topic_id_text(topic_id).startswith("-"):
                return topic_id

    def below(self, limit: int) -> int:
        """Returns a number from 0 to `limit` - 1."""
        assert limit > 0, "there is no such number"
        while True:
            number = self._random_bits(limit.bit_length())
            if number < limit:
                return number


class SettingRules:
    """The known settings and their valid values, as `tidelog.settings` defines them. Methods that validate
    raise KafkaError(INVALID_CONFIG or INVALID_REQUEST).
    """

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._min_in_sync_replicas = broker_default(settings, _MIN_ISR)

    def validate_topic(self, overrides: Mapping[str, str | None]) -> None:
        if overrides:
            validate_overrides(overrides, self._settings)

    def validate_broker(self, entity: str, overrides: Mapping[str, str | None]) -> None:
        """Checks settings of one broker without the others of that broker, such as its listeners. Only the
        broker knows them, and it has checked the change before it passed it on.
        """
        is_of_all = entity == DEFAULT_BROKER_ENTITY
        validate_broker_overrides(
            overrides, per_broker=not is_of_all, broker=self._settings if is_of_all else None
        )

    def validate_group(self, overrides: Mapping[str, str | None]) -> None:
        validate_group_overrides(overrides, self._settings)

    def topic_list_default(self, name: str) -> str | None:
        definition = TOPIC_SETTINGS.get(name)
        if definition is None or definition.type is not SettingType.LIST:
            return None
        return definition.format(broker_default(self._settings, name)) or ""

    def broker_list_default(self, name: str) -> str | None:
        definition: Setting | None = BROKER_SETTINGS.get(name) or DYNAMIC_WITHOUT_EFFECT.get(name)
        if definition is None or definition.type is not SettingType.LIST:
            return None
        if name in DYNAMIC_WITHOUT_EFFECT:
            return definition.format(definition.default) or ""
        return definition.format(self._settings.value_of(name)) or ""

    def is_unclean_election_allowed(self, topic_overrides: Mapping[str, str]) -> bool:
        text = topic_overrides.get(_UNCLEAN_ELECTION)
        if text is None:
            by_default = bool(broker_default(self._settings, _UNCLEAN_ELECTION))
            return by_default and are_confirmed(topic_overrides)
        return bool(TOPIC_SETTINGS[_UNCLEAN_ELECTION].parse(text))

    def min_in_sync_replicas(self, topic_overrides: Mapping[str, str]) -> int:
        text = topic_overrides.get(_MIN_ISR)
        value = self._min_in_sync_replicas if text is None else TOPIC_SETTINGS[_MIN_ISR].parse(text)
        assert isinstance(value, int)  # by the setting's definition
        return value


class DelegationTokenRules(NamedTuple):
    """The settings of delegation tokens. The secret key proves tokens."""

    secret_key: bytes
    max_lifetime_ms: int
    expiry_time_ms: int

    def __repr__(self) -> str:
        return "DelegationTokenRules([hidden])"


@dataclass(frozen=True, slots=True)
class ControllerRules:
    """The settings that decisions need, under Kafka's names."""

    settings: SettingRules
    num_partitions: int = 1
    default_replication_factor: int = 1
    tidelog_max_partitions: int = 200_000
    tidelog_max_partitions_per_broker: int = 20_000
    delete_topic_enable: bool = True
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_per_broker_percentage: int = 10
    delegation_tokens: DelegationTokenRules | None = None
    """None if delegation tokens are turned off."""


def rules_from(settings: BrokerSettings, broker_configs: Mapping[str, Mapping[str, str]]) -> ControllerRules:
    """Returns the rules that follow from the settings and from the dynamic broker configs in the store. Only
    the cluster-wide dynamic configs count, because a topic does not belong to one broker.
    """
    dynamic_default = broker_configs.get(DEFAULT_BROKER_ENTITY, {})
    effective = (
        settings.with_dynamic(dynamic_default=dynamic_default, dynamic={}) if dynamic_default else settings
    )
    return ControllerRules(
        settings=SettingRules(effective),
        num_partitions=settings.num_partitions,
        default_replication_factor=settings.default_replication_factor,
        tidelog_max_partitions=settings.tidelog_max_partitions,
        tidelog_max_partitions_per_broker=settings.tidelog_max_partitions_per_broker,
        delete_topic_enable=settings.delete_topic_enable,
        auto_leader_rebalance_enable=settings.auto_leader_rebalance_enable,
        leader_imbalance_per_broker_percentage=settings.leader_imbalance_per_broker_percentage,
        delegation_tokens=_delegation_token_rules(settings),
    )


def _delegation_token_rules(settings: BrokerSettings) -> DelegationTokenRules | None:
    secret_key = settings.delegation_token_secret_key
    if not isinstance(secret_key, Password):
        return None
    return DelegationTokenRules(
        secret_key.reveal().encode(),
        settings.delegation_token_max_lifetime_ms,
        settings.delegation_token_expiry_time_ms,
    )


_UNKNOWN_TIME: Final = WallMs(0)


@dataclass(frozen=True, slots=True)
class Context:
    controller_epoch: int
    chance: Chance
    rules: ControllerRules
    now_ms: WallMs = _UNKNOWN_TIME


ReplyT_co = TypeVar("ReplyT_co", covariant=True)

# The expected revision of a key that must not exist.
ABSENT = 0


class Write(NamedTuple):
    """Writes `entry` if its key has `expected_mod_revision`. ABSENT expects no such key; None expects
    nothing.

    A write of a partition's state always expects a revision, because the partition's leader writes it, too.
    Only the controller writes the other keys, and no transaction of an earlier controller, or one that this
    controller has voided, can still take effect.
    """

    entry: Entry
    expected_mod_revision: int | None = None


class Erase(NamedTuple):
    key: str
    expected_mod_revision: int | None = None


class NoteShutdown(NamedTuple):
    """Notes for the rest of this term that a registered broker is in controlled shutdown. It is not stored,
    because the broker repeats its request at the next controller.
    """

    broker_id: int
    broker_epoch: int


Record = Write | Erase | NoteShutdown


@dataclass(frozen=True, slots=True)
class ControllerDecision(Generic[ReplyT_co]):
    """`records` are in the order in which they may become durable. If the controller fails at any point,
    `finish_half_done` completes or reverts the rest. Adjacent states of partitions may become durable in any
    order.
    """

    records: tuple[Record, ...]
    reply: ReplyT_co


StepsT = TypeVar("StepsT")
Steps = Generator[None, None, StepsT]
"""Long work that may be interrupted after each step. The state must not change in between."""
DecisionSteps = Steps[ControllerDecision[ReplyT_co]]
"""A decision that is made in steps, because it may concern thousands of topics or partitions."""


MAX_SIZED_BYTES: Final = 32 * 1024 * 1024
"""The keys and values of all security entries and settings of topics and brokers. The full UpdateMetadata may
have 64 MiB (`MAX_MESSAGE_BYTES`); it also contains the partitions of all topics.
"""
SIZED_PREFIXES: Final = (*SECURITY_PREFIXES, TOPIC_CONFIG_PREFIX, BROKER_CONFIG_PREFIX)


class EntrySizes:
    """The bytes of the entries that exist, by key and in total."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self.total_bytes = 0

    def put(self, key: str, value_bytes: int) -> None:
        size_bytes = len(key) + value_bytes
        self.total_bytes += size_bytes - self._sizes.get(key, 0)
        self._sizes[key] = size_bytes

    def remove(self, key: str) -> None:
        self.total_bytes -= self._sizes.pop(key, 0)

    def growth(self, after: Mapping[str, int | None]) -> int:
        """Returns how many bytes more there are when each key has a value of so many bytes, or None if it is
        removed.
        """
        return sum(
            (0 if value_bytes is None else len(key) + value_bytes) - self._sizes.get(key, 0)
            for key, value_bytes in after.items()
        )
