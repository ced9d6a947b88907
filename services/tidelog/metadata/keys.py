"""Where things stand in the metadata store (DESIGN section 2): paths, and the parts read back from them."""

from __future__ import annotations

import re
from typing import Final

from tidelog.model.topics import TopicPartition

BROKER_IDS: Final = "/brokers/ids/"
TOPICS: Final = "/brokers/topics/"
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
ISR_CHANGE_NOTIFICATIONS: Final = "/isr_change_notification/isr_change_"
# Decimal; compared and set in the transaction that writes the notification of that number.
ISR_CHANGE_COUNTER: Final = "/isr_change_notification/counter"
TOPIC_CONFIGS: Final = "/config/topics/"
BROKER_CONFIGS: Final = "/config/brokers/"
CLIENT_QUOTAS: Final = "/config/client_quotas/"
# The name that stands for the cluster-wide default in a config key, as in Kafka's own store of old.
DEFAULT_ENTITY_NAME: Final = "<default>"
FEATURES: Final = "/features"
PRODUCER_ID_BLOCK: Final = "/latest_producer_id_block"
CLUSTER_ID: Final = "/cluster/id"
SCHEMA_VERSION: Final = "/tidelog/schema_version"
SETTLED_SUSPECTS: Final = "/tidelog/settled_suspects/"
# Everything: what the controller lists at its start and watches.
EVERYTHING: Final = "/"

_STATE_KEY = re.compile(r"/brokers/topics/([^/]+)/partitions/(\d+)/state")


def broker_id(number: int) -> str:
    return f"{BROKER_IDS}{number}"


def settled_suspect(number: int) -> str:
    return f"{SETTLED_SUSPECTS}{number}"


def topic(name: str) -> str:
    return f"{TOPICS}{name}"


def partition_state(topic_name: str, partition: int) -> str:
    return f"{TOPICS}{topic_name}/partitions/{partition}/state"


def topic_config(name: str) -> str:
    return f"{TOPIC_CONFIGS}{name}"


def broker_config(entity: str) -> str:
    """`entity` is a broker id in decimal, or "" for the cluster-wide default."""
    return f"{BROKER_CONFIGS}{entity or DEFAULT_ENTITY_NAME}"


def isr_change_notification(number: int) -> str:
    return f"{ISR_CHANGE_NOTIFICATIONS}{number:010d}"


def parse_partition_state(key: str) -> TopicPartition | None:
    """Returns the partition whose state `key` holds, or None if it is another kind of key."""
    match = _STATE_KEY.fullmatch(key)
    return TopicPartition(match[1], int(match[2])) if match else None
