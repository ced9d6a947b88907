"""Chooses which of several brokers' directories of one partition to read. The module does no I/O.

Below a high watermark, all replicas are equal, except after an unclean election. Then the replica with the
newest leader epoch defines where an older epoch ended (KIP-101), and anything beyond that in another replica
was lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from tidelog.broker.partition.leader_epochs import EpochEntry, LeaderEpochs
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.segments.layout import UNKNOWN_HIGH_WATERMARK, PartitionLog


def choose_replicas(found: Iterable[PartitionLog], *, unknown_is_empty: bool = False) -> list[PartitionLog]:
    """Chooses one log for each partition name. Raises PipelineError if replicas belong to two topics of the
    same name, or if no checkpoint names the high watermark.
    """
    ordered = sorted(found, key=lambda log: (log.topic, log.partition))
    return [
        _choose(list(replicas), unknown_is_empty)
        for _, replicas in groupby(ordered, key=lambda log: (log.topic, log.partition))
    ]


def _choose(replicas: Sequence[PartitionLog], unknown_is_empty: bool) -> PartitionLog:
    name = f"{replicas[0].topic}-{replicas[0].partition}"
    topic_ids = {log.topic_id for log in replicas if log.topic_id is not None}
    if len(topic_ids) > 1:
        where = ", ".join(f"{log.directory} (topic id {log.topic_id})" for log in replicas)
        raise PipelineError(f"{name} belongs to several topics of the same name: {where}; name one directory")
    known = [log for log in replicas if log.high_watermark != UNKNOWN_HIGH_WATERMARK]
    if not known:
        log = replicas[0]
        if unknown_is_empty:
            start = log.log_start_offset
            return replace(log, high_watermark=start, last_stable_offset=start, aborted=())
        raise PipelineError(
            f"no checkpoint says how far {name} in {log.directory} is committed: let its broker run for"
            f" some more seconds (replica.high.watermark.checkpoint.interval.ms), then copy or read it again"
        )
    newest = max(known, key=lambda log: _epochs(log).latest_epoch)
    agreed = [_cut_to(_epochs(newest), log) for log in known]
    return max(
        agreed,
        key=lambda log: (
            _epochs(log).epoch_for_offset(log.end_offset - 1),
            log.end_offset,
            -log.log_start_offset,
        ),
    )


def _epochs(log: PartitionLog) -> LeaderEpochs:
    return LeaderEpochs([EpochEntry(*entry) for entry in log.leader_epochs])


def _cut_to(newest: LeaderEpochs, log: PartitionLog) -> PartitionLog:
    epoch = _epochs(log).epoch_for_offset(log.high_watermark - 1)
    agreed_end = newest.end_offset_for(epoch, log.high_watermark).end_offset
    if agreed_end < 0 or agreed_end >= log.high_watermark:
        return log
    return replace(
        log,
        high_watermark=max(agreed_end, log.log_start_offset),
        last_stable_offset=max(min(agreed_end, log.last_stable_offset), log.log_start_offset),
    )
