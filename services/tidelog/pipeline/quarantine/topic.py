"""The quarantine topic, which is created without retention if it does not exist."""

from __future__ import annotations

from typing import Final

from tidelog.client.admin import create_topic
from tidelog.client.cluster import Cluster
from tidelog.client.configs import describe_topics_setting
from tidelog.model.errors import ErrorCode, KafkaError

CREATED_MAX_BYTES: Final = 32 << 20
"""The factor by which a record may grow in the quarantine topic, because it carries the reason."""
_CONFIGS: Final = {"retention.ms": "-1", "max.message.bytes": str(CREATED_MAX_BYTES)}
_MAX_BYTES: Final = "max.message.bytes"
_KAFKAS_DEFAULT: Final = 1_048_588


def ensure_quarantine_topic(cluster: Cluster, name: str) -> int:
    """Creates the topic if necessary and returns its maximum batch size in bytes. Raises KafkaError,
    ClientError.
    """
    if name not in cluster.topics([name]):
        try:
            create_topic(cluster, name, configs=_CONFIGS)
        except KafkaError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        cluster.topic(name)  # waits until the partitions have leaders
    return int(describe_topics_setting(cluster, [name], _MAX_BYTES).get(name) or _KAFKAS_DEFAULT)
