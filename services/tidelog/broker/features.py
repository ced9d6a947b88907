"""The feature levels that clients and Kafka's tools read from ApiVersions and UpdateFeatures (KIP-584).

They state which behaviour of the protocol this broker implements.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Feature(NamedTuple):
    """A feature. `level` is the level in force, 0 if the feature is off."""

    name: str
    min_level: int
    max_level: int
    level: int


SUPPORTED_FEATURES: Final = (
    # Level 30 is the metadata.version of Kafka 4.3. Tools reject a cluster without a metadata.version.
    Feature("metadata.version", 7, 30, 30),
    Feature("group.version", 0, 1, 1),  # the consumer protocol (KIP-848)
    Feature("transaction.version", 0, 2, 2),  # an epoch for each transaction (KIP-890)
)
FINALIZED_FEATURES_EPOCH: Final = 0
