"""The dashboard of brokers: times of requests, network, disks, compaction, the process."""

# ruff: noqa: E501 - expressions are read whole

from panels import Dashboard, Row, graph, heatmap, number, ranking
from variables import BROKER, OF_RELEASES

_OF = 'SEL,component="broker",broker=~"$broker"'
_NET = "kafka_network_requestmetrics"
_RATE = "[$__rate_interval]"


def _quantile(quantile: float, metric: str, request: str, by: str = "le") -> str:
    buckets = f'rate({metric}_bucket{{{_OF},request="{request}"}}{_RATE})'
    return f"histogram_quantile({quantile}, sum by ({by}) ({buckets}))"


def _mean_ms(part: str, request: str) -> str:
    """Returns the mean time of one kind over all requests, including requests that spent none of it."""
    spent = f'sum(rate({_NET}_{part}_sum{{{_OF},request="{request}"}}{_RATE}))'
    return f'{spent} / sum(rate({_NET}_totaltimems_count{{{_OF},request="{request}"}}{_RATE}))'


_GLANCE = Row(
    "At a glance",
    [
        number(
            "State",
            f"max(kafka_server_kafkaserver_brokerstate{{{_OF}}})",
            "Largest state of the selected brokers; 3 is running",
            mappings={
                "1": "starting",
                "2": "recovering",
                "3": "running",
                "6": "moving leaders",
                "7": "stopping",
            },
        ),
        number(
            "Youngest process",
            f"min(time() - process_start_time_seconds{{{_OF}}})",
            "Time since the last start of any selected broker",
            unit="s",
        ),
        number(
            "Busiest event loop",
            f"max(rate(tidelog_event_loop_busy_seconds_total{{{_OF}}}{_RATE}))",
            "Share of one core. Near 1, the broker is at its limit: add brokers or spread leaders",
            unit="percentunit",
            warn_from=0.7,
            bad_from=0.9,
        ),
        number(
            "Requests",
            f'sum(rate({_NET}_requests_total{{{_OF},request!~"FetchConsumer|FetchFollower"}}{_RATE}))',
            "Per second",
            unit="reqps",
        ),
        number(
            "Partitions refused",
            f"sum(rate({_NET}_errors_total{{{_OF}}}{_RATE})) or vector(0)",
            "Partitions of produce and fetch requests that were refused, per second",
            unit="ops",
            warn_from=1,
        ),
        number("Connections", f"sum(kafka_server_socketservermetrics_connection_count{{{_OF}}})", "Open"),
        number(
            "Memory",
            f"max(process_resident_memory_bytes{{{_OF}}})",
            "Largest process; the page cache is not included",
            unit="bytes",
        ),
        number(
            "Least free disk",
            f"min(tidelog_log_directory_free_bytes{{{_OF}}} / tidelog_log_directory_size_bytes{{{_OF}}})",
            "Free share of the fullest volume",
            unit="percentunit",
            good_from=0.15,
        ),
    ],
)

_LATENCY = Row(
    "Latency",
    [
        graph(
            "Produce",
            {
                "p50": _quantile(0.5, "tidelog_request_duration_seconds", "Produce"),
                "p95": _quantile(0.95, "tidelog_request_duration_seconds", "Produce"),
                "p99": _quantile(0.99, "tidelog_request_duration_seconds", "Produce"),
            },
            "Time from a request's arrival to its response",
            unit="s",
        ),
        graph(
            "Fetch",
            {
                "p50": _quantile(0.5, "tidelog_request_duration_seconds", "Fetch"),
                "p99": _quantile(0.99, "tidelog_request_duration_seconds", "Fetch"),
            },
            "Includes the time that the fetch waits for new records, at most fetch.max.wait.ms",
            unit="s",
        ),
        heatmap(
            "Produce, distribution",
            f'sum by (le) (increase(tidelog_request_duration_seconds_bucket{{{_OF},request="Produce"}}{_RATE}))',
            "Two bands show that only some leaders wait for a slow follower",
        ),
        graph(
            "Where a produce spends its time, on average",
            {
                "here (append, answer)": _mean_ms("localtimems", "Produce"),
                "waiting for followers": _mean_ms("remotetimems", "Produce"),
            },
            "With acks=all, most of the time is spent waiting for the ISR",
            unit="ms",
            stacked=True,
        ),
        graph(
            "Where a fetch spends its time, on average",
            {
                "here": _mean_ms("localtimems", "Fetch"),
                "waiting for records": _mean_ms("remotetimems", "Fetch"),
            },
            "Waiting is no work: it is how a consumer is told at once",
            unit="ms",
            stacked=True,
        ),
        graph(
            "Remote time, p99",
            {
                "{{request}}": "histogram_quantile(0.99, sum by (le, request) "
                f'(rate(tidelog_request_wait_seconds_bucket{{{_OF},request!="Fetch"}}{_RATE})))'
            },
            "Time spent waiting for followers, the controller or a coordinator",
            unit="s",
        ),
        graph(
            "Lag of the event loop",
            {
                "broker {{broker}} p99": "histogram_quantile(0.99, sum by (le, broker) "
                f"(rate(tidelog_event_loop_lag_seconds_bucket{{{_OF}}}{_RATE})))",
                "broker {{broker}} most": f"max by (broker) (tidelog_event_loop_lag_max_seconds{{{_OF}}})",
            },
            "Longest time that a request waits until the event loop processes it",
            unit="s",
        ),
        graph(
            "Busy",
            {
                "broker {{broker}}": f"sum by (broker) (rate(tidelog_event_loop_busy_seconds_total{{{_OF}}}{_RATE}))"
            },
            "CPU of the event loop's thread, as a share of one core",
            unit="percentunit",
        ),
        graph(
            "Waiting requests",
            {
                "{{delayedOperation}}": "sum by (delayedOperation) "
                f"(kafka_server_delayedoperationpurgatory_numdelayedoperations{{{_OF}}})"
            },
            "Produces that wait for followers, fetches that wait for records",
        ),
        graph(
            "Expired requests",
            {
                "{{delayedOperation}}": "sum by (delayedOperation) "
                f"(rate(kafka_server_delayedoperationpurgatory_expires_total{{{_OF}}}{_RATE}))"
            },
            "An expired fetch found no new records; an expired produce was not acknowledged",
            unit="ops",
        ),
        ranking(
            "Requests by API",
            f"topk(12, sum by (request) (rate({_NET}_requests_total{{{_OF}}}{_RATE})))",
            "{{request}}",
            "Per second. FetchConsumer and FetchFollower are parts of Fetch",
            unit="reqps",
        ),
        graph(
            "Refused",
            {"{{request}} {{error}}": f"sum by (request, error) (rate({_NET}_errors_total{{{_OF}}}{_RATE}))"},
            "Partitions of requests, by Kafka's name of the error. A few NOT_LEADER_OR_FOLLOWER follow every election",
            unit="ops",
        ),
    ],
)

_NETWORK = Row(
    "Network",
    [
        graph(
            "Bytes",
            {
                "{{broker}} in": "sum by (broker) (rate(kafka_server_brokertopicmetrics_bytesin_total{"
                + _OF
                + ',topic=""}'
                + _RATE
                + "))",
                "{{broker}} out": "sum by (broker) (rate(kafka_server_brokertopicmetrics_bytesout_total{"
                + _OF
                + ',topic=""}'
                + _RATE
                + "))",
                "{{broker}} to followers": f"sum by (broker) (rate(kafka_server_brokertopicmetrics_replicationbytesout_total{{{_OF}}}{_RATE}))",
            },
            "Bytes of batches, of clients and followers",
            unit="Bps",
        ),
        graph(
            "Connections",
            {
                "{{broker}} {{listener}}": f"sum by (broker, listener) (kafka_server_socketservermetrics_connection_count{{{_OF}}})"
            },
            "Open connections by listener",
        ),
        graph(
            "Connections opened and closed",
            {
                "opened": f"sum(rate(kafka_server_socketservermetrics_connection_creation_total{{{_OF}}}{_RATE}))",
                "closed": f"sum(rate(kafka_server_socketservermetrics_connection_close_total{{{_OF}}}{_RATE}))",
            },
            "Per second. Many indicate clients that connect for each request",
            unit="ops",
        ),
        graph(
            "Logins",
            {
                "{{broker}} {{listener}} failed": f"sum by (broker, listener) (rate(kafka_server_socketservermetrics_failed_authentication_total{{{_OF}}}{_RATE}))",
                "{{broker}} {{listener}} succeeded": f"sum by (broker, listener) (rate(kafka_server_socketservermetrics_successful_authentication_total{{{_OF}}}{_RATE}))",
            },
            "Per second, by SASL or a client certificate. The audit log names the users",
            unit="ops",
        ),
        graph(
            "Denied accesses",
            {
                "{{operation}} {{resource_type}}": f"sum by (operation, resource_type) (rate(tidelog_denied_accesses_total{{{_OF}}}{_RATE}))"
            },
            "Per second. The audit log names the users and resources",
            unit="ops",
        ),
        graph(
            "Requests in progress",
            {
                "broker {{broker}}": f"sum by (broker) (kafka_network_requestchannel_requestqueuesize{{{_OF}}})"
            },
            "Requests without a response yet, including waiting ones",
        ),
        graph(
            "Unsent responses",
            {"broker {{broker}}": f"sum by (broker) (tidelog_connections_unsent_bytes{{{_OF}}})"},
            "Bytes that clients have not received yet, because of slow clients or a slow network",
            unit="bytes",
        ),
        graph(
            "Slow clients",
            {
                "{{broker}} with answers not taken": f"sum by (broker) (kafka_network_requestchannel_responsequeuesize{{{_OF}}})",
                "{{broker}} held back": f"sum by (broker) (tidelog_connections_held_back{{{_OF}}})",
            },
            "Connections. A connection that is held back is not read until the client receives its responses",
        ),
        graph(
            "Throttled clients",
            {
                "{{broker}} {{quota}}": f"sum by (broker, quota) (rate(tidelog_client_quota_throttle_seconds_total{{{_OF}}}{_RATE}))"
            },
            "Seconds per second for which clients above a quota wait, over all clients",
            unit="s",
        ),
        graph(
            "Use of quotas",
            {
                "{{quota}} {{user}} {{client_id}}": f"max by (quota, user, client_id) (tidelog_client_quota_rate{{{_OF}}} / tidelog_client_quota_limit{{{_OF}}})"
            },
            "Share of its limit that a user or client id uses, on the broker where it uses most",
            unit="percentunit",
        ),
        graph(
            "Fetch sessions",
            {
                "{{broker}} sessions": f"sum by (broker) (kafka_server_fetchsessioncache_numincrementalfetchsessions{{{_OF}}})",
                "{{broker}} pushed out": "sum by (broker) "
                f"(rate(kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total{{{_OF}}}{_RATE}))",
            },
            "Repeated evictions show that max.incremental.fetch.session.cache.slots is too small",
        ),
        graph(
            "Producer ids",
            {"broker {{broker}}": f"sum by (broker) (kafka_server_replicamanager_produceridcount{{{_OF}}})"},
            "Ids of idempotent producers over all replicas. Many indicate clients that restart frequently",
        ),
    ],
)

_DISKS = Row(
    "Disks",
    [
        graph(
            "Free",
            {"broker {{broker}}": f"min by (broker) (tidelog_log_directory_free_bytes{{{_OF}}})"},
            "Volume of the data directory",
            unit="bytes",
        ),
        graph(
            "Logs",
            {"broker {{broker}}": f"sum by (broker) (kafka_log_log_size{{{_OF}}})"},
            "Bytes of segments",
            unit="bytes",
            stacked=True,
        ),
        ranking(
            "Largest topics",
            f"topk(10, sum by (topic) (kafka_log_log_size{{{_OF}}}))",
            "{{topic}}",
            "Sum over all replicas",
            unit="bytes",
        ),
        graph(
            "Segments",
            {"broker {{broker}}": f"sum by (broker) (kafka_log_log_numlogsegments{{{_OF}}})"},
            "Many small segments cost files and memory",
        ),
        graph(
            "Flushes",
            {
                "broker {{broker}} p99": "max by (broker) "
                f'(kafka_log_logflushstats_logflushrateandtimems{{{_OF},quantile="0.99"}})'
            },
            "Duration of fsyncs. By default the operating system writes the page cache, as with Kafka, so there are few",
            unit="ms",
        ),
        graph(
            "Data directories that failed",
            {
                "broker {{broker}}": f"sum by (broker) (kafka_log_logmanager_offlinelogdirectorycount{{{_OF}}})"
            },
            "1 if the directory cannot be read or written",
        ),
    ],
)

_CLEANER = Row(
    "Compaction",
    [
        graph(
            "Cleanings",
            {
                "{{broker}} {{outcome}}": f"sum by (broker, outcome) (rate(tidelog_log_cleaner_runs_total{{{_OF}}}{_RATE}))"
            },
            "Per second",
            unit="ops",
        ),
        graph(
            "Read and kept",
            {
                "{{broker}} read": f"sum by (broker) (rate(tidelog_log_cleaner_bytes_read_total{{{_OF}}}{_RATE}))",
                "{{broker}} kept": f"sum by (broker) (rate(tidelog_log_cleaner_bytes_kept_total{{{_OF}}}{_RATE}))",
            },
            "If everything is kept, there is nothing to compact, and the cleaner works in vain",
            unit="Bps",
        ),
        graph(
            "Dirtiest log",
            {
                "broker {{broker}}": f"max by (broker) (kafka_log_logcleanermanager_max_dirty_percent{{{_OF}}})"
            },
            "Share of the log that has not been cleaned",
            unit="percent",
        ),
        graph(
            "Longest cleaning",
            {"broker {{broker}}": f"max by (broker) (kafka_log_logcleaner_max_clean_time_secs{{{_OF}}})"},
            "Longest of the last cleanings",
            unit="s",
        ),
        graph(
            "Since the last cleaning",
            {
                "broker {{broker}}": f"max by (broker) (kafka_log_logcleanermanager_time_since_last_run_ms{{{_OF}}})"
            },
            "Time; 0 before the first cleaning",
            unit="ms",
        ),
        graph(
            "Uncleanable logs",
            {
                "broker {{broker}}": f"sum by (broker) (kafka_log_logcleanermanager_uncleanable_partitions_count{{{_OF}}})"
            },
            "Logs whose last cleaning failed; the broker's log gives the reason",
        ),
    ],
)

_PROCESS = Row(
    "Process",
    [
        graph(
            "CPU",
            {"broker {{broker}}": f"sum by (broker) (rate(process_cpu_seconds_total{{{_OF}}}{_RATE}))"},
            "Cores used by all threads",
        ),
        graph(
            "Memory",
            {"broker {{broker}}": f"sum by (broker) (process_resident_memory_bytes{{{_OF}}})"},
            "Resident",
            unit="bytes",
        ),
        graph(
            "Memory relative to the limit",
            {
                "broker {{broker}}": f"max by (broker) (tidelog_container_memory_used_bytes{{{_OF}}} / tidelog_container_memory_limit_bytes{{{_OF}}})"
            },
            "Of the container, without page cache. At 1, the kernel ends the process. Empty without a limit",
            unit="percentunit",
        ),
        graph(
            "Open files",
            {"broker {{broker}}": f"max by (broker) (process_open_fds{{{_OF}}} / process_max_fds{{{_OF}}})"},
            "Share of the limit; segments and connections are open files",
            unit="percentunit",
        ),
    ],
)

DASHBOARD = Dashboard(
    "tidelog-broker",
    "tidelog / Broker",
    "Where a request's time is spent, network, disks, compaction, and the process.",
    [*OF_RELEASES, BROKER],
    [_GLANCE, _LATENCY, _NETWORK, _DISKS, _CLEANER, _PROCESS],
)
