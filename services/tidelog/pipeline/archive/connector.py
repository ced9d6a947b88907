"""The options of Spark's Kafka connector for an archive, whether Spark or this process plans the batches."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.pipeline.archive.spec import STOP, ArchiveSpec


def connector_options(spec: ArchiveSpec) -> Mapping[str, str]:
    """Returns all options except the topics and offsets."""
    return {
        "kafka.bootstrap.servers": spec.bootstrap,
        "kafka.isolation.level": spec.isolation_level,
        "includeHeaders": "true",
        "failOnDataLoss": "true" if spec.on_data_loss == STOP else "false",
        **{f"kafka.{name}": value for name, value in spec.client_settings.items()},
    }
