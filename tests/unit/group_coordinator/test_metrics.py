"""The series of groups are limited, since clients choose how many groups and offsets exist."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from clusterlab.all_metrics import coordinator_view
from tidelog.group_coordinator.metrics import (
    MAX_SHOWN_GROUPS,
    MAX_SHOWN_PARTITIONS,
    CoordinatorMetrics,
    GroupLag,
    GroupSummary,
)
from tidelog.metrics.families import Families

SEED = 11
GROUPS, PARTITIONS = 3 * MAX_SHOWN_GROUPS, 2


def _families(view: Any) -> dict[str, Any]:
    families = Families()
    CoordinatorMetrics(view).collect(families)
    return {family.name: family for family in families}


def _many_groups() -> SimpleNamespace:
    chance = random.Random(SEED)
    view: SimpleNamespace = coordinator_view()
    names = [f"g{number}" for number in range(GROUPS)]
    view.lags = [
        GroupLag(group, "t", partition, 1, chance.randrange(1_000_000), 0.0)
        for group in names
        for partition in range(PARTITIONS)
    ]
    view.groups = [GroupSummary(group, "classic", "Stable", 1, 1) for group in names]
    return view


def test_the_partitions_and_groups_with_the_greatest_lag_are_shown() -> None:
    print(f"seed {SEED}")
    view = _many_groups()
    families = _families(view)
    shown = [sample.value for sample in families["kafka_consumergroup_lag"].samples]
    assert (
        sorted(shown, reverse=True)
        == sorted((lag.lag for lag in view.lags), reverse=True)[:MAX_SHOWN_PARTITIONS]
    )
    omitted = families["tidelog_consumergroup_partitions_omitted"].samples[0].value
    assert omitted == GROUPS * PARTITIONS - MAX_SHOWN_PARTITIONS
    totals = {sample.labels["group"] for sample in families["kafka_consumergroup_group_sum_lag"].samples}
    members = {sample.labels["consumergroup"] for sample in families["kafka_consumergroup_members"].samples}
    assert len(totals) == MAX_SHOWN_GROUPS
    assert totals == members
    numbers = families["kafka_coordinator_group_groupmetadatamanager_numgroups"].samples
    assert numbers[0].value == GROUPS


def test_few_groups_are_all_shown() -> None:
    families = _families(coordinator_view())
    assert [sample.value for sample in families["kafka_consumergroup_lag"].samples] == [10, 0]
    assert families["tidelog_consumergroup_partitions_omitted"].samples[0].value == 0
