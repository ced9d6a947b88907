"""Counters, and the metrics with the names that Kafka's dashboards query."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import urllib.request
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from clusterlab.all_metrics import broker_view, controller_view, full_metrics
from tidelog.broker.metrics import BrokerMetrics
from tidelog.controller.metrics import ControllerMetrics
from tidelog.kernel.clock import ManualClock
from tidelog.metrics.endpoint import new_registry
from tidelog.metrics.families import Collector
from tidelog.metrics.process_metrics import LoopWatch, ProcessMetrics
from tidelog.metrics.telemetry import (
    LatencyWindow,
    RequestMetrics,
    Telemetry,
    add_up,
    cumulative_counts,
    quantile_ms,
)
from tidelog.process.structured_log import configure_logging
from tidelog.settings.setting import SettingError


def samples(shown: Telemetry | Collector) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    if isinstance(shown, Telemetry):
        shown = BrokerMetrics(shown)
    collectors = shown.collectors if isinstance(shown, ProcessMetrics) else [shown]
    text = generate_latest(new_registry(collectors)).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(shown: Telemetry | Collector, name: str, **labels: str) -> float:
    return samples(shown)[name, frozenset(labels.items())]


def test_requests() -> None:
    telemetry = Telemetry(ManualClock())
    for _ in range(99):
        telemetry.request_metrics("Fetch", 16).observe(0.001, 10)
    telemetry.request_metrics("Fetch", 17).observe(0.5, 10)
    assert telemetry.request_metrics("Fetch", 17) is telemetry.request_metrics("Fetch", 17)
    prefix = "kafka_network_requestmetrics"
    for request in ("Fetch", "FetchConsumer"):
        assert value(telemetry, f"{prefix}_requests_total", request=request, version="16") == 99
        assert value(telemetry, f"{prefix}_totaltimems_count", request=request) == 100
        assert value(telemetry, f"{prefix}_totaltimems", request=request, quantile="0.5") == pytest.approx(
            1, rel=0.13
        )
        assert value(telemetry, f"{prefix}_totaltimems", request=request, quantile="0.999") == pytest.approx(
            500, rel=0.13
        )
    assert value(telemetry, "tidelog_request_duration_seconds_bucket", request="Fetch", le="0.01") == 99
    assert value(telemetry, "tidelog_request_duration_seconds_bucket", request="Fetch", le="+Inf") == 100


def test_traffic_of_each_topic_and_of_all_topics() -> None:
    telemetry = Telemetry(ManualClock())
    telemetry.topic("a").produced(3, 300)
    telemetry.topic("b").produced(4, 400)
    telemetry.fetched(50)
    telemetry.produce_failed("a", 6)
    telemetry.produce_failed(None, 100)
    telemetry.fetch_failed("b", 1)
    prefix = "kafka_server_brokertopicmetrics"
    assert value(telemetry, f"{prefix}_messagesin_total") == 7
    assert value(telemetry, f"{prefix}_bytesin_total", topic="a") == 300
    assert value(telemetry, f"{prefix}_bytesout_total") == 50
    assert value(telemetry, f"{prefix}_failedproducerequests_total") == 2
    assert value(telemetry, f"{prefix}_failedproducerequests_total", topic="a") == 1
    assert value(telemetry, f"{prefix}_failedfetchrequests_total", topic="b") == 1
    telemetry.forget_topic("a")
    telemetry.forget_topic("never-there")
    assert value(telemetry, f"{prefix}_bytesin_total") == 700
    assert (f"{prefix}_bytesin_total", frozenset({("topic", "a")})) not in samples(telemetry)


def test_connections() -> None:
    telemetry = Telemetry(ManualClock())
    telemetry.connection_opened("PLAINTEXT")
    telemetry.connection_opened("PLAINTEXT")
    telemetry.connection_closed("PLAINTEXT")
    labels = {"listener": "PLAINTEXT", "networkProcessor": "0"}
    assert value(telemetry, "kafka_server_socketservermetrics_connection_count", **labels) == 1
    assert value(telemetry, "kafka_server_socket_server_metrics_connection_count", **labels) == 1
    assert value(telemetry, "kafka_server_socketservermetrics_connection_creation_total", **labels) == 2


def test_partitions_and_purgatories() -> None:
    telemetry = BrokerMetrics(Telemetry(ManualClock()))
    telemetry.observe(broker_view())
    prefix = "kafka_server_replicamanager"
    assert value(telemetry, f"{prefix}_partitioncount") == 4
    assert value(telemetry, f"{prefix}_leadercount") == 3
    assert value(telemetry, f"{prefix}_underreplicatedpartitions") == 2
    assert value(telemetry, f"{prefix}_underminisrpartitioncount") == 1
    assert value(telemetry, f"{prefix}_atminisrpartitioncount") == 1
    assert value(telemetry, f"{prefix}_offlinereplicacount") == 7
    assert value(telemetry, "kafka_server_fetchsessioncache_numincrementalfetchsessions") == 3
    assert value(telemetry, "kafka_server_fetchsessioncache_numincrementalfetchpartitionscached") == 900
    assert value(telemetry, "kafka_cluster_partition_atminisr", topic="t", partition="2") == 1
    assert value(telemetry, "kafka_cluster_partition_atminisr", topic="t", partition="1") == 0
    assert value(telemetry, "kafka_log_log_size", topic="t", partition="1") == 1000
    assert value(telemetry, "kafka_log_log_logstartoffset", topic="u", partition="0") == 3
    assert value(telemetry, "kafka_log_log_logendoffset", topic="t", partition="1") == 10
    assert value(telemetry, "kafka_log_log_numlogsegments", topic="t", partition="1") == 2
    assert value(telemetry, "kafka_cluster_partition_laststableoffsetlag", topic="t", partition="1") == 2
    prefix = "kafka_server_replicafetchermanager"
    assert value(telemetry, f"{prefix}_maxlag", clientId="Replica") == 7
    assert value(telemetry, f"{prefix}_failedpartitionscount", clientId="Replica") == 1
    labels = {"clientId": "ReplicaFetcherThread-0-2", "topic": "u", "partition": "0"}
    assert value(telemetry, "kafka_server_fetcherlagmetrics_consumerlag", **labels) == 7
    prefix = "kafka_server_delayedoperationpurgatory"
    assert value(telemetry, f"{prefix}_numdelayedoperations", delayedOperation="Fetch") == 3
    assert value(telemetry, f"{prefix}_purgatorysize", delayedOperation="Fetch") == 2
    assert value(telemetry, f"{prefix}_purgatorysize", delayedOperation="Produce") == 0


def test_controller() -> None:
    telemetry = ControllerMetrics()
    assert value(telemetry, "kafka_controller_kafkacontroller_activecontrollercount") == 0
    controller = controller_view()
    controller.counts.leader_elections += 5
    telemetry.observe(controller)
    assert value(telemetry, "kafka_controller_kafkacontroller_activecontrollercount") == 1
    assert value(telemetry, "kafka_controller_kafkacontroller_offlinepartitionscount") == 1
    assert value(telemetry, "kafka_controller_kafkacontroller_globalpartitioncount") == 9
    assert value(telemetry, "kafka_controller_controllerstats_leaderelections_total") == 5


def test_endpoint() -> None:
    telemetry = ProcessMetrics("broker", 1)
    telemetry.register(BrokerMetrics(Telemetry(ManualClock())))
    port = telemetry.serve("127.0.0.1:0")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
            text = response.read().decode()
        assert "kafka_server_brokertopicmetrics_messagesin_total 0.0" in text
        assert "process_resident_memory_bytes" in text
        with pytest.raises(OSError, match=r"tidelog\.metrics\.listener"):
            ProcessMetrics("broker", 1).serve(f"127.0.0.1:{port}")
    finally:
        telemetry.close()


@pytest.mark.parametrize("address", ["", "9308", "host:", "host:x", "host:99999"])
def test_a_wrong_address_is_one_line(address: str) -> None:
    with pytest.raises(SettingError, match=r"^tidelog\.metrics\.listener: .* is not host:port$"):
        ProcessMetrics("broker", 1).serve(address)


@given(st.lists(st.floats(0, 10_000), min_size=1, max_size=200), st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_quantiles_are_within_an_eighth(durations_s: list[float], quantile: float) -> None:
    metrics = RequestMetrics(0)
    for duration_s in durations_s:
        metrics.observe(duration_s, 0)
    ordered = sorted(durations_s)
    rank = max(1, -(-len(ordered) * quantile // 1))
    exact_ms = ordered[int(rank) - 1] * 1000
    found_ms = quantile_ms(metrics.bucket_counts(), quantile)
    assert found_ms == pytest.approx(exact_ms, rel=0.13, abs=0.0011)
    assert cumulative_counts(metrics.bucket_counts(), [20_000.0]) == [len(durations_s)]


def test_the_window_drops_durations_older_than_two_minutes() -> None:
    window, metrics = LatencyWindow(), RequestMetrics(0)
    metrics.observe(10.0, 0)
    assert sum(window.recent(metrics.bucket_counts(), 0)) == 1
    assert sum(window.recent(metrics.bucket_counts(), 61_000)) == 1
    metrics.observe(0.001, 0)
    assert sum(window.recent(metrics.bucket_counts(), 122_000)) == 1
    assert quantile_ms(window.recent(metrics.bucket_counts(), 123_000), 0.5) == pytest.approx(1, rel=0.13)
    assert quantile_ms(add_up([(0, 0), (0, 0)]), 0.5) == 0


@pytest.fixture
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:], root.level = handlers, level


@pytest.mark.usefixtures("restored_logging")
def test_logs_are_json_lines_if_there_is_no_terminal() -> None:
    output = StringIO()
    log = structlog.get_logger("tidelog.test")
    configure_logging("auto", "info", output)
    log.info("segment rolled", topic="t", base_offset=7)
    log.debug("not shown")
    logging.getLogger("asyncio").warning("slow %s", "callback")
    first, second = (json.loads(line) for line in output.getvalue().splitlines())
    assert (first["event"], first["topic"], first["base_offset"], first["level"]) == (
        "segment rolled",
        "t",
        7,
        "info",
    )
    assert first["logger"] == "tidelog.test"
    assert (second["event"], second["logger"], second["level"]) == ("slow callback", "asyncio", "warning")


@pytest.mark.usefixtures("restored_logging")
def test_text_logs_are_key_value_pairs_without_local_variables() -> None:
    output = StringIO()
    configure_logging("text", "error", output)
    secret = "hunter" + "2"
    log = structlog.get_logger("tidelog.test")
    log.warning("not shown")
    try:
        raise KeyError(len(secret))
    except KeyError as error:
        log.error("it broke", partition=3, exc_info=error)
    text = output.getvalue()
    assert "it broke" in text
    assert "partition=3" in text
    assert "KeyError: 7" in text
    assert secret not in text
    assert "not shown" not in text


@pytest.mark.parametrize(("log_format", "level"), [("yaml", "info"), ("json", "loud")])
def test_unknown_log_options_are_refused(log_format: str, level: str) -> None:
    with pytest.raises(ValueError, match="unknown log"):
        configure_logging(log_format, level)


def test_waits_are_counted_apart_from_work() -> None:
    telemetry = full_metrics()
    prefix = "kafka_network_requestmetrics"
    assert value(telemetry, f"{prefix}_totaltimems_sum", request="Produce") == pytest.approx(4)
    assert value(telemetry, f"{prefix}_remotetimems_sum", request="Produce") == pytest.approx(3)
    assert value(telemetry, f"{prefix}_localtimems_sum", request="Produce") == pytest.approx(1)
    assert value(telemetry, f"{prefix}_remotetimems", request="Produce", quantile="0.99") == pytest.approx(
        3, rel=0.13
    )
    assert value(telemetry, "tidelog_request_wait_seconds_count", request="Produce") == 1
    labels = {"request": "Produce", "error": "NOT_LEADER_OR_FOLLOWER"}
    assert value(telemetry, f"{prefix}_errors_total", **labels) == 1


def test_partitions_as_kafka_exporter_shows_them() -> None:
    telemetry = full_metrics()
    prefix, labels = "kafka_topic_partition", {"topic": "t", "partition": "1"}
    assert value(telemetry, f"{prefix}_current_offset", **labels) == 9
    assert value(telemetry, f"{prefix}_oldest_offset", **labels) == 3
    assert value(telemetry, f"{prefix}_leader", **labels) == 1
    assert value(telemetry, f"{prefix}_leader_is_preferred", **labels) == 0
    assert value(telemetry, f"{prefix}_replicas", **labels) == 3
    assert value(telemetry, f"{prefix}_in_sync_replica", **labels) == 1
    assert value(telemetry, f"{prefix}_under_replicated_partition", **labels) == 1
    assert (f"{prefix}_leader", frozenset({("topic", "u"), ("partition", "0")})) not in samples(telemetry)
    assert value(telemetry, "kafka_topic_partitions", topic="u") == 6
    assert value(telemetry, "kafka_broker_info", id="1", address="one:9092", rack="a") == 1


def test_unfinished_requests_of_connections() -> None:
    telemetry = full_metrics()
    assert value(telemetry, "kafka_network_requestchannel_requestqueuesize") == 4
    assert value(telemetry, "kafka_network_requestchannel_responsequeuesize") == 1
    assert value(telemetry, "tidelog_connections_unsent_bytes") == 4096
    idle = "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent"
    assert value(telemetry, idle) == 0.75


def test_cleaning() -> None:
    telemetry = full_metrics()
    assert value(telemetry, "kafka_log_logcleanermanager_max_dirty_percent") == 25
    assert value(telemetry, "kafka_log_logcleanermanager_time_since_last_run_ms") == 10_000
    assert value(telemetry, "kafka_log_logcleaner_max_clean_time_secs") == 1.5
    assert value(telemetry, "kafka_log_logcleaner_cleaner_recopy_percent") == 40
    assert value(telemetry, "tidelog_log_cleaner_runs_total", outcome="done") == 1


def test_groups_and_transactions() -> None:
    telemetry = full_metrics()
    labels = {"consumergroup": "g", "topic": "t", "partition": "0"}
    assert value(telemetry, "tidelog_consumergroup_unread_expires_seconds", **labels) == 600
    unread = "tidelog_consumergroup_unread_expires_seconds"
    assert (unread, frozenset({**labels, "partition": "1"}.items())) not in samples(telemetry)
    assert value(telemetry, "tidelog_consumergroup_generation", consumergroup="h") == 7
    assert value(telemetry, "kafka_coordinator_group_groupmetadatamanager_numgroupsstable") == 1
    prefix = "kafka_server_group_coordinator_metrics"
    assert value(telemetry, f"{prefix}_consumer_group_count", state="reconciling") == 1
    assert value(telemetry, f"{prefix}_streams_group_count", state="not_ready") == 1
    assert value(telemetry, "tidelog_transactions_oldest_open_seconds") == 4
    assert value(telemetry, "tidelog_transactions_oldest_ending_seconds") == 0
    assert value(telemetry, "tidelog_transactions_ended_total", outcome="committed") == 8


def test_a_missing_data_directory_is_offline() -> None:
    telemetry = BrokerMetrics(Telemetry(ManualClock()))
    telemetry.observe(broker_view(data_path=Path("/nowhere/at/all")))
    assert value(telemetry, "kafka_log_logmanager_offlinelogdirectorycount") == 1
    assert ("tidelog_log_directory_free_bytes", frozenset()) not in samples(telemetry)


def test_a_process_shows_only_the_services_that_it_registers() -> None:
    metrics = ProcessMetrics("controller", 3)
    metrics.register(ControllerMetrics())
    names = {name for name, _ in samples(metrics)}
    assert not [name for name in names if name.startswith("kafka_server_brokertopicmetrics")]
    assert "kafka_controller_kafkacontroller_activecontrollercount" in names


def test_the_lag_of_a_blocked_event_loop() -> None:
    async def held_up() -> LoopWatch:
        watch = LoopWatch(asyncio.get_running_loop())
        await asyncio.sleep(0)
        time.sleep(0.25)  # noqa: ASYNC251 - that is what is measured
        await asyncio.sleep(0.01)
        assert 0 <= watch.idle_share() <= 1
        watch.close()
        return watch

    watch = asyncio.run(held_up())
    assert 0.1 < watch.max_lag_s < 5
    assert watch.lag.seconds == pytest.approx(watch.max_lag_s)
