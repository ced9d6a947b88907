"""Logs and partitions as Prometheus samples: under the JMX exporter's names and under kafka_exporter's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidelog.runtime.sample_families import Families


def is_under_replicated(core: Any) -> bool:
    return len(core.in_sync_replicas) < len(core.replicas)


def in_sync_above_least(core: Any) -> int:
    """How many may leave the ISR before acks=all is refused; below 0 it is."""
    least = min(core.min_in_sync_replicas, len(core.replicas))
    return int(len(core.in_sync_replicas) - least)


def add_log(families: Families, log: Any, labels: dict[str, str]) -> None:
    families.gauge("kafka_log_log_size", "Bytes of segments", log.size_bytes, **labels)
    families.gauge("kafka_log_log_logstartoffset", "First offset", log.log_start_offset, **labels)
    families.gauge("kafka_log_log_logendoffset", "Offset of the next record", log.log_end_offset, **labels)
    families.gauge("kafka_log_log_numlogsegments", "Segments", len(log.segments), **labels)


def add_partition(families: Families, leader: int, core: Any, labels: dict[str, str]) -> None:
    """One that this broker, `leader`, leads."""
    replicas, in_sync = core.replicas, len(core.in_sync_replicas)
    under_replicated, above_least = int(is_under_replicated(core)), in_sync_above_least(core)
    prefix = "kafka_cluster_partition"
    families.gauge(f"{prefix}_replicascount", "Replicas assigned", len(replicas), **labels)
    families.gauge(f"{prefix}_insyncreplicascount", "Replicas in the ISR", in_sync, **labels)
    families.gauge(f"{prefix}_underreplicated", "1 if one is outside the ISR", under_replicated, **labels)
    families.gauge(f"{prefix}_underminisr", "1 if acks=all is refused", int(above_least < 0), **labels)
    doc = "1 if one less in sync would refuse acks=all"
    families.gauge(f"{prefix}_atminisr", doc, int(above_least == 0), **labels)
    lag = core.high_watermark - core.last_stable_offset
    families.gauge(f"{prefix}_laststableoffsetlag", "Records of open transactions", lag, **labels)
    prefix = "kafka_topic_partition"
    families.gauge(f"{prefix}_current_offset", "High watermark", core.high_watermark, **labels)
    families.gauge(f"{prefix}_oldest_offset", "First offset", core.log_start_offset, **labels)
    families.gauge(f"{prefix}_leader", "Who leads it", leader, **labels)
    preferred = int(bool(replicas) and replicas[0] == leader)
    families.gauge(f"{prefix}_leader_is_preferred", "1 if its first replica leads", preferred, **labels)
    families.gauge(f"{prefix}_replicas", "Replicas assigned", len(replicas), **labels)
    families.gauge(f"{prefix}_in_sync_replica", "Replicas in the ISR", in_sync, **labels)
    doc = "1 if one is outside the ISR"
    families.gauge(f"{prefix}_under_replicated_partition", doc, under_replicated, **labels)
