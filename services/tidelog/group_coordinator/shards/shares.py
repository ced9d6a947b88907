"""Which coordinator is to own which shard: equal shares, as few moves as can be.

Every coordinator works it out for itself from the same keys, so all agree as soon as they have seen the same.
Until then two may want one shard: the metadata store gives it to one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

Shares: TypeAlias = dict[int, int]
"""Shard number -> coordinator id."""


def plan_shares(coordinators: Iterable[int], owners: Mapping[int, int], shard_count: int) -> Shares:
    """Each of `shard_count` shards to one of the live coordinators; {} if there is none.

    `owners` is who owns what now. Who has more than a fair share gives the highest numbers away; what is
    free goes, in order, to whoever has least (of those the lowest id).
    """
    planned: dict[int, list[int]] = {coordinator: [] for coordinator in sorted(coordinators)}
    if not planned:
        return {}
    for shard in range(shard_count):
        owner = owners.get(shard)
        if owner in planned:
            planned[owner].append(shard)
    least, extra = divmod(shard_count, len(planned))
    # Those who have most keep the ones that are over.
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
