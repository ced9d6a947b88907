"""The form of a decision: the records to write, the reply, and the context that it may depend on."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from tidelog.metadata.entries import Entry


class Chance(Protocol):
    """Randomness as an argument: seeded in tests and in the simulator."""

    def topic_id(self) -> uuid.UUID: ...

    def below(self, limit: int) -> int:
        """0 .. limit - 1."""
        ...


class SettingRules(Protocol):
    """Which settings there are and what they may be. Refusals are KafkaError(INVALID_CONFIG or
    INVALID_REQUEST).
    """

    def validate_topic(self, overrides: Mapping[str, str | None]) -> None: ...

    def validate_broker(self, entity: str, overrides: Mapping[str, str | None]) -> None:
        """`entity`: a broker id in decimal, or "" for the cluster-wide default."""
        ...

    def topic_list_default(self, name: str) -> str | None:
        """A topic setting's default if its type is a list (joined by commas), None if it isn't one."""
        ...

    def broker_list_default(self, name: str) -> str | None: ...

    def is_unclean_election_allowed(self, topic_overrides: Mapping[str, str]) -> bool: ...

    def min_in_sync_replicas(self, topic_overrides: Mapping[str, str]) -> int:
        """`min.insync.replicas` of a topic with these overrides."""
        ...


@dataclass(frozen=True, slots=True)
class ControllerRules:
    """The settings that decisions need, under Kafka's names."""

    settings: SettingRules
    num_partitions: int = 1
    default_replication_factor: int = 1
    delete_topic_enable: bool = True
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_per_broker_percentage: int = 10


@dataclass(frozen=True, slots=True)
class Context:
    controller_epoch: int
    chance: Chance
    rules: ControllerRules


ReplyT = TypeVar("ReplyT")

# A record's condition: the key must not be there yet.
ABSENT = 0


class Write(NamedTuple):
    """Put `entry`; `expected_mod_revision` is compared first (ABSENT: no such key), None writes whatever
    stands there.

    A partition's state is always compared, for its leader writes it too; the rest is the controller's alone,
    and no transaction of an earlier controller, or given up by this one, can still take effect.
    """

    entry: Entry
    expected_mod_revision: int | None = None


class Erase(NamedTuple):
    key: str
    expected_mod_revision: int | None = None


class NoteShutdown(NamedTuple):
    """Remember, for as long as this term lasts, that a life of a broker is on its way out. Not stored: the
    broker asks the next controller again.
    """

    broker_id: int
    broker_epoch: int


Record = Write | Erase | NoteShutdown


@dataclass(frozen=True, slots=True)
class Decision(Generic[ReplyT]):
    """`records` in the order in which they may become durable: cut off anywhere, `finish_half_done` finishes
    or undoes the rest. States of partitions that stand next to each other may become durable in any order.
    """

    records: tuple[Record, ...]
    reply: ReplyT
