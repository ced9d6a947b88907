"""The dashboard of the cluster: leaders, replicas, writable partitions, traffic, etcd."""

# ruff: noqa: E501 - expressions are read whole

from panels import Column, Dashboard, Row, graph, number, ranking, states, table
from variables import OF_RELEASES, TOPIC

_MANAGER = "kafka_server_replicamanager"
_CONTROLLER = "kafka_controller_kafkacontroller"
_TRAFFIC = "kafka_server_brokertopicmetrics"

_OF = 'SEL,topic=~"$topic"'
_PARTITION = "kafka_cluster_partition"
_MISSING = f"sum by (topic, partition) ({_PARTITION}_replicascount{{{_OF}}} - {_PARTITION}_insyncreplicascount{{{_OF}}})"
_ISR_STATE = (
    f"max by (topic, partition) ({_PARTITION}_underreplicated{{{_OF}}} * (1 + {_PARTITION}_atminisr{{{_OF}}})"
    f" + 3 * {_PARTITION}_underminisr{{{_OF}}})"
)
_USERS_TOPICS = 'SEL,topic=~"$topic",topic!~"__.+"'


def _troubled_first(expression: str) -> str:
    """Returns the values of an expression for topics of users, and for internal topics only if they are not
    0. Sound partitions of internal topics would otherwise fill a list of the worst partitions.
    """
    return f"({expression} > 0 or {expression.replace(_OF, _USERS_TOPICS)})"


_WORST_STATE = f"max_over_time({_ISR_STATE}[$__range:] @ end())"
_ISR_STATES = {
    "0": "in sync",
    "1": "replicas missing",
    "2": "at min ISR",
    "3": "under min ISR",
    "4": "under min ISR",
    "5": "under min ISR",
}
_SHOWN_PARTITIONS = 20
_REGISTERED = "max by (broker_id) (tidelog_controller_broker_registered{SEL})"

_GLANCE = Row(
    "At a glance",
    [
        number("Brokers", "sum(kafka_brokers{SEL})", "Registered, as the controller counts them", width=2),
        number(
            "Brokers missing",
            f"count({_REGISTERED} == 0) or vector(0)",
            "Brokers that have replicas and are not registered; Brokers by id names them",
            bad_from=1,
        ),
        number(
            "Active controllers",
            f'sum({_CONTROLLER}_activecontrollercount{{SEL,component!="broker"}})',
            "Always one. With none, no leader is elected. Two for longer than a moment need an explanation",
            good_from=1,
            bad_from=2,
        ),
        number("Topics", f"sum({_CONTROLLER}_globaltopiccount{{SEL}})", "Topics of the cluster", width=2),
        number(
            "Partitions",
            f"sum({_CONTROLLER}_globalpartitioncount{{SEL}})",
            "Partitions of the cluster",
            width=2,
        ),
        number(
            "Offline partitions",
            f"sum({_CONTROLLER}_offlinepartitionscount{{SEL}})",
            "Partitions without a leader, which can be neither written nor read",
            bad_from=1,
        ),
        number(
            "Under min ISR",
            f"sum({_MANAGER}_underminisrpartitioncount{{SEL}})",
            "Partitions that refuse acks=all, because too few replicas are in sync",
            bad_from=1,
        ),
        number(
            "Under-replicated",
            f"sum({_MANAGER}_underreplicatedpartitions{{SEL}})",
            "Partitions with a replica outside the ISR. This is normal for a while during a roll",
            warn_from=1,
        ),
        number(
            "Unclean elections",
            "sum(increase(kafka_controller_controllerstats_uncleanleaderelections_total{SEL}[$__range]))",
            "Leaders elected from outside the ISR in this time range; acknowledged records may be lost",
            bad_from=1,
        ),
        states(
            "Brokers by id",
            f"1 - {_REGISTERED}",
            "broker {{broker_id}}",
            "A broker is missing if it has replicas and is not registered at the controller",
            {"0": "registered", "1": "missing"},
            warn_from=1,
            bad_from=1,
            height=6,
        ),
    ],
)

_ISR = Row(
    "In-sync replicas",
    [
        graph(
            "Under-replicated partitions by leader",
            {"broker {{broker}}": f"sum by (broker) ({_MANAGER}_underreplicatedpartitions{{SEL}})"},
            "Reported by the broker that leads them; the missing replica is on another broker",
            stacked=True,
        ),
        graph(
            "Partitions at and under min ISR",
            {
                "at min ISR": f"sum({_MANAGER}_atminisrpartitioncount{{SEL}})",
                "under min ISR": f"sum({_MANAGER}_underminisrpartitioncount{{SEL}})",
            },
            "At min ISR, the loss of one more replica makes the partition refuse acks=all. Under min ISR, it does so now",
        ),
        graph(
            "ISR changes",
            {
                "{{broker}} shrinks": f"sum by (broker) (rate({_MANAGER}_isrshrinks_total{{SEL}}[$__rate_interval]))",
                "{{broker}} expands": f"sum by (broker) (rate({_MANAGER}_isrexpands_total{{SEL}}[$__rate_interval]))",
                "{{broker}} refused": "sum by (broker) "
                f"(rate({_MANAGER}_failedisrupdates_total{{SEL}}[$__rate_interval]))",
            },
            "An expansion should follow each shrink. Repeated changes indicate a slow disk, network or broker",
            unit="ops",
        ),
        table(
            "Most under-replicated partitions",
            {
                "Replicas missing": f"topk(20, {_troubled_first(_MISSING)})",
                "In sync": f"sum by (topic, partition) ({_PARTITION}_insyncreplicascount{{{_OF}}})"
                f" and on (topic, partition) topk(20, {_troubled_first(_MISSING)})",
            },
            "0 missing: all replicas are in sync. Internal topics are shown if they lack replicas",
            {"Replicas missing": Column(warn_from=1, bad_from=2), "In sync": Column()},
            width=8,
        ),
        graph(
            "Largest follower lag",
            {
                "broker {{broker}}": 'max by (broker) (kafka_server_replicafetchermanager_maxlag{SEL,clientId="Replica"})'
            },
            "Records behind the leader's high watermark, in the worst partition of each follower",
        ),
        graph(
            "Replicas in trouble",
            {
                "{{broker}} fetching fails": "sum by (broker) "
                "(kafka_server_replicafetchermanager_failedpartitionscount{SEL})",
                "{{broker}} log failed": f"sum by (broker) ({_MANAGER}_offlinereplicacount{{SEL}})",
            },
            "Replicas that cannot follow, and replicas whose files cannot be read or written",
        ),
        states(
            "ISR by partition",
            f"{_ISR_STATE} and on (topic, partition) "
            f"topk({_SHOWN_PARTITIONS}, {_troubled_first(_WORST_STATE)})",
            "{{topic}}-{{partition}}",
            f"The {_SHOWN_PARTITIONS} partitions with the worst state in this time range. At min ISR, the loss of one more"
            " replica makes the partition refuse acks=all. Internal topics are shown if they lacked replicas",
            _ISR_STATES,
            warn_from=1,
            bad_from=3,
        ),
    ],
)

_LEADERS = Row(
    "Leaders and the controller",
    [
        graph(
            "Leaders by broker",
            {"broker {{broker}}": f"sum by (broker) ({_MANAGER}_leadercount{{SEL}})"},
            "Uneven only for a while after a restart; the controller moves preferred leaders back",
            stacked=True,
        ),
        graph(
            "Replicas by broker",
            {"broker {{broker}}": f"sum by (broker) ({_MANAGER}_partitioncount{{SEL}})"},
            "After adding brokers, run `tidelog rebalance` to distribute replicas evenly",
            stacked=True,
        ),
        graph(
            "Partitions without their preferred leader",
            {"partitions": f"sum({_CONTROLLER}_preferredreplicaimbalancecount{{SEL}})"},
            "Partitions whose leader is not their first replica",
        ),
        graph(
            "Leader elections",
            {
                "clean and unclean": "sum(rate(kafka_controller_controllerstats_leaderelections_total{SEL}"
                "[$__rate_interval]))",
                "unclean": "sum(rate(kafka_controller_controllerstats_uncleanleaderelections_total{SEL}"
                "[$__rate_interval]))",
            },
            "Per second",
            unit="ops",
        ),
        graph(
            "Controller queues",
            {
                "requests and changes": "sum(kafka_controller_controllereventmanager_eventqueuesize{SEL})",
                "commands to brokers": "sum(kafka_controller_controllerchannelmanager_totalqueuesize{SEL})",
                "partitions being reassigned": "sum(tidelog_controller_reassigning_partitions{SEL})",
            },
            "If a queue does not empty, the controller or a broker is too slow or unreachable",
        ),
        graph(
            "Controller epoch",
            {"epoch": "max(tidelog_controller_epoch{SEL})"},
            "Each step is a new active controller",
            least=None,
        ),
    ],
)

_TRAFFIC_ROW = Row(
    "Traffic",
    [
        graph(
            "Written by clients",
            {
                "broker {{broker}}": f'sum by (broker) (rate({_TRAFFIC}_bytesin_total{{SEL,topic=""}}[$__rate_interval]))'
            },
            "Bytes of batches appended by leaders",
            unit="Bps",
            stacked=True,
        ),
        graph(
            "Read by clients",
            {
                "broker {{broker}}": f'sum by (broker) (rate({_TRAFFIC}_bytesout_total{{SEL,topic=""}}[$__rate_interval]))'
            },
            "Bytes of batches sent to consumers",
            unit="Bps",
            stacked=True,
        ),
        graph(
            "Replicated",
            {
                "to broker {{broker}}": "sum by (broker) "
                f"(rate({_TRAFFIC}_replicationbytesin_total{{SEL}}[$__rate_interval]))"
            },
            "Bytes of batches that followers fetched",
            unit="Bps",
            stacked=True,
        ),
        graph(
            "Records written",
            {"records": f'sum(rate({_TRAFFIC}_messagesin_total{{SEL,topic=""}}[$__rate_interval]))'},
            "Per second, over all brokers",
            unit="wps",
        ),
        ranking(
            "Most written topics",
            f'topk(10, sum by (topic) (rate({_TRAFFIC}_bytesin_total{{SEL,topic!="",topic=~"$topic"}}[$__rate_interval])))',
            "{{topic}}",
            "Bytes per second",
            unit="Bps",
        ),
        ranking(
            "Most read topics",
            f'topk(10, sum by (topic) (rate({_TRAFFIC}_bytesout_total{{SEL,topic!="",topic=~"$topic"}}[$__rate_interval])))',
            "{{topic}}",
            "Bytes per second",
            unit="Bps",
        ),
    ],
)

_ETCD = Row(
    "etcd and leases",
    [
        graph(
            "etcd members with a leader",
            {"{{pod}}": "max by (pod) (etcd_server_has_leader{SEL})"},
            "0 if the member is cut off or too few members are running",
        ),
        graph(
            "Leader changes, failed proposals",
            {
                "leader changes": "max(increase(etcd_server_leader_changes_seen_total{SEL}[$__rate_interval]))",
                "failed proposals": "sum(increase(etcd_server_proposals_failed_total{SEL}[$__rate_interval]))",
            },
            "Unexpected leader changes indicate a slow disk or network",
        ),
        graph(
            "Disk, 99th percentile",
            {
                "{{pod}} WAL fsync": "histogram_quantile(0.99, sum by (pod, le) "
                "(rate(etcd_disk_wal_fsync_duration_seconds_bucket{SEL}[$__rate_interval])))",
                "{{pod}} commit": "histogram_quantile(0.99, sum by (pod, le) "
                "(rate(etcd_disk_backend_commit_duration_seconds_bucket{SEL}[$__rate_interval])))",
            },
            "etcd requires an fsync within 10 ms and a commit within 25 ms",
            unit="s",
        ),
        graph(
            "Database",
            {
                "{{pod}} size": "max by (pod) (etcd_mvcc_db_total_size_in_bytes{SEL})",
                "{{pod}} in use": "max by (pod) (etcd_mvcc_db_total_size_in_use_in_bytes{SEL})",
                "quota": "max(etcd_server_quota_backend_bytes{SEL})",
            },
            "At its quota, etcd accepts no writes until it is compacted and defragmented and the alarm is disarmed",
            unit="bytes",
        ),
        graph(
            "Time since lease renewal",
            {"{{pod}}": "max by (pod) (tidelog_metadata_lease_renewed_seconds{SEL})"},
            "At broker.session.timeout.ms (6 s), the other services consider the service dead",
            unit="s",
        ),
        graph(
            "Expired leases",
            {
                "{{pod}}": "sum by (pod) (increase(kafka_server_sessionexpirelistener_zookeeperexpires_total{SEL}"
                "[$__rate_interval]))"
            },
            "The service was frozen, starved of CPU, or cut off from etcd for longer than its session",
        ),
    ],
)

DASHBOARD = Dashboard(
    "tidelog-cluster",
    "tidelog / Cluster & ISR",
    "Whether every partition has a leader, is replicated and writable; leaders by broker, traffic, etcd.",
    [*OF_RELEASES, TOPIC],
    [_GLANCE, _ISR, _LEADERS, _TRAFFIC_ROW, _ETCD],
)
