"""The assignment of shards to coordinators: equal shares with as few moves as possible.

Every coordinator computes the assignment from the same keys, so all agree as soon as they have seen the same
keys. Until then, two coordinators may claim one shard, and the metadata store gives it to one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

Shares: TypeAlias = dict[int, int]
"""Coordinator ids by shard number."""


def plan_shares(coordinators: Iterable[int], owners: Mapping[int, int], shard_count: int) -> Shares:
    """Assigns each of `shard_count` shards to a live coordinator. Returns {} if there is no coordinator.

    `owners` has the present owner of each owned shard. A coordinator with more than a fair share gives up the
    shards with the highest numbers. Free shards go, in order, to the coordinator with the fewest shards, and
    among equals to the one with the lowest id.
    """
    planned: dict[int, list[int]] = {coordinator: [] for coordinator in sorted(coordinators)}
    if not planned:
        return {}
    for shard in range(shard_count):
        owner = owners.get(shard)
        if owner in planned:
            planned[owner].append(shard)
    least, extra = divmod(shard_count, len(planned))
    # The coordinators with the most shards keep one more than the others.
    by_load = sorted(planned, key=lambda coordinator: (-len(planned[coordinator]), coordinator))
    quotas = {coordinator: least + (rank < extra) for rank, coordinator in enumerate(by_load)}
    for coordinator, shards in planned.items():
        del shards[quotas[coordinator] :]
    placed = {shard for shards in planned.values() for shard in shards}
    shares = {shard: coordinator for coordinator, shards in planned.items() for shard in shards}
    for shard in range(shard_count):
        if shard not in placed:
            coordinator = min(
                (c for c in planned if len(planned[c]) < quotas[c]), key=lambda c: (len(planned[c]), c)
            )
            planned[coordinator].append(shard)
            shares[shard] = coordinator
    return shares
