"""Compares the replicas' logs byte by byte as files, because a follower appends fetched bytes unchanged."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from brokerlab.batches import read_batches


class LogFacts(NamedTuple):
    """Without records, `log_end_offset` is 0 and the hash is that of no bytes."""

    log_end_offset: int
    size_bytes: int
    sha256: str


def log_bytes(log_dir: Path, topic: str, partition: int) -> bytes:
    """Returns all segments concatenated. The boundaries of segments may differ between replicas, but not
    their contents.
    """
    directory = log_dir / f"{topic}-{partition}"
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def log_facts(log_dir: Path, topic: str, partition: int) -> LogFacts:
    data = log_bytes(log_dir, topic, partition)
    last = None
    whole = 0
    for last in read_batches(data):
        whole += last.size_bytes
    return LogFacts(last.last_offset + 1 if last else 0, whole, hashlib.sha256(data[:whole]).hexdigest())


def disagreements(
    log_dirs: Mapping[int, Path], topic: str, replicas: Mapping[int, tuple[int, ...]]
) -> list[str]:
    """Returns the partitions whose replicas' logs differ. `replicas` maps a partition to broker ids."""
    found = []
    for partition, broker_ids in replicas.items():
        facts = {broker_id: log_facts(log_dirs[broker_id], topic, partition) for broker_id in broker_ids}
        if len(set(facts.values())) > 1:
            shown = {b: f"end {f.log_end_offset}, {f.size_bytes} B, {f.sha256[:8]}" for b, f in facts.items()}
            found.append(f"{topic}-{partition}: {shown}")
    return found
