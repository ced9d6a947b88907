"""The metrics of one hour of an invented cluster, so that the correct results of an analysis are known.

Brokers 1 to 3 are scraped every 15 s. Broker 2 is away from minute 20 to 25. The load of `flights` is even;
all records of `hot` are in partition 0, on brokers 1 and 2. Producers write 100 records a second to
flights-0. Three groups read it: `slow` reads 60 a second, `catching-up` 110, `asleep` none. Producers write
as much to flights-1, whose log start advances by 90 a second; the group `behind` reads 80 a second of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tidelog.pipeline.analytics.facts import Sample

INTERVAL_MS = 15_000
SAMPLES = 241
LENGTH_MS = (SAMPLES - 1) * INTERVAL_MS
AWAY_FROM_S, AWAY_UNTIL_S = 1200, 1500
"""The seconds [from, until) in which broker 2 answers no scrape. Its partitions have new leaders at once. Its
replicas are out of sync from the first scrape in this time until the scrape 30 s after it is back.
"""
BACK_IN_SYNC_S = AWAY_UNTIL_S + 30
FLIGHTS, HOT = "flights", "hot"
RATE = 100.0
BYTES_PER_RECORD = 100.0
REPLICAS = {
    (FLIGHTS, 0): (1, 2, 3),
    (FLIGHTS, 1): (2, 3, 1),
    (FLIGHTS, 2): (3, 1, 2),
    (HOT, 0): (1, 2),
    (HOT, 1): (1, 2),
    (HOT, 2): (1, 2),
    (HOT, 3): (1, 3),
}
HOT_RATE = 1000.0
READ_PER_S = {"slow": 60.0, "catching-up": 110.0, "asleep": 0.0}
SLOW_EXPIRES_S, SLOW_EXPIRES_PER_S = 7200.0, -0.5
CATCHING_UP_LAG = 40_000.0
"""The lag at the beginning. 4,000 records remain after the hour, which takes 400 s to read."""
BEHIND_START_MARGIN = 100_000.0


def samples(began_ms: int) -> Iterator[Sample]:
    """Yields the samples in the order of scrapes, with the labels that Prometheus would add."""
    for index in range(SAMPLES):
        second = index * INTERVAL_MS // 1000
        at_ms = began_ms + index * INTERVAL_MS
        for broker in (1, 2, 3):
            if broker == 2 and AWAY_FROM_S <= second < AWAY_UNTIL_S:
                continue
            own = {"instance": f"broker-{broker}:9404", "job": "tidelog"}
            for name, labels, value in _broker_page(broker, second):
                yield Sample(name, {**labels, **own}, at_ms, value)
        coordinator = {"instance": "coordinator-1:9404", "job": "tidelog"}
        for name, labels, value in _coordinator_page(second):
            yield Sample(name, {**labels, **coordinator}, at_ms, value)


Line = tuple[str, dict[str, str], float]


def leader_of(topic: str, partition: int, second: int) -> int:
    replicas = REPLICAS[topic, partition]
    if replicas[0] == 2 and AWAY_FROM_S <= second < BACK_IN_SYNC_S:
        return replicas[1]
    return replicas[0]


def end_of(topic: str, partition: int, second: int) -> float:
    if topic == FLIGHTS:
        return 1_000_000 + RATE * second
    return 1_000_000 + HOT_RATE * second if partition == 0 else 1000.0


def start_of(topic: str, partition: int, second: int) -> float:
    """Returns the log start. That of flights-1 advances by whole segments, one a minute."""
    return 90.0 * (second // 60 * 60) if (topic, partition) == (FLIGHTS, 1) else 0.0


def _broker_page(broker: int, second: int) -> Iterator[Line]:
    yield "tidelog_build_info", {"node_id": str(broker), "service": "broker", "version": "0"}, 1
    held = [key for key, replicas in REPLICAS.items() if broker in replicas]
    yield "kafka_server_replicamanager_partitioncount", {}, len(held)
    has_shrunk = second >= AWAY_FROM_S and broker != 2
    yield "kafka_server_replicamanager_isrshrinks_total", {}, 3.0 if has_shrunk else 0.0
    yield "tidelog_log_directory_size_bytes", {}, 1e12
    # Broker 1's disk will be full 10,000 s after the hour.
    yield "tidelog_log_directory_free_bytes", {}, 5e11 - (second * 3.67647e7 if broker == 1 else 0.0)
    for topic, partition in held:
        place = {"topic": topic, "partition": str(partition)}
        end = end_of(topic, partition, second)
        start = start_of(topic, partition, second)
        yield "kafka_log_log_size", place, (end - start) * BYTES_PER_RECORD
        if leader_of(topic, partition, second) != broker:
            continue
        replicas = REPLICAS[topic, partition]
        is_short = 2 in replicas and AWAY_FROM_S <= second < BACK_IN_SYNC_S
        yield "kafka_topic_partition_in_sync_replica", place, len(replicas) - is_short
        yield "kafka_topic_partition_replicas", place, len(replicas)
        yield "kafka_topic_partition_leader", place, broker
        yield "kafka_topic_partition_leader_is_preferred", place, float(broker == replicas[0])
        yield "kafka_cluster_partition_underminisr", place, float(is_short and topic == HOT)
        yield "kafka_topic_partition_current_offset", place, end
        yield "kafka_topic_partition_oldest_offset", place, start


def _coordinator_page(second: int) -> Iterator[Line]:
    yield "tidelog_build_info", {"node_id": "1", "service": "group-coordinator", "version": "0"}, 1
    for broker in (1, 2, 3):
        if broker != 2 or not AWAY_FROM_S <= second < AWAY_UNTIL_S:
            yield (
                "kafka_broker_info",
                {"id": str(broker), "address": f"b{broker}:9092", "rack": f"r{broker}"},
                1,
            )
    end = end_of(FLIGHTS, 0, second)
    begin = end_of(FLIGHTS, 0, 0)
    for group, per_s in READ_PER_S.items():
        place = {"consumergroup": group, "topic": FLIGHTS, "partition": "0"}
        committed = begin - (CATCHING_UP_LAG if group == "catching-up" else 0.0) + per_s * second
        yield "kafka_consumergroup_lag", place, end - committed
        yield "kafka_consumergroup_current_offset", place, committed
        if group == "slow":
            yield (
                "tidelog_consumergroup_unread_expires_seconds",
                place,
                SLOW_EXPIRES_S + SLOW_EXPIRES_PER_S * second,
            )
    place = {"consumergroup": "behind", "topic": FLIGHTS, "partition": "1"}
    committed = BEHIND_START_MARGIN + 80.0 * second
    yield "kafka_consumergroup_lag", place, end_of(FLIGHTS, 1, second) - committed
    yield "kafka_consumergroup_current_offset", place, committed


def open_metrics(told: Iterable[Sample]) -> str:
    """Returns the input of `promtool tsdb create-blocks-from openmetrics`, by metric, then by series."""
    lines: dict[str, list[tuple[str, int, float]]] = {}
    for sample in told:
        lines.setdefault(sample.metric, []).append((_label_text(sample.labels), sample.at_ms, sample.value))
    parts = []
    for metric, rows in lines.items():
        parts.append(f"# TYPE {metric} unknown")
        parts += [f"{metric}{labels} {value!r} {at_ms / 1000:.3f}" for labels, at_ms, value in sorted(rows)]
    return "\n".join([*parts, "# EOF", ""])


def _label_text(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value}"' for name, value in sorted(labels.items())) + "}"
