"""Feature levels (KIP-584, KIP-1022): the levels that this version supports, the levels of a new cluster, and
the levels that are in force.

The levels are those of Apache Kafka 4.4 (`Feature`, `MetadataVersion`), so that Kafka's tools show and accept
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

ELIGIBLE_LEADER_REPLICAS_VERSION: Final = "eligible.leader.replicas.version"
"""From level 1 on, replicas that left the ISR below its minimum may lead (KIP-966)."""
GROUP_VERSION: Final = "group.version"
"""From level 1 on, the consumer protocol is served (KIP-848)."""
KRAFT_VERSION: Final = "kraft.version"
"""The format of KRaft's set of voters. tidelog has no KRaft, so the level cannot change. Kafka's tools name
it when they upgrade to a release.
"""
METADATA_VERSION: Final = "metadata.version"
"""The format of Kafka's metadata log. Tools refuse a cluster without it; tidelog's own behavior does not
depend on it.
"""
SHARE_VERSION: Final = "share.version"
"""From level 1 on, share groups are served (KIP-932)."""
STREAMS_VERSION: Final = "streams.version"
"""From level 1 on, the streams protocol is served (KIP-1071)."""
TRANSACTION_VERSION: Final = "transaction.version"
"""At level 2, clients take a new epoch for each transaction (KIP-890). Clients read the level; the broker
follows the versions of their requests.
"""


class LevelRange(NamedTuple):
    min_level: int
    max_level: int


SUPPORTED_FEATURES: Final[Mapping[str, LevelRange]] = {
    ELIGIBLE_LEADER_REPLICAS_VERSION: LevelRange(0, 1),
    GROUP_VERSION: LevelRange(0, 1),
    KRAFT_VERSION: LevelRange(1, 1),
    METADATA_VERSION: LevelRange(7, 33),  # 3.3-IV3 to 4.4-IV2
    SHARE_VERSION: LevelRange(0, 2),
    STREAMS_VERSION: LevelRange(0, 1),
    TRANSACTION_VERSION: LevelRange(0, 2),
}

METADATA_CHANGES: Final = frozenset({7, 8, 11, 13, 14, 15, 17, 23, 30, 32, 33})
"""The levels of metadata.version whose metadata an earlier level cannot express (Kafka's
`MetadataVersion.didMetadataChange`). A downgrade across one of them is not safe.
"""

DEPENDENCIES: Final[Mapping[tuple[str, int], tuple[str, int]]] = {
    (ELIGIBLE_LEADER_REPLICAS_VERSION, 1): (METADATA_VERSION, 23),
}
"""The level of another feature that a level needs at least (Kafka's `FeatureVersion.dependencies`)."""


class FinalizedFeatures(NamedTuple):
    """The levels in force. A feature without a level is off. `epoch` grows with each change; it is the
    revision of the store at the last change, or 0 if the levels of a new cluster are in force.
    """

    levels: Mapping[str, int]
    epoch: int = 0

    def level(self, name: str) -> int:
        return self.levels.get(name, 0)


DEFAULT_FEATURES: Final = FinalizedFeatures(
    {name: levels.max_level for name, levels in SUPPORTED_FEATURES.items()}
)
