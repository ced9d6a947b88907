"""The settings in force: what a broker does not know or understand deletes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.broker.cluster.view import CurrentSettings
from tidelog.broker.hosting.housekeeping import Housekeeping
from tidelog.broker.hosting.log_cleaner import LogCleaner
from tidelog.broker.log.log_config import LogConfig
from tidelog.kernel.clock import ManualClock
from tidelog.model.topics import TopicPartition
from tidelog.rpc.broker_commands import DEFAULT_BROKER_ENTITY
from tidelog.settings.broker_settings import BrokerSettings

ENDLESS = {DEFAULT_BROKER_ENTITY: {"log.retention.ms": "-1"}}


def new_settings() -> CurrentSettings:
    return CurrentSettings(BrokerSettings.parse({}))


@pytest.mark.parametrize(
    "unknown",
    [
        {"retention.of.the.future": "1"},
        {"retention.ms": "forever"},
        {"tidelog.settings.confirmed": "perhaps"},
    ],
)
def test_a_topic_with_a_setting_that_is_not_understood_deletes_nothing(unknown: dict[str, str]) -> None:
    settings = new_settings().topic({"cleanup.policy": "compact", "min.insync.replicas": "2", **unknown})
    assert not settings.is_deleted
    assert not settings.is_compacted
    assert settings.min_insync_replicas == 2


def test_dynamic_settings_are_known_while_they_are_applied() -> None:
    settings = new_settings()
    assert not settings.are_known
    settings.apply(ENDLESS)
    assert settings.are_known
    assert settings.topic({}).retention_ms == -1
    settings.apply({DEFAULT_BROKER_ENTITY: {"log.retention.ms": "soon"}})
    assert not settings.are_known
    settings.apply(ENDLESS)
    assert settings.are_known


@pytest.mark.parametrize("duty", [Housekeeping.apply_retention, Housekeeping.expire_producers])
def test_nothing_is_deleted_before_the_dynamic_settings_are_known(
    duty: Callable[[Housekeeping], Awaitable[None]],
) -> None:
    """A broker that starts opens its logs before the controller tells it the cluster's settings."""
    looks: list[str] = []

    def look(*_: object) -> int:
        looks.append(duty.__name__)
        return 0

    unused: Any = None
    producers = SimpleNamespace(expire=look)
    core = SimpleNamespace(producers=producers, fetch_state=None)
    log = SimpleNamespace(segments=(), config=LogConfig())
    replica = SimpleNamespace(delete_old_segments=look, core=core, log=log)
    hosted: Any = SimpleNamespace(replicas={TopicPartition("t", 0): replica})
    settings, clock = new_settings(), ManualClock()
    steady_clock: Any = SimpleNamespace(earlier_ms=clock.wall_ms)
    housekeeping = Housekeeping(settings, hosted, unused, unused, clock, steady_clock, unused)
    asyncio.run(_run(duty, housekeeping))
    assert looks == []
    settings.apply({})
    asyncio.run(_run(duty, housekeeping))
    assert looks == [duty.__name__]


async def _run(duty: Callable[[Housekeeping], Awaitable[None]], housekeeping: Housekeeping) -> None:
    await duty(housekeeping)


def test_no_log_is_compacted_before_the_dynamic_settings_are_known() -> None:
    """`min.compaction.lag.ms` may come from them."""

    def look() -> None:
        raise AssertionError("the cleaner looked for a log")

    unused: Any = None
    hosted: Any = SimpleNamespace(replicas=SimpleNamespace(values=look))
    cleaner = LogCleaner(new_settings(), hosted, unused, unused)
    assert not asyncio.run(cleaner._clean_dirtiest(unused))
