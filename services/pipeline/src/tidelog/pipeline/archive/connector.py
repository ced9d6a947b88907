"""What the archive asks of Spark's Kafka connector, whether Spark plans the batches or we do."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.pipeline.archive.spec import STOP, ArchiveSpec


def connector_options(spec: ArchiveSpec) -> Mapping[str, str]:
    """All but which topics and offsets."""
    return {
        "kafka.bootstrap.servers": spec.bootstrap,
        "kafka.isolation.level": spec.isolation_level,
        "includeHeaders": "true",
        "failOnDataLoss": "true" if spec.on_data_loss == STOP else "false",
        **{f"kafka.{name}": value for name, value in spec.client_settings.items()},
    }
