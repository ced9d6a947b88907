"""The feature levels that clients and Kafka's tools read from ApiVersions and UpdateFeatures (KIP-584).

They say which protocol behaviours this broker has, so only features that are really there are named.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Feature(NamedTuple):
    """`level` is what is in force, 0 where it is switched off."""

    name: str
    min_level: int
    max_level: int
    level: int


SUPPORTED_FEATURES: Final = (
    # Level 30 is Kafka 4.3's metadata.version; tools refuse to talk to a cluster that names none.
    Feature("metadata.version", 7, 30, 30),
    Feature("group.version", 0, 1, 1),  # the consumer protocol (KIP-848)
    Feature("transaction.version", 0, 2, 2),  # an epoch for each transaction (KIP-890)
)
FINALIZED_FEATURES_EPOCH: Final = 0
