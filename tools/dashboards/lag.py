"""The dashboard of lag: in records, in time, and the time until retention deletes unread records."""

# ruff: noqa: E501 - expressions are read whole

from panels import Column, Dashboard, Row, graph, number, ranking, table
from variables import GROUP, OF_RELEASES, TOPIC

_OF = 'SEL,consumergroup=~"$group",topic=~"$topic"'
_LAG = f"kafka_consumergroup_lag{{{_OF}}}"
_SECONDS = f"kafka_consumergroup_lag_seconds{{{_OF}}}"
_EXPIRES = f"tidelog_consumergroup_unread_expires_seconds{{{_OF}}}"
# These series exist only where a transaction is open. Elsewhere, both kinds of consumers have the same lag.
_UNCOMMITTED = f"clamp_min(tidelog_consumergroup_read_uncommitted_lag{{{_OF}}} or {_LAG}, 0)"
# A commit beyond the end of a partition, whose lag is negative, does not make up for unread records of others.
_UNREAD = f"clamp_min({_LAG}, 0)"
_UNCOMMITTED_SECONDS = f"(tidelog_consumergroup_read_uncommitted_lag_seconds{{{_OF}}} or {_SECONDS})"
_COMMITTED = f"kafka_consumergroup_current_offset{{{_OF}}}"
_MEMBERS = 'kafka_consumergroup_members{SEL,consumergroup=~"$group"}'

_GLANCE = Row(
    "At a glance",
    [
        number(
            "Groups",
            f"count(count by (consumergroup) ({_LAG}))",
            "Groups that have committed offsets",
            width=4,
        ),
        number(
            "Unread records",
            f"sum({_UNREAD})",
            "Sum over the selected groups, in partitions with a committed offset",
            width=4,
        ),
        number(
            "Oldest unread record",
            f"max({_SECONDS})",
            "Age of the oldest record that a group has not read",
            unit="s",
            warn_from=300,
            bad_from=3600,
            width=4,
        ),
        number(
            "Retention time left",
            f"min({_EXPIRES} / ({_EXPIRES} + {_SECONDS}))",
            "Least share of a topic's retention time that is left for unread records. No value if everything is read",
            unit="percentunit",
            good_from=0.25,
            width=4,
        ),
        number(
            "Lagging groups without members",
            f"count((sum by (consumergroup) ({_UNREAD}) > 0) and on (consumergroup) ({_MEMBERS} == 0)) or vector(0)",
            "Groups with unread records and no members",
            warn_from=1,
            width=4,
        ),
        number("Members", f"sum({_MEMBERS})", "Members of the selected groups", width=4),
    ],
)

_GROUPS = Row(
    "By group",
    [
        graph(
            "Lag in records",
            {"{{consumergroup}}": f"sum by (consumergroup) ({_UNREAD})"},
            "Records that read_committed consumers have not read, up to the last stable offset",
        ),
        graph(
            "Lag in time",
            {"{{consumergroup}}": f"max by (consumergroup) ({_SECONDS})"},
            "Age of the oldest unread record",
            unit="s",
        ),
        graph(
            "Lag in records, read_uncommitted",
            {"{{consumergroup}}": f"sum by (consumergroup) ({_UNCOMMITTED})"},
            "Records up to the high watermark, also of open transactions",
        ),
        graph(
            "Lag in time, read_uncommitted",
            {"{{consumergroup}}": f"max by (consumergroup) ({_UNCOMMITTED_SECONDS})"},
            "Age of the oldest record that read_uncommitted consumers have not read",
            unit="s",
        ),
        graph(
            "Difference between the two lags",
            {
                "{{consumergroup}}": f"sum by (consumergroup) ({_UNCOMMITTED}) - sum by (consumergroup) ({_UNREAD})"
            },
            "Records behind open transactions that only read_uncommitted consumers can read",
        ),
        graph(
            "Partitions without a commit",
            {
                "{{consumergroup}} {{topic}}": 'max by (topic) (kafka_topic_partitions{SEL,topic=~"$topic"})'
                f" - on (topic) group_right () count by (consumergroup, topic) ({_COMMITTED})"
            },
            "Partitions of a group's topics without a committed offset. Their records are in no lag",
        ),
        graph(
            "Commits beyond the end",
            {"{{consumergroup}} {{topic}}": f"sum by (consumergroup, topic) ({_LAG} < bool 0)"},
            "Partitions whose committed offset is beyond the end of the log, after a loss of records or a wrong reset",
        ),
        graph(
            "Time until unread data expires",
            {"{{consumergroup}}": f"min by (consumergroup) ({_EXPIRES})"},
            "At 0, retention deletes records that the group has not read",
            unit="s",
        ),
        graph(
            "Read and committed",
            {"{{consumergroup}}": f"sum by (consumergroup) (rate({_COMMITTED}[$__rate_interval]))"},
            "Records per second, from committed offsets",
            unit="rps",
        ),
        graph(
            "Growth of lag",
            {
                "{{consumergroup}}": f"sum by (consumergroup) (deriv(kafka_consumergroup_lag{{{_OF}}}[$__rate_interval]))"
            },
            "Records per second; below 0, the group catches up",
            least=None,
        ),
        graph(
            "Members",
            {"{{consumergroup}}": f"sum by (consumergroup) ({_MEMBERS})"},
            "Members of each group",
        ),
    ],
)

_TOPICS = Row(
    "By topic and partition",
    [
        graph(
            "Written",
            {
                "{{topic}}": 'sum by (topic) (rate(kafka_server_brokertopicmetrics_messagesin_total{SEL,topic!="",'
                'topic=~"$topic"}[$__rate_interval]))'
            },
            "Records per second that consumers have to read",
            unit="wps",
        ),
        graph(
            "Lag by topic",
            {"{{consumergroup}} {{topic}}": f"sum by (consumergroup, topic) ({_UNREAD})"},
            "Records",
        ),
        ranking(
            "Partitions furthest behind",
            f"topk(15, max by (consumergroup, topic, partition) ({_LAG}))",
            "{{consumergroup}} {{topic}}-{{partition}}",
            "A single partition far behind indicates a hot key or a consumer that is stuck",
        ),
        table(
            "All partitions",
            {
                "Lag": f"max by (consumergroup, topic, partition) ({_LAG})",
                "Lag, read_uncommitted": f"max by (consumergroup, topic, partition) ({_UNCOMMITTED})",
                "Lag in time": f"max by (consumergroup, topic, partition) ({_SECONDS})",
                "Expires in": f"min by (consumergroup, topic, partition) ({_EXPIRES})",
                "Committed": f"max by (consumergroup, topic, partition) ({_COMMITTED})",
            },
            "No expiry if everything is read or nothing expires",
            {
                "Lag": Column(),
                "Lag, read_uncommitted": Column(),
                "Lag in time": Column("s", warn_from=300, bad_from=3600),
                "Expires in": Column("s", good_from=3600),
                "Committed": Column("none"),
            },
            width=24,
        ),
        graph(
            "Readable offsets",
            {
                "{{topic}}": 'sum by (topic) (kafka_topic_partition_current_offset{SEL,topic=~"$topic"}'
                ' - kafka_topic_partition_oldest_offset{SEL,topic=~"$topic"})'
            },
            "Offsets between the first and the high watermark, over all partitions",
            width=12,
        ),
        graph(
            "Records behind open transactions",
            {
                "{{topic}}": 'sum by (topic) (kafka_cluster_partition_laststableoffsetlag{SEL,topic=~"$topic"})'
            },
            "Records above the last stable offset, which read_committed consumers cannot read until the transaction ends",
            width=12,
        ),
    ],
)

DASHBOARD = Dashboard(
    "tidelog-lag",
    "tidelog / Lag",
    "Lag of consumer groups in records and in seconds, and the time until unread records expire.",
    [*OF_RELEASES, GROUP, TOPIC],
    [_GLANCE, _GROUPS, _TOPICS],
)
