"""What a broker's last life left about itself in `meta.properties`, and what follows from it.

DESIGN section 8, "Restart inside the session" and "Clean and unclean".
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from tidelog.broker.log.meta_properties import MetaProperties
from tidelog.model.topics import TopicPartition

BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")
_LEASE: Final = "tidelog.lease.id"
_BROKER_EPOCH: Final = "tidelog.broker.epoch"
_BOOT_ID: Final = "tidelog.boot.id"
_LOST_TAILS: Final = "tidelog.lost.tails"  # topic:partition, comma-separated; neither is in a topic's name
NO_LEASE: Final = 0
UNKNOWN_EPOCH: Final = -1
UNKNOWN_BOOT: Final = ""


class Life(NamedTuple):
    """`lease` as the metadata store numbers it; `boot_id` tells one run of the machine from the next, empty
    where the system has none. `lost_tails` were found at its start and not yet acted on by a controller.
    """

    lease: int = NO_LEASE
    broker_epoch: int = UNKNOWN_EPOCH
    boot_id: str = ""
    lost_tails: tuple[TopicPartition, ...] = ()


def life_of(meta: MetaProperties) -> Life:
    """What isn't there, or makes no sense, counts as unknown."""
    others = meta.others
    return Life(
        _number(others.get(_LEASE), NO_LEASE),
        _number(others.get(_BROKER_EPOCH), UNKNOWN_EPOCH),
        others.get(_BOOT_ID, ""),
        _partitions(others.get(_LOST_TAILS, "")),
    )


def with_life(meta: MetaProperties, life: Life) -> MetaProperties:
    others = dict(meta.others)
    others |= {_LEASE: str(life.lease), _BROKER_EPOCH: str(life.broker_epoch), _BOOT_ID: life.boot_id}
    others.pop(_LOST_TAILS, None)
    if life.lost_tails:
        others[_LOST_TAILS] = ",".join(f"{topic}:{partition}" for topic, partition in life.lost_tails)
    return MetaProperties(meta.cluster_id, meta.node_id, meta.directory_id, others)


def is_log_suspect(previous: Life, marker_epoch: int | None, boot_id: str) -> bool:
    """Whether ends of logs may be gone: the last life did not stop cleanly, and the machine went down since.

    `marker_epoch` is what the clean-shutdown marker names, None without one. A marker of another life than
    the last (a directory that was put back from a copy) proves nothing. After the death of the process alone
    the page cache still held everything.
    """
    if marker_epoch is not None and marker_epoch == previous.broker_epoch != UNKNOWN_EPOCH:
        return False
    return not boot_id or boot_id != previous.boot_id


def read_boot_id() -> str:
    """An empty text where the system doesn't tell."""
    try:
        return BOOT_ID_FILE.read_text().strip()
    except OSError:
        return ""


def _partitions(text: str) -> tuple[TopicPartition, ...]:
    pairs = (entry.rpartition(":") for entry in text.split(",") if entry)
    return tuple(TopicPartition(topic, int(number)) for topic, _, number in pairs if number.isdecimal())


def _number(text: str | None, otherwise: int) -> int:
    try:
        return otherwise if text is None else int(text)
    except ValueError:
        return otherwise
