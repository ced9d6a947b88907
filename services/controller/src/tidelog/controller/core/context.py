"""What a decision may depend on besides the state: the time, the term, chance, the settings."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


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
    now_ms: int
    controller_epoch: int
    chance: Chance
    rules: ControllerRules
