"""The dashboard of groups and transactions: their states, their requests, the coordinators' shards."""

# ruff: noqa: E501 - expressions are read whole

from panels import Column, Dashboard, Row, graph, number, table
from variables import GROUP, OF_RELEASES

_RATE = "[$__rate_interval]"
_NET = "kafka_network_requestmetrics_requests_total"
_GROUP_REQUESTS = "JoinGroup|SyncGroup|Heartbeat|LeaveGroup|ConsumerGroupHeartbeat|OffsetCommit|OffsetFetch"
_TRANSACTION_REQUESTS = "InitProducerId|AddPartitionsToTxn|AddOffsetsToTxn|TxnOffsetCommit|EndTxn"
_SHARDS = 50  # offsets.topic.num.partitions, transaction.state.log.num.partitions


def _rates(requests: str) -> str:
    return f'sum by (request) (rate({_NET}{{SEL,request=~"{requests}"}}{_RATE}))'


def _p99(requests: str) -> str:
    buckets = f'rate(tidelog_request_duration_seconds_bucket{{SEL,request=~"{requests}"}}{_RATE})'
    return f"histogram_quantile(0.99, sum by (le, request) ({buckets}))"


_GLANCE = Row(
    "At a glance",
    [
        number(
            "Groups", "sum(kafka_coordinator_group_groupmetadatamanager_numgroups{SEL})", "Of both protocols"
        ),
        number(
            "Rebalancing",
            "sum(kafka_coordinator_group_groupmetadatamanager_numgroupspreparingrebalance{SEL})"
            " + sum(kafka_coordinator_group_groupmetadatamanager_numgroupscompletingrebalance{SEL})",
            "Classic groups that wait for members or for an assignment",
            warn_from=1,
        ),
        number("Members", "sum(kafka_consumergroup_members{SEL})", "Of all groups"),
        number(
            "Shards served, groups",
            'sum(tidelog_coordinator_shards{SEL,kind="group",state="serving"})',
            "All partitions of __consumer_offsets; fewer: groups of the others get COORDINATOR_LOAD_IN_PROGRESS",
        ),
        number(
            "Shards served, transactions",
            'sum(tidelog_coordinator_shards{SEL,kind="transaction",state="serving"})',
            "All partitions of __transaction_state",
        ),
        number("Open transactions", 'sum(tidelog_transactions{SEL,state="Ongoing"}) or vector(0)', "Now"),
        number(
            "Oldest open transaction",
            "max(tidelog_transactions_oldest_open_seconds{SEL})",
            "read_committed consumers wait for its end; the coordinator aborts it at transaction.timeout.ms",
            unit="s",
            warn_from=60,
        ),
        number(
            "Aborted",
            f'sum(rate(tidelog_transactions_ended_total{{SEL,outcome="aborted"}}{_RATE}))'
            f" / sum(rate(tidelog_transactions_ended_total{{SEL}}{_RATE}))",
            "Share of the ended transactions",
            unit="percentunit",
        ),
    ],
)

_GROUPS = Row(
    "Groups",
    [
        graph(
            "Classic groups by state",
            {
                "stable": "sum(kafka_coordinator_group_groupmetadatamanager_numgroupsstable{SEL})",
                "empty": "sum(kafka_coordinator_group_groupmetadatamanager_numgroupsempty{SEL})",
                "waiting for members": "sum(kafka_coordinator_group_groupmetadatamanager_numgroupspreparingrebalance{SEL})",
                "waiting for an assignment": "sum(kafka_coordinator_group_groupmetadatamanager_numgroupscompletingrebalance{SEL})",
                "dead": "sum(kafka_coordinator_group_groupmetadatamanager_numgroupsdead{SEL})",
            },
            "A long wait indicates a member that does not poll",
            stacked=True,
        ),
        graph(
            "Consumer-protocol groups by state",
            {
                "{{state}}": "sum by (state) (kafka_server_group_coordinator_metrics_consumer_group_count{SEL})"
            },
            "In KIP-848 groups, members reconcile one by one, and the others continue",
            stacked=True,
        ),
        graph(
            "Groups by protocol",
            {"{{protocol}}": "sum by (protocol) (kafka_server_group_coordinator_metrics_group_count{SEL})"},
            "classic, consumer and streams",
        ),
        graph(
            "Members",
            {
                "{{consumergroup}}": 'sum by (consumergroup) (kafka_consumergroup_members{SEL,consumergroup=~"$group"})'
            },
            "Members that join and leave cause rebalances",
        ),
        graph(
            "Rebalances",
            {
                "{{consumergroup}}": "sum by (consumergroup) "
                '(increase(tidelog_consumergroup_generation{SEL,consumergroup=~"$group"}[$__rate_interval]))'
            },
            "Number of increments of the generation or the group epoch",
        ),
        table(
            "All groups",
            {
                "Members": "sum by (consumergroup, protocol, state) (tidelog_consumergroup_info{SEL,"
                'consumergroup=~"$group"} * on (consumergroup) group_left () sum by (consumergroup) '
                "(kafka_consumergroup_members{SEL}))"
            },
            "Protocol, state and members",
            {"Members": Column()},
            width=8,
        ),
        graph("Requests", {"{{request}}": _rates(_GROUP_REQUESTS)}, "Per second", unit="reqps", width=12),
        graph(
            "Latency, p99",
            {"{{request}}": _p99(_GROUP_REQUESTS)},
            "JoinGroup and SyncGroup wait for the other members, so long times are normal",
            unit="s",
            width=12,
        ),
    ],
)

_STREAMS_OF = 'SEL,consumergroup=~"$group"'
_TASKS = f"tidelog_streams_group_tasks{{{_STREAMS_OF}}}"
_WANTED = f"sum by (consumergroup) (tidelog_streams_group_topology_tasks{{{_STREAMS_OF}}})"
_ACTIVE = f'sum by (consumergroup) (tidelog_streams_group_tasks{{{_STREAMS_OF},role="active"}})'
_PASSIVE = f'sum by (consumergroup) (tidelog_streams_group_tasks{{{_STREAMS_OF},role!="active"}})'
_STREAMS_INFO = f'tidelog_consumergroup_info{{{_STREAMS_OF},protocol="streams"}}'
_STREAMS_MEMBERS = f"{_STREAMS_INFO} * on (consumergroup) group_left () sum by (consumergroup) (kafka_consumergroup_members{{SEL}})"

_STREAMS = Row(
    "Streams groups",
    [
        graph(
            "Streams groups by state",
            {"{{state}}": "sum by (state) (kafka_server_group_coordinator_metrics_streams_group_count{SEL})"},
            "A group that stays not ready lacks topics; its heartbeats name them",
            stacked=True,
        ),
        graph(
            "Members of streams groups",
            {"{{consumergroup}}": f"sum by (consumergroup) ({_STREAMS_MEMBERS})"},
            "Threads of the applications",
        ),
        graph(
            "Tasks",
            {"{{consumergroup}} {{role}}": f"sum by (consumergroup, role) ({_TASKS})"},
            "Tasks that the members have. Standby tasks keep copies of the state",
        ),
        graph(
            "Tasks without a member",
            {"{{consumergroup}}": f"{_WANTED} - {_ACTIVE}"},
            "Active tasks of the topology that nobody processes: members are missing or give tasks up",
            width=12,
        ),
        table(
            "All streams groups",
            {
                "Members": f"sum by (consumergroup) ({_STREAMS_MEMBERS})",
                "Tasks": _WANTED,
                "Active": _ACTIVE,
                "Standby": _PASSIVE,
            },
            "Tasks of the topology, and those that members have",
            {"Members": Column(), "Tasks": Column(), "Active": Column(), "Standby": Column()},
            width=12,
        ),
    ],
)

_TRANSACTIONS = Row(
    "Transactions",
    [
        graph(
            "By state",
            {"{{state}}": "sum by (state) (tidelog_transactions{SEL})"},
            "Transactional ids, by their transaction's state",
            stacked=True,
        ),
        graph(
            "Ended",
            {"{{outcome}}": f"sum by (outcome) (rate(tidelog_transactions_ended_total{{SEL}}{_RATE}))"},
            "Per second",
            unit="ops",
        ),
        graph(
            "Oldest open transaction, missing markers",
            {
                "oldest open, s": "max(tidelog_transactions_oldest_open_seconds{SEL})",
                "oldest decided, markers missing, s": "max(tidelog_transactions_oldest_ending_seconds{SEL})",
                "decided, markers missing": "sum(tidelog_transactions_ending{SEL})",
            },
            "Markers that stay missing indicate a partition without a leader",
        ),
        graph(
            "Records behind open transactions",
            {"{{topic}}": "sum by (topic) (kafka_cluster_partition_laststableoffsetlag{SEL})"},
            "Records above the last stable offset",
        ),
        graph("Requests", {"{{request}}": _rates(_TRANSACTION_REQUESTS)}, "Per second", unit="reqps"),
        graph(
            "Latency, p99",
            {"{{request}}": _p99(_TRANSACTION_REQUESTS)},
            "EndTxn is answered after the decision is replicated",
            unit="s",
        ),
    ],
)

_COORDINATORS = Row(
    "Coordinators",
    [
        graph(
            "Shards by coordinator",
            {"{{pod}} {{kind}} {{state}}": "sum by (pod, kind, state) (tidelog_coordinator_shards{SEL})"},
            f"{_SHARDS} of each kind by default, in even shares",
            stacked=True,
        ),
        graph(
            "Loads",
            {"{{pod}} {{kind}}": f"sum by (pod, kind) (rate(tidelog_coordinator_loads_total{{SEL}}{_RATE}))"},
            "Shards are loaded again after the loss of a coordinator or a leader",
            unit="ops",
        ),
        graph(
            "Longest load",
            {"{{pod}} {{kind}}": "max by (pod, kind) (tidelog_coordinator_load_seconds_max{SEL})"},
            "So far. Long: __consumer_offsets is not compacted",
            unit="s",
        ),
        graph(
            "Shards dropped",
            {
                "{{pod}} {{kind}}": f"sum by (pod, kind) (rate(tidelog_coordinator_shards_lost_total{{SEL}}{_RATE}))"
            },
            "Reasons: a failed append, a moved leader, a broken session",
            unit="ops",
        ),
        graph(
            "Replies held until replicated",
            {"{{pod}} {{kind}}": "sum by (pod, kind) (tidelog_coordinator_held_replies{SEL})"},
            "Reported by the broker that leads the shard. If they stay, its partition is under min ISR",
        ),
        graph(
            "Sessions and attachments",
            {
                "{{pod}} sessions": "sum by (pod) (tidelog_coordinator_broker_sessions{SEL})",
                "broker {{broker}} attached {{kind}}": "sum by (broker, kind) (tidelog_coordinator_attachments{SEL})",
            },
            "A coordinator has a session with every broker; a shard's owner is attached at its leader",
        ),
    ],
)

DASHBOARD = Dashboard(
    "tidelog-groups",
    "tidelog / Groups & Transactions",
    "Groups of all protocols, transactions, and their coordinators.",
    [*OF_RELEASES, GROUP],
    [_GLANCE, _GROUPS, _STREAMS, _TRANSACTIONS, _COORDINATORS],
)
