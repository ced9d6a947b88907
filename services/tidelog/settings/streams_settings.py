"""Broker settings of streams groups (KIP-1071)."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.settings.setting import CLUSTER_WIDE, INT_MAX, MEDIUM, at_least, integer
from tidelog.settings.share_settings import ShareSettings


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)
class StreamsSettings(ShareSettings):
    """`group.streams.*`. A base class of BrokerSettings."""

    group_streams_session_timeout_ms: int = integer(
        45_000,
        MEDIUM,
        "Time without a heartbeat after which a member of a streams group is removed.",
        at_least(1),
    )
    group_streams_min_session_timeout_ms: int = integer(
        45_000, MEDIUM, "Minimum session timeout that a streams group may set.", at_least(1)
    )
    group_streams_max_session_timeout_ms: int = integer(
        60_000, MEDIUM, "Maximum session timeout that a streams group may set.", at_least(1)
    )
    group_streams_heartbeat_interval_ms: int = integer(
        5_000, MEDIUM, "Interval at which the members of a streams group send heartbeats.", at_least(1)
    )
    group_streams_min_heartbeat_interval_ms: int = integer(
        5_000, MEDIUM, "Minimum heartbeat interval that a streams group may set.", at_least(1)
    )
    group_streams_max_heartbeat_interval_ms: int = integer(
        15_000, MEDIUM, "Maximum heartbeat interval that a streams group may set.", at_least(1)
    )
    group_streams_max_size: int = integer(
        INT_MAX, MEDIUM, "Maximum number of members of a streams group.", at_least(1)
    )
    group_streams_num_standby_replicas: int = integer(
        0, MEDIUM, "Number of standby replicas of each stateful task.", at_least(0)
    )
    group_streams_max_standby_replicas: int = integer(
        2, MEDIUM, "Maximum of streams.num.standby.replicas of a group.", at_least(0)
    )
    group_streams_initial_rebalance_delay_ms: int = integer(
        3_000,
        MEDIUM,
        "Time that a streams group without members waits for more members before its first assignment.",
        at_least(0),
    )
    group_streams_assignment_interval_ms: int = integer(
        1_000,
        MEDIUM,
        "Minimum time between two assignments of a streams group.",
        at_least(0),
        mode=CLUSTER_WIDE,
    )
    group_streams_min_assignment_interval_ms: int = integer(
        0, MEDIUM, "Minimum of streams.assignment.interval.ms of a group.", at_least(0)
    )
    group_streams_max_assignment_interval_ms: int = integer(
        15_000, MEDIUM, "Maximum of streams.assignment.interval.ms of a group.", at_least(0)
    )
