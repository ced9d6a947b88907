"""The dashboard of one process: `tidelog dev`, which Prometheus scrapes without further labels."""

from panels import Column, Dashboard, Row, graph, number, table
from variables import GROUP, INSTANCE, TOPIC

_RATE = "[$__rate_interval]"
_TRAFFIC = "kafka_server_brokertopicmetrics"
_NET = "kafka_network_requestmetrics"
_TOPICS = 'DEV,topic!="",topic=~"$topic"'
_PARTITIONS = 'DEV,topic=~"$topic"'
_GROUPS = 'DEV,consumergroup=~"$group",topic=~"$topic"'
_LAG = f"kafka_consumergroup_lag{{{_GROUPS}}}"
_UNCOMMITTED = f"(tidelog_consumergroup_read_uncommitted_lag{{{_GROUPS}}} or {_LAG})"


def _quantile(quantile: float, request: str) -> str:
    buckets = f'rate(tidelog_request_duration_seconds_bucket{{DEV,request="{request}"}}{_RATE})'
    return f"histogram_quantile({quantile}, sum by (le) ({buckets}))"


_GLANCE = Row(
    "At a glance",
    [
        number("Topics", "sum(kafka_controller_kafkacontroller_globaltopiccount{DEV})", "Topics"),
        number(
            "Offline partitions",
            "sum(kafka_controller_kafkacontroller_offlinepartitionscount{DEV})",
            "Partitions that can be neither written nor read",
            bad_from=1,
        ),
        number(
            "Records written",
            f'sum(rate({_TRAFFIC}_messagesin_total{{DEV,topic=""}}{_RATE}))',
            "Per second",
            unit="wps",
        ),
        number(
            "Unread records",
            f"sum({_LAG})",
            "Records that the selected groups have not read, over all topics",
        ),
        number(
            "Partitions refused",
            f"sum(rate({_NET}_errors_total{{DEV}}{_RATE})) or vector(0)",
            "Partitions of produce and fetch requests that were refused, per second",
            unit="ops",
            warn_from=1,
        ),
        number(
            "Busy event loop",
            f"max(rate(tidelog_event_loop_busy_seconds_total{{DEV}}{_RATE}))",
            "Share of one core",
            unit="percentunit",
            warn_from=0.7,
            bad_from=0.9,
        ),
        number("Memory", "max(process_resident_memory_bytes{DEV})", "Resident", unit="bytes"),
        number("Logs", "sum(kafka_log_log_size{DEV})", "Bytes of segments", unit="bytes"),
    ],
)

_TOPICS_ROW = Row(
    "Topics",
    [
        graph(
            "Written",
            {"{{topic}}": f"sum by (topic) (rate({_TRAFFIC}_messagesin_total{{{_TOPICS}}}{_RATE}))"},
            "Records per second",
            unit="wps",
        ),
        graph(
            "Bytes written",
            {"{{topic}}": f"sum by (topic) (rate({_TRAFFIC}_bytesin_total{{{_TOPICS}}}{_RATE}))"},
            "Bytes of batches per second",
            unit="Bps",
        ),
        graph(
            "Bytes read",
            {"{{topic}}": f"sum by (topic) (rate({_TRAFFIC}_bytesout_total{{{_TOPICS}}}{_RATE}))"},
            "Bytes of batches per second, sent to consumers",
            unit="Bps",
        ),
        table(
            "All topics",
            {
                "Offsets": f"sum by (topic) (kafka_topic_partition_current_offset{{{_PARTITIONS}}}"
                f" - kafka_topic_partition_oldest_offset{{{_PARTITIONS}}})",
                "Bytes": f"sum by (topic) (kafka_log_log_size{{{_PARTITIONS}}})",
                "Partitions": f"sum by (topic) (kafka_topic_partitions{{{_PARTITIONS}}})",
            },
            "Offsets between the first and the high watermark, and bytes of segments",
            {"Offsets": Column(), "Bytes": Column("bytes"), "Partitions": Column()},
            width=24,
        ),
    ],
)

_READERS = Row(
    "Groups",
    [
        graph(
            "Lag in records",
            {"{{consumergroup}} {{topic}}": f"sum by (consumergroup, topic) ({_LAG})"},
            "Records that read_committed consumers have not read",
        ),
        graph(
            "Lag in records, read_uncommitted",
            {"{{consumergroup}} {{topic}}": f"sum by (consumergroup, topic) ({_UNCOMMITTED})"},
            "Records up to the high watermark, also of open transactions",
        ),
        graph(
            "Lag in time",
            {
                "{{consumergroup}} {{topic}}": "max by (consumergroup, topic) "
                f"(kafka_consumergroup_lag_seconds{{{_GROUPS}}})"
            },
            "Age of the oldest unread record",
            unit="s",
        ),
    ],
)

_REQUESTS = Row(
    "Requests",
    [
        graph(
            "Requests by API",
            {"{{request}}": f"sum by (request) (rate({_NET}_requests_total{{DEV}}{_RATE}))"},
            "Per second. FetchConsumer and FetchFollower are parts of Fetch",
            unit="reqps",
        ),
        graph(
            "Latency",
            {
                "produce p50": _quantile(0.5, "Produce"),
                "produce p99": _quantile(0.99, "Produce"),
                "fetch p50": _quantile(0.5, "Fetch"),
            },
            "A fetch waits for new records, at most fetch.max.wait.ms",
            unit="s",
        ),
        graph(
            "Refused",
            {"{{request}} {{error}}": f"sum by (request, error) (rate({_NET}_errors_total{{DEV}}{_RATE}))"},
            "Partitions of requests, by Kafka's name of the error",
            unit="ops",
        ),
    ],
)

DASHBOARD = Dashboard(
    "tidelog-dev",
    "tidelog / Dev",
    "One process of `tidelog dev`: topics, groups and requests.",
    [INSTANCE, TOPIC, GROUP],
    [_GLANCE, _TOPICS_ROW, _READERS, _REQUESTS],
    selector="DEV",
)
