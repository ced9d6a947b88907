"""Feature levels (KIP-584): the levels that this version supports, and the levels of a new cluster.

The levels are those of Apache Kafka 4.3 (`Feature`, `MetadataVersion`), so that Kafka's tools show and accept
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

METADATA_VERSION_FEATURE: Final = "metadata.version"


class LevelRange(NamedTuple):
    min_level: int
    max_level: int


SUPPORTED_FEATURES: Final[Mapping[str, LevelRange]] = {
    "eligible.leader.replicas.version": LevelRange(0, 1),
    "group.version": LevelRange(0, 1),
    "kraft.version": LevelRange(0, 1),
    METADATA_VERSION_FEATURE: LevelRange(7, 30),  # 3.3-IV3 to 4.3-IV0
    "share.version": LevelRange(0, 1),
    "streams.version": LevelRange(0, 1),
    "transaction.version": LevelRange(0, 2),
}

DEFAULT_FEATURE_LEVELS: Final[Mapping[str, int]] = {
    name: levels.max_level for name, levels in SUPPORTED_FEATURES.items()
}
