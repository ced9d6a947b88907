"""The dashboard of share groups: depth, age, records in flight, and what becomes of deliveries."""

# ruff: noqa: E501 - expressions are read whole

from panels import Column, Dashboard, Row, graph, number, table
from variables import OF_RELEASES, SHARE_GROUP

_RATE = "[$__rate_interval]"
_GROUP = 'SEL,group=~"$group"'
_REQUESTS = "ShareFetch|ShareAcknowledge|ShareGroupHeartbeat"


def _of_groups(metric: str) -> str:
    return f"sum by (group) (tidelog_share_group_{metric}{{{_GROUP}}})"


def _rate(metric: str, *, by: str = "group", labels: str = "") -> str:
    return f"sum by ({by}) (rate(tidelog_share_group_{metric}_total{{{_GROUP}{labels}}}{_RATE}))"


_GLANCE = Row(
    "At a glance",
    [
        number(
            "Groups",
            "count(count by (group) (tidelog_share_group_unfinished_records{SEL}))",
            "Share groups with members; others have no series",
        ),
        number(
            "Sessions", "sum(tidelog_share_sessions{SEL})", "A member has one at each leader that it asks"
        ),
        number(
            "Depth",
            f"sum(tidelog_share_group_unfinished_records{{{_GROUP}}})",
            "Records that are not acknowledged",
        ),
        number(
            "Oldest record",
            f"max(tidelog_share_group_oldest_record_seconds{{{_GROUP}}})",
            "That is not acknowledged, by the timestamp of its batch",
            unit="s",
            warn_from=60,
            bad_from=600,
        ),
        number(
            "In flight", f"sum(tidelog_share_group_acquired_records{{{_GROUP}}})", "Records that members have"
        ),
        number(
            "Accepted",
            f'sum(rate(tidelog_share_group_deliveries_total{{{_GROUP},outcome="accepted"}}{_RATE}))',
            "Records per second",
            unit="ops",
        ),
        number(
            "Redelivered",
            f"sum(rate(tidelog_share_group_redelivered_records_total{{{_GROUP}}}{_RATE}))"
            f" / sum(rate(tidelog_share_group_deliveries_total{{{_GROUP}}}{_RATE}))",
            "Share of the deliveries that ended",
            unit="percentunit",
            warn_from=0.2,
        ),
        number(
            "Full partitions",
            f"sum(tidelog_share_group_full_partitions{{{_GROUP}}})",
            "No new record may be acquired of them until others end",
            warn_from=1,
        ),
    ],
)

_RECORDS = Row(
    "Records",
    [
        graph(
            "Depth",
            {"{{group}}": _of_groups("unfinished_records")},
            "Records up to the high watermark that are not acknowledged or archived",
        ),
        graph(
            "Age of the oldest record",
            {"{{group}}": f"max by (group) (tidelog_share_group_oldest_record_seconds{{{_GROUP}}})"},
            "Falls when the oldest record is acknowledged or archived",
            unit="s",
        ),
        graph("In flight", {"{{group}}": _of_groups("acquired_records")}, "Records that members have"),
        graph(
            "Full partitions",
            {"{{group}}": _of_groups("full_partitions")},
            "Their records in flight have reached share.partition.max.record.locks",
        ),
        graph(
            "Depth by broker",
            {"{{broker}}": f"sum by (broker) (tidelog_share_group_unfinished_records{{{_GROUP}}})"},
            "Each leader counts its partitions",
            stacked=True,
        ),
        table(
            "All groups",
            {
                "Depth": _of_groups("unfinished_records"),
                "Oldest": f"max by (group) (tidelog_share_group_oldest_record_seconds{{{_GROUP}}})",
                "In flight": _of_groups("acquired_records"),
                "Waiting": _of_groups("waiting_records"),
                "Paused": _of_groups("paused_partitions"),
            },
            "Groups with members. Waiting: records that may not be delivered yet. Paused: partitions",
            {
                "Depth": Column(),
                "Oldest": Column("s", warn_from=60, bad_from=600),
                "In flight": Column(),
                "Waiting": Column(),
                "Paused": Column(warn_from=1),
            },
            width=8,
        ),
    ],
)

_WAITS = Row(
    "Waits and pauses",
    [
        graph(
            "Waiting records",
            {"{{group}}": _of_groups("waiting_records")},
            "Records in flight that wait for their delivery time, their retry or an earlier record of their key",
            width=12,
        ),
        graph(
            "Paused partitions",
            {"{{group}}": _of_groups("paused_partitions")},
            "Partitions that the circuit breaker pauses or probes, because too many deliveries failed",
            width=12,
        ),
    ],
)

_DELIVERIES = Row(
    "Deliveries",
    [
        graph(
            "Accepted",
            {"{{group}}": _rate("deliveries", labels=',outcome="accepted"')},
            "Records per second",
            unit="ops",
        ),
        graph(
            "Outcomes of deliveries",
            {"{{outcome}}": _rate("deliveries", by="outcome")},
            "Released and rejected by members; expired: the lock ended; abandoned: the session ended",
            unit="ops",
        ),
        graph(
            "Redelivered",
            {"{{group}}": _rate("redelivered_records")},
            "Records per second that were delivered before",
            unit="ops",
        ),
    ],
)

_DEAD_LETTERS = Row(
    "Dead letters",
    [
        graph(
            "Dead letters",
            {"{{group}}": _rate("dead_letters")},
            "Records per second that were copied to the group's dead letter topic",
            unit="ops",
        ),
        graph(
            "Waiting",
            {"{{group}}": _of_groups("dead_letters_waiting")},
            "Records that were given up and are not in the dead letter topic yet",
        ),
        graph(
            "Failures",
            {"{{group}}": _rate("dead_letter_failures")},
            "Attempts to copy records that failed; a log line states the reason",
            unit="ops",
        ),
    ],
)

_SERVICE = Row(
    "Requests and states",
    [
        graph(
            "Requests",
            {
                "{{request}}": f'sum by (request) (rate(kafka_network_requestmetrics_requests_total{{SEL,request=~"{_REQUESTS}"}}{_RATE}))'
            },
            "Per second",
            unit="reqps",
        ),
        graph(
            "Latency, p99",
            {
                "{{request}}": "histogram_quantile(0.99, sum by (le, request) (rate("
                f'tidelog_request_duration_seconds_bucket{{SEL,request=~"{_REQUESTS}"}}{_RATE})))'
            },
            "ShareFetch waits for records; acknowledgements wait until the share coordinator has stored them",
            unit="s",
        ),
        graph(
            "Shards of states by coordinator",
            {"{{pod}} {{state}}": 'sum by (pod, state) (tidelog_coordinator_shards{SEL,kind="share"})'},
            "The partitions of __share_group_state; without their owners, nothing is acknowledged",
            stacked=True,
        ),
    ],
)

DASHBOARD = Dashboard(
    "tidelog-share-groups",
    "tidelog / Share Groups",
    "Share groups: what waits, what is in flight, and what becomes of deliveries.",
    [*OF_RELEASES, SHARE_GROUP],
    [_GLANCE, _RECORDS, _WAITS, _DELIVERIES, _DEAD_LETTERS, _SERVICE],
)
