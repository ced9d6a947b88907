"""Writes `/isr_change_notification/isr_change_<10 digits>`: which partitions' ISR their leaders changed.

The numbers come from a counter that is raised by compare-and-set in the transaction that writes the
notification, so two leaders never write the same key. The counter holds the number to be given next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidelog.metadata import keys
from tidelog.metadata.entries import IsrChangeEntry
from tidelog.metadata.store import Compare, Get, MetadataStore, Put, StoreUnavailableError
from tidelog.model.topics import TopicPartition

MAX_PARTITIONS: Final = 2_500
"""Of one notification: with the longest topic names it stays below the store's limit of 1 MiB."""
MAX_ATTEMPTS: Final = 100
"""So often at most other brokers come in between; then it is left to the next time."""


async def publish_isr_changes(store: MetadataStore, partitions: Sequence[TopicPartition]) -> None:
    """Raises StoreUnavailableError. What was written then is written again: a repeated notification only has
    the controller read the same state keys once more.
    """
    for start in range(0, len(partitions), MAX_PARTITIONS):
        await _publish(store, tuple(partitions[start : start + MAX_PARTITIONS]))


async def _publish(store: MetadataStore, partitions: tuple[TopicPartition, ...]) -> None:
    counter = await store.get(keys.ISR_CHANGE_COUNTER)
    skipped = 0
    for _ in range(MAX_ATTEMPTS):
        number = (0 if counter is None else int(counter.value)) + skipped
        entry = IsrChangeEntry(number, partitions)
        revision = 0 if counter is None else counter.mod_revision
        result = await store.txn(
            [Compare.mod_revision(keys.ISR_CHANGE_COUNTER, revision), Compare.absent(entry.key)],
            [Put(keys.ISR_CHANGE_COUNTER, b"%d" % (number + 1)), Put(entry.key, entry.encode())],
            [Get(keys.ISR_CHANGE_COUNTER)],
        )
        if result.succeeded:
            return
        (standing,) = result.reads
        if standing == counter:
            skipped += 1  # the counter was lost or set back: a notification in use is never overwritten
        else:
            counter, skipped = standing, 0
    raise StoreUnavailableError("other brokers' notifications kept coming in between")
