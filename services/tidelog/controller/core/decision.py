"""The form of a decision: records to write and their sizes, the reply, and the context that it depends on."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from tidelog.kernel.instants import WallMs
from tidelog.metadata.entries import BROKER_CONFIG_PREFIX, SECURITY_PREFIXES, TOPIC_CONFIG_PREFIX, Entry
from tidelog.model.topics import topic_id_text


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


class SettingRules(Protocol):
    """The known settings and their valid values. Methods that validate raise KafkaError(INVALID_CONFIG or
    INVALID_REQUEST).
    """

    def validate_topic(self, overrides: Mapping[str, str | None]) -> None: ...

    def validate_broker(self, entity: str, overrides: Mapping[str, str | None]) -> None:
        """Validates settings of a broker. `entity` is a broker id in decimal, or "" for the cluster-wide
        default.
        """
        ...

    def validate_group(self, overrides: Mapping[str, str | None]) -> None: ...

    def topic_list_default(self, name: str) -> str | None:
        """Returns the default of a topic setting whose type is a list, joined by commas, or None for another
        type.
        """
        ...

    def broker_list_default(self, name: str) -> str | None: ...

    def is_unclean_election_allowed(self, topic_overrides: Mapping[str, str]) -> bool: ...

    def min_in_sync_replicas(self, topic_overrides: Mapping[str, str]) -> int:
        """Returns `min.insync.replicas` of a topic with these overrides."""
        ...


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
